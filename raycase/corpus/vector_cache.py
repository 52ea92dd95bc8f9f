"""Vectors of texts and of pairs: embedded by the embedding job, cached in a folder, read as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from raycase.corpus.output import output_at
from raycase.corpus.request import EmbedJob
from raycase.corpus.run import Prepare, TooManyRejectedError, run
from raycase.data.parquet import parquet_bytes
from raycase.data.rated import texts_sha256
from raycase.data.schema import CONDITION, EMBEDDING, ID, embedding_numbers
from raycase.data.storage import Location, fingerprint
from raycase.data.stored_states import STATES, StoredStates
from raycase.errors import RequestError, note
from raycase.systems.condition_pooling_model import ConditionPoolingConfig
from raycase.systems.contracts import Compute, EmbedderConfig

SENTENCE = "sentence"
Pair = tuple[str, str]  # a sentence and its condition


@dataclass(frozen=True)
class VectorCache:
    """Vectors and states of texts by the embedding job, each embedded once; `prepare` decides what runs it."""

    prepare: Prepare

    def vectors_of(
        self,
        texts: Sequence[str] | Sequence[Pair],
        config: EmbedderConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None = None,
    ) -> np.ndarray:
        """`raycase.systems.contracts.VectorsOf` with the embedding job: (P, D) float32, the views side by side.

        Each view of (encoder, data) is embedded once, into a folder of the cache named by its fingerprint, and read
        from there later. Raises RequestError for a text that cannot be embedded.
        """
        pairs = [(text, "") if isinstance(text, str) else text for text in texts]
        plain = isinstance(texts[0], str)
        tables = [
            self._embedded(pairs, view, name, cache, compute, plain=plain)
            for view in (config.views_apart[:1] if plain else config.views_apart)
        ]
        return np.concatenate([embedding_numbers(table[EMBEDDING]) for table in tables], axis=1)

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
        table = self._embedded([(text, "") for text in texts], config, name, cache, compute, plain=True)
        return StoredStates.from_arrow(table[STATES], config.states_dim), embedding_numbers(table[EMBEDDING])

    def _embedded(
        self,
        pairs: Sequence[Pair],
        config: EmbedderConfig,
        name: str,
        cache: Location,
        compute: Compute | None,
        *,
        plain: bool,
    ) -> pa.Table:
        """The output of the job that embeds these pairs, which runs once: vectors, and states if kept."""
        identity = {"model": config.describe(), "pairs": texts_sha256(pairs), "compute": compute}
        folder = cache / fingerprint(identity | ({"plain": True} if plain else {}))[:16]
        vectors = output_at((folder / "vectors").uri)
        if not vectors.manifest.exists():  # a finished output may have moved here with its cache
            manner = "without condition" if plain else f"under {config.label}"
            note(f"embedding {len(pairs):,} texts of {name} {manner} into {folder.uri}")
            self._embed(pairs, config, name, folder, compute, plain)
        files = vectors.embeddings
        output = ds.dataset(files.path, filesystem=files.fs, format="parquet")
        table = output.to_table(columns=[name for name in (ID, EMBEDDING, STATES) if name in output.schema.names])
        assert table[ID].to_pylist() == list(range(len(pairs))), "expected the cache in the order of the pairs"
        return table

    def _embed(
        self,
        distinct: Sequence[Pair],
        config: EmbedderConfig,
        name: str,
        folder: Location,
        compute: Compute | None,
        plain: bool,
    ) -> None:
        """Run the embedding job over the distinct pairs. Raises RequestError if one has no vector."""
        pairs = folder / "pairs.parquet"
        if not pairs.exists():
            sentences, conditions = zip(*distinct, strict=True)
            columns = {ID: range(len(sentences)), SENTENCE: sentences, CONDITION: conditions}
            pairs.put(parquet_bytes(pa.table({name: pa.array(values) for name, values in columns.items()})))
        output = folder / "vectors"
        job = EmbedJob(
            input=pairs.uri,
            output=output.uri,
            text_column=SENTENCE,
            condition_column=None if plain else CONDITION,
            unconditional=plain,
            keep_columns=(),
            model=config.model,
            compute=compute,
            dtype="float32",
            unit_rows=2048,
            max_rejected=0,
        )
        try:
            run(job, model=config, prepare=self.prepare)
        except TooManyRejectedError as error:
            rejected = output_at(output.uri).rejected
            first = ds.dataset(rejected.path, filesystem=rejected.fs, format="parquet").head(1).to_pylist()[0]
            sentence, condition = distinct[int(first["id"])]
            output.remove()
            count = error.result["rows_rejected"]
            raise RequestError(
                f"{name}: expected a vector for each sentence, got {count} without; the first: "
                f"{first['reason']}: {sentence[:80]!r} under {condition[:80]!r}; fix or remove the row"
            ) from error
