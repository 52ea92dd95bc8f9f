"""The command facets: what an index holds along a condition, as a table for people and as Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.commands.flags import Advanced, OfIndex
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
from raycase.index.index import LEAST_STATED, WITH_STATED, Index, note_searched, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.topk import Block
from raycase.io.places import PARQUET, File, check_paths
from raycase.io.schema import ID, parquet_bytes
from raycase.io.storage import locate

WORDS, EXAMPLES = 5, 3  # of a cluster


@dataclass(frozen=True, kw_only=True)
class FacetsFlags(OfIndex):
    """Cluster the rows of an index by their vectors under a condition (k-means), and show each cluster with its size,
    the words that carry it and its most typical rows."""

    condition: str
    """The condition by which the rows are grouped."""
    stated: bool = False
    """Put the rows that say nothing about the condition into a group of their own."""
    clusters: int | None = None
    """Number of clusters. Default: the best by silhouette on a sample, at most 24."""
    text_column: Advanced[str | None] = None
    """Kept column with the texts, for examples and words. Default: the one that was embedded, else text."""
    output: str | None = None
    """Parquet file for the clusters, local or on object storage, beside the table."""
    assignments: str | None = None
    """Parquet file with the cluster of every row, local or on object storage."""


def facets(flags: FacetsFlags) -> dict[str, Any]:
    """Group the rows of an index by a condition, print the table, write the files, and return counts. Raises
    RequestError."""
    began = time.time()
    check_paths(
        opens=flags.opens,
        writes={"--output": File(flags.output, PARQUET), "--assignments": File(flags.assignments, PARQUET)},
    )
    check_ranges(flags, at_least(2, flags, "clusters"))
    import_sklearn()

    def find(index: Index) -> tuple[FoundFacets, pa.Table, pa.Table | None]:
        found = find_facets(flags, index)
        note_searched(index, {flags.condition: found.condition}, flags.where)
        with lance_errors(index.root):
            return found, facet_table(found, index), assignment_table(found, index) if flags.assignments else None

    index, (found, table, assignments) = on_index(flags.open, find)
    if found.unweighed:
        note(f"no weighed words: {found.unweighed}")
    if flags.output:
        locate(flags.output).put(parquet_bytes(table))
    if flags.assignments:
        locate(flags.assignments).put(parquet_bytes(assignments))
    _print_table(table.to_pylist(), found, index)
    clusters = found.clusters
    return {
        "asked": flags.condition,
        "condition": found.condition,
        "rows": len(clusters.offsets) + len(found.not_stated),
        "not_stated": len(found.not_stated),
        "clusters": len(clusters.sizes),
        "seconds": round(time.time() - began, 3),
        "output": locate(flags.output).uri if flags.output else None,
        "assignments": locate(flags.assignments).uri if flags.assignments else None,
    }


@dataclass(frozen=True, kw_only=True)
class FoundFacets:
    """The clusters, their words and examples; condition: of the index, that was taken; not_stated: offsets of rows that
    say nothing of it, and are in no cluster; unweighed: why there are no words."""

    clusters: Clusters
    words: list[list[CarriedWord]] | None
    examples: list[list[Example]]
    condition: str | None
    not_stated: np.ndarray
    unweighed: str | None


def find_facets(flags: FacetsFlags, index: Index) -> FoundFacets:
    """Group the rows of an open index, which need not be that of the job. Raises RequestError."""
    text = text_column(index, flags.text_column)
    condition, blocks = index.blocks(flags.condition, flags.where, exact_condition=flags.exact_condition)
    not_stated = _not_stated(index, condition, blocks()) if flags.stated else np.empty(0, np.int64)
    unweighed = why_unweighed(index, flags.text_column, flags.model)

    def stated() -> Iterator[Block]:
        for offsets_B, vectors_BD in blocks():
            kept_B = ~np.isin(offsets_B, not_stated)
            yield offsets_B[kept_B], vectors_BD[kept_B]

    clusters = find_clusters(stated if flags.stated else blocks, flags.clusters)
    with lance_errors(index.root):
        return FoundFacets(
            clusters=clusters,
            words=carrying_words(clusters, index, condition, str(text), WORDS) if unweighed is None else None,
            examples=nearest_examples(clusters, index, text, EXAMPLES),
            condition=condition,
            not_stated=not_stated,
            unweighed=unweighed,
        )


def _not_stated(index: Index, condition: str | None, blocks: Iterable[Block]) -> np.ndarray:
    """Offsets of the rows that say nothing of the condition. Raises RequestError where the model does not tell."""
    if condition is None or not index.gives_stated(condition):
        raise RequestError(f"--stated: expected conditions {WITH_STATED}, got {visible(condition, MOST_LABEL)}")
    offsets_N = np.concatenate([np.empty(0, np.int64), *(offsets_B for offsets_B, _ in blocks)])
    not_stated = offsets_N[index.stated_at(condition, offsets_N) < LEAST_STATED]
    if len(not_stated) == len(offsets_N) > 0:
        raise RequestError(f"--stated: expected rows that say something of {visible(condition, MOST_LABEL)}, got none")
    return not_stated


def facet_table(found: FoundFacets, index: Index) -> pa.Table:
    """One row for each cluster; words are null where none were weighed. The last, cluster 0, has the rows that say
    nothing of the condition, if any."""
    sizes = found.clusters.sizes.tolist()
    total = sum(sizes) + len(found.not_stated)
    words: Sequence[list[CarriedWord] | None] = found.words or [None] * len(sizes)
    rows = [
        {"cluster": number, "rows": size, "share": size / total, "words": of_words, "examples": examples}
        for number, (size, of_words, examples) in enumerate(zip(sizes, words, found.examples, strict=True), 1)
    ]
    if not_stated := len(found.not_stated):
        rows.append({"cluster": 0, "rows": not_stated, "share": not_stated / total, "words": None, "examples": []})
    id_type = index.dataset.schema.field(ID).type
    word = pa.struct([("word", pa.string()), ("score", pa.float32())])
    example = pa.struct([(ID, id_type), ("text", pa.string()), ("cosine", pa.float32())])
    types = {"cluster": pa.int32(), "rows": pa.int64(), "share": pa.float32()}
    types |= {"words": pa.list_(word), "examples": pa.list_(example)}
    return pa.Table.from_pylist(rows, pa.schema(types))


def assignment_table(found: FoundFacets, index: Index) -> pa.Table:
    """Every row's id, its cluster, and its cosine with the cluster's centre, in the order of the index; cluster 0,
    without a cosine: it says nothing of the condition."""
    clusters, not_stated = found.clusters, found.not_stated
    offsets = np.concatenate([clusters.offsets, not_stated])
    order = np.argsort(offsets)
    cluster = np.append(clusters.cluster + 1, np.zeros(len(not_stated), np.int64))[order]
    cosine = np.append(clusters.cosine, np.zeros(len(not_stated), np.float32))[order]
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
