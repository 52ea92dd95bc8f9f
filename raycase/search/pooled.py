"""Vectors under a condition that an index does not have: pooled from its stored words, without the encoder.

Shapes: B rows of a batch, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raycase.data.storage import Location
from raycase.data.stored_words import BASIS, PLAIN_PART, WORDS, StoredWords
from raycase.errors import RequestError
from raycase.search.exact import Block
from raycase.search.lance_files import OFFSET, basis_at, offsets_of
from raycase.systems.condition_head import Questions
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_pooling import UnpackedWords, WordPooler, unpack

if TYPE_CHECKING:
    from lance import LanceDataset

BATCH_ROWS = 8192  # rows whose words are read at a time


class PooledVectors:
    """Pools all rows that have stored words. Their unpacked words are cached, if they fit into `memory_bytes`; else
    each condition reads them again, batch by batch."""

    def __init__(self, dataset: LanceDataset, root: Location, memory_bytes: int, *, keeps: bool = True) -> None:
        """keeps: whether words are cached."""
        self.dataset, self.root, self.memory_bytes, self.keeps = dataset, root, memory_bytes, keeps
        self.cached: list[tuple[np.ndarray, str, UnpackedWords]] | None = None
        self.codes = cache(self._codes)

    def blocks(self, questions: Questions, temperatures: Tensor) -> Iterator[Block]:
        """Row offsets and unit vectors under one condition. Raises RequestError."""
        pooler = cache(lambda basis: WordPooler(self.codes(basis), questions, temperatures))
        for offsets_B, basis, words in self._words():
            vectors_BD = pooler(basis).pool(words)[:, 0]
            lengths_B1 = torch.linalg.vector_norm(vectors_BD, dim=-1, keepdim=True).clamp(min=1e-12)
            yield offsets_B[words.order], vectors_BD.div_(lengths_B1)

    def _words(self) -> Iterator[tuple[np.ndarray, str, UnpackedWords]]:
        """Offsets, basis and words of all rows, batch by batch."""
        if self.cached is not None:
            yield from self.cached
            return
        kept: list[tuple[np.ndarray, str, UnpackedWords]] = []
        size = 0
        for part in self._read():
            size += part[2].nbytes
            if part[2].nbytes > self.memory_bytes:
                raise RequestError(
                    f"--memory (search), Limits.words_bytes: expected room for the words of {BATCH_ROWS:,} rows, "
                    f"{part[2].nbytes / 2**30:.2f} GiB, got {self.memory_bytes / 2**30:.2f}"
                )
            kept.append(part)
            if not self.keeps or size > self.memory_bytes:
                kept.clear()
            yield part
        if self.keeps and size <= self.memory_bytes:
            self.cached = kept

    def _read(self) -> Iterator[tuple[np.ndarray, str, UnpackedWords]]:
        columns = [OFFSET, WORDS, PLAIN_PART, BASIS]
        for batch in self.dataset.to_batches(columns=columns, filter=f"{WORDS} IS NOT NULL", batch_size=BATCH_ROWS):
            for basis in batch[BASIS].unique().to_pylist():  # one, but where outputs meet
                rows = pa.table(batch).filter(pc.equal(batch[BASIS], basis))
                codes = self.codes(basis)
                try:
                    words = StoredWords.from_arrow(rows, codes.form)
                except ValueError as error:
                    raise RequestError(f"{self.root.uri}: stored words: {error}; build the index again") from error
                yield offsets_of(rows), basis, unpack(words, codes)

    def _codes(self, basis: str) -> WordCodes:
        """The basis of this hash. Raises RequestError where it is gone or another."""
        file = basis_at(self.root, basis)
        expected = f"--index: expected the basis of stored words {basis[:8]} at {file.uri}"
        if not file.exists():
            raise RequestError(f"{expected}, got none; build the index again with --overwrite")
        codes = WordCodes.from_bytes(file.read(), file.uri)
        if codes.form.basis != basis:
            raise RequestError(f"{expected}, got another; build the index again with --overwrite")
        return codes
