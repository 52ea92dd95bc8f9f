"""Vectors of texts and of pairs, and states of texts: by the embedding job, cached in a folder, read as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from raycase.errors import RequestError, note
from raycase.evaluation.models import TextsOrPairs
from raycase.io.inputs import list_input, peek
from raycase.io.rated_pairs import RatedPairs, texts_sha256
from raycase.io.schema import CONDITION, EMBEDDING, ID, embedding_numbers, find_columns, parquet_bytes
from raycase.io.storage import Location, fingerprint
from raycase.job.output import Output
from raycase.job.request import Request
from raycase.job.results import (
    Encoding,
    JobResult,
    OfVectors,
    RowPairs,
    VectorResult,
)
from raycase.job.run import UnfitError, run
from raycase.job.runner import Runner
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import EmbedderConfig, SystemConfig
from raycase.models.pairs import Encoded, PairVectors
from raycase.names import Compute
from raycase.tokens.stored import STATES, StoredStates

if TYPE_CHECKING:
    from raycase.encoder.token_batch import Prepared
    from raycase.models.condition_pooling import ConditionPooling
    from raycase.models.embedder import LoadedSystem

SENTENCE = "sentence"
UNIT_ROWS = 2048  # of all jobs here
Pair = tuple[str, str]  # a sentence and its condition


@dataclass(frozen=True, kw_only=True)
class StateResult(OfVectors):
    """The unconditional vector of each text, and the states of its tokens."""

    KEY: ClassVar[str] = "states"

    @property
    def config(self) -> dict[str, Any]:
        return super().config | {self.KEY: True}

    def compute(self, system: LoadedSystem, prepared: Prepared | None, rows: pa.Table) -> Encoded:
        return self.rounded(cast("ConditionPooling", system).tokens(cast("Prepared", prepared)))


@dataclass(frozen=True)
class VectorCache:
    """Vectors and states of texts by the embedding job, each once."""

    runner: Runner

    def vectors_of(
        self, texts: TextsOrPairs, config: EmbedderConfig, *, name: str, cache: Location, compute: Compute | None = None
    ) -> np.ndarray:
        """f(s) of distinct sentences, or the vectors before g of distinct (sentence, condition): (P, D) float32, views
        side by side. Each view is embedded once, into a folder of the cache. name: of the data, for messages."""
        pairs = [(text, "") if isinstance(text, str) else text for text in texts]
        unconditional = isinstance(texts[0], str)
        views = config.views_apart[:1] if unconditional else config.views_apart
        tables = [self._embedded(pairs, view, name, cache, compute, unconditional=unconditional) for view in views]
        return np.concatenate([embedding_numbers(table[EMBEDDING]) for table in tables], axis=1)

    def pair_vectors(
        self, rated: RatedPairs, config: EmbedderConfig, *, cache: Location, compute: Compute | None = None
    ) -> PairVectors:
        """Both sentences of each pair under its condition, the views side by side."""
        vectors = self.vectors_of(rated.distinct, config, name=rated.uri, cache=cache, compute=compute)
        return PairVectors(vectors=vectors, pair_index=rated.pair_index, ratings=rated.ratings)

    def states_of(
        self,
        texts: Sequence[str],
        config: ConditionPoolingConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None = None,
    ) -> tuple[StoredStates, np.ndarray]:
        """States of the tokens of N distinct texts, and f of each, (N, D) float32, with the embedding job."""
        pairs = [(text, "") for text in texts]
        table = self._embedded(pairs, config, name, cache, compute, unconditional=True, result=StateResult())
        return StoredStates.read(table[STATES], config.states_dim), embedding_numbers(table[EMBEDDING])

    def _embedded(
        self,
        pairs: Sequence[Pair],
        config: EmbedderConfig,
        name: str,
        cache: Location,
        compute: Compute | None,
        *,
        unconditional: bool,
        result: JobResult = VectorResult(),  # noqa: B008 frozen
    ) -> pa.Table:
        """The output of the job that embeds these pairs, which runs once."""
        identity: dict[str, Any] = {"model": config.describe(), "pairs": texts_sha256(pairs), "compute": compute}
        identity |= ({"unconditional": True} if unconditional else {}) | (
            {"kind": result.KEY} if isinstance(result, StateResult) else {}  # on disk
        )
        folder = cache / fingerprint(identity)[:16]
        vectors = Output((folder / "vectors").uri)
        if not vectors.manifest.exists():  # a finished output may have moved here with its cache
            manner = "without condition" if unconditional else f"under {config.label}"
            note(f"Encoding {len(pairs):,} texts of {name} once, {manner}, into {folder.uri}")
            uri = _table(folder / "pairs.parquet", pairs)
            request = _request(uri, None if unconditional else CONDITION, config, result, vectors, compute)
            self._run(request, pairs, name)
        return _read(vectors, len(pairs))

    def _run(self, request: Request, pairs: Sequence[Pair], name: str) -> None:
        """Run a job over these pairs, of which none may be rejected."""
        try:
            run(request, self.runner)
        except UnfitError as error:
            rejected = request.output.rejected
            first = ds.dataset(rejected.path, filesystem=rejected.fs, format="parquet").head(1).to_pylist()[0]
            sentence, condition = (text[:80] for text in pairs[int(first["id"])])
            request.output.root.remove()
            raise RequestError(
                f"{name}: expected a vector for each sentence, got {error.result['rows_rejected']} without; the first: "
                f"{first['reason']}: {sentence!r} under {condition!r}; fix or remove the row"
            ) from error


def _request(
    uri: str, condition: str | None, config: SystemConfig, result: JobResult, output: Output, compute: Compute | None
) -> Request:
    """The job over a table of `_table`."""
    files = list_input(uri).files
    columns = find_columns(peek(files[0]), uri, id=None, condition=condition, keep=(), text=SENTENCE)
    encoding = Encoding(model=config, pairs=RowPairs(columns=columns), result=result, compute=compute, compile="auto")
    return Request(encoding=encoding, files=files, output=output, unit_rows=UNIT_ROWS)


def _table(file: Location, pairs: Sequence[Pair]) -> str:
    """Write pairs to a Parquet file, with their number as id, unless it is there; gives its URI."""
    if not file.exists():
        sentences, conditions = zip(*pairs, strict=True)
        columns = {ID: range(len(pairs)), SENTENCE: sentences, CONDITION: conditions}
        file.put(parquet_bytes(pa.table({name: pa.array(values) for name, values in columns.items()})))
    return file.uri


def _read(output: Output, count: int) -> pa.Table:
    """The columns that a job over `_table` computed, in the order of its rows."""
    files = output.units
    found = ds.dataset(files.path, filesystem=files.fs, format="parquet")
    table = found.to_table(columns=[n for n in (ID, EMBEDDING, STATES) if n in found.schema.names])
    assert table[ID].to_pylist() == list(range(count)), "expected the cache in the order of the rows"
    return table
