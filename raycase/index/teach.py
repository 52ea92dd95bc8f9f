"""Teaching a condition by answers of rows of an index: their stored tokens are all that is read of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raycase.errors import RequestError
from raycase.index.build import build, check_poolable
from raycase.index.index import Index, text_column
from raycase.index.lance_files import OFFSET, lance_errors, offsets_of
from raycase.io.row_labels import RowLabels, find_rows
from raycase.io.schema import HAS_TOKENS, ID
from raycase.models.taught import Taught
from raycase.models.teaching import stated_labels


def teach(index: Index, condition: str, answers: RowLabels, model: str | None = None) -> Taught:
    """The condition after the answers, which the index has from now on where something is gained."""
    check_poolable(index.metadata, condition, index.root)
    column = ID if answers.column == ID else text_column(index, None)
    if column is None:
        raise RequestError(f"--answers: expected ids of rows of {index.root.uri}, which keeps no texts, got texts")
    stated_N, _ = stated_labels(answers.labels)
    with lance_errors(index.root):
        there = index.dataset.to_table(columns=[column, OFFSET], filter=HAS_TOKENS)
        rows = [answers.rows[i] for i in stated_N]
        place_N = find_rows(rows, there[column].to_pylist(), answers.uri, answers.column)
        offsets_M, row_N = np.unique(offsets_of(there)[place_N], return_inverse=True)
        tokens = index.pooled.flat(offsets_M).take(row_N)
    unconditional_NP = torch.from_numpy(index.vectors_at(None, offsets_M)[row_N])
    encoder: Any = index.encoder
    taught = encoder.teach_tokens(tokens, unconditional_NP, [answers.labels[i] for i in stated_N], condition)
    if taught.gained:
        build(index.root.uri, taught={condition: taught}, model=model)
    return taught


def forget(index: Index, condition: str, model: str | None = None) -> None:
    """Take a condition by its words from now on."""
    if condition not in index.metadata.taught:
        known = ", ".join(map(repr, index.metadata.taught)) or "it has none"
        raise RequestError(
            f"--condition: expected a condition that was taught to the index ({known}), got {condition!r}"
        )
    build(index.root.uri, taught={condition: None}, model=model)
