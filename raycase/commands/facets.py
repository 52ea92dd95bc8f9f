"""The command facets: what an index holds along a condition, as a table for people and as Parquet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, at_least, note, visible
from raycase.names import Advanced

if TYPE_CHECKING:
    from raycase.index.index import Index

EXAMPLE = 'raycase facets --index captions.lance --condition "color of the clothes"'


@dataclass(frozen=True, kw_only=True)
class FacetsFlags(OfIndex):
    """Cluster the rows of an index by their vectors under a condition (k-means), and show each cluster with its size,
    the words that carry it and its most typical rows."""

    condition: str
    """The condition by which the rows are grouped."""
    stated: bool = False
    """Put the rows that state nothing of the condition into a group of their own."""
    clusters: int | None = None
    """Number of clusters. Default: the best by silhouette on a sample, at most 24."""
    text_column: Advanced[str | None] = None
    """Kept column with the texts, for examples and words. Default: the one that was embedded, else text."""
    output: str | None = None
    """Parquet file for the clusters, local or on object storage, beside the table."""
    assignments: str | None = None
    """Parquet file with the cluster of every row, local or on object storage."""


def facets(flags: FacetsFlags) -> dict[str, Any]:
    """Group the rows of an index by what they state about a condition."""
    from raycase.explore.facets import find_facets, import_sklearn
    from raycase.io.places import PARQUET

    began = flags.check(at_least(2, flags, "clusters"), writes={"output": PARQUET, "assignments": PARQUET})
    import_sklearn()
    find = partial(find_facets, clusters=flags.clusters, stated=flags.stated, model=flags.model)
    find = partial(find, column=flags.text_column, assigned=flags.assignments is not None)
    index, condition, found = flags.on_rows(flags.condition, find)
    if found.unweighed:
        note(f"no weighed words: {found.unweighed}")
    rows, files = found.table.to_pylist(), {"output": found.table, "assignments": found.assignments}
    sizes = {row["cluster"]: row["rows"] for row in rows}
    given = {"asked": flags.condition, "condition": condition, "rows": sum(sizes.values())}
    given |= {"not_stated": sizes.pop(0, 0), "clusters": len(sizes)}
    result = flags.finish(began, files, **given)
    _print_rows(rows, index, condition, weighed=found.unweighed is None)
    return result


def _print_rows(rows: list[dict[str, Any]], index: Index, condition: str | None, *, weighed: bool) -> None:
    """Number, size, share and words of each cluster, and its examples: their texts, in a terminal with the words in
    bold that the condition looked at, or the ids where the index has no texts."""
    from raycase.explore.facets import weigh_texts
    from raycase.index.answers import SHOWN_CHARACTERS, has_styles, in_bold, looked_at

    marks = {}
    if weighed and has_styles(sys.stdout):
        texts = [example["text"] for row in rows for example in row["examples"]]
        marks = dict(zip(texts, weigh_texts(index, texts, [condition])[0], strict=True))
    total, clusters = sum(row["rows"] for row in rows), sum(row["cluster"] > 0 for row in rows)
    print(f'\n{total:,} rows under "{visible(condition, MOST_LABEL)}" in {clusters} clusters')
    for row in rows:
        carried = ", ".join(visible(word["word"]) for word in row["words"] or [])
        if row["cluster"] == 0:
            carried = "not stated"
        elif weighed and not carried:  # function words alone
            carried = f"like: {visible(row['examples'][0]['text'], MOST_LABEL)}"
        print(f"\n{row['cluster']:>4}  {row['rows']:>10,}  {row['rows'] / total:>6.1%}  {carried}".rstrip())
        for example in row["examples"]:
            text = str(example["id"] if example["text"] is None else example["text"])
            print(" " * 26 + in_bold(text, looked_at(text, marks.get(text, [])), SHOWN_CHARACTERS))
    print()
