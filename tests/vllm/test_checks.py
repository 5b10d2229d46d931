"""What is refused, and in which words."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.checks import check_beam_width, check_values
from stubserver.dialects.vllm.sampling import effective_temperature, parse_logit_bias
from stubserver.dialects.vllm.wire.errors import error_reply
from stubserver.engine.behaviour import Circumstances
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.params import Repetition, SamplingParams
from stubserver.tokenizer.hf import load_tokenizer


def refusal(check: Any, *args: Any, **kwargs: Any) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as caught:
        check(*args, **kwargs)
    status, body = error_reply(caught.value)
    assert status == 400
    return body["error"]["message"], body["error"]["param"]


def check_model(params: SamplingParams, vocab_size: int, max_logprobs: int) -> None:
    settings = Settings(max_logprobs=max_logprobs)
    circumstances = Circumstances(
        settings, vocab_size, constraint=None, prompt_len=1, tokenizer=load_tokenizer("builtin")
    )
    for check in VLLM_0_32_0.checks:
        check(params, circumstances)


VALUES: list[tuple[dict[str, Any], str, str | None]] = [
    ({"n": 0}, "n must be at least 1, got 0.", None),
    (
        {"n": 16385},
        "n must be at most 16384, got 16385. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment "
        "variable.",
        None,
    ),
    ({"presence_penalty": 2.01}, "presence_penalty must be in [-2, 2], got 2.01.", None),
    ({"presence_penalty": nan}, "presence_penalty must be in [-2, 2], got nan.", None),
    ({"frequency_penalty": -2.01}, "frequency_penalty must be in [-2, 2], got -2.01.", None),
    ({"repetition_penalty": inf}, "repetition_penalty must be a finite number, got inf.", None),
    ({"repetition_penalty": 0.0}, "repetition_penalty must be greater than zero, got 0.0.", None),
    (
        {"temperature": nan},
        "temperature must be a finite number, got nan. (parameter=temperature, value=nan)",
        "temperature",
    ),
    (
        {"temperature": -0.1},
        "temperature must be non-negative, got -0.1. (parameter=temperature, value=-0.1)",
        "temperature",
    ),
    (
        {"temperature": 2.1},
        "temperature must be in [0, 2], got 2.1. (parameter=temperature, value=2.1)",
        "temperature",
    ),
    ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)", "top_p"),
    ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1. (parameter=top_p, value=1.1)", "top_p"),
    ({"top_p": nan}, "top_p must be in (0, 1], got nan. (parameter=top_p, value=nan)", "top_p"),
    ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2.", None),
    ({"min_p": -0.1}, "min_p must be in [0, 1], got -0.1.", None),
    ({"min_p": 1.1}, "min_p must be in [0, 1], got 1.1.", None),
    ({"max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
    ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1.", None),
    (
        {"min_tokens": 6, "max_tokens": 5},
        "min_tokens must be less than or equal to max_tokens=5, got 6.",
        None,
    ),
    (
        {"stream_interval": 0},
        "stream_interval must be at least 1, got 0. (parameter=stream_interval, value=0)",
        "stream_interval",
    ),
    (
        {"extra_args": {"a": [1, {"b": 2**64}]}},
        "extra_args integers must be between -2**63 and 2**64 - 1. (parameter=extra_args)",
        "extra_args",
    ),
    (
        {"stop": ["a"], "detokenize": False},
        "stop strings are only supported when detokenize is True. Set detokenize=True to use stop.",
        None,
    ),
    (
        {"logprobs": -2},
        "logprobs must be non-negative or -1, got -2. (parameter=logprobs, value=-2)",
        "logprobs",
    ),
    (
        {"prompt_logprobs": -2},
        "prompt_logprobs must be non-negative or -1, got -2. (parameter=prompt_logprobs, value=-2)",
        "prompt_logprobs",
    ),
    ({"stop": ["a", ""]}, "stop cannot contain an empty string.", None),
    ({"bad_words": ["a", ""]}, "bad_words cannot contain an empty string. Got bad_words=['a', '']", None),
    ({"n": 2, "temperature": 0.0}, "n must be 1 when using greedy sampling, got 2.", None),
]


@pytest.mark.parametrize(("fields", "message", "parameter"), VALUES, ids=[str(fields) for fields, *_ in VALUES])
def test_a_value_out_of_its_limits_is_refused(fields: dict[str, Any], message: str, parameter: str | None) -> None:
    assert refusal(check_values, SamplingParams(**fields)) == (message, parameter)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 16384},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0},
        {"repetition_penalty": 1e-9},
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"top_p": 1e-9},
        {"top_p": 1.0},
        {"top_k": -1},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"min_tokens": 5, "max_tokens": 5},
    ],
    ids=str,
)
def test_a_value_at_its_limit_is_taken(fields: dict[str, Any]) -> None:
    check_values(SamplingParams(**fields))


def test_the_first_of_several_wrong_values_is_named() -> None:
    message, _ = refusal(check_values, SamplingParams(top_p=0.0, temperature=-1.0))
    assert message.startswith("temperature")


def test_a_beam_width_is_at_least_1() -> None:
    check_beam_width(1)
    assert refusal(check_beam_width, 0) == ("beam_width must be at least 1, got 0.", None)


def out_of_vocab(name: str, outside: list[int]) -> str:
    return (
        f"token_id(s) {outside} in {name} contain out-of-vocab token ids. Vocabulary size: 512 "
        f"(parameter={name}, value={outside})"
    )


MODEL: list[tuple[dict[str, Any], str, str]] = [
    (
        {"logprobs": 21},
        "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)",
        "logprobs",
    ),
    (
        {"logprobs": -1},
        "Requested sample logprobs of 512, which is greater than max allowed: 20 (parameter=logprobs, value=512)",
        "logprobs",
    ),
    (
        {"prompt_logprobs": 21},
        "Requested prompt logprobs of 21, which is greater than max allowed: 20 (parameter=prompt_logprobs, value=21)",
        "prompt_logprobs",
    ),
    (
        {"logprob_token_ids": list(range(129))},
        "Requested logprob_token_ids of length 129, which is greater than max allowed: 128 "
        "(parameter=logprob_token_ids, value=129)",
        "logprob_token_ids",
    ),
    (
        {"logprobs": 1, "logprob_token_ids": [1, 2]},
        "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). "
        "Got logprobs=1, len(logprob_token_ids)=2. (parameter=logprob_token_ids, value=2)",
        "logprob_token_ids",
    ),
    ({"logprob_token_ids": [1, 512]}, out_of_vocab("logprob_token_ids", [512]), "logprob_token_ids"),
    ({"logit_bias": {-1: 1.0, 511: 1.0}}, out_of_vocab("logit_bias", [-1]), "logit_bias"),
    ({"stop_token_ids": [999999]}, out_of_vocab("stop_token_ids", [999999]), "stop_token_ids"),
    (
        {"allowed_token_ids": []},
        "allowed_token_ids is not None and empty! (parameter=allowed_token_ids, value=[])",
        "allowed_token_ids",
    ),
    (
        {"allowed_token_ids": [1, 512]},
        "allowed_token_ids contains out-of-vocab token id! (parameter=allowed_token_ids, value=[512])",
        "allowed_token_ids",
    ),
]


@pytest.mark.parametrize(("fields", "message", "parameter"), MODEL, ids=[next(iter(fields)) for fields, *_ in MODEL])
def test_what_the_model_cannot_take_is_refused(fields: dict[str, Any], message: str, parameter: str) -> None:
    assert refusal(check_model, SamplingParams(**fields), 512, 20) == (message, parameter)


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 20, "prompt_logprobs": 20},
        {"logprobs": 0, "prompt_logprobs": 0},
        {"logprob_token_ids": [511] * 128},
        {"logprob_token_ids": [1, 2], "logprobs": 2},
        {"logit_bias": {0: 1.0, 511: 1.0}},
        {"stop_token_ids": [0, 511], "allowed_token_ids": [0, 511]},
    ],
    ids=str,
)
def test_what_the_model_can_just_take_is_taken(fields: dict[str, Any]) -> None:
    check_model(SamplingParams(**fields), 512, 20)


def test_a_cap_of_minus_1_is_the_vocabulary() -> None:
    everything = SamplingParams(logprobs=-1, prompt_logprobs=-1)
    check_model(everything, 512, -1)
    check_model(everything, 512, 512)
    message, _ = refusal(check_model, replace(everything, logprobs=513), 512, -1)
    assert "of 513, which is greater than max allowed: 512" in message


@pytest.mark.parametrize(
    ("given", "used"), [(0.0, 0.0), (1e-9, 0.01), (0.0099, 0.01), (0.01, 0.01), (0.5, 0.5), (-0.5, -0.5)]
)
def test_a_tiny_temperature_is_raised_so_that_only_0_is_greedy(given: float, used: float) -> None:
    assert effective_temperature(given) == used
    assert SamplingParams(temperature=effective_temperature(given)).greedy == (used <= 0)


def test_a_bias_has_its_ids_as_strings_and_is_clamped() -> None:
    assert parse_logit_bias({"0": 5, "12": -100.5, "3": 1e9}) == {0: 5, 12: -100.0, 3: 100.0}
    assert parse_logit_bias({}) == {}
    assert parse_logit_bias(None) is None


def test_a_bias_of_no_id_is_refused() -> None:
    message, parameter = refusal(parse_logit_bias, {"0": 1.0, "a": 1.0, "1.5": 1.0})
    assert message.startswith("logit_bias contains key(s) that cannot be converted to integer token IDs: ['a', '1.5']")
    assert parameter == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [({}, False), ({"logprobs": 0}, True), ({"logprob_token_ids": [1]}, True), ({"prompt_logprobs": 1}, False)],
)
def test_a_step_reports_values_if_asked_for(fields: dict[str, Any], wanted: bool) -> None:
    assert SamplingParams(**fields).wants_logprobs is wanted


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({"speculative_config": {"method": "ngram"}}, {"min_p": 0.1}, "The min_p and logit_bias sampling parameters"),
        ({"speculative_config": {"method": "ngram"}}, {"logit_bias": {1: 1.0}}, "The min_p and logit_bias sampling"),
        ({"diffusion": True}, {"temperature": 0.5}, "The temperature, min_p, seed, min_tokens, logit_bias, bad_words"),
        ({"diffusion": True}, {"allowed_token_ids": [1]}, "The temperature, min_p, seed, min_tokens, logit_bias"),
        ({"model_runner": "v1"}, {"prompt_logprob_token_ids": [[1]]}, "prompt_logprob_token_ids requires the V2 model"),
        ({}, {"prompt_logprob_token_ids": [[]]}, "prompt_logprob_token_ids must be a non-empty integer array of shape"),
        ({}, {"prompt_logprob_token_ids": [[1]] * 4096}, "prompt_logprob_token_ids has 4096 rows, but a prompt has at"),
        ({}, {"prompt_logprob_token_ids": [[1] * 21]}, "Requested 21 token ids per row in prompt_logprob_token_ids"),
        ({}, {"prompt_logprob_token_ids": [[512], []]}, "prompt_logprob_token_ids contain out-of-vocab token ids (-1"),
        ({}, {"prompt_logprob_token_ids": [[1]], "prompt_logprob_start": -1}, "prompt_logprob_start must be non-neg"),
        ({}, {"prompt_logprob_start": 1}, "prompt_logprob_start requires prompt_logprob_token_ids."),
    ],
)
def test_what_the_server_as_it_is_set_up_cannot_do_is_refused(
    settings: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    circumstances = Circumstances(Settings(**settings), 512, None, prompt_len=1, tokenizer=load_tokenizer("builtin"))

    def check(params: SamplingParams) -> None:
        for each in (*VLLM_0_32_0.checks, *VLLM_0_32_0.late_checks):
            each(params, circumstances)

    message, _ = refusal(check, SamplingParams(**fields))
    assert message.startswith(words)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 2**64},
        {"stream_interval": 2**64},
        {"repetition": Repetition(2**64, 0, 2)},
        {"thinking_token_budget": 2**64},
        {"stop": ["\ud800"]},
        {"bad_words": ["\ud800"]},
        {"extra_args": {"a": "\ud800"}},
    ],
    ids=str,
)
def test_what_cannot_get_to_the_engine_is_a_500_without_a_word(fields: dict[str, Any]) -> None:
    """As asked of vLLM 0.32.0; the engine's transport is msgpack."""
    circumstances = Circumstances(Settings(), 512, None, prompt_len=1, tokenizer=load_tokenizer("builtin"))
    with pytest.raises(GenerationError) as caught:
        VLLM_0_32_0.adapt(SamplingParams(**fields), circumstances)
    error = {"message": "", "type": "InternalServerError", "param": None, "code": 500}
    assert error_reply(caught.value) == (500, {"error": error})


def test_a_greedy_request_does_not_send_its_top_k() -> None:
    circumstances = Circumstances(Settings(), 512, None, prompt_len=1, tokenizer=load_tokenizer("builtin"))
    VLLM_0_32_0.adapt(SamplingParams(temperature=0.0, top_k=2**64), circumstances)


def test_the_order_of_late_checks_is_that_of_the_real_server() -> None:
    """Each of these is wrong for a model of 512 tokens; taken away one by one, the next one is named."""
    wrong: dict[str, Any] = {
        "logprobs": 21,
        "logit_bias": {512: 1.0},
        "stop_token_ids": [512],
        "allowed_token_ids": [],
        "routed_experts_prompt_start": 2,
        "bad_words": [" "],
    }
    circumstances = Circumstances(Settings(), 512, None, prompt_len=1, tokenizer=load_tokenizer("builtin"))

    def take(params: SamplingParams) -> None:
        for check in VLLM_0_32_0.checks:
            check(params, circumstances)
        VLLM_0_32_0.adapt(params, circumstances)

    for name in list(wrong):
        assert refusal(take, SamplingParams(**wrong))[1] == name
        del wrong[name]
