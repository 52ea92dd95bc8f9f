"""Teaching a condition by answers of rows of an index: their stored tokens are all that is read of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from raycase.errors import RequestError
from raycase.index.build import build, check_poolable
from raycase.index.index import Index, names_at
from raycase.index.lance_files import OFFSET, lance_errors, offsets_of
from raycase.io.row_labels import RowLabels, find_rows
from raycase.io.schema import HAS_TOKENS
from raycase.models.taught import Taught
from raycase.models.teaching import stated_labels


def teach(index: Index, condition: str, answers: RowLabels, model: str | None = None) -> Taught:
    """The condition after the answers, which the index has from now on where something is gained."""
    check_poolable(index.metadata, condition, index.root)
    stated_labels(answers.labels)
    stated = replace(answers, label_of={row: label for row, label in answers.label_of.items() if label is not None})
    with lance_errors(index.root):
        offsets_N = offsets_of(index.dataset.to_table(columns=[OFFSET], filter=HAS_TOKENS))
        place_N = [found[0] for found in find_rows(stated, lambda column: names_at(index, column, offsets_N))]
        offsets_M, row_N = np.unique(offsets_N[place_N], return_inverse=True)
        tokens = index.pooled.flat(offsets_M).take(row_N)
    unconditional_NP = torch.from_numpy(index.vectors_at(None, offsets_M)[row_N])
    encoder: Any = index.encoder
    taught = encoder.teach_tokens(tokens, unconditional_NP, stated.labels, condition)
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
