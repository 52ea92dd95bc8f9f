"""Answers as people read them: a table in the terminal, and a page of HTML."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

import pyarrow as pa

from raycase.data.schema import QUERY, RANK, SCORE
from raycase.encoder.words import Word
from raycase.errors import MOST_SHOWN, note, visible
from raycase.search.index import Index
from raycase.search.marks import has_styles, in_bold, in_html, in_words, looked_at
from raycase.search.weighed import words_of_row

SHOWN_CHARACTERS = 100  # of a kept column
STYLE = "body{font-family:sans-serif;max-width:60em;margin:2em auto}li{white-space:pre-wrap}small{color:#57606a}"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One answer; words: those that the condition looked at."""

    rank: int
    score: str
    text: str
    words: list[Word]


def print_answers(shown: dict[int, list[Shown]], sentences: Sequence[str], conditions: Sequence[str] | None) -> None:
    """A table: score and text, the words that the condition looked at in bold, or after the text with their weights
    where there is no terminal."""
    styles = has_styles(sys.stdout)
    for query, title in enumerate(_titles(sentences, conditions)):
        print(f"\n{visible(title, MOST_SHOWN)}")
        for answer in shown.get(query, []):
            line = in_bold(answer.text, answer.words if styles else (), SHOWN_CHARACTERS)
            if answer.words and not styles:
                line += f"  ({in_words(answer.text, answer.words)})"
            print(f"{answer.rank:>4}  {answer.score:>6}  {line}")
        if query not in shown:
            print("      no rows pass the filter")
    print()


def html_page(
    shown: dict[int, list[Shown]], sentences: Sequence[str], conditions: Sequence[str] | None, title: str
) -> str:
    """The answers as a page, the words that the condition looked at marked."""
    parts = [f'<!doctype html>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>']
    for query, heading in enumerate(_titles(sentences, conditions)):
        parts.append(f"<h3>{escape(heading)}</h3>\n<ol>")
        parts += [
            f'<li value="{answer.rank}"><small>{answer.score}</small> {in_html(answer.text, answer.words)}</li>'
            for answer in shown.get(query, [])
        ]
        parts.append("</ol>")
    return "\n".join(parts) + "\n"


def print_replaced_condition(index: Index, asked: str, condition: str | None) -> None:
    """Name a condition that the index does not have, and the one that was searched instead. An index of stored words
    alone has none."""
    if index.is_pooled(condition):
        if index.metadata.conditions:
            note(f"no {asked!r} in the index; pooled from its stored words")
    elif asked != condition:
        cosine = index.nearest_condition(asked)[1]
        note(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}")


def by_query(answers: pa.Table, column: str, weights: pa.ChunkedArray | None) -> dict[int, list[Shown]]:
    """The answers to each query that has some; `column`: with what is shown of each."""
    of_words = [None] * len(answers) if weights is None else weights.to_pylist()
    columns = [answers[name].to_pylist() for name in (QUERY, RANK, SCORE, column)]
    found: dict[int, list[Shown]] = {}
    for query, rows in groupby(zip(*columns, of_words, strict=True), key=lambda row: row[0]):
        found[query] = [
            Shown(
                rank=rank,
                score="-" if score is None else f"{score:.3f}",  # re-ranking gives no score without words
                text=str(text),
                words=looked_at(words_of_row(words)),
            )
            for _, rank, score, text, words in rows
        ]
    return found


def _titles(sentences: Sequence[str], conditions: Sequence[str] | None) -> list[str]:
    under = [f' under "{condition}"' for condition in conditions] if conditions else [""] * len(sentences)
    return [f'"{sentence}"{name}' for sentence, name in zip(sentences, under, strict=True)]
