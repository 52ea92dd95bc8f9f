"""Stored tokens of an index: the columns that it adds to their rows, and the files beside its versions that read them,
named by the hash of their content, so that a build never writes over what another version is read by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raycase.errors import RequestError
from raycase.index.lance_files import IndexMetadata, other_build
from raycase.io.json_values import loads
from raycase.io.lance_dataset import METADATA_KEY
from raycase.io.ragged import Ragged
from raycase.io.schema import BASIS, CODES, SKETCH, UNCONDITIONAL_PART
from raycase.io.storage import Location
from raycase.job.verify import FinishedOutput
from raycase.tokens.sketch import Quantizer, TokenSketch
from raycase.tokens.stored import StoredTokens, TokenFormat

if TYPE_CHECKING:
    from lance import LanceDataset

TOKEN_BASES = "_word_bases"  # Lance leaves folders alone whose names begin like this
OF_SKETCH = ".sketch"  # stands in the names of centroids, behind their hash
SPARED = timedelta(days=7)  # on object storage a build beside may need what is younger; Lance spares its files so, too
SAMPLED_UNITS, SAMPLED_ROWS = 5, 250  # of an output, by which the centroids of its sketches are chosen


def make_sketcher(source: FinishedOutput, root: Location, metadata: IndexMetadata) -> Callable[[pa.Table], pa.Table]:
    """What adds the columns BASIS and SKETCH to rows of an output with stored tokens. The basis of the tokens is copied
    into the index; the centroids of sketches are chosen with its first rows. The metadata records both."""
    source.check_basis("--embeddings")
    form = TokenFormat.of(source.schema)
    assert form is not None
    data = source.output.basis.read()
    quantizer = Quantizer.from_bytes(data, source.output.basis.uri)
    if not (file := _file(root, form.basis)).exists() or file.read() != data:  # else searches may be reading it
        file.put(data)
    if form.basis not in metadata.sketches:
        units = [unit for unit in source.units if unit.rows_out]
        places = np.unique(np.linspace(0, len(units) - 1, SAMPLED_UNITS).astype(int))
        some = replace(source, units=tuple(units[i] for i in places)).tables([CODES, UNCONDITIONAL_PART])
        tokens = [StoredTokens.from_arrow(rows.slice(0, SAMPLED_ROWS), form).codes.flat for rows in some]
        data = TokenSketch.fit(quantizer, np.concatenate(tokens)).to_bytes()
        metadata.sketches[form.basis] = hashlib.sha256(data).hexdigest()
        _file(root, metadata.sketches[form.basis], OF_SKETCH).put(data)
    sketch = TokenSketch.from_bytes(*read_codes(root, metadata.sketches[form.basis], OF_SKETCH))

    def sketched(rows: pa.Table) -> pa.Table:
        tokens = StoredTokens.from_arrow(rows, form).codes
        sketches = Ragged(flat=sketch.code(quantizer, tokens.flat), offsets=tokens.offsets)
        basis = pa.array([form.basis] * len(rows), pa.string())
        return rows.append_column(BASIS, basis).append_column(SKETCH, sketches.to_arrow())

    return sketched


def check_there(root: Location, metadata: IndexMetadata) -> None:
    """Raise WorkError where a file that the metadata names is gone, as by a build that knew nothing of it."""
    for basis, sketch in metadata.sketches.items():
        if not (_file(root, basis).exists() and _file(root, sketch, OF_SKETCH).exists()):
            raise other_build(root)


def remove_unused(root: Location, dataset: LanceDataset) -> None:
    """Remove the files that no version of the dataset needs, and what killed builds left of some."""
    folder = root / TOKEN_BASES
    there = folder.list()
    if not there:
        return
    needed: set[str] = set()
    for version in dataset.versions():
        record = dataset.checkout_version(version["version"]).schema.metadata.get(METADATA_KEY.encode())
        for basis, sketch in (loads(record)["sketches"] if record else {}).items():
            needed |= {_file(root, basis).name, _file(root, sketch, OF_SKETCH).name}
    for file in (folder / name for name in sorted(set(there) - needed)):
        if root.is_local or datetime.now(UTC) - file.fs.modified(file.path) > SPARED:
            file.remove()
    for file in folder.half_written():
        file.remove()


def _file(root: Location, sha256: str, ending: str = "") -> Location:
    return root / TOKEN_BASES / f"{sha256}{ending}.safetensors"


def read_codes(root: Location, sha256: str, ending: str = "") -> tuple[bytes, str]:
    """The bytes of a basis of this hash, or of centroids, and their file's URI."""
    file = _file(root, sha256, ending)
    data = file.read() if file.exists() else b""
    if hashlib.sha256(data).hexdigest() != sha256:
        got = "others" if data else "none"
        raise RequestError(
            f"--index: expected the codes of stored tokens {sha256[:8]} at {file.uri}, got {got}; build the index "
            "again with --overwrite"
        )
    return data, file.uri
