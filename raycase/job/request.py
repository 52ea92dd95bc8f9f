"""The request of an embedding job: its flags, and what they resolve to once checked."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from raycase.encoder.chunks import Chunking
from raycase.encoder.prompts import PromptFlags, prompt_file
from raycase.errors import STALL_TIMEOUT, RequestError, at_least, check_ranges, expecting, note
from raycase.flags import RayFlag
from raycase.io.inputs import Listing, list_input, peek, source_of
from raycase.io.model_files import DEFAULT_MODEL, model_folder
from raycase.io.places import OF_INDEX, Folder, check_paths
from raycase.io.reader import conditions_file, read_conditions
from raycase.io.schema import (
    BITS,
    CHUNK_COLUMNS,
    CONDITION,
    EMBEDDING,
    FLOATS,
    ID,
    ROW_OF_PAIR,
    Dtype,
    find_columns,
)
from raycase.io.source import InputFile
from raycase.io.storage import PACKAGE
from raycase.io.stored_tokens import MOST_TOKEN_BYTES
from raycase.job.output import JobFile, Output, output_folder, read_job
from raycase.job.pair_result import EMBEDDINGS, PairResult, TokenResult
from raycase.job.read_step import PAIRS_OF_UNIT
from raycase.job.stored_tokens import PooledResult, token_columns, token_files, token_model, tokens_among
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import Compute, EmbedderConfig, check_conditions, check_room
from raycase.models.registry import resolve_embedder

SAMPLE, SAMPLE_CONDITIONS = PACKAGE + "sample/sentences.csv", PACKAGE + "sample/conditions.txt"
SAMPLE_OUTPUT = "~/raycase/out"
TOKEN_BYTES = 288  # of a token; 4 KB a caption
OF_TEXTS = (  # flags that stored tokens do not take
    "chunk overlap late_chunking text_column id_column dim prompt pooling subtract on_long".split()  # noqa: SIM905
)
ROWS_OF_UNIT, DOCUMENTS_OF_UNIT = 4096, 256  # at most, by default: of texts, of those that are cut


@dataclass(frozen=True, kw_only=True)
class RunFlags(RayFlag, PromptFlags):
    """By which model, and how the rows of a corpus go through it."""

    model: str | None = None
    """Name in the table of encoders, Hugging Face id, or a model folder, local or on object storage (fetched once).
    Default: the model that started the job in --output, else minilm-conditional-v2."""
    dim: int | None = None
    """Keep only the first dimensions of each vector: one of those of --nested in training. Default: all."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder for this machine. auto: after the first unit, if enough work is left."""
    on_long: Literal["truncate", "reject"] = "truncate"
    """What to do with texts longer than the encoder's maximum."""
    batch_tokens: int | None = None
    """Tokens in a batch, with padding. Default: 32768 on a GPU; on a CPU 512 to 4096, fewer for wide encoders."""
    unit_rows: int | None = None
    """Rows of a unit, the smallest piece that a job finishes. Default: 4096, or 256 with --chunk; fewer with many
    conditions."""
    actors: str | None = None
    """Number of encoders, or MIN:MAX to let the job wait for machines. Default: one per GPU of the running machines,
    else one per four CPUs."""
    gpus_per_actor: float | None = None
    """GPUs of each encoder. Default: 1 if a running machine has GPUs, else 0."""
    stall_timeout: float = STALL_TIMEOUT
    """Minutes without a finished unit after which the job gives up, for example when no machine is available."""
    limit: int | None = None
    """Read only the first N rows."""
    max_rejected: float = 0.01
    """Largest share of rejected rows; above it the exit status is 1."""
    overwrite: bool = False
    """Remove an earlier output in the folder first."""


@dataclass(frozen=True, kw_only=True)
class EmbedJob(RunFlags):
    """Embed a corpus under conditions: Parquet, CSV or JSONL in, Parquet out. Without arguments: the sample.

    A stopped job resumes when the same command is run again.
    """

    input: str = SAMPLE
    """File, folder or glob; .parquet, .csv or .jsonl, the last two also .gz or .zst; a Lance dataset; an output of
    --any-condition, whose stored tokens are pooled. Local, s3:// or any fsspec scheme. Default: a sample."""
    output: str | None = None
    """Folder of the output. Default, for the sample alone: ~/raycase/out."""
    text_column: str = "text"
    """Column of the sentences."""
    id_column: str | None = None
    """Column of the ids. Default: `id`, else the numbers `file:row`."""
    keep_columns: tuple[str, ...] | None = None
    """Columns copied to the output. Default: the text."""
    chunk: int | None = None
    """Cut long texts at sentence ends into chunks of at most so many tokens. Each is embedded under the id
    `DOCUMENT#NUMBER`, with the columns document, chunk, start and end (characters)."""
    overlap: int = 0
    """Tokens, at most, that a chunk has in common with the one before."""
    late_chunking: bool = False
    """With --chunk: the encoder reads as much of a document at once as it can, and each chunk pools its own tokens, so
    that "it" has a meaning. Needs a condition-pooling model."""
    conditions: tuple[str, ...] = ()
    """Conditions; every sentence is embedded under each. Or one .txt (one a line), .parquet, .csv or .jsonl file."""
    condition_column: str | None = None
    """Instead of --conditions: a column with the condition of each row, or its list of conditions."""
    unconditional: bool = False
    """Instead of --conditions: write unconditional vectors, with a null condition."""
    any_condition: bool = False
    """Instead of --conditions: store a short code for each token beside the unconditional vector, so that a search can
    use any condition later. Needs a condition-pooling model, such as the default one."""
    token_bytes: int | None = None
    """Bytes per stored token, with --any-condition. More bytes bring vectors closer to those embedded under the
    condition. Default: 288."""
    dtype: Dtype = "float16"
    """Number format of the written vectors. int8 and binary (one bit per dimension) are small vectors for other
    programs. index and join read only float16 and float32."""
    normalize: bool = False
    """Write vectors of length 1."""
    index: str | None = None
    """Also index the output for `raycase search`, in this Lance dataset; an index that exists gets the new rows."""
    dry_run: bool = False
    """Estimate the work from a sample; write nothing."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked job. Nothing is written and no weights are loaded yet."""

    job: RunFlags
    files: list[InputFile]
    model: Any  # the configuration of a system
    kind: PairResult
    output: Output
    unit_rows: int
    began: float  # seconds since the epoch

    @property
    def dim(self) -> int:
        return int(self.model.plain_dim if self.kind.unconditional else self.model.dim)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What decides the output besides the input files; the fingerprint is of this."""
        return {"model": self.model.describe(), "compute": self.job.compute} | self.kind.config

    @property
    def step(self) -> dict[str, Any]:
        """The arguments of the encode step, without what the machine decides."""
        return {
            "config": self.model,
            "kind": self.kind,
            "weights": self.config["model"]["weights"],
            "batch_tokens": self.job.batch_tokens,
            "compute": self.job.compute,
            "compile": self.job.compile,
        }


def check_embed(job: EmbedJob, model: EmbedderConfig | None = None) -> Request:
    """Check everything that can be checked without weights; `model` replaces the one that the flags name.

    Raises RequestError.
    """
    began = time.time()
    job = _filled(job)
    reads, writes = {"--conditions": conditions_file(job.conditions)}, {"--index": Folder(job.index, OF_INDEX)}
    output, found, begun = check_places(job, EMBEDDINGS, reads, writes)
    conditions = tuple(read_conditions(job.conditions)) if job.conditions else None
    kind: PairResult
    if tokens := tokens_among(found):
        _check_pooled(job)
        files, columns = token_files(tokens), token_columns(tokens, job.keep_columns)
        model, job = token_model(tokens, job.model), replace(job, compile="off")
        kind = PooledResult(
            columns=columns,
            of=tokens.job.config,
            words=tokens.job.fingerprint,
            basis=tokens.output.basis.uri,
            on_long=job.on_long,
        )
    else:
        found.say("--input")
        files = found.files
        model = model or find_model(job, begun, output, resolve_embedder)
        first = first_file(files, begun)
        columns = find_columns(
            peek(first),
            first.uri,
            text=job.text_column,
            id=job.id_column,
            condition=job.condition_column,
            keep=job.keep_columns,
            written=(ID, CONDITION, EMBEDDING, ROW_OF_PAIR, *(CHUNK_COLUMNS if job.chunk is not None else ())),
        )
        kind = PairResult(columns=columns, on_long=job.on_long, chunking=_chunking(job, model, conditions))
    kind = replace(kind, conditions=conditions, dtype=job.dtype, normalize=job.normalize)
    if job.any_condition:
        if not isinstance(model, ConditionPoolingConfig):
            raise RequestError(
                f"--any-condition: expected a model of condition pooling, got {model.model}, which encodes the "
                "condition with the sentence; leave --model out for the default, or pass --conditions"
            )
        kind = TokenResult(**vars(kind) | {"token_bytes": job.token_bytes or TOKEN_BYTES, "basis": output.basis.uri})
    if job.condition_column is None:
        check_conditions(model, conditions)
    elif model.known_conditions == ():
        raise RequestError(f"--condition-column: expected --unconditional for {model.model}, which knows no conditions")
    if conditions:
        check_room(model, conditions, "--conditions")
    most_rows = DOCUMENTS_OF_UNIT if kind.chunking else ROWS_OF_UNIT
    unit_rows = job.unit_rows or min(most_rows, max(64, PAIRS_OF_UNIT // len(conditions or "a")))
    request = Request(job=job, files=files, model=model, kind=kind, output=output, unit_rows=unit_rows, began=began)
    if job.dtype == "binary" and request.dim % BITS:
        raise RequestError(
            f"--dtype binary: expected dimensions that {BITS} divides, for a bit each, got {request.dim} of "
            f"{model.model}; pass --dtype int8, or --dim where the model has nested dimensions"
        )
    return request


def _check_pooled(job: EmbedJob) -> None:
    """Raise RequestError for a job on stored tokens that has no --conditions, or a flag that only texts take."""
    given = [f"--{name.replace('_', '-')}" for name in OF_TEXTS if getattr(job, name) != getattr(EmbedJob, name)]
    if given or not job.conditions:
        got = f"{given[0]} beside them; leave it out" if given else "none"
        raise RequestError(f"--input: expected --conditions for the stored tokens in {job.input}, got {got}")


def _chunking(job: EmbedJob, model: EmbedderConfig, conditions: Sequence[str] | None) -> Chunking | None:
    """How the job cuts texts. Raises RequestError for chunks that the model does not read whole, for an overlap without
    chunks or of whole ones, and without the package that cuts."""
    if job.chunk is None and not job.overlap and not job.late_chunking:
        return None
    if job.chunk is None or not 0 <= job.overlap < job.chunk:
        got = "none" if job.chunk is None else job.chunk
        raise RequestError(
            f"--chunk: expected at least 1 token, and fewer in --overlap, got {got} and --overlap {job.overlap}"
        )
    averaged = isinstance(model, ConditionPoolingConfig) and model.encoder.pooling[0] in ("mean", "mean-all")
    if job.late_chunking and not averaged:
        raise RequestError(
            f"--late-chunking: expected a condition-pooling model whose encoder pools by the mean, got {model.model}; "
            "leave it out"
        )
    most = model.encoder.max_tokens
    asked = conditions or ([*(model.known_conditions or ("a",))][:1] if job.condition_column else None)
    text = " ".join("a" * min(job.chunk, most))
    chunking = Chunking(tokens=job.chunk, overlap=job.overlap, late=job.late_chunking)
    if job.chunk > most or model.prepare([text] * len(asked or "a"), asked).truncated.any():
        raise RequestError(
            f"--chunk: expected chunks that {model.model} reads whole, at most {most} tokens with its prompt and a "
            f"condition that it reads beside them, got {job.chunk}"
        )
    next(chunking.cut(model.encoder, "a"))
    return chunking


def _filled(job: EmbedJob) -> EmbedJob:
    """The job, with the conditions and the output of the sample where it has none. Raises RequestError unless it has
    one kind of them, for --token-bytes that do not fit it, and for an input without output."""
    ways = {
        "--conditions": job.conditions,
        "--condition-column": job.condition_column,
        "--unconditional": job.unconditional,
        "--any-condition": job.any_condition,
    }
    flags = [flag for flag, value in ways.items() if value]
    if job.output is None:
        if job.input != SAMPLE:
            raise RequestError("--output: expected a folder for the vectors, got none; pass --output FOLDER")
        job = replace(job, output=SAMPLE_OUTPUT)
    if job.input == SAMPLE and not flags:
        job, flags = replace(job, conditions=(SAMPLE_CONDITIONS,)), ["--conditions"]
    if len(flags) != 1:
        raise RequestError(
            "expected one of --conditions, --condition-column, --unconditional or --any-condition, got "
            f"{' and '.join(flags) or 'none'}"
        )
    if job.token_bytes is not None and not (job.any_condition and MOST_TOKEN_BYTES >= job.token_bytes >= 1):
        raise RequestError(
            f"--token-bytes: expected 1 to {MOST_TOKEN_BYTES} beside --any-condition, got {job.token_bytes}"
            f"{'' if job.any_condition else ' without it'}"
        )
    indexed = "--any-condition" if job.any_condition else "--index" if job.index else ""
    if indexed and (job.dtype not in FLOATS or (job.any_condition and job.normalize)):
        raise RequestError(
            f"{indexed}: expected vectors as the model gives them, of {' or '.join(FLOATS)}, for indexes, "
            f"got {'--normalize' if job.normalize else f'--dtype {job.dtype}'}; leave it out"
        )
    return job


def _check_numbers(job: Any) -> None:
    """Raise RequestError for a flag that is out of its range, and for vectors to cut that have no condition."""
    gpus, rejected = job.gpus_per_actor, job.max_rejected
    ranges = {
        **at_least(1, job, "batch_tokens", "unit_rows", "limit"),
        "max_rejected": (0 <= rejected <= 1, "a share between 0 and 1"),
        "gpus_per_actor": (gpus is None or gpus >= 0, "0 or more"),
        "stall_timeout": (job.stall_timeout > 0, "minutes above 0"),
    }
    check_ranges(job, ranges)
    actor_range(job.actors)
    if job.dim is not None and job.unconditional:
        raise RequestError(
            "--dim: expected vectors under conditions to cut, got --unconditional, which writes those of the encoder; "
            "leave --dim out"
        )


def actor_range(text: str | None) -> tuple[int, int] | None:
    """MIN:MAX as numbers; one number is both. Raises RequestError."""
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
    least, most = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
    if not 1 <= least <= most:
        raise RequestError(f"--actors: expected MIN:MAX with 1 <= MIN <= MAX, got {text!r}")
    return least, most


# ----------------------------------------------------------------------------------------- what is there already


def check_places(
    job: Any, results: str, reads: Mapping[str, str | None], writes: Mapping[str, Folder]
) -> tuple[Output, Listing, JobFile | None]:
    """The output of a job with a folder `results`; the files of its input; and the job that the output was begun by,
    unless it is overwritten: datasets are at the version with which that began. `reads`, `writes`: further places.

    Raises RequestError for numbers out of range, places that are one, and those that cannot be read.
    """
    _check_numbers(job)
    check_paths(
        reads={"--input": job.input, "--prompt": prompt_file(job.prompt), **reads},
        opens={"--model": model_folder(job.model)},
        writes={"--output": output_folder(job.output, results), **writes},
    )
    output = Output(job.output, results)
    with expecting(f"--output: expected a readable folder at {output.root.uri}", OSError, why=output.root.why):
        begun = read_job(output) if not job.overwrite and output.job.exists() else None
    listing = list_input(job.input)
    if begun:
        listing = replace(listing, files=[_at_begun(file, begun) for file in listing.files])
    return output, listing, begun


def _at_begun(file: InputFile, begun: JobFile) -> InputFile:
    """A dataset at the version with which the job began, if that is still there; other files as they are."""
    known = next((old for old in begun.files if old.uri == file.uri), file)
    if known == file or not all(source_of(each).keeps_versions for each in (known, file)):
        return file
    try:
        peek(known)
    except RequestError:
        return file  # of another content: the job says that it has changed
    now, then = (each.mark.rpartition(" ")[0] for each in (file, known))
    note(f"--input: {file.uri} is now {now}; this job continues with {then}. For the new rows, choose another --output")
    return known


def first_file(files: Sequence[InputFile], begun: JobFile | None) -> InputFile:
    """The file that decides the columns' types: the first of the job to resume, else the first that has columns."""
    if begun and begun.files[0] in files:
        return begun.files[0]
    return next((f for f in files if peek(f).names), files[0])


def find_model(job: RunFlags, begun: JobFile | None, output: Output, find: Callable[..., Any]) -> Any:
    """The model that the flags name and choose, by `find`; without a name that of the job to resume, else the default.
    Says so where these two differ. Raises RequestError."""
    choices = job.prompt_choices | {"dim": job.dim}
    if job.model is not None or not begun:
        return find(DEFAULT_MODEL if job.model is None else job.model, **choices)
    expected = f"--model: expected the model that {output.root.uri} was started with, {begun.model}"
    with expecting(expected, RequestError, advice="; pass its present place as --model"):
        config = find(begun.model, **choices)
    if begun.model != DEFAULT_MODEL:
        note(f"{output.root.uri}: started with --model {begun.model}; resuming with it")
    return config
