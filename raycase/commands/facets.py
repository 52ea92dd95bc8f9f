"""The command facets: what an index holds along a condition, as a table for people and as Parquet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, at_least, check_problems, note, visible
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
    save: str | None = None
    """Parquet file in which the clusters are kept for --groups, local or on object storage."""
    groups: str | None = None
    """File of --save: put the rows into its clusters instead of new ones. Rows far from all are counted apart."""


def facets(flags: FacetsFlags) -> dict[str, Any]:
    """Group the rows of an index by what they state about a condition."""
    from raycase.explore.facets import FAR, find_facets, import_sklearn
    from raycase.explore.groups import FLAG, read_groups
    from raycase.io.places import PARQUET

    writes, reads = dict.fromkeys(("output", "assignments", "save"), PARQUET), {FLAG: flags.groups}
    began = flags.check(at_least(2, flags, "clusters"), reads=reads, writes=writes)
    for name in ("clusters", "save"):
        expected = f"--{name}: expected none beside {FLAG}, whose clusters stay as they are, got {getattr(flags, name)}"
        check_problems({expected: flags.groups is not None and getattr(flags, name) is not None})
    groups = None if flags.groups is None else read_groups(flags.groups)
    import_sklearn()
    find = partial(find_facets, clusters=flags.clusters, stated=flags.stated, model=flags.model, groups=groups)
    find = partial(find, column=flags.text_column, assigned=flags.assignments is not None)
    index, condition, found = flags.on_rows(flags.condition, find)
    if found.unweighed:
        note(f"no weighed words: {found.unweighed}")
    rows, files = found.table.to_pylist(), {"output": found.table, "assignments": found.assignments, "save": found.kept}
    sizes = {row["cluster"]: row["rows"] for row in rows}
    given = {"asked": flags.condition, "condition": condition, "rows": sum(sizes.values())}
    given |= {"not_stated": sizes.pop(0, 0), "far": (far := sizes.pop(FAR, 0)), "clusters": len(sizes)}
    given["themes"] = max(row["theme"] or 0 for row in rows)
    if far:
        note(
            f"{far:,} of {given['rows']:,} rows are far from every group of {flags.groups}: read some, and group anew?"
        )
    result = flags.finish(began, files, **given)
    _print_rows(rows, index, condition, weighed=found.unweighed is None and groups is None)
    return result


def _print_rows(rows: list[dict[str, Any]], index: Index, condition: str | None, *, weighed: bool) -> None:
    """Number, size, share and words of each cluster, by theme where there are any, and its examples: their texts, in a
    terminal with the words in bold that the condition looked at, or the ids where the index has no texts."""
    from raycase.explore.facets import FAR, weigh_texts
    from raycase.index.answers import SHOWN_CHARACTERS, has_styles, in_bold, looked_at

    def in_one_line(words: list[dict[str, Any]] | None) -> str:
        return ", ".join(visible(word["word"]) for word in words or [])

    marks = {}
    if weighed and has_styles(sys.stdout):
        texts = [example["text"] for row in rows for example in row["examples"]]
        marks = dict(zip(texts, weigh_texts(index, texts, [condition])[0], strict=True))
    total, clusters = sum(row["rows"] for row in rows), sum(row["cluster"] > 0 for row in rows)
    themes, shown = sorted({row["theme"] for row in rows} - {None}), {FAR: "far from every group", 0: "not stated"}
    joined = f" of {len(themes)} themes" if themes else ""
    print(f'\n{total:,} rows under "{visible(condition, MOST_LABEL)}" in {clusters} clusters{joined}')
    for theme in [*themes, None]:
        own = [row for row in rows if row["theme"] == theme]
        if theme is not None:
            size = sum(row["rows"] for row in own)
            print(f"\ntheme {theme:<3} {size:>7,}  {size / total:>6.1%}  {in_one_line(own[0]['theme_words'])}".rstrip())
        for row in own:
            carried = in_one_line(row["words"])
            if row["cluster"] in shown:
                carried = shown[row["cluster"]]
            elif row["words"] == [] and row["examples"]:  # function words alone
                carried = f"like: {visible(row['examples'][0]['text'], MOST_LABEL)}"
            print(f"\n{row['cluster']:>4}  {row['rows']:>10,}  {row['rows'] / total:>6.1%}  {carried}".rstrip())
            for example in row["examples"]:
                text = str(example["id"] if example["text"] is None else example["text"])
                print(" " * 26 + in_bold(text, looked_at(text, marks.get(text, [])), SHOWN_CHARACTERS))
    print()
