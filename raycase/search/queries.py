"""A search from the command line: queries from flags or a file, answers for people or as Parquet."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import tyro
from transformers.utils.logging import disable_progress_bar

from raycase.data.columns import peek
from raycase.data.inputs import find_input
from raycase.data.parquet import parquet_bytes
from raycase.data.rated import read_columns, texts
from raycase.data.schema import CONDITION
from raycase.data.storage import check_paths, locate
from raycase.errors import RequestError
from raycase.search.approximate import EF, NPROBES
from raycase.search.index import Index, Options
from raycase.search.metadata import ASKED, QUERY, RANK, SCORE
from raycase.search.rescore import CANDIDATES, check_answers, find_scorer, rerank

WIDTH = 100  # characters of a kept column that people see
TEXT = "text"
ROWS_OF_GROUP = 2**16  # answers: what jobs/rerank.py reads at a time


@dataclass(frozen=True, kw_only=True)
class SearchJob:
    """Search an index: the rows nearest to each query under a condition, by cosine."""

    index: str
    """What jobs/index.py wrote, local or on object storage."""
    query: tuple[str, ...] = ()
    """Sentences."""
    condition: tuple[str, ...] = ()
    """Conditions, each query under each. Default: the mean over all conditions of the index."""
    unconditional: bool = False
    """Instead: by plain vectors, where the index has them."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """How many neighbours."""
    where: str | None = None
    """A filter on the kept columns, in SQL: "year > 2010 AND source = 'news'"."""
    exact_condition: bool = False
    """Refuse a condition that the index has not got; by default the nearest that it has answers, and is named."""
    queries: str | None = None
    """Instead of --query: a .parquet, .csv or .jsonl file with a column `text`, and `condition` if it has one."""
    output: str | None = None
    """Parquet file for the answers, local or on object storage. Default: a table for people."""
    exact: bool = False
    """Look at every vector, whatever the index."""
    nprobes: int = NPROBES
    """Partitions of an approximate index that are looked into; all, where these have too few rows for the filter."""
    ef: int = EF
    """Candidates that a walk through an hnsw index holds."""
    refine: int | None = None
    """Of an approximate index: so many times k candidates are compared by their exact cosine. Default: 3, ivf-pq 10."""
    rerank: str | None = None
    """Score the first answers again by a model that reads query and answer together: mixsp, which looks at no
    condition, or cross-encoder, which reads it, too."""
    candidates: int | None = None
    """How many answers of each query are scored again. Default: 100, or as many as there are."""
    text_column: str | None = None
    """The kept column that is read then. Default: text."""
    model: str | None = None
    """Where the index's model is now, if it has moved."""


def search(job: SearchJob) -> dict[str, Any]:
    """Answer; prints a table, or writes Parquet. Raises RequestError."""
    began = time.time()
    check_paths({"--index": job.index, "--queries": job.queries, "--output": job.output})
    for flag, value in (
        ("nprobes", job.nprobes),
        ("ef", job.ef),
        ("refine", job.refine),
        ("candidates", job.candidates),
    ):
        if value is not None and value < 1:
            raise RequestError(f"--{flag}: expected at least 1, got {value}")
    for flag in ("candidates", "text_column"):
        if getattr(job, flag) is not None and not job.rerank:
            raise RequestError(f"--{flag.replace('_', '-')}: expected --rerank, got none")
    sentences, conditions = _queries(job)
    disable_progress_bar()  # of weights that load in a moment
    index = Index.open(job.index, model=job.model)
    scorer = None
    if job.rerank:
        check_answers(index.columns, job.text_column or TEXT)
        scorer = find_scorer(job.rerank, conditional=conditions is not None).load()
    answers = index.search(
        sentences,
        conditions,
        job.k,
        job.where,
        unconditional=job.unconditional,
        exact_condition=job.exact_condition,
        candidates=(job.candidates or CANDIDATES) if scorer else None,
        options=Options(exact=job.exact, nprobes=job.nprobes, ef=job.ef, refine=job.refine),
    )
    for asked, condition in dict.fromkeys(zip(answers[ASKED].to_pylist(), answers[CONDITION].to_pylist(), strict=True)):
        if asked != condition:
            cosine = index.nearest_condition(asked)[1]
            print(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}", file=sys.stderr)
    searched = time.time()
    if scorer:
        answers = rerank(answers, sentences, scorer, text=job.text_column or TEXT, k=job.k)
        unscored = answers[SCORE].null_count
        if unscored:
            print(f"{unscored} of {len(answers)} answers have no words to be scored by, and come last", file=sys.stderr)
    reranked = time.time()
    if job.output:
        queries = pa.array(answers[QUERY].to_numpy() // max(1, len(job.condition)))  # each query's own place
        locate(job.output).put(parquet_bytes(answers.set_column(0, QUERY, queries), rows=ROWS_OF_GROUP))
    else:
        _show(answers, sentences, conditions, index.columns)
    return {
        "queries": len(sentences),
        "answers": len(answers),
        "rows": index.metadata.rows,
        "kind": index.metadata.search_kind,
        "seconds": round(time.time() - began, 3),
        "rerank_seconds": round(reranked - searched, 3) if scorer else None,
        "output": locate(job.output).uri if job.output else None,
    }


def _queries(job: SearchJob) -> tuple[list[str], list[str] | None]:
    """Sentences, and the condition of each. Raises RequestError."""
    if bool(job.query) == bool(job.queries):
        raise RequestError(f"expected one of --query or --queries, got {'both' if job.query else 'none'}")
    if job.condition and job.unconditional:
        raise RequestError("expected one of --condition or --unconditional, got both")
    sentences, own = list(job.query), None
    if job.queries:
        if not job.output:
            raise RequestError("--output: expected a Parquet file for the answers to --queries, got none")
        sentences, own = read_queries(job.queries)
    if own and (job.condition or job.unconditional):
        raise RequestError(f"expected conditions once, got them in {job.queries} and in flags; leave one out")
    if own or not job.condition:
        return sentences, own
    return [s for s in sentences for _ in job.condition], list(job.condition) * len(sentences)


def read_queries(uri: str) -> tuple[list[str], list[str] | None]:
    """The columns `text` and, if there is one, `condition`."""
    sentences: list[str] = []
    conditions: list[str] = []
    for file in find_input(uri, "--queries"):
        names = (TEXT, CONDITION) if CONDITION in peek(file).names else (TEXT,)
        found = read_columns(file, names, "--queries")
        sentences += texts(found[TEXT], f"--queries: {file.uri}", TEXT)
        conditions += texts(found.get(CONDITION, []), f"--queries: {file.uri}", CONDITION)
    if not sentences:
        raise RequestError(f"--queries: expected sentences in {uri}, got no rows")
    if conditions and len(conditions) != len(sentences):
        raise RequestError(f"--queries: expected a condition in every file of {uri} or in none, got it in some")
    return sentences, conditions or None


def _show(answers: pa.Table, sentences: list[str], conditions: list[str] | None, columns: list[str]) -> None:
    """A table for people: score and text, or the id where no text was kept."""
    shown = TEXT if TEXT in columns else columns[0]
    for query, sentence in enumerate(sentences):
        under = f' under "{conditions[query]}"' if conditions else ""
        print(f'\n"{sentence}"{under}')
        rows = answers.filter(pa.compute.equal(answers[QUERY], query)).select([RANK, SCORE, shown]).to_pylist()
        for row in rows:
            text = " ".join(str(row[shown]).split())
            print(f"{row[RANK]:>4}  {row[SCORE]:6.3f}  {text[:WIDTH]}{'…' * (len(text) > WIDTH)}")
        if not rows:
            print("      nothing left by the filter")
    print()
