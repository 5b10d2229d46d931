"""Settings that vLLM refuses to start with: in Python, and as a process that opens no port."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from stubserver import server
from stubserver.app import create_app
from stubserver.config.settings import Settings, flag_name
from stubserver.dialects.vllm.startup_checks import check_startup
from stubserver.errors import ConfigError, SettingsError

RUNNER = "sampling distribution replay requires Model Runner V2"
SPECULATIVE = (
    "sampling distribution replay with speculative decoding requires fixed verification boundaries; "
    "disable adaptive verification"
)
DIFFUSION = "sampling distribution replay does not support diffusion models"
PROCESSORS = "sampling distribution replay does not support custom logits processors"
MODE = (
    "sampling distribution replay requires logprobs_mode='processed_logprobs' so that returned logprobs are normalized "
    "over the same nucleus as the sampling mask"
)
TRACE = "trace replay requires Model Runner V2"

ADAPTIVE = {"method": "dspark", "enable_adaptive_verification": True}

IN_ORDER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"model_runner": "v1"}, {"model_runner": "v2"}, RUNNER),
    ({"speculative_config": ADAPTIVE}, {"speculative_config": {}}, SPECULATIVE),
    ({"diffusion": True}, {"diffusion": False}, DIFFUSION),
    ({"logits_processors": ("nowhere:Processor",)}, {"logits_processors": ()}, PROCESSORS),
    ({"logprobs_mode": "raw_logprobs"}, {"logprobs_mode": "processed_logprobs"}, MODE),
]
"""(what is refused, what isn't, the message)."""

WRONG = {name: value for wrong, _, _ in IN_ORDER for name, value in wrong.items()}
RIGHT = {name: value for _, right, _ in IN_ORDER for name, value in right.items()}


def refusal(**settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        check_startup(Settings(**settings))
    return str(caught.value)


@pytest.mark.parametrize(("wrong", "right", "message"), IN_ORDER, ids=[next(iter(each[0])) for each in IN_ORDER])
def test_each_is_refused_alone(wrong: dict[str, Any], right: dict[str, Any], message: str) -> None:
    assert refusal(return_sampling_mask=True, **{**RIGHT, **wrong}) == message


@pytest.mark.parametrize("fixed", range(len(IN_ORDER)))
def test_the_first_of_several_is_named(fixed: int) -> None:
    settings = dict(WRONG)
    for _, right, _ in IN_ORDER[:fixed]:
        settings |= right
    assert refusal(return_sampling_mask=True, **settings) == IN_ORDER[fixed][2]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logits"])
def test_every_other_mode_is_refused(mode: str) -> None:
    assert refusal(return_sampling_mask=True, logprobs_mode=mode) == MODE


def test_what_goes_together_starts() -> None:
    check_startup(Settings(return_sampling_mask=True, enable_trace_replay=True, **RIGHT))


def test_speculative_decoding_with_fixed_boundaries_starts() -> None:
    fixed = {"method": "ngram", "num_speculative_tokens": 3, "enable_adaptive_verification": False}
    check_startup(Settings(return_sampling_mask=True, **{**RIGHT, "speculative_config": fixed}))


def test_without_masks_everything_starts() -> None:
    check_startup(Settings(**WRONG))


def test_trace_replay_needs_v2() -> None:
    assert refusal(enable_trace_replay=True, model_runner="v1") == TRACE
    assert refusal(enable_trace_replay=True, return_sampling_mask=True, model_runner="v1") == RUNNER


def test_in_python_it_is_a_value_error_with_the_message_alone() -> None:
    with pytest.raises(ValueError, match="sampling distribution replay requires logprobs_mode") as caught:
        create_app(return_sampling_mask=True)
    assert str(caught.value) == MODE
    assert isinstance(caught.value, ConfigError)


def test_a_script_file_is_refused_too() -> None:
    script = {"default": "random", "return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}
    create_app(script)
    with pytest.raises(ValueError, match="does not support diffusion models"):
        create_app({**script, "diffusion": True})


def flags(**settings: Any) -> list[str]:
    """The flags of these settings."""
    found: list[str] = []
    for name, value in settings.items():
        found.append(flag_name(name))
        if not isinstance(value, bool):
            found.append(value)
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (flags(return_sampling_mask=True, model_runner="v1"), RUNNER),
        (
            flags(return_sampling_mask=True, speculative_config='{"enable_adaptive_verification": true}'),
            SPECULATIVE,
        ),
        (flags(return_sampling_mask=True, diffusion=True), DIFFUSION),
        (flags(return_sampling_mask=True, logits_processors="nowhere:Processor"), PROCESSORS),
        (flags(return_sampling_mask=True), MODE),
        (flags(enable_trace_replay=True, model_runner="v1"), TRACE),
    ],
    ids=["runner", "speculative", "diffusion", "processors", "mode", "trace"],
)
def test_a_process_says_why_and_opens_no_port(arguments: list[str], message: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STUBSERVER_")}
    with closing(server.bind("127.0.0.1", 0)) as taken:
        # Had it tried to open this port, it would say that the address is in use.
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "stubserver", "serve", "--port", port, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert run.stderr == f"stubserver: {message}\n"
    assert run.stdout == ""
    assert run.returncode == 2
