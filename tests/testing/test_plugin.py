"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from stubserver.testing import plugin

IMPORT_SECONDS = 0.010

USES = """
    import json, os
    from urllib.request import Request, urlopen

    def text(stub, prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
        with urlopen(Request(stub.base_url + "/completions", body, {"content-type": "application/json"})) as reply:
            return json.load(reply)["choices"][0]["text"]
"""


def run(pytester: pytest.Pytester, code: str, *arguments: str, passed: int, failed: int = 0) -> pytest.RunResult:
    """The result of a run in this process, whose outcomes have to be these."""
    pytester.makeini("[pytest]\naddopts = --strict-markers\nasyncio_default_fixture_loop_scope = function\n")
    indent = "    "
    body = "\n".join(line.removeprefix(indent) for line in (USES + code).splitlines())
    pytester.makepyfile(body)
    result = pytester.runpytest("-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(passed=passed, failed=failed)
    return result


def test_one_server_for_all_tests_as_new_for_each(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
    urls = set()

    def test_first(stubserver):
        urls.add(stubserver.url)
        stubserver.on(prompt="p").text(" A")
        stubserver.faults({"kind": "status", "status": 500, "after": 1})
        assert text(stubserver, "p") == " A"
        assert len(stubserver.requests) == 1

    def test_second(stubserver):
        urls.add(stubserver.url)
        assert stubserver.requests == []
        stubserver.default({"logits": {" B": 1}, "rest": 0})
        assert [text(stubserver, "p") for _ in range(2)] == [" B", " B"]
        assert len(urls) == 1
    """,
        passed=2,
    )


def test_the_marker_gives_a_test_its_own_server(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
    import pytest

    SCRIPT = {"rules": [{"steps": [{"text": " B"}]}]}

    @pytest.mark.stubserver(script=SCRIPT, logprobs_mode="processed_logits")
    def test_marked(stubserver, stubserver_in_process):
        for stub in (stubserver, stubserver_in_process):
            assert stub.app.state.server.served.settings.logprobs_mode == "processed_logits"
        assert text(stubserver, "p") == " B"

    @pytest.mark.stubserver(SCRIPT)
    class TestMarked:
        def test_method(self, stubserver):
            assert text(stubserver, "p") == " B"

    def test_unmarked(stubserver):
        assert stubserver.app.state.server.served.settings.logprobs_mode == "raw_logprobs"
    """,
        passed=3,
    )


def test_further_servers_are_closed_at_the_end(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
    import pytest
    from urllib.error import URLError

    made = []

    def test_two(make_stubserver):
        one, two = make_stubserver(), make_stubserver({"rules": [{"steps": [{"text": " B"}]}]}, max_logprobs=3)
        one.on().text(" A")
        assert (text(one, "p"), text(two, "p")) == (" A", " B")
        made.extend([one.url, two.url])

    @pytest.mark.parametrize("number", [0, 1])
    def test_closed(number):
        with pytest.raises(URLError):
            urlopen(made[number])
    """,
        passed=3,
    )


def test_sync_and_async_tests_with_and_without_a_socket(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
    import httpx, pytest

    pytestmark = pytest.mark.asyncio

    async def test_socket(stubserver):
        stubserver.on().text(" A")
        async with httpx.AsyncClient(base_url=stubserver.base_url) as client:
            reply = await client.post("/completions", json={"prompt": "p", "max_tokens": 1})
        assert reply.json()["choices"][0]["text"] == " A"

    async def test_no_socket(stubserver_in_process):
        stubserver_in_process.on().text(" A")
        async with stubserver_in_process.async_client() as client:
            reply = await client.post("/v1/completions", json={"prompt": "p", "max_tokens": 1})
        assert reply.json()["choices"][0]["text"] == " A"
        stubserver_in_process.assert_requested(times=1)

    async def test_again(stubserver):
        assert stubserver.requests == []
    """,
        passed=3,
    )


def test_environment_leads_to_the_server_during_the_test(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
    import pytest

    def test_with(stubserver, stubserver_env):
        assert stubserver_env is stubserver
        assert os.environ["OPENAI_BASE_URL"] == stubserver.base_url
        assert os.environ["OPENAI_API_KEY"] == "EMPTY"

    @pytest.mark.stubserver(api_key=["k"])
    def test_with_key(stubserver_env):
        assert os.environ["OPENAI_API_KEY"] == "k"

    def test_without():
        assert os.environ.get("OPENAI_API_KEY") != "EMPTY"
        assert os.environ.get("OPENAI_BASE_URL") is None
    """,
        passed=3,
    )


def test_options_of_the_command_line(pytester: pytest.Pytester) -> None:
    pytester.makefile(".yaml", script="rules:\n  - steps:\n      - text: ' B'\n")
    run(
        pytester,
        """
    import pytest

    def test_options(stubserver, make_stubserver):
        for stub in (stubserver, make_stubserver()):
            assert text(stub, "p") == " B"
            assert stub.app.state.server.served.settings.logprobs_mode == "processed_logprobs"

    @pytest.mark.stubserver({"rules": [{"steps": [{"text": " A"}]}]}, logprobs_mode="raw_logits")
    def test_own_settings_win(stubserver):
        assert text(stubserver, "p") == " A"
        assert stubserver.app.state.server.served.settings.logprobs_mode == "raw_logits"
    """,
        "--stub-script=script.yaml",
        "--stub-logprobs-mode=processed_logprobs",
        passed=2,
    )


def test_a_failing_assertion_shows_what_came(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    def test_labels(stubserver):
        stubserver.on().logits({" A": 2.0, " B": 1.0, " The": 5.0}, rest=-10)
        body = json.dumps({"prompt": "p", "max_tokens": 1, "logprobs": 1, "temperature": 0}).encode()
        urlopen(Request(stubserver.base_url + "/completions", body, {"content-type": "application/json"}))
        stubserver.assert_labels_returned([" A", " B"])
    """,
        passed=0,
        failed=1,
    )
    result.stdout.fnmatch_lines(['*no value for " A", " B"; the reply has " The" (-0.06706)*'])
    result.stdout.no_fnmatch_line("*assertions.py*raise*")


def test_a_fault_that_changes_nothing_fails_the_test_that_set_it(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(
        textwrap.dedent(USES)
        + textwrap.dedent("""
    import asyncio, pytest

    DROP = {"kind": "drop_label", "label": " A"}

    def ask(stub, headers={}, **fields):
        body = json.dumps({"prompt": "p", "max_tokens": 1, "temperature": 0, **fields}).encode()
        headers = {"content-type": "application/json", **headers}
        urlopen(Request(stub.base_url + "/completions", body, headers)).read()

    def test_server(stubserver):
        stubserver.on().logits({" B": 3.0, " A": 2.0}, rest=-10)
        stubserver.faults(DROP)
        ask(stubserver, logprobs=1)

    def test_rule(make_stubserver):
        make_stubserver()
        stub = make_stubserver()
        stub.on().text(" A").fault("usage", event=7)
        ask(stub, stream=True)

    def test_request(stubserver):
        ask(stubserver, {"X-Stub-Faults": '[{"kind": "no_done"}]'})

    def test_in_process(stubserver_in_process):
        stubserver_in_process.faults({"kind": "framing", "coalesce": 2})

        async def complete():
            async with stubserver_in_process.async_client() as client:
                await client.post("/v1/completions", json={"prompt": "p", "max_tokens": 1})

        asyncio.run(complete())

    @pytest.mark.stubserver(logprobs_mode="raw_logits")
    def test_own_server(stubserver):
        stubserver.faults({"kind": "logprobs"})
        ask(stubserver)
        stubserver.reset()

    def test_that_found_something_once(stubserver):
        stubserver.on().logits({" B": 3.0, " A": 2.0}, rest=-10)
        stubserver.faults(DROP)
        ask(stubserver, logprobs=1)
        ask(stubserver, logprobs=2)

    def test_that_befell_nothing(stubserver):
        stubserver.faults(DROP, {"kind": "status", "after": 9})

    def test_behind_another_fault(stubserver):
        stubserver.faults({"kind": "status", "status": 503}, DROP)
        with pytest.raises(OSError):
            ask(stubserver, logprobs=1)

    def test_that_may(stubserver):
        stubserver.faults(DROP)
        ask(stubserver)
        stubserver.allow_faults_without_effect()

    def test_as_new(stubserver):
        ask(stubserver)
    """)
    )
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(passed=10, errors=5)
    result.stdout.fnmatch_lines(
        [
            'the fault {"kind": "drop_label", "label": " A"}, set on the server, changed nothing:',
            "  POST /v1/completions → 200: there is no token ' A' among its top logprobs, which have ' B'",
            "(if that is meant: stub.allow_faults_without_effect())",
            'the fault {"kind": "usage", "event": 7}, set on a rule, changed nothing:',
            "  POST /v1/completions → 200: its stream has no event 7, only 1 of them",
            'the fault {"kind": "no_done"}, set on a request, changed nothing:',
            "  POST /v1/completions → 200: it has no event that ends it",
            'the fault {"kind": "framing", "coalesce": 2}, set on the server, changed nothing:',
            "  POST /v1/completions → 200: it is no stream, or too short",
            'the fault {"kind": "logprobs"}, set on the server, changed nothing:',
            "  POST /v1/completions → 200: it has no logprobs that could be changed",
        ]
    )


def test_every_worker_of_xdist_has_its_own_server(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # workers would load them all
    run(
        pytester,
        """
    import pytest

    @pytest.mark.parametrize("number", range(6))
    def test_own(stubserver, number):
        stubserver.on(prompt=f"p{number}").text(" A")
        assert text(stubserver, f"p{number}") == " A"
        assert len(stubserver.requests) == 1
    """,
        *("-p", "xdist", "-p", plugin.__name__, "-n2"),
        passed=6,
    )


def test_a_suite_without_stubs_pays_little() -> None:
    code = (
        "import sys, time, pytest; known = set(sys.modules); started = time.perf_counter();"
        f"import {plugin.__name__}; taken = time.perf_counter() - started;"
        "print(taken, *(set(sys.modules) - known))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    taken, *loaded = min((run.stdout.split() for run in runs), key=lambda words: float(words[0]))
    assert set(loaded) == {"stubserver", "stubserver.testing", "stubserver.testing.plugin"}
    assert float(taken) < IMPORT_SECONDS
