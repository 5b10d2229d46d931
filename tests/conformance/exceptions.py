"""Recorded exchanges that are held to a looser rule than the others, or to none, and why. The README counts them."""

from typing import Any

EXCEPTIONS: dict[str, dict[str, Any]] = {
    # The recording's logits are off by one unit of float32's last place (7.78125095 for the table's 7.78125), as its
    # README says; at a temperature of 0.01 (to which vLLM raises smaller ones) that is a hundred times as much, 1.3e-4.
    "processed_logits-sampling-tiny_temp": {"tolerance": 2e-4},
    "processed_logits-sampling-temp_small": {"tolerance": 2e-4},
    "processed_logprobs-sampling-temp_small": {"tolerance": 2e-4},
}

_TIE = "Of two tokens of equal value one was drawn, and the reply doesn't tell its tokens, so that it can't be forced."
_PATH = (
    "The recording has a made-up path in place of the real one, which vLLM had hidden; this one it shows, and so do we."
)

UNMATCHED = {
    **{
        f"fuzz_raw_logprobs-model name with a path-http_raw/{route} model path": _PATH
        for route in (
            *("/tokenize", "/v1/completions", "/v1/systemone", "/v1/chat/completions"),
            "/v1/chat/completions/batch",
        )
    },
    "fuzz_raw_logprobs_render-model name with a path-http_raw//v1/completions/render model path": _PATH,
    "raw_logprobs-fuzz-h90#f48c0d": _TIE,
    "raw_logprobs-fuzz-h194#9eb88b": _TIE,
    "fuzz_c1-OTHER-rand_cchat_c1/h32_397": "created_cache_tokens: the real server's cache keeps blocks of 256 tokens.",
    "fuzz_raw_logprobs-chat beam search: bytes null-rand_comp_raw2/c2_22": "Two beams of equal score: either may be first.",
    "fuzz_raw_logprobs-late checks: order, and error event in streams-rand_comp_raw/c1_1568": (
        "Two prompts, each refused for another reason: the real server says the one or the other (24 times asked)."
    ),
}
"""Recorded exchanges that aren't replayed, and why."""
