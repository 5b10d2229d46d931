"""The recorded exchanges, and how to put each to our server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDINGS = tuple(FIXTURES / f"vllm-0.32.0{kind}" for kind in ("", "-more", "-http", "-edges"))
BIGRAM = FIXTURES / "bigram512"
SCRIPT = BIGRAM / "script.yaml"

UNSHOWN = 1
"""A token that is left out of texts: <|im_start|>."""

FORCED = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
"""The routes whose sampled requests follow the recorded tokens."""


class BoostToken:
    """The custom logits processor of plugin_raw.jsonl: +4.0 on token 276."""

    def apply(self, logits: np.ndarray) -> np.ndarray:
        boosted = logits.copy()
        boosted[276] += 4.0
        return boosted


@cache
def bigram_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BIGRAM / "tokenizer.json"))


@cache
def bigram_table() -> np.ndarray:
    table: np.ndarray = np.load(BIGRAM / "logits.npz")["table"]
    return table


@dataclass(frozen=True)
class Exchange:
    file: str
    settings: dict[str, Any]
    group: str
    name: str
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.file}-{self.group}-{self.name}"

    @property
    def path(self) -> str:
        return str(self.request["path"])

    @property
    def content(self) -> bytes | None:
        if "raw" in self.request:
            return str(self.request["raw"]).encode()
        return json.dumps(self.request["body"]).encode() if "body" in self.request else None

    @cached_property
    def headers(self) -> dict[str, str]:
        headers = {name.lower(): value for name, value in (self.request.get("headers") or {}).items()}
        if self.content is not None:
            headers.setdefault("content-type", "application/json")
        forced = self._forced_token_ids()
        if forced:
            headers["x-stub-force-token-ids"] = json.dumps(forced)
        return headers

    def _forced_token_ids(self) -> list[list[int | str]]:
        """The recorded tokens of a sampled request: the random draw itself can't be the same."""
        body = self.request.get("body")
        if not isinstance(body, dict):
            return []
        sampling = body.get("sampling_params", body)
        if not isinstance(sampling, dict):
            return []
        drawn = sampling.get("temperature") != 0 and not body.get("use_beam_search")
        if not drawn or self.path not in FORCED or self.response["status"] != 200:
            return []
        choices = [choice for event in self._bodies() for choice in event.get("choices", ())]
        if sampling.get("top_k") == 1 and not all(map(_tells_its_tokens, choices)):
            # With one token to choose from (but for ties) nothing is drawn.
            return []
        forced: dict[int, list[int | str]] = {}
        for choice in choices:
            forced.setdefault(choice["index"], []).extend(self._tokens(choice))
        return [forced.get(index, []) for index in range(max(forced, default=-1) + 1)]

    def _tokens(self, choice: dict[str, Any]) -> list[int | str]:
        """The generated tokens of a choice: its ids, or else its tokens' texts."""
        if choice.get("token_ids") is not None:
            return list(choice["token_ids"])
        if choice["logprobs"] is None:
            return self._tokens_of_text(choice)
        if "content" in choice["logprobs"]:
            pairs = [(entry["token"], entry["logprob"]) for entry in choice["logprobs"]["content"]]
        else:
            pairs = list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], strict=True))
        if self.request["body"].get("echo") and "events" in self.response:
            pairs = pairs[len(choice["prompt_token_ids"] or ()) :]
        elif self.request["body"].get("echo") and "content" not in choice["logprobs"]:
            pairs = pairs[-self.response["body"]["usage"]["completion_tokens"] :]
        tokenizer = bigram_tokenizer()
        tokens: list[int | str] = []
        for text, value in pairs:
            if text.startswith("token_id:"):
                tokens.append(int(text.removeprefix("token_id:")))
                continue
            # A byte token has no text of its own; its value tells which one it was.
            tokens.append(text or self._token_of_value(value, tokens, tokenizer))
        return tokens

    def _tokens_of_text(self, choice: dict[str, Any]) -> list[int | str]:
        """A text as it is tokenized: of a choice (or an event of it) that has nothing else.

        Where that makes fewer tokens than there were, special ones, which don't show, are put after it.
        """
        if "events" in self.response and "text" in choice:
            return [choice["text"]]
        token_ids = bigram_tokenizer().encode(self._text(choice), add_special_tokens=False).ids
        body = self.response.get("body") or {}
        missing = body["usage"]["completion_tokens"] - len(token_ids) if len(body.get("choices", ())) == 1 else 0
        return [*token_ids, *[UNSHOWN] * missing]

    def _text(self, choice: dict[str, Any]) -> str:
        if "text" in choice:
            return str(choice["text"])
        message = choice.get("message") or {key: value for key, value in choice["delta"].items() if key != "role"}
        return (message.get("reasoning") or "") + (message.get("content") or "")

    def _token_of_value(self, value: float, before: list[int | str], tokenizer: Tokenizer) -> int:
        """The token without a text of its own that has this value after the tokens `before` (or after the prompt)."""
        body = self.request["body"]
        # A chat's prompt ends in a newline here.
        last = before[-1] if before else tokenizer.encode(body.get("prompt", "\n")).ids[-1]
        last = tokenizer.encode(last).ids[0] if isinstance(last, str) else last
        row = bigram_table()[last].astype(np.float64)
        if self.settings["logprobs_mode"].startswith("processed"):
            defaults = self.settings.get("override_generation_config", {})
            row = row / body.get("temperature", defaults.get("temperature"))
            row[row < np.sort(row)[-(body.get("top_k") or defaults.get("top_k") or len(row))]] = -np.inf
        if self.settings["logprobs_mode"].endswith("logprobs"):
            row = row - np.log(np.exp(row).sum())
        nearest = [int(token_id) for token_id in np.abs(row - value).argsort()]
        return next(token_id for token_id in nearest if tokenizer.decode([token_id]).endswith("\ufffd"))

    def _bodies(self) -> list[dict[str, Any]]:
        if "events" in self.response:
            return [event for event in self.response["events"] if event != "[DONE]"]
        return [self.response["body"]]


def _tells_its_tokens(choice: dict[str, Any]) -> bool:
    """Whether a choice, or an event of it, has its ids or a text for each token; a stream's first has none."""
    if choice.get("token_ids") is not None or "role" in choice.get("delta", {}):
        return True
    logprobs = choice["logprobs"] or {}
    texts = logprobs.get("tokens", [entry["token"] for entry in logprobs.get("content", ())])
    return bool(texts) and all(texts)


def load_exchanges(folders: Iterable[Path]) -> Iterator[Exchange]:
    for path in sorted(path for folder in folders for path in folder.glob("*.jsonl")):
        header, *lines = map(json.loads, path.read_text(encoding="utf-8").strip("\n").split("\n"))
        settings = {
            **header["server"],
            "served_model_name": header["served_model_name"],
            "model_runner": "v1",
            "embeddings_endpoint": False,
            "control": "off",
        }
        if settings.get("logits_processors"):
            settings["logits_processors"] = [f"{__name__}:BoostToken"]
        for line in lines:
            yield Exchange(path.stem, settings, line["group"], line["name"], line["request"], line["response"])
