"""POST /v1/systemone: values that can be recomputed by hand, and vLLM's refusals."""

import string
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512" / "script.yaml"
TABLE = np.load(BIGRAM.with_name("logits.npz"))["table"].astype(np.float64)

NOUL = {"type": "noul", "instructions": "Is it blue?"}


def serve(script, **settings):
    return TestClient(create_app(script, **settings), raise_server_exceptions=False)


@cache
def bigram(**settings):
    return serve(BIGRAM, **settings)


def ask(app, **fields):
    return app.post("/v1/systemone", json={"state": "The sky", "questions": {"q": NOUL}, **fields})


def refusal(**fields):
    reply = ask(bigram(), **fields)
    assert reply.status_code >= 400, reply.text
    return reply.status_code, reply.json()["error"]


def saying(prompt_part, **probs):
    """A script whose reply to a prompt with this part begins with these tokens."""
    return serve({"rules": [{"when": {"prompt": {"contains": prompt_part}}, "steps": [{"probs": probs}]}]})


# Values ---------------------------------------------------------------------------------------------------------------


def test_choice():
    app = saying("Colour?", A=0.6, B=0.3, X=0.1)
    criteria = {"blue": "as the sky", "red": None}
    question = {"type": "choice", "instructions": "Colour?", "criteria": criteria}
    reply = ask(app, questions={"colour": question}).json()
    answer, diagnostics = reply["answers"]["colour"], reply["diagnostics"]["colour"]
    assert (answer["type"], answer["choice"]) == ("choice", "blue")
    assert answer["probabilities"] == pytest.approx({"blue": 2 / 3, "red": 1 / 3}, abs=1e-6)
    assert answer["confidence"] == pytest.approx(0.6, abs=1e-6)
    assert diagnostics == {"label_mass": pytest.approx(0.9, abs=1e-6), "argmax_is_label": True}


def test_score():
    app = saying("How blue?", **{"0": 0.1, "1": 0.2, "2": 0.5, "3": 0.2})
    question = {"type": "score", "instructions": "How blue?", "criteria": ["none", 1, None]}
    reply = ask(app, questions={"q": question}).json()
    answer, diagnostics = reply["answers"]["q"], reply["diagnostics"]["q"]
    assert answer["legend"] == {"0": "none", "1": "1", "2": "None"}
    assert answer["probabilities"] == pytest.approx({"0": 0.125, "1": 0.25, "2": 0.625}, abs=1e-6)
    assert answer["score"] == pytest.approx(0.25 + 2 * 0.625, abs=1e-6)
    assert answer["confidence"] == pytest.approx(0.5, abs=1e-6)
    # A fourth level would be a label, but this question has three.
    assert diagnostics["label_mass"] == pytest.approx(0.8, abs=1e-6)


def test_noul():
    app = saying("blue", yes=0.1, no=0.2, maybe=0.7)
    answer = ask(app).json()["answers"]["q"]
    assert answer["type"] == "noul"
    assert answer["noul"] == answer["probabilities"]["yes"] == pytest.approx(1 / 3, abs=1e-6)
    assert answer["probabilities"]["no"] == pytest.approx(2 / 3, abs=1e-6)
    assert answer["confidence"] == pytest.approx(0.2, abs=1e-6)


def test_argmax_is_no_label():
    app = saying("blue", yes=0.1, no=0.2, A=0.7)
    assert ask(app).json()["diagnostics"]["q"] == {
        "label_mass": pytest.approx(0.3, abs=1e-6),
        "argmax_is_label": False,
    }


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_bigram_table(mode):
    """All 26 letters, more than `max_logprobs`, after the newline that ends the chat prompt."""
    app = bigram(logprobs_mode=mode)
    letters = string.ascii_uppercase
    newline, *labels = (app.post("/tokenize", json={"prompt": text}).json()["tokens"][0] for text in "\n" + letters)
    weights = np.exp(TABLE[newline])
    reply = ask(app, questions={"q": {"type": "choice", "criteria": dict.fromkeys(letters.lower())}}).json()
    shares = weights[labels] / weights[labels].sum()
    assert list(reply["answers"]["q"]["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-6)
    mass = weights[labels].sum() / weights.sum()
    assert reply["diagnostics"]["q"] == {"label_mass": pytest.approx(mass, abs=1e-6), "argmax_is_label": False}


def test_values_of_the_running_vllm():
    questions = {
        "a": {"type": "choice", "instructions": 5, "criteria": {"a": None, "b": {"x": 1}, "c": ""}},
        "b": {"type": "score", "criteria": ["a", "b", "c"]},
    }
    reply = ask(bigram(), state={"a": [1, "é"]}, questions=questions, instructions="Be brief.").json()
    assert list(reply["answers"]) == list(reply["diagnostics"]) == ["a", "b"]
    assert reply["answers"]["a"]["probabilities"] == pytest.approx(
        {"a": 0.9814233932431431, "b": 0.018545983537500577, "c": 3.062321935615771e-05}, abs=1e-6
    )
    assert reply["answers"]["b"]["score"] == pytest.approx(1.3541167413694581, abs=1e-6)
    assert reply["answers"]["b"]["confidence"] == pytest.approx(0.001620214635209305, abs=1e-6)
    assert reply["usage"]["output_tokens"] == 2


def test_shape():
    reply = ask(bigram(), request_id="zz", state=None).json()
    assert (reply["id"], reply["object"], reply["model"]) == ("decision-zz", "structured_decision", "bigram")
    assert reply["usage"]["output_tokens"] == 1
    assert reply["usage"]["input_tokens"] > 10


# The prompt -----------------------------------------------------------------------------------------------------------


def prompts_of(**fields):
    """The prompts that the script sees."""
    seen = []

    def next_logits(context):
        seen.append(context.request.prompt)
        return {}, 0.0

    assert ask(serve(next_logits), **fields).status_code == 200
    return seen


def test_state_question_and_options_are_in_the_prompt():
    questions = {
        "a": {"type": "choice", "instructions": "Colour?", "criteria": {"blue": "as the sky", "red": None}},
        "b": {"type": "noul", "instructions": "Nice?", "criteria": {"true": "pleasant"}},
        "c": {"type": "score", "instructions": "How much?", "criteria": ["little", "much"]},
    }
    first, second, third = prompts_of(state={"sky": "é"}, questions=questions, instructions="Be brief.")
    for prompt in (first, second, third):
        assert prompt.startswith('<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{"sky": "é"}\n\n')
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert "Colour?\nA: blue: as the sky\nB: red\n" in first
    assert "Nice?\nyes: pleasant\nno\n" in second
    assert "How much?\n0: little\n1: much\n" in third


def test_options_cannot_move_the_prompts_end():
    kwargs = {"add_generation_prompt": False, "continue_final_message": True, "eos_token": "x"}
    (prompt,) = prompts_of(chat_template_kwargs=kwargs)
    assert prompt.endswith("<|im_start|>assistant\n")


# Refusals, in the words of a running vLLM 0.32.0 ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"type": "zzz"}, "unknown question type 'zzz'; supported: ['choice', 'noul', 'score']"),
        ({"type": "noul", "extra": 1, "also": 2}, "question 'q': unknown field(s) ['also', 'extra']"),
        (
            {"type": "noul", "criteria": {"maybe": "t"}},
            "question 'q': noul criteria must be an object with true and false",
        ),
        ({"type": "noul", "criteria": []}, "question 'q': noul criteria must be an object with true and false"),
        (
            {"type": "choice", "criteria": {}},
            "question 'q': choice criteria must map option names to a description or null",
        ),
        (
            {"type": "choice", "criteria": dict.fromkeys(map(str, range(27)))},
            "question 'q': at most 26 options for this model",
        ),
        ({"type": "score", "criteria": ["a"]}, "question 'q': score criteria must be an ordered list of levels"),
        ({"type": "score", "criteria": ["a", "a"]}, "question 'q': duplicate option names"),
        ({"type": "score", "criteria": list(range(11))}, "question 'q': at most 10 options for this model"),
    ],
)
def test_refused_questions(question, message):
    status, error = refusal(questions={"q": question})
    assert (status, error["message"], error["type"], error["param"]) == (400, message, "BadRequestError", None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"questions": {}}, "questions: needs at least one question"),
        ({"questions": {str(n): NOUL for n in range(65)}}, "questions: at most 64 for this model"),
        ({"questions": {"": NOUL}}, "question ids must be non-empty"),
        ({"images": ["x"], "audio": ["y"], "videos": []}, "this model does not take audio, image inputs"),
        (
            {"chat_template_kwargs": {"messages": []}},
            "jinja2.environment.Template.render() got multiple values for keyword argument 'messages'",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True}},
            "a read is the reply's first token, so thinking must be off",
        ),
        (
            {"state": "!" * 4000},
            "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            "prompt. (parameter=input_tokens, value=513)",
        ),
    ],
)
def test_refused(fields, message):
    status, error = refusal(**fields)
    assert (status, error["message"], error["type"]) == (400, message, "BadRequestError")


def test_no_room_for_the_label():
    used = ask(bigram(), state="").json()["usage"]["input_tokens"]
    assert ask(bigram(), state="!" * (511 - used)).json()["usage"]["input_tokens"] == 511
    _, error = refusal(state="!" * (512 - used))
    assert error["message"] == (
        "The decoder prompt (length 512) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 512. Make sure that `max_model_len` is no smaller than the number of text tokens "
        "(prompt + requested output tokens)."
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"questions": {"q": NOUL}},
            "1 validation error:\n"
            "  {'type': 'missing', 'loc': 'body.state', 'msg': 'Field required', 'input': '<dict of 1 items>'}",
        ),
        (
            {"state": "x", "questions": []},
            "1 validation error:\n"
            "  {'type': 'dict_type', 'loc': 'body.questions', 'msg': 'Input should be a valid dictionary', "
            "'input': '<list of 0 items>'}",
        ),
    ],
)
def test_not_of_the_schema(body, message):
    reply = bigram().post("/v1/systemone", json=body)
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


def test_unknown_model_comes_first():
    status, error = refusal(model="zz", questions={})
    assert (status, error["type"]) == (404, "NotFoundError")


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        (BIGRAM, {"logprobs_mode": "raw_logits"}),  # no probabilities
        (BIGRAM.parents[1] / "scripts" / "t6.yaml", {}),  # no chat template
    ],
)
def test_models_that_cannot_decide(script, settings, caplog):
    reply = ask(serve(script, **settings))
    assert reply.status_code == 501
    assert reply.json() == {
        "error": {
            "message": "The model does not support the structured decision API",
            "type": "NotImplementedError",
            "param": None,
            "code": 501,
        }
    }
    assert "/v1/systemone is disabled: " in caplog.text


def test_no_label_is_possible():
    reply = ask(saying("blue", A=1.0))
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "BadRequestError")
    assert "not JSON compliant" in reply.json()["error"]["message"]


def test_no_answer_in_the_script():
    reply = ask(saying("green", yes=1.0))
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "UnscriptedError")
