"""The command facets: what an index holds along a condition, as a table for people and as Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, MOST_SEED, RequestError, at_least, check_ranges, note, visible
from raycase.explore.facet_words import CarriedWord, Example, carrying_words, nearest_examples, weighed_texts
from raycase.explore.facets import Clusters, find_clusters, import_sklearn
from raycase.explore.of_index import OfIndex
from raycase.index.exact import Block
from raycase.index.index import LEAST_STATED, TELLING, Index, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.marks import has_styles, in_bold, looked_at
from raycase.index.shown import SHOWN_CHARACTERS, print_replaced_condition, text_column, why_unweighed
from raycase.io.places import PARQUET, File, check_paths
from raycase.io.schema import ID, parquet_bytes
from raycase.io.storage import locate

WORDS, EXAMPLES = 5, 3  # of a cluster
MOST_CLUSTERS = 24


@dataclass(frozen=True, kw_only=True)
class FacetsJob(OfIndex):
    """What is in a corpus along a condition: the rows of an index in clusters of similar vectors under it (k-means),
    each with its size, the words that carry it and its most typical rows."""

    condition: str
    """The condition by which the rows are grouped."""
    stated: bool = False
    """Put the rows that say nothing about the condition into a group of their own."""
    clusters: int | None = None
    """Number of clusters. Default: the best by silhouette on a sample, from 2 to --most-clusters."""
    most_clusters: int = MOST_CLUSTERS
    """Maximum number of clusters when raycase chooses."""
    seed: int = 0
    """Seed of the samples and of k-means."""
    text_column: str | None = None
    """Kept column with the texts, for examples and words. Default: text, if the index has it."""
    output: str | None = None
    """Parquet file for the clusters, local or on object storage, beside the table."""
    assignments: str | None = None
    """Parquet file with the cluster of every row, local or on object storage."""


def facets(job: FacetsJob) -> dict[str, Any]:
    """Group the rows of an index by a condition, print the table, write the files, and return counts. Raises
    RequestError."""
    began = time.time()
    _check_job(job)
    index, (found, tables) = on_index(job.open, partial(_find, job))
    print_replaced_condition(index, job.condition, found.condition)
    if found.unweighed:
        note(f"no weighed words: {found.unweighed}")
    for uri, table in tables.items():
        locate(uri).put(parquet_bytes(table))
    _print_table(found, index)
    clusters = found.clusters
    return {
        "asked": job.condition,
        "condition": found.condition,
        "rows": len(clusters.offsets) + len(found.unstated),
        "not_stated": len(found.unstated),
        "clusters": len(clusters.sizes),
        "silhouette": None if clusters.silhouette is None else round(clusters.silhouette, 4),
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
    stated = partial(_without, blocks, unstated) if job.stated else blocks
    clusters = find_clusters(stated, job.clusters, most=job.most_clusters, seed=job.seed)
    with lance_errors(index.root):
        weighs = unweighed is None and text is not None
        return FoundFacets(
            clusters=clusters,
            words=carrying_words(clusters, index, condition, str(text), WORDS, job.seed) if weighs else None,
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
    unstated = offsets_N[index.states_at(condition, offsets_N) < LEAST_STATED]
    if len(unstated) == len(offsets_N) > 0:
        raise RequestError(f"--stated: expected rows that say something of {visible(condition, MOST_LABEL)}, got none")
    return unstated


def _without(blocks: Callable[[], Iterable[Block]], unstated: np.ndarray) -> Iterator[Block]:
    for offsets_B, vectors_BD in blocks():
        kept_B = ~np.isin(offsets_B, unstated)
        yield offsets_B[kept_B], vectors_BD[kept_B]


def _find(job: FacetsJob, index: Index) -> tuple[FoundFacets, dict[str, pa.Table]]:
    """The facets, and what is written."""
    found = find_facets(job, index)
    with lance_errors(index.root):
        tables = {job.output: facet_table(found, index)} if job.output else {}
        if job.assignments:
            tables[job.assignments] = assignment_table(found, index)
    return found, tables


def _check_job(job: FacetsJob) -> None:
    check_paths(
        opens=job.opens,
        writes={"--output": File(job.output, PARQUET), "--assignments": File(job.assignments, PARQUET)},
    )
    check_ranges(job, at_least(2, job, "clusters", "most_clusters") | at_least(0, job, "seed", most=MOST_SEED))
    import_sklearn()


def facet_table(found: FoundFacets, index: Index) -> pa.Table:
    """One row for each cluster; words are null where none were weighed. The last, cluster 0, has the rows that say
    nothing of the condition, if any."""
    sizes, numbers = found.clusters.sizes, [*range(1, len(found.clusters.sizes) + 1)]
    word_type = pa.struct([("word", pa.string()), ("score", pa.float32())])
    id_type = index.dataset.schema.field(ID).type
    example_type = pa.struct([(ID, id_type), ("text", pa.string()), ("cosine", pa.float32())])
    words = found.words
    of_words = [None] * len(sizes) if words is None else [[word._asdict() for word in each] for each in words]
    examples = [[row._asdict() for row in each] for each in found.examples]
    if len(found.unstated):
        sizes, numbers = np.append(sizes, len(found.unstated)), [*numbers, 0]
        of_words, examples = [*of_words, None], [*examples, []]
    return pa.table(
        {
            "cluster": pa.array(numbers, pa.int32()),
            "rows": pa.array(sizes, pa.int64()),
            "share": pa.array(sizes / sizes.sum(), pa.float32()),
            "words": pa.array(of_words, pa.list_(word_type)),
            "examples": pa.array(examples, pa.list_(example_type)),
        }
    )


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


def _print_table(found: FoundFacets, index: Index) -> None:
    """Number, size, share and words of each cluster, and its examples: their texts, in a terminal with the words in
    bold that the condition looked at, or the ids where the index has no texts."""
    marks: dict[str, list[Any]] = {}
    if found.words is not None and has_styles(sys.stdout):
        texts = [example.text for each in found.examples for example in each]
        marks = dict(weighed_texts(texts, index, found.condition))
    sizes = found.clusters.sizes.tolist()
    rows = sum(sizes) + len(found.unstated)
    print(f'\n{rows:,} rows under "{visible(found.condition, MOST_LABEL)}" in {len(sizes)} clusters')
    for number, size in enumerate(sizes):
        carried = ", ".join(visible(word.word) for word in found.words[number]) if found.words else ""
        if found.words and not carried:  # function words alone
            carried = f"like: {visible(found.examples[number][0].text, MOST_LABEL)}"
        print(f"\n{number + 1:>4}  {size:>10,}  {size / rows:>6.1%}  {carried}".rstrip())
        for example in found.examples[number]:
            text = str(example.id if example.text is None else example.text)
            print(" " * 26 + in_bold(text, looked_at(marks.get(text, [])), SHOWN_CHARACTERS))
    if unstated := len(found.unstated):
        print(f"\n   0  {unstated:>10,}  {unstated / rows:>6.1%}  not stated")
    print()
