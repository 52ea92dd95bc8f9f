"""The vectors of rated pairs: embedded by the main job, kept in a cache, read back as arrays."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from raycase.embed import TooManyRejectedError, embed
from raycase.output import output_at, parquet_bytes
from raycase.projection import PairVectors
from raycase.rated import RatedPairs
from raycase.request import Compute, EmbedJob
from raycase.schema import CONDITION, EMBEDDING, ID, RequestError
from raycase.storage import Place, fingerprint
from raycase.systems.case import CaseConfig

SENTENCE = "sentence"


def pair_vectors(rated: RatedPairs, config: CaseConfig, *, cache: Place, compute: Compute | None = None) -> PairVectors:
    """Vectors of eq. 1 before g for every sentence of the pairs, views side by side.

    Each view of (encoder, data) is embedded once by the main job into a folder of the cache that its fingerprint
    names; what is there is read. Raises RequestError where a sentence cannot be embedded.
    """
    views = [_view_vectors(rated, view, cache, compute) for view in config.views_apart]
    return PairVectors(vectors=np.concatenate(views, axis=1), places=rated.places, ratings=rated.ratings)


def _view_vectors(rated: RatedPairs, config: CaseConfig, cache: Place, compute: Compute | None) -> np.ndarray:
    """(P, D) float32 of one view."""
    key = fingerprint({"model": config.describe(), "pairs": rated.sha256, "compute": compute})[:16]
    folder = cache / key
    vectors = output_at((folder / "vectors").uri)
    if not vectors.manifest.exists():  # a finished one may have been moved here with its cache
        print(f"embedding {rated.uri} under {config.label} into {folder.uri}", file=sys.stderr)
        _embed(rated, config, folder, compute)
    files = vectors.embeddings
    table = ds.dataset(files.path, filesystem=files.fs, format="parquet").to_table(columns=[ID, EMBEDDING])
    assert table[ID].to_pylist() == list(range(len(rated.distinct))), "the cache is in the order of the pairs"
    values = table[EMBEDDING].combine_chunks().flatten().to_numpy()
    return values.reshape(len(table), -1)


def _embed(rated: RatedPairs, config: CaseConfig, folder: Place, compute: Compute | None) -> None:
    """Run the main job over the distinct (sentence, condition). Raises RequestError for one that has no vector."""
    pairs = folder / "pairs.parquet"
    if not pairs.exists():
        sentences, conditions = zip(*rated.distinct, strict=True)
        columns = {ID: range(len(sentences)), SENTENCE: sentences, CONDITION: conditions}
        pairs.put(parquet_bytes(pa.table({name: pa.array(values) for name, values in columns.items()})))
    output = folder / "vectors"
    job = EmbedJob(
        input=pairs.uri,
        output=output.uri,
        text_column=SENTENCE,
        condition_column=CONDITION,
        keep_columns=(),
        model=config.model,
        compute=compute,
        dtype="float32",
        unit_rows=2048,
        max_rejected=0,
    )
    try:
        embed(job, model=config)
    except TooManyRejectedError as error:
        rejected = output_at(output.uri).rejected
        first = ds.dataset(rejected.path, filesystem=rejected.fs, format="parquet").head(1).to_pylist()[0]
        sentence, condition = rated.distinct[int(first["id"])]
        output.remove()
        count = error.result["rows_rejected"]
        raise RequestError(
            f"{rated.uri}: wanted a vector for each sentence, found {count} without; the first: "
            f"{first['reason']}: {sentence[:80]!r} under {condition[:80]!r}; mend or remove the row"
        ) from error
