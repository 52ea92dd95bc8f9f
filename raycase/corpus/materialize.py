"""A corpus under new conditions, pooled from its stored words: an output like that of `raycase embed`, unit by unit.

Knows no Ray: each unit of the words' output becomes a unit of the new one, by whatever calls `pool_unit`.

Shapes: N rows of a unit, C conditions, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.corpus.listing import UnitFile, Units
from raycase.corpus.output import Output, output_folder
from raycase.corpus.ray_flag import RayFlag
from raycase.corpus.unit_files import parsed, unit_stats, write_unit
from raycase.corpus.written import Written, open_written, read_rows
from raycase.data.conditions import conditions_file, read_conditions
from raycase.data.fetch import model_folder
from raycase.data.places import check_paths
from raycase.data.schema import CONDITION, EMBEDDING, ROW_OF_PAIR, embedding_array, rejected_table
from raycase.data.stored_words import WORD_COLUMNS, StoredWords, WordFormat
from raycase.errors import STALL_TIMEOUT, RequestError, WorkError, check_ranges, minutes_range

MOST_CONDITIONS = 64  # at a time


@dataclass(frozen=True, kw_only=True)
class MaterializeJob(RayFlag):
    """Pool a whole corpus under new conditions from its stored words, without the encoder: an output like that of
    `raycase embed --conditions`. A job that was stopped resumes automatically when the same command is run again."""

    words: str
    """Output of `raycase embed --any-condition`."""
    conditions: tuple[str, ...]
    """Conditions, or one .txt (one a line), .parquet or .csv file with them."""
    output: str
    """Folder of the output, local or on object storage."""
    model: str | None = None
    """Folder of the words' model, if it has moved. Only its encoding of the conditions is needed."""
    stall_timeout: float = STALL_TIMEOUT
    """Minutes without progress after which the job gives up, as when no machine is available."""
    overwrite: bool = False
    """Remove an earlier output in the folder first."""


def names_left(words: Written, done: Units) -> list[str]:
    """The names of the units of stored words that are left to pool."""
    places = {(unit.file, unit.start) for unit in done}
    return [u.name(words.job.print8) for u in words.units if (u.file, u.start) not in places]


def check_materialize(job: MaterializeJob, flag: str = "--words") -> tuple[Written, tuple[str, ...]]:
    """The output of words, which the flag names, and the conditions. Writes nothing. Raises RequestError."""
    check_paths(
        reads={"--conditions": conditions_file(job.conditions)},
        opens={flag: job.words, "--model": model_folder(job.model)},
        writes={"--output": output_folder(job.output)},
    )
    check_ranges(job, {"stall_timeout": minutes_range(job.stall_timeout)})
    if not job.conditions:
        raise RequestError("--conditions: expected at least one condition, got none")
    conditions = tuple(read_conditions(job.conditions))
    if len(conditions) > MOST_CONDITIONS:
        raise RequestError(
            f"--conditions: expected at most {MOST_CONDITIONS}, which bounds the memory, got {len(conditions)}; run it "
            "several times, with an output each"
        )
    words = open_written(job.words, flag)
    if not words.has_words:
        raise RequestError(
            f"{flag}: expected an output of `raycase embed --any-condition`, got vectors alone in "
            f"{words.output.root.uri}"
        )
    words.check_basis(flag)
    return words, conditions


def pool_unit(
    words: Output,
    output: Output,
    print8: str,
    name: str,
    sha256: str,
    conditions: tuple[str, ...],
    pooler: Any,
    form: WordFormat,
) -> None:
    """Pool a unit of stored words of this format under the conditions, by a function of `StoredWords` that gives
    (N, C, D), and write it; its rejected rows stay rejected. Raises WorkError for a unit without this checksum."""
    named = UnitFile.parse(name)
    assert named is not None
    unit = named[1]
    table = read_rows(words.embeddings / name, sha256)
    rejected = rejected_table("", [])
    if unit.rows_rejected:
        rejected = parsed((words.rejected / name).read(), f"{words.rejected.uri}/{name}")
    stats = unit_stats(table)
    write_unit(
        output,
        print8,
        (unit.file, unit.start),
        _pooled(table, conditions, pooler, form, f"{words.embeddings.uri}/{name}"),
        rejected,
        rows_in=unit.rows,
        distinct_pairs=stats["distinct_pairs"] * len(conditions),
        rows_truncated=stats["rows_truncated"],
    )


def _pooled(table: pa.Table, conditions: tuple[str, ...], pooler: Any, form: WordFormat, source: str) -> pa.Table:
    """The rows of a unit under each condition, with the column that counts its rows."""
    dtype = table.schema.field(EMBEDDING).type.value_type.to_pandas_dtype()
    count, each = len(table), len(conditions)
    vectors_ND = np.empty((0, form.dim), dtype)
    if count:
        vectors_ND = pooler(StoredWords.from_arrow(table, form)).reshape(count * each, form.dim).astype(dtype)
        if not np.isfinite(vectors_ND).all():
            raise WorkError(f"{source}: expected words that give finite vectors, got others; verify the output")
    row = np.repeat(np.arange(count), each)
    rows = table.drop_columns([*WORD_COLUMNS[:2], EMBEDDING]).take(row)
    place = rows.schema.get_field_index(CONDITION)
    under = pa.array(list(conditions) * count, pa.string())
    return (
        rows.set_column(place, CONDITION, under)
        .append_column(EMBEDDING, embedding_array(vectors_ND))
        .append_column(ROW_OF_PAIR, pa.array(row))
    )
