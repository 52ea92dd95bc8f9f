"""The job that embeds a corpus: its flags, checked. `raycase.job.run` runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raycase.commands.flags import Advanced, RunFlags
from raycase.encoder.chunks import Chunking
from raycase.errors import RequestError
from raycase.io.inputs import peek
from raycase.io.places import OF_INDEX, Folder
from raycase.io.reader import conditions_file, read_conditions
from raycase.io.schema import BITS, CHUNK_COLUMNS, CONDITION, EMBEDDING, FLOATS, ID, ROW_OF_PAIR, find_columns
from raycase.io.storage import PACKAGE
from raycase.job.pair_result import EMBEDDINGS, PairResult, TokenResult
from raycase.job.read_step import PAIRS_OF_UNIT
from raycase.job.request import ROWS_OF_UNIT, Request, check_places, find_model, first_file
from raycase.job.stored_tokens import PooledResult, token_columns, token_files, token_model, tokens_among
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import EmbedderConfig, check_conditions
from raycase.models.pairs import check_room
from raycase.models.registry import resolve_embedder
from raycase.names import Dtype
from raycase.tokens.stored import MOST_TOKEN_BYTES

SAMPLE, SAMPLE_CONDITIONS = PACKAGE + "sample/sentences.csv", PACKAGE + "sample/conditions.txt"
SAMPLE_OUTPUT = "~/raycase/out"
TOKEN_BYTES = 288  # of a token; 4 KB a caption
OF_TEXTS = (  # flags that stored tokens do not take
    "chunk overlap late_chunking text_column id_column dim prompt pooling subtract on_long on_unknown".split()  # noqa: SIM905
)
DOCUMENTS_OF_UNIT = 256  # at most, by default, of texts that are cut


@dataclass(frozen=True, kw_only=True)
class EmbedFlags(RunFlags):
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
    overlap: Advanced[int] = 0
    """Tokens, at most, that a chunk has in common with the one before."""
    late_chunking: Advanced[bool] = False
    """With --chunk: the encoder reads as much of a document at once as it can, and each chunk pools its own tokens, so
    that "it" has a meaning. Needs a condition-pooling model."""
    conditions: tuple[str, ...] = ()
    """Conditions; every sentence is embedded under each. Or one .txt (one a line), .parquet, .csv or .jsonl file."""
    condition_column: Advanced[str | None] = None
    """Instead of --conditions: a column with the condition of each row, or its list of conditions."""
    unconditional: bool = False
    """Instead of --conditions: write unconditional vectors, with a null condition."""
    any_condition: bool = False
    """Instead of --conditions: store a short code for each token beside the unconditional vector, so that a search can
    use any condition later. Needs a condition-pooling model, such as the default one."""
    token_bytes: Advanced[int | None] = None
    """Bytes per stored token, with --any-condition. More bytes bring vectors closer to those embedded under the
    condition. Default: 288."""
    dtype: Advanced[Dtype] = "float16"
    """Number format of the written vectors. int8 and binary (one bit per dimension) are small vectors for other
    programs. index and join read only float16 and float32."""
    normalize: Advanced[bool] = False
    """Write vectors of length 1."""
    index: str | None = None
    """Also index the output for `raycase search`, in this Lance dataset; an index that exists gets the new rows."""
    dry_run: bool = False
    """Estimate the work from a sample; write nothing."""


def check_embed(flags: EmbedFlags, model: EmbedderConfig | None = None) -> Request:
    """Check everything that can be checked without weights; `model` replaces the one that the flags name.

    Raises RequestError.
    """
    began = time.time()
    flags = _filled(flags)
    reads, writes = {"--conditions": conditions_file(flags.conditions)}, {"--index": Folder(flags.index, OF_INDEX)}
    output, found, begun = check_places(flags, EMBEDDINGS, reads, writes)
    conditions = tuple(read_conditions(flags.conditions)) if flags.conditions else None
    kind: PairResult
    if tokens := tokens_among(found):
        _check_pooled(flags)
        files, columns = token_files(tokens), token_columns(tokens, flags.keep_columns)
        model, flags = token_model(tokens, flags.model), replace(flags, compile="off")
        kind = PooledResult(
            columns=columns,
            of=tokens.job_file.config,
            words=tokens.job_file.fingerprint,
            basis=tokens.output.basis.uri,
            on_long=flags.on_long,
        )
    else:
        found.say("--input")
        files = found.files
        model = model or find_model(flags, begun, output, resolve_embedder)
        first = first_file(files, begun)
        columns = find_columns(
            peek(first),
            first.uri,
            text=flags.text_column,
            id=flags.id_column,
            condition=flags.condition_column,
            keep=flags.keep_columns,
            written=(ID, CONDITION, EMBEDDING, ROW_OF_PAIR, *(CHUNK_COLUMNS if flags.chunk is not None else ())),
        )
        chunking = _chunking(flags, model, conditions)
        kind = PairResult(columns=columns, on_long=flags.on_long, on_unknown=flags.on_unknown, chunking=chunking)
    kind = replace(kind, conditions=conditions, dtype=flags.dtype, normalize=flags.normalize)
    if flags.any_condition:
        if not isinstance(model, ConditionPoolingConfig):
            raise RequestError(
                f"--any-condition: expected a model of condition pooling, got {model.model}, which encodes the "
                "condition with the sentence; leave --model out for the default, or pass --conditions"
            )
        kind = TokenResult(**vars(kind) | {"token_bytes": flags.token_bytes or TOKEN_BYTES, "basis": output.basis.uri})
    if flags.condition_column is None:
        check_conditions(model, conditions)
    elif model.known_conditions == ():
        raise RequestError(f"--condition-column: expected --unconditional for {model.model}, which knows no conditions")
    if conditions:
        check_room(model, conditions, "--conditions")
    most_rows = DOCUMENTS_OF_UNIT if kind.chunking else ROWS_OF_UNIT
    unit_rows = flags.unit_rows or min(most_rows, max(64, PAIRS_OF_UNIT // len(conditions or "a")))
    request = Request(flags=flags, files=files, model=model, kind=kind, output=output, unit_rows=unit_rows, began=began)
    if flags.dtype == "binary" and request.dim % BITS:
        raise RequestError(
            f"--dtype binary: expected dimensions that {BITS} divides, for a bit each, got {request.dim} of "
            f"{model.model}; pass --dtype int8, or --dim where the model has nested dimensions"
        )
    return request


def _check_pooled(flags: EmbedFlags) -> None:
    """Raise RequestError for a job on stored tokens that has no --conditions, or a flag that only texts take."""
    given = [f"--{name.replace('_', '-')}" for name in OF_TEXTS if getattr(flags, name) != getattr(EmbedFlags, name)]
    if given or not flags.conditions:
        got = f"{given[0]} beside them; leave it out" if given else "none"
        raise RequestError(f"--input: expected --conditions for the stored tokens in {flags.input}, got {got}")


def _chunking(flags: EmbedFlags, model: EmbedderConfig, conditions: Sequence[str] | None) -> Chunking | None:
    """How the job cuts texts. Raises RequestError for chunks that the model does not read whole, for an overlap without
    chunks or of whole ones, and without the package that cuts."""
    if flags.chunk is None and not flags.overlap and not flags.late_chunking:
        return None
    if flags.chunk is None or not 0 <= flags.overlap < flags.chunk:
        got = "none" if flags.chunk is None else flags.chunk
        raise RequestError(
            f"--chunk: expected at least 1 token, and fewer in --overlap, got {got} and --overlap {flags.overlap}"
        )
    averaged = isinstance(model, ConditionPoolingConfig) and model.encoder.pooling[0] in ("mean", "mean-all")
    if flags.late_chunking and not averaged:
        raise RequestError(
            f"--late-chunking: expected a condition-pooling model whose encoder pools by the mean, got {model.model}; "
            "leave it out"
        )
    most = model.encoder.max_tokens
    asked = conditions or ([*(model.known_conditions or ("a",))][:1] if flags.condition_column else None)
    text = " ".join("a" * min(flags.chunk, most))
    chunking = Chunking(tokens=flags.chunk, overlap=flags.overlap, late=flags.late_chunking)
    if flags.chunk > most or model.prepare([text] * len(asked or "a"), asked).truncated.any():
        raise RequestError(
            f"--chunk: expected chunks that {model.model} reads whole, at most {most} tokens with its prompt and a "
            f"condition that it reads beside them, got {flags.chunk}"
        )
    next(chunking.cut(model.encoder, "a"))
    return chunking


def _filled(job: EmbedFlags) -> EmbedFlags:
    """The job, with the conditions and the output of the sample where it has none. Raises RequestError unless it has
    one kind of them, for --token-bytes that do not fit it, and for an input without output."""
    ways = ("conditions", "condition_column", "unconditional", "any_condition")
    flags = [f"--{name.replace('_', '-')}" for name in ways if getattr(job, name)]
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
