"""The columns that an index adds to rows with stored words: which basis coded them, and their sketches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raycase.corpus.written import Written
from raycase.data.ragged import Ragged
from raycase.data.storage import Location
from raycase.data.stored_words import BASIS, PLAIN_PART, SKETCH, WORDS, StoredWords, WordFormat
from raycase.errors import WorkError
from raycase.search.metadata import IndexMetadata
from raycase.search.word_files import put_basis, put_sketch, read_basis, read_sketch
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_sketch import WordSketch

if TYPE_CHECKING:
    from lance import LanceDataset

SAMPLED_UNITS, SAMPLED_ROWS = 5, 500  # of an output, by which the centroids of its sketches are chosen


@dataclass(frozen=True, kw_only=True)
class Sketcher:
    """Adds the index's own columns to rows with stored words."""

    codes: WordCodes
    sketch: WordSketch

    @classmethod
    def read(cls, source: Written, root: Location, sketch: str) -> Sketcher:
        """By what `prepare_sketches` put into the index for an output; sketch: what it returned."""
        form = WordFormat.of(source.schema)
        assert form is not None
        return cls(codes=read_basis(root, form.basis), sketch=read_sketch(root, form.basis, sketch))

    def add(self, rows: pa.Table) -> pa.Table:
        """With the columns BASIS and SKETCH."""
        words = _tokens(rows, self.codes.form)
        sketch = Ragged(flat=self.sketch.code(self.codes, words.flat), offsets=words.offsets)
        basis = pa.array([self.codes.form.basis] * len(rows), pa.string())
        return rows.append_column(BASIS, basis).append_column(SKETCH, sketch.to_arrow())


def prepare_sketches(source: Written, root: Location, dataset: LanceDataset | None, metadata: IndexMetadata) -> str:
    """Copy the basis of an output's words into the index (None: a new one), and choose centroids for sketches beside
    it, unless rows there were sketched by some: rows of one basis are sketched alike in a version. The metadata records
    them, and their hash is returned. Raises RequestError."""
    source.check_basis("--embeddings")
    form = WordFormat.of(source.schema)
    assert form is not None
    data = source.output.basis.read()
    codes = WordCodes.from_bytes(data, source.output.basis.uri)
    if codes.form != form:
        raise WorkError(f"--embeddings: expected words of {codes.form}, got {form} in {source.output.root.uri}")
    put_basis(root, data)
    assert metadata.sketches is not None
    if dataset is None or SKETCH not in dataset.schema.names or form.basis not in metadata.sketches:
        units = [unit for unit in source.units if unit.rows_out]
        places = np.unique(np.linspace(0, len(units) - 1, SAMPLED_UNITS).astype(int))
        some = replace(source, units=tuple(units[i] for i in places))
        tokens = [_tokens(rows.slice(0, SAMPLED_ROWS), form).flat for rows in some.tables([WORDS, PLAIN_PART])]
        metadata.sketches[form.basis] = put_sketch(root, form.basis, WordSketch.fit(codes, np.concatenate(tokens)))
    return metadata.sketches[form.basis]


def _tokens(rows: pa.Table, form: WordFormat) -> Ragged:
    """The codes of the tokens of some rows. Raises WorkError for what no output has."""
    try:
        return StoredWords.from_arrow(rows, form).codes
    except ValueError as error:
        raise WorkError(f"--embeddings: stored words: {error}; verify the output, and embed again") from error
