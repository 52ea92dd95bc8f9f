"""Texts with labels under conditions: a table with a column `text` and one for each condition, and a JSON about them.

    {"columns": {"tone": {"conditions": ["tone", "how it sounds"], "groups": {"furious": "negative"},
                          "answers": {"furious": ["very angry"]}, "soft_nulls": true}}}

Only `conditions`, the wordings, is needed; `kind`, `licence` and `source` may stand beside `columns`. Without a JSON a
column's name is its condition. Labels, wordings and answers are taken as `normal_words`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import PurePosixPath

import numpy as np

from raycase.errors import RequestError, expecting, is_utf8, normal_words, note
from raycase.io.inputs import list_input, peek
from raycase.io.json_values import from_json, loads
from raycase.io.rated_pairs import texts_sha256
from raycase.io.reader import distinct_words, read_files
from raycase.io.storage import locate

TEXT, SEPARATOR = "text", "|"
LEAST_NOT_STATED = 0.05  # share of a column's texts
Label = frozenset[str]  # the labels of a cell; empty where the text states nothing


@dataclass(frozen=True, kw_only=True)
class About:
    """What a JSON has of a column: wordings, the usual one first; coarser classes and phrases by label.

    soft_nulls: an empty cell does not mean that the text states nothing.
    """

    conditions: tuple[str, ...]
    groups: dict[str, str] = field(default_factory=dict)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    soft_nulls: bool = False


@dataclass(frozen=True, kw_only=True)
class _Described:
    columns: dict[str, About]
    kind: str = ""  # on disk
    licence: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class LabelledColumn(About):
    """The labels of N texts under one condition, and what the JSON has of the column."""

    name: str
    labels: tuple[Label, ...]

    @property
    def stated(self) -> np.ndarray | None:
        """Whether each text states something of the condition, (N,); None where that is not known, or of nearly all."""
        stated_N = np.array([bool(labels) for labels in self.labels])
        return stated_N if not self.soft_nulls and (~stated_N).mean() >= LEAST_NOT_STATED else None

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
        columns: list[Sequence[str]] = []
        for c in self.columns:
            given = sorted(c.groups.items()), sorted(c.answers.items()), not c.soft_nulls
            columns.append((c.name, *c.conditions, *map(str, given)))
        cells = [(text, *("|".join(sorted(c.labels[i])) for c in self.columns)) for i, text in enumerate(self.texts)]
        return texts_sha256([*columns, *cells])


def read_labelled(uri: str, labels: str | None, flag: str) -> LabelledTexts:
    """Read a file or a folder of labelled texts; several labels of a cell stand between bars.

    labels: the JSON, without which every other column is taken. Left out, with a note, are later rows of a text,
    columns without two labels of two texts each, and what the JSON has of labels that no text has.
    """
    if labels is None:
        others = [name for name in peek(list_input(uri, flag).files[0]).names if name != TEXT]
        described = {name: About(conditions=(normal_words(name.replace("_", " ")),)) for name in others}
    else:
        described = _described(labels)
    texts: list[str] = []
    cells: dict[str, list[Label]] = {name: [] for name in described}
    for where, read in read_files(uri, [TEXT, *cells], flag, words=[TEXT]):
        texts += read[TEXT]
        for name in cells:
            cells[name] += [_label(value, f"{where}, row {row}: {name!r}") for row, value in enumerate(read[name])]
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    rows, left_out = list(first.values()), []
    if again := len(texts) - len(rows):
        left_out.append(f"{again:,} rows whose text stands in an earlier row")
    columns = []
    for name, about in described.items():
        found = tuple(cells[name][row] for row in rows)
        texts_with = Counter(label for cell in found for label in cell)
        if sum(count > 1 for count in texts_with.values()) < 2:
            left_out.append(f"column {name!r}: fewer than two labels with two texts each")
            continue
        if unknown := sorted({*about.groups, *about.answers} - texts_with.keys()):
            left_out.append(f"column {name!r}: groups and answers of labels that no text has: {', '.join(unknown)}")
        columns.append(LabelledColumn(**vars(about), name=name, labels=found))
    once = f"{flag}: expected each condition once in {uri}"
    distinct_words([word for column in columns for word in column.conditions], flag, once)
    if not columns:
        raise RequestError(f"{flag}: expected a column with two labels of two texts each in {uri}, got none")
    for reason in left_out:
        note(f"{uri}: left out {reason}")
    return LabelledTexts(uri=uri, texts=list(first), columns=columns, left_out=left_out)


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


def _label(value: object, where: str) -> Label:
    """The labels of a cell. Raises RequestError for a value that has no one way to be written as a text."""
    if value is None or value != value:  # NaN, as pandas writes an empty cell of numbers
        return frozenset()
    if isinstance(value, float) and value.is_integer():  # as pandas writes the numbers beside it
        value = int(value)
    if not isinstance(value, (str, int)) or not is_utf8(str(value)):
        advice = "write it as text (a|b), or leave the column out by --labels"
        raise RequestError(f"{where}: expected a text or a whole number, got {value!r:.80}; {advice}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return frozenset(map(normal_words, text.split(SEPARATOR))) - {""}


def _described(uri: str) -> dict[str, About]:
    """What the JSON has of each column. Raises RequestError."""
    expected = '{"columns": {"tone": {"conditions": ["tone"]}}}'
    with expecting(f"--labels: expected JSON as {expected} in {uri}", OSError, ValueError, TypeError):
        described = from_json(_Described, loads(locate(uri).read(), once=True)).columns
    found = {}
    for name, about in described.items():
        where = f"--labels: expected wordings, labels and answers with words, each once, in {name!r} of {uri}"
        parts = (about.conditions, about.groups, about.answers)
        wordings, coarse, phrased = (distinct_words(words, "--labels", where) for words in parts)
        groups = dict(zip(coarse, map(normal_words, about.groups.values()), strict=True))
        phrases = [tuple(map(normal_words, of_label)) for of_label in about.answers.values()]
        if name == TEXT or not wordings or not all([*groups.values(), *phrases, *chain(*phrases)]):
            raise RequestError(f"{where}, got {'the texts' if name == TEXT else 'none'}")
        answers = dict(zip(phrased, phrases, strict=True))
        found[name] = replace(about, conditions=tuple(wordings), groups=groups, answers=answers)
    return found
