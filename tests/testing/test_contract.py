"""The contract suite: right clients fulfil it, a wrong one fails its clause and no other, and people are told why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import exp, inf, log, nan
from pathlib import Path

import contract_adapters
import pytest

from stubserver.testing import LabelReadbackContract, plugin
from stubserver.testing import contract_scenes as scenes
from stubserver.testing.contract import CLAUSES
from stubserver.testing.contract_verdict import Label, find_problem

BY_IDS = {"label_of_several_tokens"}
"""Who reads by id is never asked for a label that has none."""

NOT_APPLICABLE = {
    contract_adapters.ByMask: BY_IDS,
    contract_adapters.ById: BY_IDS,
    contract_adapters.ByIdAgain: BY_IDS,
    contract_adapters.ByIdAsync: BY_IDS,
    contract_adapters.ByMaskChecked: {*BY_IDS, "raw_values_have_right_ratios", "sampled_label_counts_once"},
    contract_adapters.ByText: set(),
    contract_adapters.ByChoice: set(),
    contract_adapters.ByLogitBias: BY_IDS,
    contract_adapters.ByEcho: set(),
}
"""The right clients."""


def which(outcomes: dict[str, str], outcome: str) -> set[str]:
    return {clause for clause, each in outcomes.items() if each == outcome}


@pytest.fixture(scope="module")
def all_outcomes(run_contract: Callable[..., dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """Client → clause → outcome, from one run of them all."""
    return run_contract(*NOT_APPLICABLE, *contract_adapters.WRONG.values())


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    """Without a warning of pytest-asyncio's."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


class TestClients:
    """Right and wrong ones."""

    @pytest.mark.parametrize("client", NOT_APPLICABLE)
    def test_a_right_one_fulfils_every_clause(self, client: type, all_outcomes: dict[str, dict[str, str]]) -> None:
        outcomes = all_outcomes[client.__name__]
        assert list(outcomes) == list(CLAUSES)
        assert which(outcomes, "failed") == set()
        assert which(outcomes, "not applicable") == NOT_APPLICABLE[client]

    @pytest.mark.parametrize("clause", CLAUSES)
    def test_a_wrong_one_fails_its_clause_alone(self, clause: str, all_outcomes: dict[str, dict[str, str]]) -> None:
        outcomes = all_outcomes[contract_adapters.WRONG[clause].__name__]
        assert which(outcomes, "failed") == {clause}
        assert which(outcomes, "not applicable") <= BY_IDS

    def test_every_clause_says_what_it_stands_for(self) -> None:
        for clause in CLAUSES:
            doc = getattr(LabelReadbackContract, f"test_{clause}").__doc__
            assert "#" in doc or "EleutherAI/lm-evaluation-harness" in doc or "jevemu" in doc


class TestReport:
    """The lines at the end."""

    EXAMPLE = """
        import contract_adapters

        class TestOne(contract_adapters.Fills):
            not_applicable = {"byte_tokens": "labels are words", "label_of_several_tokens": "one token each"}

            def test_of_its_own(self):
                pass
        """

    LINES = (
        "*= label readback contract =*",
        "*::TestOne: 2 passed, 1 failed, 1 not applicable",
        "  raw_values_have_right_ratios *passed",
        '  raw_missing_label_raises *failed: The backend returned -30.0000 for "Mixed", a share of 0.000% among*',
        "  byte_tokens *not applicable: labels are words",
        "  more_labels_than_the_cap *passed: raised HTTPStatusError",
    )

    CHOSEN = "raw or byte or cap or own"

    def test_a_line_a_clause(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(self.EXAMPLE)
        result = pytester.runpytest("-p", "no:cacheprovider", "-k", self.CHOSEN)
        result.assert_outcomes(passed=3, failed=1, skipped=1, deselected=13)
        result.stdout.fnmatch_lines(self.LINES, consecutive=True)
        result.stdout.no_fnmatch_line("  *own *passed")

    def test_with_xdist(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("xdist")
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # workers would load them all
        pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})")
        pytester.makepyfile(self.EXAMPLE)
        result = pytester.runpytest("-p", "xdist", "-p", plugin.__name__, "-n2", "-k", self.CHOSEN)
        result.assert_outcomes(passed=3, failed=1, skipped=1)
        result.stdout.fnmatch_lines(self.LINES, consecutive=True)

    def test_a_suite_without_it_has_none_and_loads_nothing(self, pytester: pytest.Pytester) -> None:
        file = pytester.makepyfile("def test_nothing(): pass")
        code = (
            f"import pytest, sys; pytest.main(['-p', 'no:cacheprovider', {str(file)!r}]);"
            "print('loaded:', *sorted(name for name in sys.modules if name.startswith('stubserver')))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "label readback contract" not in run.stdout
        assert run.stdout.splitlines()[-1] == "loaded: stubserver stubserver.testing stubserver.testing.plugin"

    def test_expected_failures_are_no_failures(self, pytester: pytest.Pytester) -> None:
        pytester.makeconftest(
            """
            import pytest

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.xfail(reason="known"))
            """
        )
        pytester.makepyfile("import contract_adapters\nclass TestOne(contract_adapters.Fills): pass")
        result = pytester.runpytest("-p", "no:cacheprovider", "-k", "raw")
        result.assert_outcomes(xfailed=1, xpassed=1)
        result.stdout.fnmatch_lines(
            [
                "*::TestOne: 0 passed, 0 failed, 1 xpassed, 1 xfailed",
                "  raw_values_have_right_ratios *xpassed: known",
                "  raw_missing_label_raises *xfailed: known",
            ]
        )

    def test_no_such_clause(self) -> None:
        with pytest.raises(
            TypeError, match=r"TestIt\.not_applicable: no such clause: bytes\. Clauses: processed_values_"
        ):
            type("TestIt", (LabelReadbackContract,), {"not_applicable": {"bytes": "why"}})


class TestFailures:
    """What people are told."""

    def test_a_class_without_an_adapter_fulfils_nothing(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("from stubserver.testing import LabelReadbackContract as C\nclass TestOne(C): pass")
        result = pytester.runpytest("-p", "no:cacheprovider")
        result.assert_outcomes(errors=len(CLAUSES))
        result.stdout.fnmatch_lines("*NotImplementedError: TestOne needs read_labels(self, request)")

    def test_what_came_what_was_right_why_and_what_to_change(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("import contract_adapters\nclass TestOne(contract_adapters.Fills): pass")
        result = pytester.runpytest("-p", "no:cacheprovider", "-k", "raw_missing")
        result.stdout.fnmatch_lines(
            [
                '*The backend returned -30.0000 for "Mixed", a share of 0.000% among the labels, where 0.340% is right.',
                '* "Positive" * -2.0007 * 50.648% * 50.476% * -0.6837',
                '* "Mixed" * -30.0000 * 0.000% * 0.340% * -5.6837',
                "*In raw mode a label outside the top K has no value: raise*",
                "*AnyJev*fills in -30*",
                "*The server: raw mode, and 40 other tokens are better than the last label.",
                '*The request: POST /v1/completions *"logprobs": 4*',
                "*The reply: 200 *token_id:970*",
                "*What to change: Raise an error that names the label.*",
            ]
        )


LABELS = [Label("Positive", (970,)), Label("Negative", (1101,)), Label("Neutral", (1100,)), Label("Mixed", (1244,))]
TOTAL = exp(3) + exp(2) + exp(1) + exp(0)
PROBS = [exp(3) / TOTAL, exp(2) / TOTAL, exp(1) / TOTAL, exp(0) / TOTAL]
LOGPROBS = [log(prob) for prob in PROBS]


def problem(scene: scenes.Scene, outcome: object) -> str | None:
    return find_problem(scene, LABELS, outcome, LookupError, 1e-4)


class TestVerdict:
    """What is right."""

    @pytest.mark.parametrize(
        "values", [PROBS, LOGPROBS, [prob * 0.5 for prob in PROBS], [value - 7 for value in LOGPROBS]]
    )
    def test_relative_values(self, values: list[float]) -> None:
        """Logprobs or probabilities, normalised or not."""
        assert problem(scenes.RAW_PRESENT, values) is None

    @pytest.mark.parametrize("factor", [1, TOTAL / (TOTAL + 40 * exp(-0.5))])
    def test_exact_values(self, factor: float) -> None:
        """Over the labels, or over the vocabulary, 40 tokens of which have a logit of -0.5."""
        assert problem(scenes.EXACT, [prob * factor for prob in PROBS]) is None
        assert problem(scenes.EXACT, [value + log(factor) for value in LOGPROBS]) is None

    @pytest.mark.parametrize("values", [[prob * 0.7 for prob in PROBS], [3.0, 2.0, 1.0, 0.0], [0.64, 0.24, 0.09, 0.03]])
    def test_values_that_are_not_exact(self, values: list[float]) -> None:
        assert problem(scenes.EXACT, values) is not None

    @pytest.mark.parametrize(
        "values",
        [
            [*LOGPROBS[:3], -30.0],
            [*LOGPROBS[:3], -inf],
            [*PROBS[:3], 0.0],
            [*LOGPROBS[:3], nan],
            [0.0, 0.0, 0.0, 0.0],
            [-inf] * 4,
            LOGPROBS[::-1],
            [value / 2 for value in LOGPROBS],
            [LOGPROBS[0] + 2e-4, *LOGPROBS[1:]],
        ],
    )
    def test_wrong_values(self, values: list[float]) -> None:
        assert problem(scenes.RAW_PRESENT, values) is not None

    @pytest.mark.parametrize("values", [LOGPROBS[:3], [*LOGPROBS, 0.0], None, {}, ["a", "b", "c", "d"], 0.5])
    def test_no_number_a_label(self, values: object) -> None:
        assert "no list with a number a label" in str(problem(scenes.RAW_PRESENT, values))

    def test_an_error_where_all_values_are_there(self) -> None:
        assert "gave every label a value" in str(problem(scenes.RAW_PRESENT, LookupError("Mixed")))

    @pytest.mark.parametrize(
        "message", ["no logprob of 'Mixed'", "labels missing: Mixed, Neutral", "token_id:1244", "[1244]"]
    )
    def test_a_missing_label_is_named(self, message: str) -> None:
        assert problem(scenes.RAW_MISSING, LookupError(message)) is None
        assert problem(scenes.RAW_MISSING, KeyError(message)) is None  # a LookupError

    @pytest.mark.parametrize("message", ["a label is missing", "Mixedup", "Positive", "11244", ""])
    def test_a_missing_label_is_not_named(self, message: str) -> None:
        assert "doesn't name the missing label" in str(problem(scenes.RAW_MISSING, LookupError(message)))
        assert problem(scenes.TOP_TRUNCATED, LookupError(message)) is None  # where it needn't be

    @pytest.mark.parametrize("scene", [scenes.RAW_MISSING, scenes.TOP_TRUNCATED])
    def test_another_error_is_none_of_a_missing_label(self, scene: scenes.Scene) -> None:
        assert "none of missing_label_errors" in str(problem(scene, ValueError("Mixed")))

    @pytest.mark.parametrize(
        "scene", [scenes.NOT_A_NUMBER, scenes.RATE_LIMITED, scenes.ERROR_INSIDE, scenes.LOGPROBS_NULL]
    )
    def test_any_error_or_the_right_values(self, scene: scenes.Scene) -> None:
        assert problem(scene, RuntimeError()) is None
        assert problem(scene, LOGPROBS) is None
        assert problem(scene, [0.25] * 4) is not None


def test_the_twin_is_another_id_with_the_same_text(tmp_path: Path) -> None:
    from stubserver.tokenizer.hf import load_tokenizer

    twin = scenes.add_twin(tmp_path, " Positive")
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.encode(" Positive") == [1591] != [twin]
    assert tokenizer.token_text(twin) == tokenizer.token_text(1591) == " Positive"


def test_other_tokens_are_no_beginnings_of_labels() -> None:
    """A grammar would let them through, and the labels' values would be others."""
    from stubserver.tokenizer.hf import BUILTIN, load_tokenizer

    texts = [load_tokenizer(BUILTIN).token_text(token_id) for token_id in scenes.OTHERS]
    labels = [*scenes.LABELS, *scenes.NUMBERS, *scenes.SPACED]
    assert len(set(texts)) == 40
    assert [(label, text) for label in labels for text in texts if label.startswith(text)] == []
