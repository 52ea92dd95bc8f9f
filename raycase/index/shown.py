"""Answers as people read them: a table in the terminal, with the words of each that the condition looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from raycase.encoder.words import Word
from raycase.errors import MOST_SHOWN, RequestError, note, visible
from raycase.index.answers import TEXT
from raycase.index.index import Index
from raycase.index.marks import has_styles, in_bold, in_words, looked_at
from raycase.io.schema import CHUNK, CONDITION, DOCUMENT, END, PARTS, QUERY, RANK, SCORE, START, TEXT_RANK, VECTOR_RANK

SHOWN_CHARACTERS = 100  # of a kept column

Weighed = tuple[pa.Table, pa.ChunkedArray | None]  # answers, and the weights of their words


def print_answers(
    answers: Iterable[Weighed],
    column: str,
    sentences: Sequence[str],
    conditions: Sequence[str] | Mapping[str, float] | None,
) -> None:
    """A table: score and what a column has, the words that the condition looked at in bold, or after the text with
    their weights where there is no terminal."""
    styles = has_styles(sys.stdout)
    lines: dict[int, list[str]] = {}
    for table, weights in answers:
        of_words = [None] * len(table) if weights is None else weights.to_pylist()
        for row, words in zip(table.to_pylist(), of_words, strict=True):
            lines.setdefault(row[QUERY], []).append(_line(row, column, looked_at(words_of_row(words)), styles=styles))
    if isinstance(conditions, Mapping):
        conditions = [", ".join(f"{name}={weight:g}" for name, weight in conditions.items())] * len(sentences)
    under = [f' under "{condition}"' for condition in conditions] if conditions else [""] * len(sentences)
    for query, (sentence, name) in enumerate(zip(sentences, under, strict=True)):
        title = f'"{sentence}"{name}'
        print(f"\n{visible(title, MOST_SHOWN)}", *lines.get(query, ["      no rows pass the filter"]), sep="\n")
    print()


def _line(row: Mapping[str, Any], column: str, words: Sequence[Word], *, styles: bool) -> str:
    """An answer: rank, score, other ranks, cosines under conditions with weights, the text, and a chunk's place."""
    text, figures, place = str(row[column]), "", ""
    line = in_bold(text, words if styles else (), SHOWN_CHARACTERS)
    if words and not styles:
        line += f"  ({in_words(text, words)})"
    if TEXT_RANK in row:
        figures = f"(vectors {row[VECTOR_RANK] or '-'}, words {row[TEXT_RANK] or '-'})  "
    if row.get(PARTS):
        figures += f"({'  '.join(_figure(part['cosine']) for part in row[PARTS])})  "
    if CHUNK in row:
        place = f"  [{visible(row[DOCUMENT])} {row[START]}:{row[END]}]"
    return f"{row[RANK]:>4}  {_figure(row[SCORE]):>6}  {figures}{line}{place}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"  # re-ranking gives none without words


def print_replaced_condition(index: Index, asked: str, condition: str | None) -> None:
    """Say which condition was searched in place of one that the index lacks. One of stored tokens alone has none."""
    if index.is_pooled(condition):
        if index.metadata.conditions:
            note(f"no {asked!r} in the index; pooled from its stored tokens")
    elif asked != condition:
        cosine = index.nearest_condition(asked)[1]
        note(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}")


# ------------------------------------------------------------------------------------------------------ weighed words

WEIGHTS_TYPE = pa.list_(
    pa.struct([pa.field("start", pa.int32()), pa.field("end", pa.int32()), pa.field("weight", pa.float32())])
)
AT_ONCE = 4096  # texts under conditions whose words are weighed at a time


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
    expected = "expected an index of a model that weighs words (condition-pooling, csr)"
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


def words_of_row(weights: list[dict[str, Any]] | None) -> list[Word]:
    """The words of one row of the column; none for null."""
    return [Word(**word) for word in weights or []]
