"""Texts with labels under conditions: a table with a column `text` and one for each condition, and a JSON about them.

    {"columns": {"tone": {"conditions": ["tone", "how it sounds"], "groups": {"furious": "negative"},
                          "answers": {"furious": ["very angry"]}, "soft_nulls": true}}}

Only `conditions`, the wordings, is needed. Without a JSON a column's name is its condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict

from raycase.errors import RequestError, expecting, is_words, note
from raycase.io.inputs import list_input, peek
from raycase.io.json_values import from_json, loads
from raycase.io.rated_pairs import texts_sha256
from raycase.io.reader import read_files
from raycase.io.storage import locate

TEXT, SEPARATOR = "text", "|"
LEAST_UNSAID = 0.05  # share of a column's texts
Label = frozenset[str]  # the labels of a cell; empty where the text says nothing


class About(TypedDict):
    """What a JSON says of a column."""

    conditions: list[str]
    groups: NotRequired[dict[str, str]]
    answers: NotRequired[dict[str, list[str]]]
    soft_nulls: NotRequired[bool]


class _Described(TypedDict):
    columns: dict[str, About]


@dataclass(frozen=True, kw_only=True)
class LabelledColumn:
    """What N texts say under one condition.

    wordings: of the condition, the first is the usual one. groups: label -> coarser class. answers: label -> phrases.
    says_known: an empty cell means that the text says nothing.
    """

    name: str
    wordings: tuple[str, ...]
    labels: tuple[Label, ...]
    groups: Mapping[str, str]
    answers: Mapping[str, tuple[str, ...]]
    says_known: bool

    @property
    def said(self) -> np.ndarray | None:
        """Whether each text says something of the condition, (N,); None where that is not known, or of nearly all."""
        said_N = np.array([bool(labels) for labels in self.labels])
        return said_N if self.says_known and (~said_N).mean() >= LEAST_UNSAID else None

    def coarse(self, labels: Label) -> Label:
        """The groups of labels; those of a label without one are itself."""
        return frozenset(self.groups.get(label, label) for label in labels)


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """N distinct texts and their columns. left_out: what was not taken, and why."""

    uri: str
    texts: list[str]
    columns: list[LabelledColumn]
    left_out: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> LabelledTexts:
        columns = [replace(column, labels=tuple(column.labels[row] for row in rows)) for column in self.columns]
        return replace(self, texts=[self.texts[row] for row in rows], columns=columns)

    @cached_property
    def data_sha256(self) -> str:
        """Hash of everything that is learned from."""
        columns = [
            (c.name, *c.wordings, str(sorted(c.groups.items())), str(sorted(c.answers.items())), str(c.says_known))
            for c in self.columns
        ]
        cells = [(text, *("|".join(sorted(c.labels[i])) for c in self.columns)) for i, text in enumerate(self.texts)]
        return texts_sha256([*columns, *cells])


def read_labelled(uri: str, labels: str | None, flag: str) -> LabelledTexts:
    """Read a .csv, .jsonl or .parquet file, or a folder of them; several labels of a cell stand between bars.

    labels: the JSON, without which every other column is taken. Left out, with a note, are later rows of a text, and
    columns without two labels that two texts have each. Raises RequestError for a missing column, an empty text, a JSON
    without wordings or with a wording twice, and where no column is left.
    """
    described = None if labels is None else _described(labels)
    names = (
        [n for n in peek(list_input(uri, flag).files[0]).names if n != TEXT] if described is None else list(described)
    )
    cells: dict[str, list[Any]] = {name: [] for name in (TEXT, *names)}
    for _, read in read_files(uri, list(cells), flag, words=[TEXT]):
        for name in cells:
            cells[name] += read[name]
    first: dict[str, int] = {}
    for row, text in enumerate(cells[TEXT]):
        first.setdefault(text, row)
    rows, left_out = list(first.values()), []
    if again := len(cells[TEXT]) - len(rows):
        left_out.append(f"{again:,} rows whose text stands in an earlier row")
    columns = []
    for name in names:
        found = tuple(_label(cells[name][row]) for row in rows)
        texts_with = Counter(label for cell in found for label in cell)
        if sum(count > 1 for count in texts_with.values()) < 2:
            left_out.append(f"column {name!r}: fewer than two labels with two texts each")
            continue
        about: About = {"conditions": [name.replace("_", " ")]} if described is None else described[name]
        columns.append(
            LabelledColumn(
                name=name,
                wordings=tuple(about["conditions"]),
                labels=found,
                groups=about.get("groups", {}),
                answers={label: tuple(phrases) for label, phrases in about.get("answers", {}).items()},
                says_known=not about.get("soft_nulls", False),
            )
        )
    if not columns:
        raise RequestError(f"{flag}: expected a column with two labels of two texts each in {uri}, got none")
    for reason in left_out:
        note(f"{uri}: left out {reason}")
    return LabelledTexts(uri=uri, texts=[cells[TEXT][row] for row in rows], columns=columns, left_out=left_out)


def labels_of(tables: Sequence[str], labels: Sequence[str]) -> list[str | None]:
    """The JSON of each table, which has its name. Raises RequestError for one without a table, and for a name twice."""
    by_name = {PurePosixPath(uri).stem: uri for uri in labels}
    stems = [PurePosixPath(uri.rstrip("/")).stem for uri in tables]
    for names in (stems, [PurePosixPath(uri).stem for uri in labels]):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise RequestError(f"expected labelled tables of different names, got {twice[0]} twice; rename one")
    if len(tables) == len(labels) == 1:
        return [*labels]
    if alone := sorted(set(by_name) - set(stems)):
        raise RequestError(f"--labels: expected the name of a table of --labelled, got {by_name[alone[0]]}")
    return [by_name.get(stem) for stem in stems]


def _label(value: object) -> Label:
    return frozenset(part.strip() for part in str("" if value is None else value).split(SEPARATOR)) - {""}


def _described(uri: str) -> dict[str, About]:
    """What the JSON says of each column. Raises RequestError."""
    expected = '{"columns": {"tone": {"conditions": ["tone"]}}}'
    with expecting(f"--labels: expected JSON as {expected} in {uri}", OSError, ValueError):
        found = from_json(_Described, loads(locate(uri).read()))["columns"]
    for name, about in found.items():
        phrases = [*about["conditions"], *(phrase for of in about.get("answers", {}).values() for phrase in of)]
        if not about["conditions"] or not all(map(is_words, phrases)):
            raise RequestError(f"--labels: expected wordings and answers with words in {uri}, got none in {name!r}")
    wordings = Counter(word for about in found.values() for word in about["conditions"])
    if twice := [word for word, count in wordings.items() if count > 1]:
        raise RequestError(f"--labels: expected each wording once in {uri}, got {twice[0]!r} twice")
    return found
