"""The command embed: vectors of a corpus under conditions, or stored tokens for any."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from raycase.commands.flags import RunFlags
from raycase.errors import (
    RequestError,
    check_problems,
    expecting,
    is_words,
    normal_words,
    note,
    note_sentences,
    visible,
)
from raycase.names import Advanced, Dtype

if TYPE_CHECKING:
    from raycase.encoder.chunks import Chunking
    from raycase.io.inputs import InputFile, Listing
    from raycase.job.output import JobFile, Output
    from raycase.job.request import Request
    from raycase.job.results import Encoding
    from raycase.models.configs import EmbedderConfig

SAMPLE, SAMPLE_CONDITIONS = "package:raycase/sample/sentences.csv", "package:raycase/sample/conditions.txt"
SAMPLE_OUTPUT = "~/raycase/out"
TOKEN_BYTES = 288  # of a token; 4 KB a caption
MOST_TOKEN_BYTES = 4096
OF_TEXTS = (  # flags that stored tokens do not take
    "chunk overlap late_chunking text_column id_column dim prompt pooling subtract on_long on_unknown".split()  # noqa: SIM905
)
NOT_INTO = "output index chunk overlap late_chunking keep_columns condition_column any_condition dry_run".split()  # noqa: SIM905
FIRST_TEXTS = 100  # that are looked at
ENGLISH_TOKENS = 1.6  # of a word, at most: the labelled tables have 1.1 to 1.4, Dutch and French 1.8, Chinese 17
DOCUMENTS_OF_UNIT = 256  # at most, by default, of texts that are cut
EXAMPLE = 'raycase embed --input captions.csv --conditions "color of the clothes" --output out --index captions.lance'


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
    """Conditions; every sentence is embedded under each. Or one .txt (one a line), .parquet, .csv or .jsonl file. A
    file .taught of `raycase teach` is the condition that was taught."""
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
    into: Advanced[tuple[str, ...]] = ()
    """Instead of --output: write the vectors into the Lance dataset of --input, in columns of these names, one for each
    condition. Only rows without a vector, or with another text since, are embedded."""
    dry_run: bool = False
    """Estimate the work from a sample; write nothing."""


def embed(flags: EmbedFlags) -> dict[str, Any]:
    """Embed a corpus under conditions."""
    from raycase.io.reader import conditions_file

    result = embed_corpus(flags)
    if sys.stdout.isatty() and not flags.dry_run and not flags.into:
        output, index = shlex.quote(result["output"]), shlex.quote(flags.index or f"{result['output']}.lance")
        build = "" if flags.index else f"raycase index --embeddings {output} --output {index} && "
        first = normal_words((*flags.conditions, "...")[0])
        in_file = conditions_file(flags.conditions) or taught_files(flags.conditions)
        asked = "..." if in_file else shlex.quote(first + "=1" * ("=" in first))  # a weight
        under = "" if flags.unconditional else f" --condition {asked}"
        search = f'{build}raycase search --index {index} --query "..."{under}'
        note(f"{result['rows_out']:,} rows embedded, {result['rows_rejected']:,} rejected")
        note(f"they are in {output}" + f", and indexed in {index}" * bool(flags.index))
        note(f"next: {search if 'float' in flags.dtype else f'raycase verify {output}'}")
    return result


def embed_corpus(flags: EmbedFlags) -> dict[str, Any]:
    """Run or resume the job, then index its output, or estimate it; returns what the last line holds."""
    from raycase.commands.place import AutoRunner
    from raycase.job.run import run
    from raycase.job.sample import dry_run

    if flags.into:
        return _embed_into(flags)
    request, runner = check_embed(flags), AutoRunner(flags.ray)
    if flags.dry_run:
        result = dry_run(request, runner)
        for name, value in list(result.items())[1:]:
            print(f"{name.replace('_', ' '):>18}  {visible(value) if isinstance(value, str) else format(value, ',')}")
        return result
    if not flags.index:
        return run(request, runner)
    from raycase.index.build import check_index, index_output  # with Lance, which others need not wait for

    check_index(flags.index, request)
    result = run(request, runner)
    return result | {"index": index_output(flags.index, result["output"])}


def _embed_into(flags: EmbedFlags) -> dict[str, Any]:
    """Run or resume the jobs that fill columns of the input."""
    from raycase.commands.place import AutoRunner
    from raycase.io.places import check_paths
    from raycase.io.storage import locate
    from raycase.job.into import Target, embed_into

    others = [f"--{name.replace('_', '-')}" for name in NOT_INTO if getattr(flags, name) != getattr(EmbedFlags, name)]
    check_problems({f"--into: expected no {' or '.join(others)} beside it; leave it out": others})
    check_paths(opens={"--input": flags.input})
    at: dict[str, Any] = {"root": locate(flags.input), "text": flags.text_column, "id": flags.id_column}
    place = Target.folder_of(at["root"])
    as_file = replace(flags, input=SAMPLE, text_column="text", id_column=None, output=f"{place.uri}/job", into=())
    return embed_into(Target(request=check_embed(as_file), names=flags.into, **at), lambda: AutoRunner(flags.ray))


def check_embed(flags: EmbedFlags) -> Request:
    """Check everything that can be checked without weights."""
    from raycase.io.places import OF_INDEX, Folder
    from raycase.io.reader import conditions_file, read_conditions
    from raycase.io.schema import BITS
    from raycase.job.request import ROWS_OF_UNIT, Request
    from raycase.job.results import EMBEDDINGS, Encoding, RowPairs
    from raycase.job.steps import PAIRS_OF_UNIT
    from raycase.job.stored_tokens import pooled, token_columns, token_files, token_model, tokens_among
    from raycase.models.condition_pooling import ConditionPoolingConfig
    from raycase.models.configs import check_conditions, check_room
    from raycase.models.taught import Taught

    flags = _filled(flags)
    in_file, files_of = conditions_file(flags.conditions), taught_files(flags.conditions)
    reads = {"--conditions": [*files_of, *([in_file] if in_file else [])]}
    given, found, begun = flags.open_places(EMBEDDINGS, reads, {"--index": Folder(flags.index, OF_INDEX)})
    taught = {file: Taught.load(file) for file in files_of}
    words = [taught[name].condition if name in taught else name for name in flags.conditions]
    conditions = tuple(read_conditions(words)) if words else None
    if tokens := tokens_among(found):
        names = [name for name in OF_TEXTS if getattr(flags, name) != getattr(EmbedFlags, name)]
        if names or not conditions:
            got = f"--{names[0].replace('_', '-')} beside them; leave it out" if names else "none"
            raise RequestError(f"--input: expected --conditions for the stored tokens in {flags.input}, got {got}")
        files, columns = token_files(tokens), token_columns(tokens, flags.keep_columns)
        encoding = Encoding(
            model=token_model(tokens, flags.model),
            pairs=RowPairs(columns=columns, conditions=conditions),
            result=pooled(tokens, conditions, dtype=flags.dtype, normalize=flags.normalize),
            compute=flags.compute,
            batch_tokens=flags.batch_tokens,
        )
    else:
        found.note_left_out("--input")
        files = found.files
        encoding = _encoding(flags, conditions, found, given["output"], begun)
    with expecting("--conditions: expected taught ones of this model", RequestError):
        encoding = replace(encoding, model=encoding.model.knowing(*taught.values()))
    model = cast("EmbedderConfig", encoding.model)
    of_rows = flags.condition_column is not None and model.known_conditions == ()
    problems = {
        f"--condition-column: expected --unconditional for {model.name}, which knows no conditions": of_rows,
        f"--dtype binary: expected dimensions that {BITS} divides, for a bit each, got {encoding.dim} of "
        f"{model.name}; pass --dtype int8, or --dim where the model has nested dimensions": (
            flags.dtype == "binary" and encoding.dim % BITS
        ),
        f"--any-condition: expected a model of condition pooling, got {model.name}, which encodes the condition with "
        "the sentence; leave --model out for the default, or pass --conditions": (
            flags.any_condition and not isinstance(model, ConditionPoolingConfig)
        ),
    }
    check_problems(problems)
    if flags.condition_column is None:
        check_conditions(model, conditions)
    if conditions:
        check_room(model, conditions, "--conditions")
        note_sentences(conditions)
    most_rows = DOCUMENTS_OF_UNIT if encoding.pairs.chunking else ROWS_OF_UNIT
    unit_rows = flags.unit_rows or min(most_rows, max(64, PAIRS_OF_UNIT // len(conditions or "a")))
    return Request(encoding=encoding, files=files, unit_rows=unit_rows, **given)


def taught_files(conditions: Sequence[str]) -> list[str]:
    """The files of taught conditions among these."""
    return [each for each in conditions if each.lower().endswith(".taught")]


def _encoding(
    flags: EmbedFlags, conditions: tuple[str, ...] | None, found: Listing, output: Output, begun: JobFile | None
) -> Encoding:
    """How texts become vectors, or tokens beside them."""
    from raycase.io.inputs import peek
    from raycase.io.schema import CHUNK_COLUMNS, CONDITION, EMBEDDING, ID, OF_PAIRS, find_columns
    from raycase.job.request import find_model, first_file
    from raycase.job.results import Encoding, JobResult, RowPairs, TokenResult, VectorResult
    from raycase.models.registry import resolve_embedder

    choices = flags.prompt_choices | {"dim": flags.dim}
    model = find_model(flags.model, choices, begun, output, resolve_embedder)
    first = first_file(found.files, begun)
    columns = find_columns(
        peek(first),
        first.uri,
        text=flags.text_column,
        id=flags.id_column,
        condition=flags.condition_column,
        keep=flags.keep_columns,
        written=(ID, CONDITION, EMBEDDING, *OF_PAIRS, *(CHUNK_COLUMNS if flags.chunk is not None else ())),
    )
    of_rows: dict[str, Any] = {"on_long": flags.on_long, "on_unknown": flags.on_unknown}
    _note_texts(first, flags.text_column, model)
    pairs = RowPairs(columns=columns, conditions=conditions, chunking=_chunking(flags, model, conditions), **of_rows)
    result: JobResult = VectorResult(dtype=flags.dtype, normalize=flags.normalize)
    if flags.any_condition:
        basis, token_bytes = output.basis.uri, flags.token_bytes or TOKEN_BYTES
        result = TokenResult(dtype=flags.dtype, token_bytes=token_bytes, basis=basis)
    how: dict[str, Any] = {"compute": flags.compute, "compile": flags.compile, "batch_tokens": flags.batch_tokens}
    return Encoding(model=model, pairs=pairs, result=result, **how)


def _note_texts(file: InputFile, column: str, model: EmbedderConfig) -> None:
    """Note texts without letters, and for a model that ships those in another language, by the first of a text file."""
    from raycase.encoder.model_files import SHIPPED
    from raycase.encoder.sources import load_tokenizer
    from raycase.io.inputs import source_of
    from raycase.io.source import SpanRows
    from raycase.io.text_files import TextFile

    source, block = source_of(file), SpanRows()
    if isinstance(source, TextFile) and source.location.is_local:
        with suppress(RequestError), source.reading():  # which the job reports
            block = next(source.read([column]), block)
    values = [line.values.get(column) for line in block.lines.values() if line.values]
    values += block.table[column][:FIRST_TEXTS].to_pylist() if block.table is not None else []
    texts = [str(text) for text in values[:FIRST_TEXTS] if is_words(text)]
    if texts and not any(map(str.isalpha, "".join(texts))):
        note(f"the first texts in {column!r} have no letters; --text-column names another column")
    elif model.name in SHIPPED and len("".join(texts)) >= FIRST_TEXTS:
        tokens = sum(map(len, load_tokenizer(model.encoder).parts(texts))) / len(" ".join(texts).split())
        if tokens > ENGLISH_TOKENS:
            note(f"the first texts are hardly English ({tokens:.1f} tokens a word), and {model.name} knows no other")


def _chunking(flags: EmbedFlags, model: EmbedderConfig, conditions: Sequence[str] | None) -> Chunking | None:
    """How the job cuts texts, if it does: into chunks that the model reads whole."""
    from raycase.encoder.chunks import Chunking
    from raycase.models.condition_pooling import ConditionPoolingConfig

    if flags.chunk is None and not flags.overlap and not flags.late_chunking:
        return None
    most, chunk, got = model.encoder.max_tokens, flags.chunk or 0, "none" if flags.chunk is None else flags.chunk
    averaged = isinstance(model, ConditionPoolingConfig) and model.encoder.pooling[0] in ("mean", "mean-all")
    asked = conditions or ([*(model.known_conditions or ("a",))][:1] if flags.condition_column else None)
    text = " ".join("a" * min(chunk, most))
    check_problems(
        {
            f"--chunk: expected at least 1 token, and fewer in --overlap, got {got} and --overlap {flags.overlap}": (
                not 0 <= flags.overlap < chunk
            ),
            f"--late-chunking: expected a condition-pooling model whose encoder pools by the mean, got {model.name}; "
            "leave it out": flags.late_chunking and not averaged,
            f"--chunk: expected chunks that {model.name} reads whole, at most {most} tokens with its prompt and a "
            f"condition that it reads beside them, got {got}": (
                chunk > most or model.prepare([text] * len(asked or "a"), asked).truncated.any()
            ),
        }
    )
    chunking = Chunking(tokens=chunk, overlap=flags.overlap, late=flags.late_chunking)
    next(chunking.cut(model.encoder, "a"))
    return chunking


def _filled(flags: EmbedFlags) -> EmbedFlags:
    """The flags, which ask for vectors in one way; of the sample with its conditions and output where they lack."""
    ways = ("conditions", "condition_column", "unconditional", "any_condition")
    given = [f"--{name.replace('_', '-')}" for name in ways if getattr(flags, name)]
    has_output = flags.output is not None or flags.input == SAMPLE
    flags = replace(flags, output=SAMPLE_OUTPUT if flags.output is None else flags.output)
    if flags.input == SAMPLE and not given:
        flags, given = replace(flags, conditions=(SAMPLE_CONDITIONS,)), ["--conditions"]
    of_tokens = flags.any_condition and MOST_TOKEN_BYTES >= (flags.token_bytes or 0) >= 1
    indexed = "--any-condition" if flags.any_condition else "--index" if flags.index else ""
    altered = "float" not in flags.dtype or (flags.any_condition and flags.normalize)
    got = "--normalize" if flags.normalize else f"--dtype {flags.dtype}"
    check_problems(
        {
            "--output: expected a folder for the vectors, got none; pass --output FOLDER": not has_output,
            "expected one of --conditions, --condition-column, --unconditional or --any-condition, got "
            f"{' and '.join(given) or 'none'}": len(given) != 1,
            f"--token-bytes: expected 1 to {MOST_TOKEN_BYTES} beside --any-condition, got {flags.token_bytes}"
            f"{'' if flags.any_condition else ' without it'}": flags.token_bytes is not None and not of_tokens,
            f"{indexed}: expected vectors as the model gives them, of float16 or float32, for indexes, got {got}; "
            "leave it out": bool(indexed) and altered,
        }
    )
    return flags
