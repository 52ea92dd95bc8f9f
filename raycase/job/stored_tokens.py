"""An output of `raycase embed --any-condition` as the input of a job: its tokens are pooled under new conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.encoder.token_batch import Work
from raycase.errors import RequestError
from raycase.io.inputs import Listing
from raycase.io.schema import CHUNK_COLUMNS, CODES, CONDITION, EMBEDDING, ID, UNCONDITIONAL_PART, Columns, check_once
from raycase.io.source import InputFile
from raycase.io.storage import fingerprint
from raycase.job.finished_output import FinishedOutput, open_written
from raycase.job.output import Output, read_job
from raycase.job.pair_result import Encode, PairResult, read_codes
from raycase.models.configs import EmbedderConfig
from raycase.models.registry import resolve_embedder
from raycase.tokens.stored import StoredTokens


@dataclass(frozen=True, kw_only=True)
class PooledResult(PairResult):
    """The vector of each pair, pooled from stored tokens.

    of: the configuration of the job that stored them; words: its fingerprint; basis: the file by which they are coded
    (URI).
    """

    of: Mapping[str, Any]
    words: str
    basis: str

    @property
    def config(self) -> dict[str, Any]:
        own = {"text_column": self.of["text_column"], "id_column": self.of["id_column"], "words": self.words}
        return super().config | own | {name: self.of[name] for name in [self.CHUNK] if name in self.of}

    def open(self, system: Any) -> Encode:
        from raycase.models.pairs import Encoded

        codes = read_codes(self.basis)
        pool = system.pool(codes, self.conditions or ())

        def encode(_: None, rows: pa.Table) -> Encoded:
            tokens = StoredTokens.from_arrow(rows, codes.form)
            vectors = pool(tokens).reshape(-1, codes.form.dim)
            none, count = np.zeros(len(vectors), bool), len(vectors)
            return Encoded(vectors=vectors, refused=[None] * count, truncated=none, work=Work(), distinct=count)

        return encode

    def prepare(self, config: Any, texts: Sequence[Sequence[str]], conditions: Sequence[str] | None) -> None:
        """Nothing is tokenised."""


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
    chunk = CHUNK_COLUMNS if PairResult.CHUNK in tokens.job_file.config else ()
    wanted = tuple(kept if keep is None else dict.fromkeys((*chunk, *keep)))
    types = {name: tokens.schema.field(name).type for name in (ID, *wanted)}
    return Columns(texts=(), id=ID, condition=None, keep=wanted, types=types, words=(CODES, UNCONDITIONAL_PART))


def token_model(tokens: FinishedOutput, model: str | None) -> EmbedderConfig:
    """The configuration of the model that stored the tokens, by its name now. Raises RequestError for another."""
    stored, name = tokens.job_file.config["model"], model or tokens.job_file.model
    config = resolve_embedder(name, dim=stored.get("cut"))
    if fingerprint(config.describe()) != fingerprint(stored):
        raise RequestError(f"--model: expected the model of the stored tokens, got another in {name}")
    return config
