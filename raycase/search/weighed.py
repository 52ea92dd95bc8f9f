"""Answers whose words are weighed: which words of each the condition looked at, by the index's model."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from raycase.data.schema import CONDITION
from raycase.encoder.words import Word
from raycase.errors import RequestError
from raycase.search.index import Index
from raycase.search.queries import TEXT
from raycase.systems.registry import weighs_words

WEIGHTS_TYPE = pa.list_(
    pa.struct([pa.field("start", pa.int32()), pa.field("end", pa.int32()), pa.field("weight", pa.float32())])
)
AT_ONCE = 4096  # texts under conditions whose words are weighed at a time


def unweighable(index: Index, text: str) -> str | None:
    """Why the words of an index's texts cannot be weighed: no such texts, another model; None where they can. Raises
    RequestError where the index's model cannot be loaded."""
    if text not in index.columns:
        return f"expected the texts in a column that the index keeps ({', '.join(index.columns)}), got {text!r}"
    if not pa.types.is_string(index.dataset.schema.field(text).type):
        return f"expected texts in {text!r}, got {index.dataset.schema.field(text).type}"
    if not weighs_words(index.encoder.config):
        return f"expected an index of a model that weighs words (condition-pooling, csr), got one of {index.model}"
    return None


def check_weighable(index: Index, text: str) -> None:
    """Raise RequestError where the words of an index's answers cannot be weighed."""
    reason = unweighable(index, text)
    if reason is not None:
        raise RequestError(f"--explain: {reason}")


def is_weighable(index: Index, text: str) -> bool:
    """Whether the words of an index's answers can be weighed."""
    try:
        return unweighable(index, text) is None
    except RequestError:
        return False


def text_column(index: Index, asked: str | None) -> str | None:
    """The column with an index's texts, that of --text-column or `text`; None where it has none. Raises RequestError
    for one that was asked for."""
    text = asked or TEXT
    if text in index.columns and pa.types.is_string(index.dataset.schema.field(text).type):
        return text
    if asked:
        kept = ", ".join(index.columns)
        raise RequestError(f"--text-column: expected a column of texts among those kept ({kept}), got {text!r}")
    return None


def why_unweighed(index: Index, asked: str | None, model: str | None) -> str | None:
    """Why the words of an index's texts cannot be weighed, where the rest needs no model; None where they can. asked:
    --text-column; model: --model. Raises RequestError for a wrong --model."""
    try:
        return unweighable(index, asked or TEXT)
    except RequestError as error:  # the model has moved
        if model:
            raise
        return str(error)


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


def words_of_row(weights: list[dict[str, Any]] | None) -> list[Word]:
    """The words of one row of the column; none for null."""
    return [Word(**word) for word in weights or []]
