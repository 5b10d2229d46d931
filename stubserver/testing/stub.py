"""A stub in this process: what it says, what it was asked, and the app that answers, without a socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import stubserver.testing.assertions as assertions
from stubserver.app import ScriptSource, create_app
from stubserver.control.controls import Controls
from stubserver.control.explain import explain_body
from stubserver.dialects.vllm.dialect import VLLM
from stubserver.engine.model import Model
from stubserver.errors import SettingsError
from stubserver.journal.entry import Entry
from stubserver.journal.journal import Journal
from stubserver.script.file.amended import AmendedScript, amend, read_default
from stubserver.serving.dialect import Dialect
from stubserver.testing.fault_log import FaultLog
from stubserver.testing.rules import RuleChain
from stubserver.tokenizer.hf import HFTokenizer

if TYPE_CHECKING:
    import httpx

NO_KEY = "EMPTY"
"""What clients that insist on a key send to a server that wants none, as vLLM's documentation has it."""


class Stub:
    """A stub without a socket. `app` is the ASGI app, for instance for `httpx.ASGITransport(stub.app)`.

    script, dialect, settings: as for `create_app`; the journal is on unless `journal=False`. Raises ConfigError.
    """

    def __init__(self, script: ScriptSource = None, *, dialect: Dialect = VLLM, **settings: Any) -> None:
        self.app = create_app(script, dialect=dialect, **{"journal": True, **settings})
        self._controls: Controls = self.app.state.server
        self._begin_fault_log()
        self._saved: tuple[HFTokenizer, TemporaryDirectory[str]] | None = None

    # What it says

    def on(
        self,
        prompt: str | Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        field: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> RuleChain:
        """A new rule, for requests that fulfil all of this (`when` of a script file); without any, for all requests.

        Such rules are tried in the order in which they were added, before those of the script. model: whose rule it
        is; left out, the first model's. name: for messages.
        """
        given = {"prompt": prompt, "model": model, "field": field, "header": header}
        when = {key: value for key, value in given.items() if value is not None}
        shown = name or f"on({', '.join(f'{key}={value!r}' for key, value in when.items())})"
        return RuleChain(self._controls.served.find_model(model), shown, when)

    def default(self, default: str | Mapping[str, Any], *, model: str | None = None) -> None:
        """What answers where no rule does: "random", "error", or a step such as {"logits": …, "rest": …}."""
        served = self._controls.served.find_model(model)
        value = dict(default) if isinstance(default, Mapping) else default
        read = read_default(value, served.tokenizer, served.vocab_size)
        script = amend(served.script, served.tokenizer)
        served.script = AmendedScript(script.base, served.tokenizer, script.added, read)

    def load(self, script: ScriptSource) -> None:
        """Serve this script; what was said by `on` and `default` is gone. Raises ConfigError."""
        self._controls.load(script)

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Have these faults on the whole server, and no others; none at all by `stub.faults()`. Raises ConfigError."""
        self._controls.faults.replace([dict(fault) for fault in faults])

    def allow_faults_without_effect(self) -> None:
        """Let faults pass that befall replies and change nothing, which fail a test otherwise."""
        self._fault_log.allowed = True

    def reset(self) -> None:
        """As new: script, journal, faults, counters, seeds, and the cassette at its beginning."""
        self._controls.reset()

    def close(self) -> None:
        """Let go of the cassette, so that others may record to it."""
        if self._controls.player is not None:
            self._controls.player.close()

    def explain(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None, top: int = 10
    ) -> dict[str, Any]:
        """A dry run of a request body, as from /stub/explain. Raises RequestError for what would be refused."""
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        return explain_body(self._controls, dict(body), raw, top)

    # How to reach it

    @property
    def model(self) -> str:
        """The name of the first model."""
        return self._first.name

    @property
    def api_key(self) -> str:
        """A key that is accepted."""
        return self._controls.served.settings.api_key[0] if self._controls.served.settings.api_key else NO_KEY

    @property
    def tokenizer_path(self) -> Path:
        """A directory with the first model's tokenizer, which transformers' AutoTokenizer loads; it is temporary."""
        tokenizer = self._first.tokenizer
        if self._saved is None or self._saved[0] is not tokenizer:
            self._saved = tokenizer, TemporaryDirectory(prefix="stubserver-")
            tokenizer.save(self._saved[1].name)
        return Path(self._saved[1].name)

    def async_client(self, **options: Any) -> httpx.AsyncClient:
        """An httpx client that calls the app directly; options are those of `httpx.AsyncClient`."""
        import httpx

        transport = httpx.ASGITransport(app=self.app)
        return httpx.AsyncClient(**{"transport": transport, "base_url": "http://stubserver", **options})

    # What it was asked

    @property
    def requests(self) -> list[Entry]:
        """The journal: every request and its reply, the oldest first."""
        return self._journal.entries()

    @property
    def last(self) -> Entry:
        """The latest request. Raises LookupError if there was none."""
        requests = self.requests
        if not requests:
            raise LookupError("there was no request yet")
        return requests[-1]

    def assert_requested(
        self, *, times: int | None = None, path: str | None = None, body: Mapping[str, Any] | None = None
    ) -> list[Entry]:
        """Assert that there were requests to this path whose body has at least these fields; these are returned.

        times: exactly how many; left out, at least one.
        """
        __tracebackhide__ = True
        forgotten = self._journal.forgotten
        return assertions.assert_requested(self.requests, times=times, path=path, body=body, forgotten=forgotten)

    def assert_logprobs_mode(self, mode: str) -> None:
        """Assert that the last request asked for logprobs and was answered in this mode."""
        __tracebackhide__ = True
        assertions.assert_logprobs_mode(self.last, mode)

    def assert_labels_returned(self, labels: Sequence[str | int], position: int = 0) -> None:
        """Assert that the last reply has values for these tokens (texts or ids), in every choice, at this position."""
        __tracebackhide__ = True
        assertions.assert_labels_returned(self.last, labels, position, self._controls.dialect.wire)

    def assert_faults_changed_something(self) -> None:
        """Assert that each fault that befell replies changed something of at least one of them.

        The fixtures do so at the end of a test. A reply that broke off doesn't count, nor one that another fault gave
        in the server's place.
        """
        __tracebackhide__ = True
        idle = self._fault_log.explain_idle()
        if idle:
            raise AssertionError(idle)

    def _begin_fault_log(self) -> None:
        """Forget which faults have befallen replies: a new test begins."""
        self._fault_log = FaultLog()
        self._controls.faults.notify = self._fault_log.add

    @property
    def _first(self) -> Model:
        return self._controls.served.models[0]

    @property
    def _journal(self) -> Journal:
        if self._controls.journal is None:
            raise SettingsError("this stub keeps no journal: it was made with journal=False")
        return self._controls.journal
