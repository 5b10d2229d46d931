"""A contract for code that reads label probabilities from a server's logprobs: tests to inherit.

    class TestMyBackend(LabelReadbackContract):
        missing_label_errors = (MissingLabelError,)

        def read_labels(self, request):
            backend = MyBackend(request.base_url, request.api_key, request.model)
            return backend.read(request.prompt, request.labels)

Each test is a clause: a server (contract_scenes), a read, and a verdict (contract_verdict). At the end of the run there
is a line a clause (contract_report).
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final

import pytest

import stubserver.testing.contract_scenes as scenes
from stubserver.errors import TokenizerError
from stubserver.journal.entry import Entry
from stubserver.script.tokens import TokenReader
from stubserver.testing.assertions import logprobs_of
from stubserver.testing.contract_properties import CLAUSE, DETAIL
from stubserver.testing.contract_scenes import Scene
from stubserver.testing.contract_verdict import ErrorTypes, Label, find_problem
from stubserver.testing.server import StubServer

MakeServer = Callable[..., StubServer]
Values = Sequence[float]

_LONGEST_EVIDENCE = 400
_saving_tokenizer = Lock()


class NoSingleTokenError(ValueError):
    """The request's labels have no ids, for one of them is several tokens."""


@dataclass(frozen=True)
class LabelRequest:
    """What an adapter is asked for: a number for each label, in their order.

    labels: their texts; those of byte tokens are U+FFFD. Two labels may have one text.
    """

    prompt: str
    labels: tuple[str, ...]
    _labels: tuple[Label, ...]
    _server: StubServer

    @property
    def label_ids(self) -> tuple[int, ...]:
        """The labels' token ids. Raises NoSingleTokenError if one isn't a single token."""
        for label in self._labels:
            if len(label.token_ids) != 1:
                raise NoSingleTokenError(f"{label.text!r} is {len(label.token_ids)} tokens: {label.token_ids}")
        return tuple(label.token_ids[0] for label in self._labels)

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`."""
        return self._server.base_url

    @property
    def url(self) -> str:
        """The same without `/v1`."""
        return self._server.url

    @property
    def api_key(self) -> str:
        """A key that the server takes."""
        return self._server.api_key

    @property
    def model(self) -> str:
        """The served model's name."""
        return self._server.model

    @property
    def tokenizer_path(self) -> Path:
        """A directory that `AutoTokenizer.from_pretrained` loads."""
        with _saving_tokenizer:  # reads may be concurrent
            return self._server.tokenizer_path


class LabelReadbackContract:
    """Inherit it in a class that pytest collects, and say how your code reads labels.

    missing_label_errors: what your code raises where the server reports no value for a label.
    server_settings: settings that your code tells its users to start the server with; a clause's own go before them.
    not_applicable: clause → why it doesn't concern your code. It is skipped, and reported as not applicable.
    tolerance: how far a logprob may be off, in nats.
    """

    missing_label_errors: ClassVar[ErrorTypes] = ()
    server_settings: ClassVar[Mapping[str, Any]] = {}
    not_applicable: ClassVar[Mapping[str, str]] = {}
    tolerance: ClassVar[float] = 1e-4

    def read_labels(self, request: LabelRequest) -> Values | Awaitable[Values]:
        """A number for each of the labels, in their order: logprobs or probabilities, normalised over them or not.

        May be `async def`. What your code raises has to come through.
        """
        raise NotImplementedError

    def read_many(self, requests: Sequence[LabelRequest]) -> Sequence[Values]:
        """The same for several requests at once, in their order. Override it if your code has a way of its own."""
        if inspect.iscoroutinefunction(self.read_labels):
            return asyncio.run(_gather([self.read_labels(request) for request in requests]))
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(self._read, requests))

    # The clauses. Their docstrings say what each stands for; a failing one shows it.

    def test_processed_values_are_exact(self, make_stubserver: MakeServer) -> None:
        """In processed mode the values are exact: over the labels with a mask, over the vocabulary without.

        A threshold on a probability needs more than the right order. PrimeIntellect-ai/prime-rl#697 and
        huggingface/trl#4159: logprobs that were off by the temperature. ggml-org/llama.cpp#10783: values before and
        after sampling mixed up.
        """
        self._hold(make_stubserver, scenes.EXACT)

    def test_raw_values_have_right_ratios(self, make_stubserver: MakeServer) -> None:
        """In raw mode, vLLM's default, the labels' logprobs are right relative to each other.

        They are taken before the mask, so they don't add up to 1 over the labels. vllm-project/vllm#9453, #21398:
        values after temperature and top_p in V0, raw ones by default in V1.
        """
        self._hold(make_stubserver, scenes.RAW_PRESENT)

    def test_raw_missing_label_raises(self, make_stubserver: MakeServer) -> None:
        """In raw mode a label outside the top K has no value: raise an error that names it, and never fill one in.

        AnyJev (anyjev/backends/vllm.py) fills in -30, so that a label of 1% and one of a millionth of it look the same.
        vllm-project/vllm#43466: multi-label classifiers read a wrong mass.
        """
        self._hold(make_stubserver, scenes.RAW_MISSING)

    def test_sampled_label_counts_once(self, make_stubserver: MakeServer) -> None:
        """The sampled label counts once, whether there are N entries or N + 1.

        vllm-project/vllm#3752: the sampled token comes on top of the N best if it isn't one of them. #36660: it came
        twice.
        """
        self._hold(make_stubserver, scenes.SAMPLED_AMONG_TOP, scenes.SAMPLED_BELOW_TOP)

    def test_concurrent_reads_keep_their_order(self, make_stubserver: MakeServer) -> None:
        """Reads at the same time get each their own values, in the order of the prompts.

        Replies come in any order. EleutherAI/lm-evaluation-harness (openai_completions.py) sorts a batch's by index.
        """
        asked = scenes.concurrent_scenes()
        server = self._serve(make_stubserver, asked[0])
        outcomes = _attempt(self._read_many, [_request(scene, server) for scene in asked])
        if isinstance(outcomes, Exception) or len(outcomes) != len(asked):
            outcomes = [outcomes] * len(asked)
        for scene, outcome in zip(asked, outcomes, strict=True):
            self._judge(scene, server, outcome)

    def test_leading_space_makes_another_token(self, make_stubserver: MakeServer) -> None:
        """ "A" and " A" are two tokens, with a value each.

        vllm-project/vllm#44319 (PR#44504): leading spaces got lost, and the two became one.
        """
        self._hold(make_stubserver, scenes.WITHOUT_SPACE, scenes.WITH_SPACE)

    def test_two_ids_with_one_text(self, make_stubserver: MakeServer, tmp_path: Path) -> None:
        """Two ids may have one text: read by id, or raise.

        vllm-project/vllm#44319, sgl-project/sglang#32290: a mapping keyed by text keeps one of them, with the later and
        worse value.
        """
        self._hold(make_stubserver, *scenes.one_text_scenes(tmp_path))

    def test_label_of_several_tokens(self, make_stubserver: MakeServer) -> None:
        """A label that is no single token is refused or read whole; its first or last token is another label.

        EleutherAI/lm-evaluation-harness (openai_completions.py) adds up all tokens of a continuation.
        """
        self._hold(make_stubserver, scenes.SEVERAL_TOKENS)

    def test_byte_tokens(self, make_stubserver: MakeServer) -> None:
        """A token of bytes that are no whole character has no text of its own: read by id, or refuse it.

        vllm-project/vllm#27300, #28874: such tokens are shown as "" or U+FFFD, all alike.
        """
        self._hold(make_stubserver, scenes.BYTES)

    def test_more_labels_than_the_cap(self, make_stubserver: MakeServer) -> None:
        """More logprobs than the server allows: a 400, which is an error for the caller too.

        vllm-project/vllm#5299 and ms-swift#9644: `max_logprobs`, 20 by default.
        """
        self._hold(make_stubserver, scenes.CAP_REFUSED)

    def test_more_labels_than_come_back(self, make_stubserver: MakeServer) -> None:
        """More logprobs than the server gives, with a 200: raise the error of a missing label.

        vllm-project/vllm#43466: labels dropped with no error. sinkarusa/jevemu is tested with servers that truncate.
        """
        self._hold(make_stubserver, scenes.CAP_TRUNCATED)

    def test_top_logprobs_truncated(self, make_stubserver: MakeServer) -> None:
        """Fewer entries than were asked for: raise the error of a missing label.

        vllm-project/vllm#44319: fewer entries than N; #43466: a label dropped with no error.
        """
        self._hold(make_stubserver, scenes.TOP_TRUNCATED)

    def test_no_logprobs(self, make_stubserver: MakeServer) -> None:
        """logprobs null or absent: raise.

        NVIDIA-NeMo/RL#2845: null in a 200. pegainfer-project/pegainfer#64, jjang-ai/vmlx#99: servers that strip them.
        marin-community/marin#5331: chance accuracy.
        """
        self._hold(make_stubserver, scenes.LOGPROBS_NULL, scenes.LOGPROBS_ABSENT)

    def test_label_parameters_ignored(self, make_stubserver: MakeServer) -> None:
        """A server that ignores allowed_token_ids and the like answers 200 all the same: don't rely on the mask.

        sinkarusa/jevemu's probe: the removed `guided_choice` is ignored; vllm-project/vllm#12225.
        """
        self._hold(make_stubserver, scenes.IGNORED, scenes.IGNORED_MISSING)

    def test_not_a_number(self, make_stubserver: MakeServer) -> None:
        """A NaN among the values is an error, not a value: it makes every sum NaN, and every comparison false.

        NVIDIA/TensorRT-LLM#9302, vllm-project/vime#64: -inf less -inf.
        """
        self._hold(make_stubserver, scenes.NOT_A_NUMBER)

    def test_rate_limited_then_answered(self, make_stubserver: MakeServer) -> None:
        """A 429, then a good reply: the right values after another try, or an error; nothing filled in.

        llm-d/llm-d-inference-sim#506, #130: the first requests fail, then they succeed.
        """
        self._hold(make_stubserver, scenes.RATE_LIMITED)

    def test_error_inside_the_reply(self, make_stubserver: MakeServer) -> None:
        """An error object in a 200: raise.

        BerriAI/litellm#40578, vllm-project/vllm#40986: lost by the client; ai-dynamo/aiperf#1076: counted as success.
        """
        self._hold(make_stubserver, scenes.ERROR_INSIDE)

    # How they are held

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        unknown = set(cls.not_applicable) - set(CLAUSES)
        if unknown:
            known = ", ".join(CLAUSES)
            raise TypeError(f"{cls.__name__}.not_applicable: no such clause: {', '.join(unknown)}. Clauses: {known}")

    @pytest.fixture(autouse=True)
    def _clause(self, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
        if type(self).read_labels is LabelReadbackContract.read_labels:
            raise NotImplementedError(f"{type(self).__name__} needs read_labels(self, request)")
        clause = request.function.__name__.removeprefix("test_")
        self._stands_for = inspect.getdoc(request.function) or ""
        self._record = record_property
        if clause in CLAUSES:
            record_property(CLAUSE, clause)
        if clause in self.not_applicable:
            pytest.skip(f"not applicable: {self.not_applicable[clause]}")

    def _hold(self, make: MakeServer, *held: Scene) -> None:
        __tracebackhide__ = True
        for scene in held:
            server = self._serve(make, scene)
            self._judge(scene, server, _attempt(self._read, _request(scene, server)))

    def _serve(self, make: MakeServer, scene: Scene) -> StubServer:
        server = make(scene.script, **{**self.server_settings, **scene.settings, "logprobs_mode": scene.mode})
        server.faults(*scene.faults)
        server.allow_faults_without_effect()  # a client may not ask for what a fault changes
        return server

    def _read(self, request: LabelRequest) -> Values:
        values = self.read_labels(request)
        return asyncio.run(_await(values)) if isinstance(values, Awaitable) else values

    def _read_many(self, requests: Sequence[LabelRequest]) -> list[Values]:
        return list(self.read_many(requests))

    def _judge(self, scene: Scene, server: StubServer, outcome: Any) -> None:
        __tracebackhide__ = True
        if isinstance(outcome, NoSingleTokenError):
            pytest.skip("not applicable: the adapter reads by label_ids, and a label of several tokens has none")
        labels = _labels(scene, server)
        problem = find_problem(scene, labels, outcome, self.missing_label_errors, self.tolerance)
        if problem is not None:
            cause = outcome if isinstance(outcome, Exception) else None
            raise AssertionError("\n".join([problem, "", self._stands_for, "", *_explain(scene, server)])) from cause
        if isinstance(outcome, Exception):
            self._record(DETAIL, f"raised {type(outcome).__name__}")


CLAUSES: Final = tuple(name.removeprefix("test_") for name in vars(LabelReadbackContract) if name.startswith("test_"))
"""The names of the clauses, in the order of the report."""


def _attempt(read: Callable[[Any], Any], asked: Any) -> Any:
    """What it returns, or the exception."""
    try:
        return read(asked)
    except Exception as error:
        return error


async def _await(values: Awaitable[Values]) -> Values:
    return await values


async def _gather(reads: Sequence[Awaitable[Values]]) -> list[Values]:
    return list(await asyncio.gather(*reads))


def _request(scene: Scene, server: StubServer) -> LabelRequest:
    labels = _labels(scene, server)
    return LabelRequest(scene.prompt, tuple(label.text for label in labels), tuple(labels), server)


def _labels(scene: Scene, server: StubServer) -> list[Label]:
    tokenizer = server._first.tokenizer
    tokens = TokenReader(tokenizer, tokenizer.vocab_size)

    def read(written: int | str) -> Label:
        try:
            token_id = tokens.read(written)
        except TokenizerError:
            return Label(str(written), tuple(tokens.split(str(written))))
        return Label(tokenizer.token_text(token_id), (token_id,))

    return [read(written) for written in scene.labels]


def _explain(scene: Scene, server: StubServer) -> list[str]:
    """The server, what it was asked last and what it said, and what to change."""
    return [f"The server: {scene.server}.", *_evidence(server, scene.prompt), f"What to change: {scene.change}"]


def _evidence(server: StubServer, prompt: str) -> list[str]:
    """The last request with this prompt, or, since a prompt may come as ids, the last one."""
    entries = server.requests
    if not entries:
        return ["It was asked nothing."]
    written = json.dumps(prompt)[1:-1]
    last = next((entry for entry in reversed(entries) if written in json.dumps(entry.body, default=str)), entries[-1])
    return [
        f"The request: {last.method} {last.path} {_short(last.body)}",
        f"The reply: {last.status} {_short(_values(last, server))}",
    ]


def _values(entry: Entry, server: StubServer) -> Any:
    """Token → logprob at each position of the reply, which is what matters; the reply itself if it has no choices."""
    reply = entry.reply if entry.reply is not None else [event.data for event in entry.events]
    return logprobs_of(entry, server._controls.dialect.wire) or reply


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_EVIDENCE else text[:_LONGEST_EVIDENCE] + "…"
