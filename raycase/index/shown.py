"""Answers as people read them: a table in the terminal, with the words of each that the condition looked at."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from raycase.encoder.words import Word
from raycase.errors import MOST_SHOWN, RequestError, note, visible
from raycase.index.answers import TEXT
from raycase.index.index import Index
from raycase.index.marks import has_styles, in_bold, in_words, looked_at
from raycase.io.schema import CHUNK, CONDITION, DOCUMENT, END, PARTS, QUERY, RANK, SCORE, START, TEXT_RANK, VECTOR_RANK

SHOWN_CHARACTERS = 100  # of a kept column


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One answer; words: those that the condition looked at; figures: cosines under conditions with weights,
    or ranks by vectors and words."""

    rank: int
    score: str
    text: str
    words: list[Word]
    figures: str
    place: str  # of a chunk in its document


def print_answers(
    shown: dict[int, list[Shown]], sentences: Sequence[str], conditions: Sequence[str] | Mapping[str, float] | None
) -> None:
    """A table: score and text, the words that the condition looked at in bold, or after the text with their weights
    where there is no terminal."""
    styles = has_styles(sys.stdout)
    if isinstance(conditions, Mapping):
        conditions = [", ".join(f"{name}={weight:g}" for name, weight in conditions.items())] * len(sentences)
    under = [f' under "{condition}"' for condition in conditions] if conditions else [""] * len(sentences)
    titles = [f'"{sentence}"{name}' for sentence, name in zip(sentences, under, strict=True)]
    for query, title in enumerate(titles):
        print(f"\n{visible(title, MOST_SHOWN)}")
        for answer in shown.get(query, []):
            line = in_bold(answer.text, answer.words if styles else (), SHOWN_CHARACTERS)
            if answer.words and not styles:
                line += f"  ({in_words(answer.text, answer.words)})"
            print(f"{answer.rank:>4}  {answer.score:>6}  {answer.figures}{line}{answer.place}")
        if query not in shown:
            print("      no rows pass the filter")
    print()


def print_replaced_condition(index: Index, asked: str, condition: str | None) -> None:
    """Name a condition that the index does not have, and the one that was searched instead. An index of stored tokens
    alone has none."""
    if index.is_pooled(condition):
        if index.metadata.conditions:
            note(f"no {asked!r} in the index; pooled from its stored tokens")
    elif asked != condition:
        cosine = index.nearest_condition(asked)[1]
        note(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}")


def by_query(answers: pa.Table, column: str, weights: pa.ChunkedArray | None) -> dict[int, list[Shown]]:
    """The answers to each query that has some; `column`: with what is shown of each."""
    of_words = [None] * len(answers) if weights is None else weights.to_pylist()
    figures = [""] * len(answers)
    if PARTS in answers.column_names:
        of_parts = answers[PARTS].to_pylist()
        figures = [f"({'  '.join(_figure(part['cosine']) for part in parts)})  " if parts else "" for parts in of_parts]
    if TEXT_RANK in answers.column_names:
        ranks = zip(*(answers[name].to_pylist() for name in (VECTOR_RANK, TEXT_RANK)), figures, strict=True)
        figures = [f"(vectors {vector or '-'}, words {text or '-'})  {rest}" for vector, text, rest in ranks]
    of_chunk = (DOCUMENT, START, END) if CHUNK in answers.column_names else ()
    spans = zip(*(answers[name].to_pylist() for name in of_chunk), strict=True)
    places = [f"  [{visible(str(document))} {start}:{end}]" for document, start, end in spans] or [""] * len(answers)
    columns = [answers[name].to_pylist() for name in (QUERY, RANK, SCORE, column)]
    found: dict[int, list[Shown]] = {}
    for query, rows in groupby(zip(*columns, of_words, figures, places, strict=True), key=lambda row: row[0]):
        found[query] = [
            Shown(
                rank=rank,
                score=_figure(score),  # re-ranking gives none without words
                text=str(text),
                words=looked_at(words_of_row(words)),
                figures=own,
                place=place,
            )
            for _, rank, score, text, words, own, place in rows
        ]
    return found


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# ------------------------------------------------------------------------------------------------------ weighed words

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
    if not index.encoder.config.weighs_words:
        return f"expected an index of a model that weighs words (condition-pooling, csr), got one of {index.model}"
    return None


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
