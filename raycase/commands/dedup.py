"""The command dedup: rows of an index whose vectors are alike in groups, as Parquet, with one of each to keep."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, visible

EXAMPLE = "raycase dedup --index captions.lance --threshold 0.95 --output groups.parquet"


@dataclass(frozen=True, kw_only=True)
class DedupFlags(OfIndex):
    """Find the rows of an index that are alike: compare every pair, link rows whose cosine is at least the threshold,
    and keep one row of each linked group, the one with the smallest id."""

    threshold: float
    """Least cosine of two rows that are alike, from -1 to 1, such as 0.95. 1 finds equal vectors."""
    output: str
    """Parquet file of the rows, local or on object storage."""
    condition: str | None = None
    """The condition under which rows are compared. Default: by their unconditional vectors."""


def dedup(flags: DedupFlags) -> dict[str, Any]:
    """Find rows of an index that are alike, and one of each group to keep."""
    import pyarrow.compute as pc

    from raycase.explore.dedup import group_rows
    from raycase.io.places import PARQUET

    ranges = {"threshold": (-1 <= flags.threshold <= 1, "a cosine from -1 to 1")}
    began = flags.check(ranges, writes={"output": PARQUET})
    _, condition, table = flags.on_rows(flags.condition, partial(group_rows, threshold=flags.threshold))
    rows, kept = len(table), pc.sum(table["kept"]).as_py()
    sizes = pc.value_counts(table["group"].combine_chunks()).field("counts").to_numpy()
    given = {"asked": flags.condition, "condition": condition, "rows": rows, "kept": kept, "duplicates": rows - kept}
    result = flags.finish(began, {"output": table}, **given, groups=int((sizes > 1).sum()), largest=int(sizes.max()))
    under = "without a condition" if condition is None else f'under "{visible(condition, MOST_LABEL)}"'
    duplicates = f"{rows - kept:,} duplicates in {result['groups']:,} groups of two or more"
    print(f"{rows:,} rows {under}: {kept:,} kept, {duplicates}")
    return result
