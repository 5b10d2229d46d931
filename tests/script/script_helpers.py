"""Small things that the script's tests share."""

from pathlib import Path

from stubserver.script.context import Context, ScriptRequest
from stubserver.script.file.load import LoadedScript, load_script

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
BIGRAM512 = str(FIXTURES / "bigram512")
T6 = str(FIXTURES / "t6")

BLUE, RED, YES, NO, GOOD, AND = 296, 336, 334, 332, 339, 342  # of bigram512
EOS = 0


def load(tokenizer=BIGRAM512, **keys) -> LoadedScript:
    return load_script({"tokenizer": tokenizer, **keys})


def request_for(loaded, prompt="The sky is", **fields) -> ScriptRequest:
    text, token_ids = (prompt, loaded.tokenizer.encode(prompt)) if isinstance(prompt, str) else (None, prompt)
    fields = {"endpoint": "/v1/completions", "model": "stub", "body": {}, "headers": {}} | fields
    if text is None:
        text = loaded.tokenizer.decode(token_ids)
    return ScriptRequest(prompt=text, prompt_token_ids=token_ids, **fields)


def logits_at(loaded, request, output=(), seed=0):
    """The Logits after the request's prompt and this output."""
    return loaded.script.bind(request)(Context(request, request.prompt_token_ids, list(output), seed))


def logits_in_prompt(loaded, request, length):
    """The Logits after the first `length` tokens of the request's prompt."""
    return loaded.script.bind(request)(Context(request, request.prompt_token_ids[:length], []))


def greedy(loaded, request, count):
    """The first `count` tokens of the greedy answer."""
    output = []
    for _ in range(count):
        output.append(int(logits_at(loaded, request, output).values.argmax()))
    return output
