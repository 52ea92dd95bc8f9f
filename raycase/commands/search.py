"""The command search: queries from flags or a file, answers as a table for people or as Parquet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from raycase.commands.flags import OfIndex, RayFlag
from raycase.errors import MOST_SHOWN, RequestError, at_least, check_problems, expecting, normal_words, note, visible
from raycase.index.options import EFFORTS, MOST_MEMORY, Limits
from raycase.names import Advanced, Effort

if TYPE_CHECKING:
    from raycase.index.index import Index
    from raycase.models.configs import ScorerConfig
    from raycase.tokens.words import Word

EXAMPLE = 'raycase search --index captions.lance --query "Girls in red play" --condition "color of the clothes"'
Asked = list[str] | dict[str, float] | None  # the condition of each query, or the weights of conditions

MOST_REPLICAS, MOST_SECONDS = 64, 86_400
RERANKED = 100  # answers of a query that are re-ranked by default
ANSWERS_AT_ONCE = 2**17  # that are held, re-ranked and written to the file


@dataclass(frozen=True, kw_only=True)
class SearchFlags(OfIndex, RayFlag):
    """Search an index: the rows nearest to each query under a condition, by cosine."""

    query: tuple[str, ...] = ()
    """Sentences."""
    phrase: tuple[str, ...] = ()
    """Instead of --query: phrases that answer the --condition, as "heavy rain" does "weather" (condition-pooling)."""
    condition: tuple[str, ...] = ()
    """Conditions; each query is searched under each. With weights, as in "color=2" "place=-0.5", they are one question:
    answers have the largest weighted mean of the cosines, a negative weight pushes away, and a condition without one
    counts 1. Default: the unconditional vectors are searched."""
    unconditional: bool = False
    """Search the unconditional vectors, as without --condition."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """Number of neighbours."""
    match: str | None = None
    """Words that the text of each answer must have, all of them. For an index built with --text-index."""
    hybrid: bool = False
    """Rank by the words of the queries too (BM25), and fuse both ranks. For an index built with --text-index."""
    per: str | None = None
    """Answer each value of this column once, by its best row: --per document gives -k documents and the chunk of each
    that answered."""
    stated: bool = False
    """Leave out texts that state nothing about the condition. Needs stored tokens and a model trained on labelled
    texts."""
    queries: str | None = None
    """Instead of --query: a .parquet, .csv or .jsonl file with a column `text`, and optionally `condition`."""
    output: str | None = None
    """Parquet file for the answers, local or on object storage. Default: print a table."""
    memory: Advanced[float] = 4.0
    """GiB of memory for stored tokens. Their sketches take at most as much again. What does not fit is read from
    storage for each condition."""
    effort: Effort = "usual"
    """How much of an approximate index, or of the stored tokens, a search reads. high: four times as much as usual;
    low: a quarter; exact: everything."""
    rerank: Advanced[str | None] = None
    """Re-rank the first answers with a model that scores pairs: a mixsp, which ignores the condition, or a
    cross-encoder."""
    candidates: Advanced[int | None] = None
    """Answers of each query that are re-ranked. Default: 100, or as many as there are."""
    text_column: Advanced[str | None] = None
    """The kept column that holds the texts: shown in answers, and used by --rerank and --explain. Default: the one that
    was embedded, else text."""
    explain: bool | None = None
    """Show the words that decided each answer (condition-pooling): in bold in a terminal, else as a list; with --output
    in a column `weights`. Default: on in a terminal, off with --output."""
    replicas: Advanced[int] = 1
    """Processes that hold each shard of an index in shards, on Ray."""
    shard_timeout: Advanced[float | None] = None
    """Seconds to wait for a shard whose process died. Default: 30."""


def search(flags: SearchFlags) -> dict[str, Any]:
    """Search an index by sentences under conditions."""
    import pyarrow as pa

    from raycase.encoder.model_files import model_folder
    from raycase.index.approximate import searched_by
    from raycase.index.index import on_index, text_column
    from raycase.io.places import PARQUET
    from raycase.io.schema import ID, TEXT

    ranges = at_least(1, flags, "k", "candidates") | at_least(1, flags, "replicas", most=MOST_REPLICAS)
    in_time = 0 <= (flags.shard_timeout or 0) <= MOST_SECONDS
    ranges["shard_timeout"] = in_time, f"seconds from 0 to {MOST_SECONDS:,}"
    ranges["memory"] = 0 < flags.memory <= MOST_MEMORY, f"GiB above 0, at most {MOST_MEMORY:,}"
    reads, opens = {"--queries": flags.queries}, {"--rerank": model_folder(flags.rerank)}
    began = flags.check(ranges, reads=reads, opens=opens, writes={"output": PARQUET})
    sentences, conditions = _queries(flags)
    index, (count, data, shown) = on_index(_opening(flags), partial(_answer, flags, sentences, conditions))
    if not flags.output:
        schema, text = index.dataset.schema, text_column(index, flags.text_column)
        strings = [name for name in index.columns if name != ID and pa.types.is_string(schema.field(name).type)]
        if text is None and strings:
            known = index.metadata.text_column
            why = "embeds several columns" if known == "" else f"keeps no column {known or TEXT!r}"
            note(f"ids are shown, for the index {why}; --text-column names another: {', '.join(strings)}")
        print_answers(shown, text or ID, sentences, conditions)
    found = {"queries": len(sentences), "answers": count, "rows": index.metadata.rows}
    vector_index = searched_by(index.dataset, index.metadata)
    return flags.finish(began, {"output": data}, **found, vector_index=vector_index)


def _opening(flags: SearchFlags) -> Callable[[], Index]:
    """What opens the index; on Ray, where the rule has it run there, each shard is searched by its own process."""
    from raycase.commands.place import note_once, why_ray
    from raycase.index.index import Index

    several = f"--replicas {flags.replicas}" if flags.replicas > 1 else ""
    of_shards = several or ("" if flags.shard_timeout is None else f"--shard-timeout {flags.shard_timeout:g}")

    @cache
    def on_ray() -> Callable[[Index], Index]:
        from raycase.ray.shards import InShards

        return InShards(replicas=flags.replicas, wait=flags.shard_timeout)

    def open_index() -> Index:
        index = Index.open(flags.index, model=flags.model, limits=Limits(token_memory=int(flags.memory * 2**30)))
        shards = index.metadata.shards
        is_on_ray = shards > 1 and why_ray(flags.ray, several)
        if of_shards and not is_on_ray:
            raise RequestError(
                f"{of_shards}: expected an index in shards (`raycase index --overwrite --shards N`) and a cluster "
                f"(RAY_ADDRESS, --ray), got {shards} of {flags.index} in this process"
            )
        if flags.ray and not is_on_ray:
            note_once(f"Running in this process: --ray searches an index in shards, and {flags.index} has one")
        return on_ray()(index) if is_on_ray else index

    return open_index


def _answer(
    flags: SearchFlags, sentences: list[str], conditions: Asked, index: Index
) -> tuple[int, bytes, list[Mapping[str, Any]]]:
    """Answers on an open index, some at a time: their number, compressed bytes for --output, and rows for people."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    from raycase.index.answers import COSINE, QUERY, WEIGHTS, has_styles, rerank
    from raycase.index.index import note_searched, text_column, weigh_answers, why_unweighed
    from raycase.io.schema import SCORE, TEXT, parquet_options

    count, unscored, file, writer = 0, 0, io.BytesIO(), None
    shown: list[Mapping[str, Any]] = []
    text, weighted = text_column(index, flags.text_column) or TEXT, isinstance(conditions, dict)
    scorer = None
    if flags.rerank:
        if text not in index.columns or COSINE in index.columns:
            raise RequestError(
                f"--text-column: expected the column {text!r} among those that the index keeps, and none named "
                f"{COSINE!r}, which re-ranking adds, got {', '.join(index.columns)}"
            )
        scorer = find_scorer(flags.rerank, conditional=isinstance(conditions, list)).load()
    explains = flags.explain or (flags.explain is None and not flags.output and not weighted and has_styles(sys.stdout))
    if explains and (reason := why_unweighed(index, flags.text_column, flags.model)):
        if flags.explain:
            raise RequestError(f"--explain: {reason}")
        explains = False
    k = max(flags.k, flags.candidates or RERANKED) if scorer else flags.k
    step = max(1, ANSWERS_AT_ONCE // k)
    names = ("unconditional", "exact_condition", "stated", "match", "hybrid", "per")
    options = {name: getattr(flags, name) for name in names} | {"phrases": bool(flags.phrase)} | EFFORTS[flags.effort]
    for start in range(0, len(sentences), step):
        some = sentences[start : start + step]
        own = conditions[start : start + step] if isinstance(conditions, list) else conditions
        table = index.search(some, own, k, flags.where, **options)
        if scorer:
            table = rerank(table, some, scorer, text=text, k=flags.k)
            unscored += table[SCORE].null_count
        count += len(table)
        query_N = table[QUERY].to_numpy() + start
        if flags.output and isinstance(conditions, list):
            query_N //= max(1, len(flags.condition))  # without the conditions
        table = table.set_column(0, QUERY, pa.array(query_N))
        if explains:
            table = table.append_column(WEIGHTS, weigh_answers(table, index, text))
        if flags.output:
            writer = writer or pq.ParquetWriter(file, table.schema, **parquet_options(table.schema))
            writer.write_table(table)
        else:
            shown += table.to_pylist()
    if writer:
        writer.close()
    if unscored:
        note(f"{unscored} of {count} answers have no text to score and come last")
    every: Iterable[str | None] = conditions or [None]
    searched = {one: index.query_encoder.condition_for(one, flags.exact_condition) for one in every}
    note_searched(index, searched, flags.where, apart=isinstance(conditions, list))
    return count, file.getvalue(), shown


def find_scorer(model: str, *, conditional: bool) -> ScorerConfig:
    """The configuration of a model that scores pairs. Raises RequestError for another, and for missing conditions."""
    from raycase.models.configs import ScorerConfig
    from raycase.models.registry import resolve

    with expecting("--rerank: expected a model that scores pairs", RequestError):
        config = resolve(model)
    if not isinstance(config, ScorerConfig):
        raise RequestError(f"--rerank: expected a model that scores pairs (as a cross-encoder), got {model}")
    if config.known_conditions is None and not conditional:
        raise RequestError(
            f"--rerank: expected queries under conditions for {model}, got none, or weights of some; see --condition"
        )
    return config


def _queries(flags: SearchFlags) -> tuple[list[str], Asked]:
    """The sentences, and the condition of each, or the weights of conditions."""
    from raycase.index.weighted_search import weights_of
    from raycase.io.reader import check_no_file, distinct_words

    given = [f"--{name}" for name in ("query", "phrase", "queries") if getattr(flags, name)]
    weights = weights_of(flags.condition) if "=" in "".join(flags.condition) else {}
    problems = {
        f"expected one of --query, --phrase or --queries, got {' and '.join(given) or 'none'}": len(given) != 1,
        "--phrase: expected the --condition that it answers, got none": flags.phrase and not flags.condition,
        "--hybrid: expected no --rerank beside it, got both": flags.hybrid and flags.rerank,
        "--explain: expected one condition for each query, got conditions with weights": weights and flags.explain,
    }
    check_problems(problems)
    for flag, words in (("--query", flags.query), ("--condition", flags.condition)):
        check_no_file(flag, words, "; --queries reads files")
    sentences, conditions = list(flags.query or flags.phrase), None
    if flags.queries:
        sentences, conditions = read_queries(flags.queries)
    if bool(conditions) + bool(flags.condition) + flags.unconditional > 1:
        raise RequestError("expected --condition, --unconditional or conditions in --queries, got several")
    if conditions or not flags.condition:
        return sentences, conditions
    if weights:
        return sentences, weights
    distinct_words(flags.condition, "--condition")
    return [sentence for sentence in sentences for _ in flags.condition], list(flags.condition) * len(sentences)


def read_queries(uri: str) -> tuple[list[str], list[str] | None]:
    """The sentences and conditions of a file or a folder; None for the conditions of files that have none."""
    from raycase.io.inputs import find_input, peek
    from raycase.io.reader import read_columns
    from raycase.io.schema import CONDITION, TEXT

    sentences: list[str] = []
    conditions: list[str] = []
    for file in find_input(uri, "--queries"):
        found = [name for name in peek(file).names if normal_words(name).lower() in (CONDITION, f"{CONDITION}s")]
        if found and CONDITION not in found:  # else the queries would be asked without it
            raise RequestError(f"--queries: {file.uri}: expected the column {CONDITION!r}, got {found[0]!r}")
        columns = (TEXT, CONDITION) if found else (TEXT,)
        values = read_columns(file, columns, "--queries", words=columns)
        sentences += values[TEXT]
        conditions += values.get(CONDITION, [])
    in_some = len(conditions) not in (0, len(sentences))
    problems = {
        f"--queries: expected sentences in {uri}, got no rows": not sentences,
        f"--queries: expected a condition in every file of {uri} or in none, got it in some": in_some,
    }
    check_problems(problems)
    return sentences, conditions or None


def print_answers(
    answers: Sequence[Mapping[str, Any]],
    column: str,
    sentences: Sequence[str],
    conditions: Sequence[str] | Mapping[str, float] | None,
) -> None:
    """A table: score and what a column has, the words that the condition looked at in bold, or after the text with
    their weights where there is no terminal."""
    from raycase.index.answers import QUERY, WEIGHTS, has_styles, looked_at
    from raycase.tokens.words import Word

    styles = has_styles(sys.stdout)
    lines: dict[int, list[str]] = {}
    for row in answers:
        marked = looked_at(str(row[column]), [Word(**word) for word in row.get(WEIGHTS) or []])
        lines.setdefault(row[QUERY], []).append(_line(row, column, marked, styles=styles))
    if isinstance(conditions, Mapping):
        conditions = [", ".join(f"{name}={weight:g}" for name, weight in conditions.items())] * len(sentences)
    under = [f' under "{condition}"' for condition in conditions] if conditions else [""] * len(sentences)
    for query, (sentence, name) in enumerate(zip(sentences, under, strict=True)):
        title = f'"{sentence}"{name}'
        print(f"\n{visible(title, MOST_SHOWN)}", *lines.get(query, ["      no rows pass the filter"]), sep="\n")
    print()


def _line(row: Mapping[str, Any], column: str, words: Sequence[Word], *, styles: bool) -> str:
    """An answer: rank, score, other ranks, cosines under conditions with weights, the text, and a chunk's place."""
    from raycase.index.answers import PARTS, SHOWN_CHARACTERS, TEXT_RANK, VECTOR_RANK, in_bold, in_words
    from raycase.io.schema import CHUNK, DOCUMENT, END, RANK, SCORE, START

    text, figures, place = str(row[column]), "", ""
    found = [row[SCORE], *(part["cosine"] for part in row.get(PARTS) or ())]  # re-ranking scores none without words
    score, *cosines = ("-" if figure is None else f"{figure:.3f}" for figure in found)
    line = in_bold(text, words if styles else (), SHOWN_CHARACTERS)
    if words and not styles:
        line += f"  ({in_words(text, words)})"
    if TEXT_RANK in row:
        figures = f"(vectors {row[VECTOR_RANK] or '-'}, words {row[TEXT_RANK] or '-'})  "
    if cosines:
        figures += f"({'  '.join(cosines)})  "
    if CHUNK in row:
        place = f"  [{visible(row[DOCUMENT])} {row[START]}:{row[END]}]"
    return f"{row[RANK]:>4}  {score:>6}  {figures}{line}{place}"
