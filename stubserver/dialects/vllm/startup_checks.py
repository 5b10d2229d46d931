"""Settings that vLLM refuses to start with, in its order and words.

Source: vLLM 0.32.0, `config/vllm.py` (`_verify_sampling_replay_config`, `_verify_trace_replay_config`).
"""

from __future__ import annotations

from collections.abc import Callable

from stubserver.config.settings import Settings
from stubserver.errors import SettingsError

Check = tuple[Callable[[Settings], bool], str]
"""(is it refused, vLLM's words)."""

_SAMPLING_MASK: tuple[Check, ...] = (
    (
        lambda settings: settings.model_runner != "v2",
        "sampling distribution replay requires Model Runner V2",
    ),
    (
        lambda settings: bool(settings.speculative_config.get("enable_adaptive_verification")),
        "sampling distribution replay with speculative decoding requires fixed verification boundaries; "
        "disable adaptive verification",
    ),
    (
        lambda settings: settings.diffusion,
        "sampling distribution replay does not support diffusion models",
    ),
    (
        lambda settings: bool(settings.logits_processors),
        "sampling distribution replay does not support custom logits processors",
    ),
    (
        lambda settings: settings.logprobs_mode != "processed_logprobs",
        "sampling distribution replay requires logprobs_mode='processed_logprobs' so that returned logprobs are "
        "normalized over the same nucleus as the sampling mask",
    ),
)

_TRACE_REPLAY: tuple[Check, ...] = (
    (lambda settings: settings.model_runner != "v2", "trace replay requires Model Runner V2"),
)


def check_startup(settings: Settings) -> None:
    """Refuse settings that don't go together. Raises SettingsError, which is a ValueError, for the first."""
    checks = _SAMPLING_MASK if settings.return_sampling_mask else ()
    checks += _TRACE_REPLAY if settings.enable_trace_replay else ()
    for refused, words in checks:
        if refused(settings):
            raise SettingsError(words)
