"""A search from the command line: queries from flags or a file, answers as a table for people or as Parquet."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import tyro

from raycase.commands.flags import Advanced, OfIndex, RayFlag
from raycase.errors import RequestError, at_least, check_problems, check_ranges, normal_words, note
from raycase.index.answer_printing import Weighed, has_styles, print_answers, text_column, weigh_answers, why_unweighed
from raycase.index.answers import RERANKED, check_answers, find_scorer, rerank
from raycase.index.approximate import EFFORTS, search_kind
from raycase.index.index import Index, note_searched, on_index
from raycase.index.shard import Limits
from raycase.index.weighted_search import weights_of
from raycase.io.inputs import find_input, peek
from raycase.io.model_files import model_folder
from raycase.io.places import PARQUET, File, check_paths
from raycase.io.reader import distinct_words, read_columns
from raycase.io.schema import CONDITION, ID, QUERY, SCORE, TEXT, WEIGHTS, parquet_options
from raycase.io.storage import locate

Asked = list[str] | dict[str, float] | None  # the condition of each query, or the weights of conditions

MOST_MEMORY = 2**20  # GiB
MOST_REPLICAS, MOST_SECONDS = 64, 86_400
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
    counts 1. Default: the mean over all conditions of the index."""
    query_condition: Advanced[str | None] = None
    """Condition of the queries' own vectors. Default: --condition. For DualCSE: --query-condition implicit --condition
    explicit finds what a premise implies."""
    unconditional: bool = False
    """Search the unconditional vectors, if the index has them."""
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
    """Leave out texts that say nothing about the condition. Needs stored tokens and a model trained on labelled
    texts."""
    queries: str | None = None
    """Instead of --query: a .parquet, .csv or .jsonl file with a column `text`, and optionally `condition`."""
    output: str | None = None
    """Parquet file for the answers, local or on object storage. Default: print a table."""
    memory: Advanced[float] = 4.0
    """GiB of memory for stored tokens. Their sketches take at most as much again. What does not fit is read from
    storage for each condition."""
    effort: Literal["low", "usual", "high", "exact"] = "usual"
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


def search(flags: SearchFlags, shard: Callable[[Index], Index] | None = None) -> dict[str, Any]:
    """Answer the queries: print a table or write Parquet, and return counts. Raises RequestError, WorkError.

    Queries are answered some at a time: of many to a file only its compressed bytes are held. shard: makes of an open
    index one whose shards are searched by processes of their own.
    """
    began = time.time()
    check_paths(
        reads={"--queries": flags.queries},
        opens={**flags.opens, "--rerank": model_folder(flags.rerank)},
        writes={"--output": File(flags.output, PARQUET)},
    )
    ranges = at_least(1, flags, "k", "candidates") | at_least(1, flags, "replicas", most=MOST_REPLICAS)
    ranges |= {
        "shard_timeout": (0 <= (flags.shard_timeout or 0) <= MOST_SECONDS, f"seconds from 0 to {MOST_SECONDS:,}")
    }
    check_ranges(flags, ranges | {"memory": (0 < flags.memory <= MOST_MEMORY, f"GiB above 0, at most {MOST_MEMORY:,}")})
    sentences, conditions = _queries(flags)
    limits = Limits(token_memory=int(flags.memory * 2**30))

    def open_index() -> Index:
        index = Index.open(flags.index, model=flags.model, limits=limits)
        return shard(index) if shard else index

    index, (count, data, shown) = on_index(open_index, partial(_answer, flags, sentences, conditions))
    if flags.output:
        locate(flags.output).put(data)
    else:
        schema, text = index.dataset.schema, text_column(index, flags.text_column)
        strings = [name for name in index.columns if name != ID and pa.types.is_string(schema.field(name).type)]
        if text is None and strings:
            known = index.metadata.text_column
            why = "embeds several columns" if known == "" else f"keeps no column {known or TEXT!r}"
            note(f"ids are shown, for the index {why}; --text-column names another: {', '.join(strings)}")
        print_answers(shown, text or ID, sentences, conditions)
    return {
        "queries": len(sentences),
        "answers": count,
        "rows": index.metadata.rows,
        "kind": search_kind(index.dataset, index.metadata),
        "seconds": round(time.time() - began, 3),
        "output": locate(flags.output).uri if flags.output else None,
    }


def _answer(
    flags: SearchFlags, sentences: list[str], conditions: Asked, index: Index
) -> tuple[int, bytes, list[Weighed]]:
    """Answer the queries on an open index, some at a time: the number of answers, the bytes for --output, and what is
    for people."""
    count, unscored, file, writer = 0, 0, io.BytesIO(), None
    shown: list[Weighed] = []
    text, weighted = text_column(index, flags.text_column) or TEXT, isinstance(conditions, dict)
    if flags.rerank:
        check_answers(index.columns, text)
    scorer = find_scorer(flags.rerank, conditional=isinstance(conditions, list)).load() if flags.rerank else None
    explains = flags.explain or (flags.explain is None and not flags.output and not weighted and has_styles(sys.stdout))
    if explains and (reason := why_unweighed(index, flags.text_column, flags.model)):
        if flags.explain:
            raise RequestError(f"--explain: {reason}")
        explains = False
    k = max(flags.k, flags.candidates or RERANKED) if scorer else flags.k
    step = max(1, ANSWERS_AT_ONCE // k)
    for start in range(0, len(sentences), step):
        some = sentences[start : start + step]
        table = index.search(
            some,
            conditions[start : start + step] if isinstance(conditions, list) else conditions,
            k,
            flags.where,
            query_condition=flags.query_condition,
            unconditional=flags.unconditional,
            exact_condition=flags.exact_condition,
            phrases=bool(flags.phrase),
            stated=flags.stated,
            match=flags.match,
            hybrid=flags.hybrid,
            per=flags.per,
            options=EFFORTS[flags.effort],
        )
        if scorer:
            table = rerank(table, some, scorer, text=text, k=flags.k)
            unscored += table[SCORE].null_count
        count += len(table)
        query_N, weights = table[QUERY].to_numpy() + start, weigh_answers(table, index, text) if explains else None
        if flags.output and isinstance(conditions, list):
            query_N //= max(1, len(flags.condition))  # without the conditions
        table = table.set_column(0, QUERY, pa.array(query_N))
        if flags.output:
            table = table if weights is None else table.append_column(WEIGHTS, weights)
            writer = writer or pq.ParquetWriter(file, table.schema, **parquet_options(table.schema))
            writer.write_table(table)
        else:
            shown.append((table, weights))
    if writer:
        writer.close()
    if unscored:
        note(f"{unscored} of {count} answers have no text to score and come last")
    every: Iterable[str | None] = (not flags.unconditional and index.metadata.conditions) or [None]
    searched = {one: index.query_encoder.condition_for(one, flags.exact_condition) for one in conditions or every}
    note_searched(index, searched, flags.where, apart=isinstance(conditions, list))
    return count, file.getvalue(), shown


def _queries(flags: SearchFlags) -> tuple[list[str], Asked]:
    """The sentences, and the condition of each, or the weights of conditions. Raises RequestError."""
    given = [flag for flag in ("query", "phrase", "queries") if getattr(flags, flag)]
    weights = weights_of(flags.condition) if "=" in "".join(flags.condition) else {}
    problems = {
        f"expected one of --query, --phrase or --queries, got {' and '.join(given) or 'none'}": len(given) != 1,
        "--phrase: expected the --condition that it answers, got none": flags.phrase and not flags.condition,
        "--hybrid: expected no --rerank beside it, got both": flags.hybrid and flags.rerank,
        "--explain: expected one condition for each query, got conditions with weights": weights and flags.explain,
    }
    check_problems(problems)
    sentences, conditions = list(flags.query or flags.phrase), None
    if flags.queries:
        sentences, conditions = read_queries(flags.queries)
    if (flags.unconditional and (conditions or flags.condition)) or (conditions and flags.condition):
        raise RequestError("expected --condition, --unconditional or conditions in --queries, got several")
    if conditions or not flags.condition:
        return sentences, conditions
    if weights:
        return sentences, weights
    distinct_words(flags.condition, "--condition")
    return [sentence for sentence in sentences for _ in flags.condition], list(flags.condition) * len(sentences)


def read_queries(uri: str) -> tuple[list[str], list[str] | None]:
    """Read sentences and conditions from a .parquet, .csv or .jsonl file or a folder of them; None for the conditions
    of files that have none. Raises RequestError."""
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
    if not sentences:
        raise RequestError(f"--queries: expected sentences in {uri}, got no rows")
    if conditions and len(conditions) != len(sentences):
        raise RequestError(f"--queries: expected a condition in every file of {uri} or in none, got it in some")
    return sentences, conditions or None
