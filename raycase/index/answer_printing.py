"""The texts of an index as people read them, with the words of each that the condition looked at."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from raycase.encoder.words import Word, content
from raycase.errors import RequestError, visible
from raycase.io.schema import CONDITION, TEXT

if TYPE_CHECKING:
    from raycase.index.index import Index

HALF = 0.5 - 1e-6  # of the weight; sums of float32 miss it by a little
BOLD, REGULAR = "\033[1m", "\033[0m"
SHOWN_CHARACTERS = 100  # of a text in a table
WEIGHTS_TYPE = pa.list_(
    pa.struct([pa.field("start", pa.int32()), pa.field("end", pa.int32()), pa.field("weight", pa.float32())])
)
AT_ONCE = 4096  # texts under conditions whose words are weighed at a time


def looked_at(text: str, words: Iterable[Word]) -> list[Word]:
    """The fewest words that hold at least half of the weight of all but English function words, in the order of the
    text; of equal ones the first."""
    words = [word for word in words if content(text, word) or not re.search(r"\w", text[word.start : word.end])]
    total, held = sum(word.weight for word in words), 0.0
    chosen: list[Word] = []
    for word in sorted(words, key=lambda word: -word.weight):
        if held >= HALF * total:
            break
        chosen.append(word)
        held += word.weight
    return sorted(chosen)


def in_bold(text: str, words: Collection[Word], most: int) -> str:
    """The text in a line, these words in bold: `most` characters from its start, or around a later heaviest word."""
    start, heaviest = 0, max(words, key=lambda word: word.weight, default=None)
    if heaviest and heaviest.end > most:
        start = max(0, min(heaviest.start - most // 2, len(text) - most))
        start = text.find(" ", start, heaviest.start) + 1 or start
    at, end, shown = start, start + most, []
    for word in sorted(words):
        if at <= word.start < end:
            shown += [text[at : word.start], BOLD, text[word.start : min(word.end, end)], REGULAR]
            at = min(word.end, end)
    line = "".join(each if each in (BOLD, REGULAR) else visible(each) for each in [*shown, text[at:end]])
    return "…" * (start > 0) + " ".join(line.split()) + "…" * (len(text.rstrip()) > end)


def in_words(text: str, words: Collection[Word]) -> str:
    """The words with their weights: red 0.31, dress 0.41."""
    return ", ".join(f"{visible(text[word.start : word.end])} {word.weight:.2f}" for word in words)


def has_styles(stream: TextIO) -> bool:
    """Whether what is written there can be bold: a terminal, unless the environment forbids it (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def text_column(index: Index, asked: str | None) -> str | None:
    """The column with an index's texts: that of --text-column, or that which was embedded, or in an index of an earlier
    version `text`; None where it has none. Raises RequestError for one that was asked for."""
    embedded = index.metadata.text_column
    text = asked or (TEXT if embedded is None else embedded)
    if text in index.columns and pa.types.is_string(index.dataset.schema.field(text).type):
        return text
    if asked:
        kept = ", ".join(index.columns)
        raise RequestError(f"--text-column: expected a column of texts among those kept ({kept}), got {text!r}")
    return None


def why_unweighed(index: Index, asked: str | None, model: str | None) -> str | None:
    """Why the words of an index's texts cannot be weighed: no texts, another model; None where they can. asked:
    --text-column; model: --model. Raises RequestError for a wrong one of these."""
    if text_column(index, asked) is None:
        return f"expected the texts in a column that the index keeps ({', '.join(index.columns)}), got {TEXT!r}"
    try:
        weighs_words = index.encoder.config.weighs_words
    except RequestError as error:  # the model has moved
        if model:
            raise
        return str(error)
    expected = "expected an index of a model that weighs words (as condition-pooling)"
    return None if weighs_words else f"{expected}, got one of {index.model}"


def weigh_answers(answers: pa.Table, index: Index, text: str) -> pa.ChunkedArray:
    """The words of each answer's text and their weights under the condition that was searched, of `WEIGHTS_TYPE`.

    Null without a condition and for a text that cannot be embedded.
    """
    model: Any = index.encoder
    pairs = list(zip(answers[text].to_pylist(), answers[CONDITION].to_pylist(), strict=True))
    distinct = sorted({(answer, condition) for answer, condition in pairs if None not in (answer, condition)})
    chunks = [pa.array([], WEIGHTS_TYPE)]
    for start in range(0, len(distinct), AT_ONCE):  # a text under several conditions is in one part, or in two
        texts, conditions = zip(*distinct[start : start + AT_ONCE], strict=True)
        found = model.word_weights(texts, conditions)
        chunks.append(pa.array([[word._asdict() for word in words] or None for words in found], WEIGHTS_TYPE))
    place = {pair: i for i, pair in enumerate(distinct)}
    return pa.chunked_array(chunks).take(pa.array([place.get(pair) for pair in pairs], pa.int64()))
