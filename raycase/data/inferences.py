"""Premises with hypotheses that they state, imply, leave open or contradict (INLI, Havaldar et al., 2025), and pairs of
an implicit sentence and an explicit one (Wang et al., 2025).

Shapes: N premises, H kinds of hypotheses; pairs have one, the explicit sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raycase.data.columns import peek
from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts, texts_sha256
from raycase.errors import RequestError

HYPOTHESES = {  # column -> name of the kind
    "explicit_entailment": "explicit",
    "implied_entailment": "implied",
    "neutral": "neutral",
    "contradiction": "contradiction",
}
KINDS = ("premise", *HYPOTHESES)
IMPLICIT_PAIR = ("implicit", "explicit")


@dataclass(frozen=True, kw_only=True)
class Inferences:
    """N premises, each with a hypothesis of every kind; or N implicit sentences, each with an explicit one."""

    uri: str
    columns: dict[str, list[str]]  # of KINDS or IMPLICIT_PAIR

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def distinct(self) -> list[str]:
        """The T distinct texts."""
        return list(dict.fromkeys(text for column in self.columns.values() for text in column))

    @cached_property
    def text_index(self) -> np.ndarray:
        """(N, 1 + H) int64: index in `distinct` of each premise and of its hypotheses."""
        number = {text: i for i, text in enumerate(self.distinct)}
        return np.array([[number[text] for text in column] for column in self.columns.values()], dtype=np.int64).T

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: texts and their grouping."""
        texts_hash = texts_sha256((text,) for text in self.distinct)
        return hashlib.sha256(texts_hash.encode() + self.text_index.tobytes()).hexdigest()


def read_inferences(uri: str, flag: str, kinds: Sequence[str] = KINDS) -> Inferences:
    """Read every row of a .csv, .jsonl or .parquet file (or a folder of them); `kinds`: KINDS or IMPLICIT_PAIR.

    Raises RequestError, with file and row, for a missing column or an empty text, and for fewer than two rows.
    """
    columns: dict[str, list[str]] = {kind: [] for kind in kinds}
    for file in find_input(uri, flag):
        values = read_columns(file, kinds, flag)
        for kind in kinds:
            columns[kind] += texts(values[kind], f"{flag}: {file.uri}", kind)
    inferences = Inferences(uri=uri, columns=columns)
    if len(inferences) < 2:
        rows = "premises" if kinds is KINDS else "pairs"
        raise RequestError(f"{flag}: expected at least two {rows} in {uri}, got {len(inferences)}")
    return inferences


def read_implicit(uri: str, flag: str) -> Inferences:
    """Read pairs of an implicit and an explicit sentence where the first file has a column of each, else premises.

    Raises RequestError as `read_inferences` does.
    """
    names = peek(find_input(uri, flag)[0]).names
    return read_inferences(uri, flag, KINDS if set(IMPLICIT_PAIR).isdisjoint(names) else IMPLICIT_PAIR)
