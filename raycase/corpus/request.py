"""What a job asks for, checked. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from raycase.corpus.job_record import read_job
from raycase.corpus.output import Output, output_at
from raycase.corpus.unit_pairs import EncodeSettings
from raycase.data.columns import Columns, find_columns, peek
from raycase.data.conditions import read_conditions
from raycase.data.inputs import InputFile, find_input
from raycase.data.storage import PACKAGE, STORE_ERRORS, check_paths
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.systems.contracts import Compute, SystemConfig
from raycase.systems.fine_tuned_config import Tuned
from raycase.systems.registry import resolve_encoder

SAMPLE, SAMPLE_CONDITIONS = PACKAGE + "sample/sentences.csv", PACKAGE + "sample/conditions.txt"
PAIRS_OF_UNIT, ROWS_OF_UNIT = 32768, 4096


@dataclass(frozen=True, kw_only=True)
class EmbedJob:
    """Embed a corpus under conditions: Parquet, CSV or JSONL in, Parquet out. Without arguments: the sample.

    A job that was stopped goes on when the same command is given again.
    """

    input: str | None = None
    """File, folder or glob; .parquet, .csv or .jsonl; local, s3:// or any fsspec scheme. Default: the sample."""
    output: str | None = None
    """Folder of the output. Default, for the sample alone: ~/raycase/out."""
    text_column: str = "text"
    """Column of the sentences."""
    id_column: str | None = None
    """Column of the ids. Default: `id` if there is one, else the row's place, `file:row`."""
    keep_columns: tuple[str, ...] | None = None
    """Columns carried to the output. Default: the text."""
    conditions: tuple[str, ...] = ()
    """Conditions, every sentence under each; or one .txt (one a line), .parquet or .csv file with them."""
    condition_column: str | None = None
    """Instead: a column with each row's condition, or list of conditions."""
    unconditional: bool = False
    """Instead: no condition; writes f(s) with a null condition."""
    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id, or a model folder, here or on object storage (fetched once)."""
    prompt: str | None = None
    """How sentence and condition become one text, or several ways side by side, a+b. Default: the encoder's."""
    subtract: bool | None = None
    """Whether the condition's own vector is taken away (eq. 1). Default: the encoder's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder for this machine. Default: once a long job's first unit shows that it pays."""
    dtype: Literal["float16", "float32"] = "float16"
    """Number format of the written vectors."""
    on_long: Literal["truncate", "reject"] = "truncate"
    """What happens to a text above the encoder's length."""
    batch_tokens: int | None = None
    """Tokens of one batch, padding included. Default: 4096 on a CPU, 32768 on a GPU."""
    unit_rows: int | None = None
    """Rows of a unit, the smallest piece that is done or not. Default: 4096, fewer with many conditions."""
    actors: str | None = None
    """Encoders at work, MIN:MAX. Default: one a GPU, else one for four CPUs, of all that the autoscaler offers too."""
    gpus_per_actor: float | None = None
    """Default: 1 if the cluster has GPUs, else 0."""
    patience: float = 60.0
    """Minutes without a finished unit after which the job gives up: no machine comes, or all are lost."""
    limit: int | None = None
    """Embed the first so many rows only."""
    max_rejected: float = 0.01
    """Share of rejected rows above which the exit status is 1."""
    overwrite: bool = False
    """Remove an earlier output in the folder first."""
    dry_run: bool = False
    """Read a sample and say how much work it is; write nothing."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked job: nothing is written and no weights are loaded yet."""

    job: EmbedJob
    files: list[InputFile]
    columns: Columns
    conditions: tuple[str, ...] | None
    model: SystemConfig
    output: Output
    unit_rows: int

    @property
    def dim(self) -> int:
        return self.model.plain_dim if self.job.unconditional else self.model.dim

    @cached_property
    def config(self) -> dict[str, Any]:
        """What decides the output besides the input files."""
        job = self.job
        return {
            "model": self.model.describe(),
            "compute": job.compute,
            "dtype": job.dtype,
            "on_long": job.on_long,
            "text_column": self.columns.text,
            "id_column": self.columns.id,
            "types": {name: str(kind) for name, kind in sorted(self.columns.types.items())},
            "keep_columns": self.columns.keep,
            "condition_column": job.condition_column,
            "conditions": self.conditions,
            "unconditional": job.unconditional,
        }

    @property
    def encode_settings(self) -> EncodeSettings:
        return EncodeSettings(
            columns=self.columns,
            conditions=self.conditions,
            unconditional=self.job.unconditional,
            dtype=self.job.dtype,
            on_long=self.job.on_long,
            dim=self.dim,
        )


def check(job: EmbedJob, model: SystemConfig | None = None) -> Request:
    """Check everything that can be checked without weights; `model` stands for the one that the flags name.

    Raises RequestError.
    """
    if job.input is None:
        asked, output, conditions = SAMPLE, job.output or "~/raycase/out", job.conditions
        if not any(_ways(job, conditions).values()):
            conditions = (SAMPLE_CONDITIONS,)
    elif job.output is None:
        raise RequestError("--output: expected a folder for the vectors, got none; pass --output FOLDER")
    else:
        asked, output, conditions = job.input, job.output, job.conditions
    ways = [name for name, given in _ways(job, conditions).items() if given]
    if len(ways) != 1:
        wanted = "--conditions, --condition-column or --unconditional"
        raise RequestError(f"expected one of {wanted}, got {' and '.join(ways) or 'none'}")
    _check_numbers(job)
    check_paths({"--input": asked, "--output": output, "--model": job.model if Path(job.model).is_dir() else None})
    listed = tuple(read_conditions(conditions)) if conditions else None
    folder = output_at(output)
    own = tuple(part.uri for part in folder.parts)
    files = [f for f in find_input(asked) if f.uri not in own and not f.uri.startswith(tuple(f"{o}/" for o in own))]
    if not files:
        raise RequestError(f"--input: expected rows to embed at {asked}, got the output of a job alone")
    columns = find_columns(
        _first_file(files, None if job.overwrite else folder),
        text=job.text_column,
        id=job.id_column,
        condition=job.condition_column,
        keep=job.keep_columns,
    )
    model = model or resolve_encoder(job.model, prompt=job.prompt, pooling=job.pooling, subtract=job.subtract)
    if isinstance(model, Tuned):
        if job.condition_column is None:
            model.check_conditions(listed)
        elif model.CONDITIONS == ():
            raise RequestError(
                f"--condition-column: expected --unconditional for {job.model}, which knows no conditions"
            )
    if listed is not None:
        for condition, count in zip(listed, model.count_tokens(["a"] * len(listed), listed), strict=True):
            if not count:
                raise RequestError(
                    f"--conditions: expected room for a sentence in {job.model}, got none beside {condition[:80]!r}"
                )
    rows = job.unit_rows or min(ROWS_OF_UNIT, max(64, PAIRS_OF_UNIT // len(listed or "a")))
    return Request(job=job, files=files, columns=columns, conditions=listed, model=model, output=folder, unit_rows=rows)


def _first_file(files: Sequence[InputFile], output: Output | None) -> InputFile:
    """The file that says the columns' types: the first of the job that is there, else the first that has columns."""
    try:
        first = read_job(output).files[0] if output and output.job.exists() else None
    except STORE_ERRORS as error:
        assert output is not None
        said = output.root.why(error)
        raise RequestError(f"--output: expected a readable folder at {output.root.uri}, got: {said}") from error
    if first is not None and first in files:
        return first
    return next((f for f in files if peek(f).names), files[0])


def _ways(job: EmbedJob, conditions: tuple[str, ...]) -> dict[str, Any]:
    return {
        "--conditions": conditions,
        "--condition-column": job.condition_column,
        "--unconditional": job.unconditional,
    }


def _check_numbers(job: EmbedJob) -> None:
    for flag, value in (("batch-tokens", job.batch_tokens), ("unit-rows", job.unit_rows), ("limit", job.limit)):
        if value is not None and value < 1:
            raise RequestError(f"--{flag}: expected at least 1, got {value}")
    actor_range(job.actors)
    if not 0 <= job.max_rejected <= 1:
        raise RequestError(f"--max-rejected: expected a share between 0 and 1, got {job.max_rejected}")
    if job.gpus_per_actor is not None and job.gpus_per_actor < 0:
        raise RequestError(f"--gpus-per-actor: expected 0 or more, got {job.gpus_per_actor}")
    if job.patience <= 0:
        raise RequestError(f"--patience: expected minutes above 0, got {job.patience:g}")


def actor_range(text: str | None) -> tuple[int, int] | None:
    """MIN:MAX as numbers; one number is both. Raises RequestError."""
    if text is None:
        return None
    least, _, most = text.partition(":")
    if not (least.isdigit() and (most or least).isdigit() and 1 <= int(least) <= int(most or least)):
        raise RequestError(f"--actors: expected MIN:MAX with 1 <= MIN <= MAX, got {text!r}")
    return int(least), int(most or least)
