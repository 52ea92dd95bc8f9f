"""The vectors of rated pairs: embedded by the main job, kept in a cache, read back as arrays."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from raycase.embed import embed
from raycase.output import output_at, parquet_bytes
from raycase.projection import PairVectors
from raycase.rated import RatedPairs
from raycase.request import Compute, EmbedJob
from raycase.schema import CONDITION, EMBEDDING, ID
from raycase.storage import Place, fingerprint
from raycase.systems.case import CaseConfig

SENTENCE = "sentence"


def pair_vectors(rated: RatedPairs, config: CaseConfig, *, cache: Place, compute: Compute | None = None) -> PairVectors:
    """Vectors of eq. 1 before g for every sentence of the pairs, views side by side.

    Each view of (encoder, data) is embedded once by the main job into a folder of the cache that its fingerprint
    names; what is there is read. Raises WorkError where a sentence cannot be embedded.
    """
    views = [_view_vectors(rated, view, cache, compute) for view in config.views_apart]
    return PairVectors(vectors=np.concatenate(views, axis=1), places=rated.places, ratings=rated.ratings)


def _view_vectors(rated: RatedPairs, config: CaseConfig, cache: Place, compute: Compute | None) -> np.ndarray:
    """(P, D) float32 of one view."""
    key = fingerprint({"model": config.describe(), "pairs": rated.sha256, "compute": compute})[:16]
    folder = cache / key
    pairs = folder / "pairs.parquet"
    if not pairs.exists():
        sentences, conditions = zip(*rated.distinct, strict=True)
        columns = {ID: range(len(sentences)), SENTENCE: sentences, CONDITION: conditions}
        pairs.put(parquet_bytes(pa.table({name: pa.array(values) for name, values in columns.items()})))
    if not output_at((folder / "vectors").uri).manifest.exists():
        print(f"embedding {rated.uri} under {config.label} into {folder.uri}", file=sys.stderr)
    job = EmbedJob(
        input=pairs.uri,
        output=(folder / "vectors").uri,
        text_column=SENTENCE,
        condition_column=CONDITION,
        keep_columns=(),
        model=config.model,
        compute=compute,
        dtype="float32",
        unit_rows=2048,
        max_rejected=0,
    )
    result = embed(job, model=config)
    table = _read(result["output"])
    assert table[ID].to_pylist() == list(range(len(rated.distinct))), "the cache is in the order of the pairs"
    values = table[EMBEDDING].combine_chunks().flatten().to_numpy()
    return values.reshape(len(table), -1)


def _read(output: str) -> pa.Table:
    folder = output_at(output).embeddings
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table(columns=[ID, EMBEDDING])
