"""From a checked script file to the script that it describes: a bigram table, a function, or rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stubserver.errors import ScriptError
from stubserver.faults.fault import read_faults
from stubserver.keys.conditions import read_conditions
from stubserver.keys.document import Document, Place
from stubserver.sampling.logits import Logits
from stubserver.script.bigram import BigramScript
from stubserver.script.context import Context, Recorded, Script
from stubserver.script.embeddings import DEFAULT_DIMENSION, Embeddings, as_vector
from stubserver.script.file.arrays import ArrayFiles
from stubserver.script.file.imported import import_function
from stubserver.script.file.message import message_segments
from stubserver.script.file.schema import (
    ArrayKeys,
    DefaultKeys,
    EmbeddingKeys,
    RecordedKeys,
    RuleKeys,
    ScriptFile,
    TableKeys,
)
from stubserver.script.file.steps import StepReader, load_rows
from stubserver.script.function import CallableScript, LogitsFunction
from stubserver.script.rows import ArrayError, Row, RowStore, random_row
from stubserver.script.rule import Rule
from stubserver.script.rules import RuleScript
from stubserver.script.tokens import TokenReader
from stubserver.tokenizer.hf import HFTokenizer


def build_script(
    file: ScriptFile, document: Document, tokenizer: HFTokenizer, function: LogitsFunction | None = None
) -> Script:
    """The script of a file. `function` stands in for the file's `callable`, where that came as an object.

    Raises ScriptError with the place of what can't be built.
    """
    arrays = ArrayFiles(document.directory)
    if file.bigram is not None:
        return _build_bigram(file, file.bigram, arrays, document.root / "bigram", tokenizer)
    if file.callable is not None:
        function = function or _import(file.callable, document)
        vocab_size = _vocab_size(file, document, tokenizer)
        return CallableScript(function, TokenReader(tokenizer, vocab_size), vocab_size)
    return _RuleBuilder(file, document, tokenizer, arrays).script()


def build_embeddings(keys: EmbeddingKeys) -> Embeddings:
    """The vectors of a file; the schema has seen to it that they are of one length."""
    vectors = {text: as_vector(values) for text, values in keys.vectors.items()}
    found = keys.dimension or next((len(vector) for vector in vectors.values()), DEFAULT_DIMENSION)
    return Embeddings(found, vectors)


def _import(reference: str, document: Document) -> LogitsFunction:
    try:
        return import_function(reference, document.directory)
    except ScriptError as error:
        raise (document.root / "callable").error(error) from error.__cause__


def _build_bigram(
    file: ScriptFile, bigram: TableKeys, arrays: ArrayFiles, place: Place, tokenizer: HFTokenizer
) -> BigramScript:
    try:
        table = arrays.load(bigram.file, bigram.key)
    except ArrayError as error:
        raise place.error(error) from None
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise place.error(f"has to be a table [V, V]; its shape is {list(table.shape)}")
    if file.vocab_size not in (None, len(table)):
        raise place.error(f"the table has {len(table)} rows, but vocab_size is {file.vocab_size}")
    _check_width(len(table), place, tokenizer)
    return BigramScript(table)


def _vocab_size(file: ScriptFile, document: Document, tokenizer: HFTokenizer) -> int:
    if file.vocab_size is None:
        return tokenizer.vocab_size
    return _check_width(file.vocab_size, document.root / "vocab_size", tokenizer)


def _check_width(width: int, place: Place, tokenizer: HFTokenizer) -> int:
    """Rows may be longer than the tokenizer's vocabulary, but not shorter, or there would be ids without a logit."""
    if width < tokenizer.vocab_size:
        raise place.error(
            f"rows have {width} values, but the tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} tokens"
        )
    return width


def _recorded(keys: RecordedKeys | None, rows: list[Row], place: Place) -> Recorded | None:
    if keys is None:
        return None
    if len(keys.top_logprobs) != len(rows):
        raise (place / "top_logprobs").error(
            f"has {len(keys.top_logprobs)} numbers, but the rule has {len(rows)} steps"
        )
    return Recorded(tuple(keys.top_logprobs))


class _RuleBuilder:
    """Builds the rules of one file."""

    def __init__(self, file: ScriptFile, document: Document, tokenizer: HFTokenizer, arrays: ArrayFiles) -> None:
        self._file = file
        self._document = document
        self._tokenizer = tokenizer
        self._arrays = arrays
        vocab_size = self._find_vocab_size()
        self._steps = StepReader(TokenReader(tokenizer, vocab_size), arrays, vocab_size)
        self._store = RowStore(vocab_size)

    def script(self) -> RuleScript:
        """The rules in the file's order, and the default."""
        place = self._document.root / "rules"
        rules = [self._rule(rule, index, place / index) for index, rule in enumerate(self._file.rules or [])]
        return RuleScript(rules, self._default(), self._store, self._tokenizer)

    def _rule(self, keys: RuleKeys, index: int, place: Place) -> Rule:
        segments = message_segments(keys.message) if keys.message else ()
        rows = [
            row
            for number, step in enumerate(keys.steps or ())
            for row in self._steps.rows(step, place / "steps" / number)
        ]
        rows += [row for segment in segments for row in self._steps.text(segment.text, place / "message")]
        prompt = keys.when.prompt
        token_ids = prompt.token_ids if prompt else None
        return Rule(
            name=f'"{keys.name}" (rules[{index}])' if keys.name else f"rules[{index}]",
            conditions=read_conditions(keys.when, place / "when"),
            steps=tuple(rows),
            after=self._after(keys, rows, place),
            prompt=prompt.exact if prompt else None,
            prompt_token_ids=tuple(token_ids) if token_ids is not None else None,
            segments=segments,
            faults=read_faults(keys.faults, place / "faults"),
            recorded=_recorded(keys.recorded, rows, place / "recorded"),
        )

    def _after(self, keys: RuleKeys, rows: list[Row], place: Place) -> Row | None:
        if keys.then == "error":
            return None
        if keys.then == "repeat":
            if not rows:
                raise (place / "then").error("there is no step to repeat")
            return rows[-1]
        if self._tokenizer.eos_token_id is None:
            raise place.error(
                f"the tokenizer {self._tokenizer.name!r} names no end-of-sequence token: "
                "say `then: repeat` or `then: error`"
            )
        return self._steps.one_token(self._tokenizer.eos_token_id)

    def _default(self) -> Callable[[Context], Logits] | None:
        default, store = self._file.default, self._store
        if default is None:
            return None
        if default.random is not None:
            known = self._tokenizer.vocab_size
            return partial(random_row, scale=default.random.scale, tokens=known, vocab_size=store.vocab_size)
        row = self._default_row(default)
        return lambda context: store.get(row)

    def _default_row(self, default: DefaultKeys) -> Row:
        place = self._document.root / "default"
        rows = self._steps.rows(default, place)
        if len(rows) != 1:
            raise (place / default.kind).error(
                f"is {len(rows)} steps, but the default is one row for every context; "
                "a rule without `when` can have more"
            )
        return rows[0]

    def _find_vocab_size(self) -> int:
        """`vocab_size`, else the first array's width (padded rows say how long all rows are), else the tokenizer's."""
        array = self._first_array()
        if self._file.vocab_size is not None or array is None:
            return _vocab_size(self._file, self._document, self._tokenizer)
        keys, place = array
        try:
            width = load_rows(self._arrays, keys).shape[-1]
        except ArrayError as error:
            raise place.error(error) from None
        return _check_width(width, place, self._tokenizer)

    def _first_array(self) -> tuple[ArrayKeys, Place] | None:
        root = self._document.root
        for index, rule in enumerate(self._file.rules or []):
            for number, step in enumerate(rule.steps or ()):
                if step.array is not None:
                    return step.array, root / "rules" / index / "steps" / number / "array"
        default = self._file.default
        return (default.array, root / "default" / "array") if default and default.array else None
