"""The command index: index the vectors of outputs of `raycase embed`, or add them to an index."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from raycase.errors import at_least, check_ranges, visible
from raycase.index.options import VectorIndexType
from raycase.names import Advanced, Language

EXAMPLE = "raycase index --embeddings out/ --output captions.lance"
MOST_SHARDS = 1024


@dataclass(frozen=True, kw_only=True)
class IndexFlags:
    """Index the vectors that `raycase embed` wrote, for `raycase search`.

    Run again, or with another output of the same model, it adds the rows that the index lacks.
    """

    embeddings: tuple[str, ...] = ()
    """Outputs of `raycase embed`, all of one model: under conditions, and unconditional ones beside them."""
    output: str
    """The index: a Lance dataset, local or on object storage."""
    vector_index: Annotated[VectorIndexType | None, tyro.conf.arg(aliases=("--kind",))] = None
    """exact: compare every vector under the condition. ivf-rq: use an approximate index. auto: ivf-rq for conditions
    with --exact-below rows or more. Default: the type that the index has, auto for a new one."""
    exact_below: Advanced[int | None] = None
    """Conditions with fewer rows are searched exactly by auto. Default: the index's value, 100,000 for a new one."""
    shards: Advanced[int | None] = None
    """Number of shards of about equal size; on a cluster, a search gives each its own process. Default: the index's
    number, 1 for a new one. To change it, use --overwrite."""
    delete: str | None = None
    """Delete the rows that match this SQL filter on id and the kept columns, such as "year < 2010". Indexing their
    output again does not bring them back."""
    replace: bool = False
    """First delete all rows with the ids of the new --embeddings. Give all outputs of the changed texts at once."""
    text_index: bool = False
    """Index the words of the kept texts too, for `raycase search --match` and --hybrid. Rows that are added later are
    indexed as well."""
    text_language: Advanced[Language | None] = None
    """Language in which --text-index stems words, so that "bicycles" is "bicycle", or none. Default: the index's,
    English for a new one."""
    keep_condition: tuple[str, ...] = ()
    """Conditions to pool from stored tokens and keep, like conditions embedded in advance; new rows are pooled too."""
    model: Advanced[str | None] = None
    """Folder of the index's model, if it has moved; for --keep-condition."""
    overwrite: bool = False
    """Build from scratch; searches use the former index until the new one is finished."""


def index(flags: IndexFlags) -> dict[str, Any]:
    """Index the vectors of an output of `embed`, or add new ones to an index."""
    from raycase.encoder.model_files import model_folder
    from raycase.index.build import build
    from raycase.io.places import OF_INDEX, Folder, check_paths

    check_paths(
        opens={"--embeddings": flags.embeddings, "--model": model_folder(flags.model)},
        writes={"--output": Folder(flags.output, OF_INDEX)},
    )
    check_ranges(flags, at_least(1, flags, "exact_below") | at_least(1, flags, "shards", most=MOST_SHARDS))
    result = build(**vars(flags))
    if result["rows_deleted"]:
        print(f"{result['rows_deleted']:,} rows deleted, {result['rows_added']:,} added")
    of = result["vector_index"]
    how = "searched exactly" if of == "exact" else f"an {of.upper()} index"
    rows, tokens = result["rows"], result["rows_with_tokens"]
    under = f" under {result['conditions']} conditions" if result["conditions"] or not tokens else ""
    under += (" for any condition" if tokens == rows else f", {tokens:,} of them for any condition") if tokens else ""
    print(f"{rows:,} rows{under}, {how}: {visible(result['output'])}")
    return result
