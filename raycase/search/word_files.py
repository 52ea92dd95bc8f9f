"""The files beside an index's versions: the bases of its stored words, and the centroids of their sketches.

Each is named by the hash of its content, and a version's metadata says which centroids sketched its rows. So a build
never writes over what another version is read by, and removes what no version that is left can need.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from raycase.data.json_values import from_json, loads
from raycase.data.lance_dataset import METADATA_KEY
from raycase.data.storage import Location
from raycase.data.stored_words import BASIS
from raycase.errors import RequestError, WorkError
from raycase.search.metadata import IndexMetadata
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_sketch import WordSketch

if TYPE_CHECKING:
    from lance import LanceDataset

WORD_BASES = "_word_bases"  # Lance leaves folders alone whose names begin like this
OLD_NAME = 16  # characters of a basis's hash by which 0.2.0 named its file and that of its centroids
MEND = "build the index again with --overwrite"


def basis_at(root: Location, basis: str) -> Location:
    """Where an index keeps a basis of stored words."""
    file = root / WORD_BASES / _basis_name(basis)
    old = root / WORD_BASES / _basis_name(basis[:OLD_NAME])
    return old if not file.exists() and old.exists() else file


def read_basis(root: Location, basis: str) -> WordCodes:
    """The basis of this hash. Raises RequestError where it is gone or another."""
    file = basis_at(root, basis)
    expected = f"--index: expected the basis of stored words {basis[:8]} at {file.uri}"
    if not file.exists():
        raise RequestError(f"{expected}, got none; {MEND}")
    codes = WordCodes.from_bytes(file.read(), file.uri)
    if codes.form.basis != basis:
        raise RequestError(f"{expected}, got another; {MEND}")
    return codes


def put_basis(root: Location, data: bytes) -> None:
    """Keep a basis."""
    _put(root / WORD_BASES / _basis_name(hashlib.sha256(data).hexdigest()), data)


def read_sketch(root: Location, basis: str, sketch: str) -> WordSketch:
    """The centroids of this hash (empty: those of a basis, before versions named them). Raises RequestError where they
    are gone or others."""
    file = root / WORD_BASES / _sketch_name(basis, sketch)
    expected = f"--index: expected the centroids of stored words {basis[:8]} at {file.uri}"
    if not file.exists():
        raise RequestError(f"{expected}, got none; {MEND}")
    data = file.read()
    if sketch and hashlib.sha256(data).hexdigest() != sketch:
        raise RequestError(f"{expected}, got others; {MEND}")
    return WordSketch.from_bytes(data, file.uri)


def put_sketch(root: Location, basis: str, sketch: WordSketch) -> str:
    """Keep centroids; returns their hash."""
    data = sketch.to_bytes()
    name = hashlib.sha256(data).hexdigest()
    _put(root / WORD_BASES / _sketch_name(basis, name), data)
    return name


def sketches_of(dataset: LanceDataset, metadata: IndexMetadata) -> dict[str, str]:
    """The bases of an index's rows, each with the hash of its centroids; empty where the metadata has none, as before
    it had any."""
    if not metadata.words or BASIS not in dataset.schema.names:
        return {}
    bases: set[str] = set()
    for batch in dataset.to_batches(columns=[BASIS], filter=f"{BASIS} IS NOT NULL"):
        bases.update(pc.unique(batch[BASIS]).to_pylist())
    recorded = metadata.sketches or {}
    return {basis: recorded.get(basis, "") for basis in sorted(bases)}


def check_files(root: Location, metadata: IndexMetadata) -> None:
    """Raise WorkError where a file that a version needs is gone: another build that was published removed it."""
    for basis, sketch in (metadata.sketches or {}).items():
        for file in (basis_at(root, basis), root / WORD_BASES / _sketch_name(basis, sketch)):
            if not file.exists():
                raise WorkError(f"expected {file.uri}, got none: another build is at work; build again")


def remove_unused(root: Location, dataset: LanceDataset) -> None:
    """Remove the files that no version of the dataset needs, and what killed builds left of some."""
    folder = root / WORD_BASES
    there = set(folder.list())
    if not there:
        return
    recorded: dict[
        bytes, LanceDataset
    ] = {}  # by what a version says of itself: those that a build wrote on its way say what the former does
    for version in dataset.versions():
        opened = dataset.checkout_version(version["version"])
        recorded.setdefault(opened.schema.metadata.get(METADATA_KEY.encode(), b""), opened)
    needed: set[str] = set()
    for text, opened in recorded.items():
        try:
            metadata = from_json(IndexMetadata, loads(text)) if text else None
        except ValueError:  # of another version of raycase: who knows what it needs
            return
        if metadata is None:  # not finished
            continue
        sketches = metadata.sketches if metadata.sketches is not None else sketches_of(opened, metadata)
        for basis, sketch in sketches.items():
            needed |= {_basis_name(basis), _basis_name(basis[:OLD_NAME]), _sketch_name(basis, sketch)}
    for name in sorted(there - needed):
        (folder / name).remove()
    for file in folder.half_written():
        file.remove()


def _put(file: Location, data: bytes) -> None:
    """Put a file whose name says what is in it: one that is whole is left alone."""
    if not file.exists() or file.read() != data:
        file.put(data)


def _basis_name(basis: str) -> str:
    return f"{basis}.safetensors"


def _sketch_name(basis: str, sketch: str) -> str:
    return f"{sketch or basis[:OLD_NAME]}.sketch.safetensors"
