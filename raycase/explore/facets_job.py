"""The command facets: what an index holds along a condition, as a table for people and as Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.encoder.words import Word
from raycase.errors import MOST_LABEL, RequestError, at_least, check_ranges, note, visible
from raycase.explore.facets import (
    CarriedWord,
    Clusters,
    Example,
    carrying_words,
    find_clusters,
    import_sklearn,
    nearest_examples,
    weigh_texts,
)
from raycase.index.answer_printing import SHOWN_CHARACTERS, has_styles, in_bold, looked_at, text_column, why_unweighed
from raycase.index.index import LEAST_STATED, TELLING, Index, note_searched, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.of_index import OfIndex
from raycase.index.topk import Block
from raycase.io.places import PARQUET, File, check_paths
from raycase.io.schema import ID, parquet_bytes
from raycase.io.storage import locate

WORDS, EXAMPLES = 5, 3  # of a cluster


@dataclass(frozen=True, kw_only=True)
class FacetsJob(OfIndex):
    """Cluster the rows of an index by their vectors under a condition (k-means), and show each cluster with its size,
    the words that carry it and its most typical rows."""

    condition: str
    """The condition by which the rows are grouped."""
    stated: bool = False
    """Put the rows that say nothing about the condition into a group of their own."""
    clusters: int | None = None
    """Number of clusters. Default: the best by silhouette on a sample, at most 24."""
    text_column: str | None = None
    """Kept column with the texts, for examples and words. Default: the one that was embedded, else text."""
    output: str | None = None
    """Parquet file for the clusters, local or on object storage, beside the table."""
    assignments: str | None = None
    """Parquet file with the cluster of every row, local or on object storage."""


def facets(job: FacetsJob) -> dict[str, Any]:
    """Group the rows of an index by a condition, print the table, write the files, and return counts. Raises
    RequestError."""
    began = time.time()
    check_paths(
        opens=job.opens, writes={"--output": File(job.output, PARQUET), "--assignments": File(job.assignments, PARQUET)}
    )
    check_ranges(job, at_least(2, job, "clusters"))
    import_sklearn()

    def find(index: Index) -> tuple[FoundFacets, pa.Table, pa.Table | None]:
        found = find_facets(job, index)
        note_searched(index, {job.condition: found.condition}, job.where)
        with lance_errors(index.root):
            return found, facet_table(found, index), assignment_table(found, index) if job.assignments else None

    index, (found, table, assignments) = on_index(job.open, find)
    if found.unweighed:
        note(f"no weighed words: {found.unweighed}")
    if job.output:
        locate(job.output).put(parquet_bytes(table))
    if job.assignments:
        locate(job.assignments).put(parquet_bytes(assignments))
    _print_table(table.to_pylist(), found, index)
    clusters = found.clusters
    return {
        "asked": job.condition,
        "condition": found.condition,
        "rows": len(clusters.offsets) + len(found.unstated),
        "not_stated": len(found.unstated),
        "clusters": len(clusters.sizes),
        "seconds": round(time.time() - began, 3),
        "output": locate(job.output).uri if job.output else None,
        "assignments": locate(job.assignments).uri if job.assignments else None,
    }


@dataclass(frozen=True, kw_only=True)
class FoundFacets:
    """The clusters, their words and examples; condition: of the index, that was taken; unstated: offsets of rows that
    say nothing of it, and are in no cluster; unweighed: why there are no words."""

    clusters: Clusters
    words: list[list[CarriedWord]] | None
    examples: list[list[Example]]
    condition: str | None
    unstated: np.ndarray
    unweighed: str | None


def find_facets(job: FacetsJob, index: Index) -> FoundFacets:
    """Group the rows of an open index, which need not be that of the job. Raises RequestError."""
    text = text_column(index, job.text_column)
    condition, blocks = index.blocks(job.condition, job.where, exact_condition=job.exact_condition)
    unstated = _unstated(index, condition, blocks()) if job.stated else np.empty(0, np.int64)
    unweighed = why_unweighed(index, job.text_column, job.model)

    def stated() -> Iterator[Block]:
        for offsets_B, vectors_BD in blocks():
            kept_B = ~np.isin(offsets_B, unstated)
            yield offsets_B[kept_B], vectors_BD[kept_B]

    clusters = find_clusters(stated if job.stated else blocks, job.clusters)
    with lance_errors(index.root):
        return FoundFacets(
            clusters=clusters,
            words=carrying_words(clusters, index, condition, str(text), WORDS) if unweighed is None else None,
            examples=nearest_examples(clusters, index, text, EXAMPLES),
            condition=condition,
            unstated=unstated,
            unweighed=unweighed,
        )


def _unstated(index: Index, condition: str | None, blocks: Iterable[Block]) -> np.ndarray:
    """Offsets of the rows that say nothing of the condition. Raises RequestError where the model does not tell."""
    if condition is None or not index.tells(condition):
        raise RequestError(f"--stated: expected conditions {TELLING}, got {visible(condition, MOST_LABEL)}")
    offsets_N = np.concatenate([np.empty(0, np.int64), *(offsets_B for offsets_B, _ in blocks)])
    unstated = offsets_N[index.stated_at(condition, offsets_N) < LEAST_STATED]
    if len(unstated) == len(offsets_N) > 0:
        raise RequestError(f"--stated: expected rows that say something of {visible(condition, MOST_LABEL)}, got none")
    return unstated


def facet_table(found: FoundFacets, index: Index) -> pa.Table:
    """One row for each cluster; words are null where none were weighed. The last, cluster 0, has the rows that say
    nothing of the condition, if any."""
    sizes = found.clusters.sizes.tolist()
    total = sum(sizes) + len(found.unstated)
    words: Sequence[list[CarriedWord] | None] = found.words or [None] * len(sizes)
    rows = [
        {"cluster": number, "rows": size, "share": size / total, "words": of_words, "examples": examples}
        for number, (size, of_words, examples) in enumerate(zip(sizes, words, found.examples, strict=True), 1)
    ]
    if unstated := len(found.unstated):
        rows.append({"cluster": 0, "rows": unstated, "share": unstated / total, "words": None, "examples": []})
    id_type = index.dataset.schema.field(ID).type
    word = pa.struct([("word", pa.string()), ("score", pa.float32())])
    example = pa.struct([(ID, id_type), ("text", pa.string()), ("cosine", pa.float32())])
    types = {"cluster": pa.int32(), "rows": pa.int64(), "share": pa.float32()}
    types |= {"words": pa.list_(word), "examples": pa.list_(example)}
    return pa.Table.from_pylist(rows, pa.schema(types))


def assignment_table(found: FoundFacets, index: Index) -> pa.Table:
    """Every row's id, its cluster, and its cosine with the cluster's centre, in the order of the index; cluster 0,
    without a cosine: it says nothing of the condition."""
    clusters, unstated = found.clusters, found.unstated
    offsets = np.concatenate([clusters.offsets, unstated])
    order = np.argsort(offsets)
    cluster = np.append(clusters.cluster + 1, np.zeros(len(unstated), np.int64))[order]
    cosine = np.append(clusters.cosine, np.zeros(len(unstated), np.float32))[order]
    return pa.table(
        {
            ID: index.dataset.take(offsets[order], columns=[ID])[ID],
            "cluster": pa.array(cluster, pa.int32()),
            "cosine": pa.array(cosine, pa.float32(), mask=cluster == 0),
        }
    )


def _print_table(rows: list[dict[str, Any]], found: FoundFacets, index: Index) -> None:
    """Number, size, share and words of each cluster, and its examples: their texts, in a terminal with the words in
    bold that the condition looked at, or the ids where the index has no texts."""
    marks: dict[str | None, list[Word]] = {}
    if found.words is not None and has_styles(sys.stdout):
        texts = [example.text for each in found.examples for example in each]
        marks = dict(zip(texts, weigh_texts(index, texts, [found.condition])[0], strict=True))
    total = sum(row["rows"] for row in rows)
    print(f'\n{total:,} rows under "{visible(found.condition, MOST_LABEL)}" in {len(found.examples)} clusters')
    for row in rows:
        carried = ", ".join(visible(word["word"]) for word in row["words"] or [])
        if row["cluster"] == 0:
            carried = "not stated"
        elif found.words and not carried:  # function words alone
            carried = f"like: {visible(row['examples'][0]['text'], MOST_LABEL)}"
        print(f"\n{row['cluster']:>4}  {row['rows']:>10,}  {row['rows'] / total:>6.1%}  {carried}".rstrip())
        for example in row["examples"]:
            text = str(example[ID] if example["text"] is None else example["text"])
            print(" " * 26 + in_bold(text, looked_at(text, marks.get(text, [])), SHOWN_CHARACTERS))
    print()
