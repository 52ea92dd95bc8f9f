"""Premises with hypotheses that they state, imply, leave open or contradict (INLI, Havaldar et al., 2025).

Shapes: N premises, H kinds of hypotheses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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


@dataclass(frozen=True, kw_only=True)
class Inferences:
    """N premises, each with a hypothesis of every kind."""

    uri: str
    columns: dict[str, list[str]]  # of KINDS

    def __len__(self) -> int:
        return len(self.columns["premise"])

    @cached_property
    def distinct(self) -> list[str]:
        """The T distinct texts."""
        return list(dict.fromkeys(text for kind in KINDS for text in self.columns[kind]))

    @cached_property
    def text_index(self) -> np.ndarray:
        """(N, 1 + H) int64: index in `distinct` of each premise and of its hypotheses."""
        number = {text: i for i, text in enumerate(self.distinct)}
        return np.array([[number[text] for text in self.columns[kind]] for kind in KINDS], dtype=np.int64).T

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: texts and their grouping."""
        texts_hash = texts_sha256((text,) for text in self.distinct)
        return hashlib.sha256(texts_hash.encode() + self.text_index.tobytes()).hexdigest()


def read_inferences(uri: str, flag: str) -> Inferences:
    """Read every row of a .csv, .jsonl or .parquet file (or a folder of them).

    Raises RequestError, with file and row, for a missing column or an empty text, and for fewer than two premises.
    """
    columns: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for file in find_input(uri, flag):
        values = read_columns(file, KINDS, flag)
        for kind in KINDS:
            columns[kind] += texts(values[kind], f"{flag}: {file.uri}", kind)
    if len(columns["premise"]) < 2:
        raise RequestError(f"{flag}: expected at least two premises in {uri}, got {len(columns['premise'])}")
    return Inferences(uri=uri, columns=columns)
