"""An output of `raycase embed --any-condition` as the input of a job: its tokens are pooled under new conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from raycase.encoder.token_batch import Work
from raycase.errors import RequestError
from raycase.io.inputs import Listing
from raycase.io.schema import CHUNK_COLUMNS, CODES, CONDITION, EMBEDDING, ID, UNCONDITIONAL_PART, Columns, check_once
from raycase.io.source import InputFile
from raycase.io.storage import fingerprint
from raycase.job.output import Output, read_job
from raycase.job.results import CHUNKED, OfTokens
from raycase.job.verify import FinishedOutput, open_written
from raycase.models.condition_pooling import ConditionPooling
from raycase.models.configs import EmbedderConfig
from raycase.models.embedder import LoadedSystem
from raycase.models.pairs import Encoded
from raycase.models.registry import resolve_embedder
from raycase.tokens.stored import StoredTokens

PoolTokens = Callable[[StoredTokens], np.ndarray]  # the vectors of N texts under each of C conditions: (N, C, D)


@dataclass(frozen=True, kw_only=True)
class PooledResult(OfTokens):
    """The vector of each pair, pooled from stored tokens.

    of, tokens: configuration and fingerprint of the job that stored them.
    """

    of: Mapping[str, Any]
    tokens: str
    conditions: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        of_tokens = {name: self.of[name] for name in ("text_column", "id_column", CHUNKED) if name in self.of}
        return super().config | of_tokens | {"words": self.tokens}

    @cached_property
    def pool_of(self) -> Callable[[LoadedSystem], PoolTokens]:
        """What pools by a system: made once."""
        return cache(lambda system: cast(ConditionPooling, system).pool(self.codes, self.conditions))

    def prepare(self, *texts: object) -> None:
        """Nothing is tokenised."""

    def compute(self, system: LoadedSystem, prepared: object, rows: pa.Table) -> Encoded:
        tokens = StoredTokens.from_arrow(rows, self.codes.form)
        vectors = self.pool_of(system)(tokens).reshape(-1, self.codes.form.dim)
        count, cut = len(vectors), np.zeros(len(vectors), bool)
        encoded = Encoded(vectors=vectors, refused=[None] * count, truncated=cut, work=Work(), distinct=count)
        return self.rounded(encoded)


def pooled(tokens: FinishedOutput, conditions: Sequence[str], **written: Any) -> PooledResult:
    """The vectors of these tokens under conditions; `written`: `dtype` and `normalize`."""
    of, basis = tokens.job_file, tokens.output.basis.uri
    return PooledResult(of=of.config, tokens=of.fingerprint, basis=basis, conditions=tuple(conditions), **written)


def open_tokens(uri: str, flag: str) -> FinishedOutput:
    """The output of stored tokens at a URI. Raises RequestError for another, and WorkError for one that is damaged."""
    tokens = open_written(uri, flag)
    if not tokens.has_tokens:
        raise RequestError(f"{flag}: expected an output of `raycase embed --any-condition`, got vectors alone in {uri}")
    tokens.check_basis(flag)
    return tokens


def tokens_among(listing: Listing) -> FinishedOutput | None:
    """The output of stored tokens, where the input is one. Raises RequestError where it is another output."""
    output = Output(listing.root.uri)
    try:
        if output.job_file.name not in listing.left_out or not read_job(output):
            return None
    except RequestError:  # another program's job.json
        return None
    return open_tokens(output.root.uri, "--input")


def token_files(tokens: FinishedOutput) -> list[InputFile]:
    """The files that hold the tokens."""
    folder, sizes = tokens.output.units, tokens.output.units.list()
    return [
        InputFile(uri=(folder / name).uri, size=sizes.get(name, 0), mark=f"sha256 {tokens.sums[name]}")
        for name in tokens.names
    ]


def token_columns(tokens: FinishedOutput, keep: Sequence[str] | None) -> Columns:
    """The columns to read; `keep` None: all that the output keeps. Raises RequestError for one that it has not."""
    of_output = (ID, CONDITION, EMBEDDING, CODES, UNCONDITIONAL_PART)
    kept = [field.name for field in tokens.schema if field.name not in of_output]
    for name in keep or ():
        check_once(name, kept, f"--keep-columns: {tokens.output.root.uri}")
    chunk = CHUNK_COLUMNS if CHUNKED in tokens.job_file.config else ()
    wanted = tuple(kept if keep is None else dict.fromkeys((*chunk, *keep)))
    types = {name: tokens.schema.field(name).type for name in (ID, *wanted)}
    return Columns(texts=(), id=ID, condition=None, keep=wanted, types=types, tokens=(CODES, UNCONDITIONAL_PART))


def token_model(tokens: FinishedOutput, model: str | None) -> EmbedderConfig:
    """The configuration of the model that stored the tokens, by its name now. Raises RequestError for another."""
    stored, name = tokens.job_file.config["model"], model or tokens.job_file.model
    config = resolve_embedder(name, dim=stored.get("cut"))
    if fingerprint(config.describe()) != fingerprint(stored):
        raise RequestError(f"--model: expected the model of the stored tokens, got another in {name}")
    return config
