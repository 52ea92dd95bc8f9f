"""The command score: pairs of sentences, each under its condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.commands.flags import RunFlags
from raycase.errors import check_problems
from raycase.names import Advanced

if TYPE_CHECKING:
    from raycase.job.request import Request

EXAMPLE = "raycase score --input pairs.csv --output scores/"


@dataclass(frozen=True, kw_only=True)
class ScoreFlags(RunFlags):
    """Score pairs of sentences, each under its condition, by any model: Parquet, CSV or JSONL in, Parquet out.

    A stopped job resumes when the same command is run again.
    """

    input: str
    """File, folder or glob; .parquet, .csv or .jsonl, the last two also .gz or .zst; a Lance dataset. Local, s3:// or
    any fsspec scheme."""
    output: str
    """Folder of the output: scores/*.parquet with the columns of the input and the scores."""
    sentence1_column: str = "sentence1"
    """Column of the first sentences; DualCSE's premises."""
    sentence2_column: str = "sentence2"
    """Column of the second sentences; DualCSE's hypotheses."""
    condition_column: str | None = None
    """Column with the condition of each pair, or a list of conditions, with one output row for each. Default:
    `condition` for a model that reads conditions."""
    unconditional: bool = False
    """Score by the vectors without a condition. Models that know no conditions do so without the flag."""
    score_column: Advanced[str] = "score"
    """Column of the score in the output; a model's further columns start with this name, such as score_range."""
    id_column: str | None = None
    """Column of the ids, which may repeat. Default: `id`, else the numbers `file:row`."""
    keep_columns: tuple[str, ...] | None = None
    """Columns copied to the output. Default: all that the first file has."""


def score(flags: ScoreFlags) -> dict[str, Any]:
    """Score pairs of sentences under conditions."""
    from raycase.commands.place import AutoRunner
    from raycase.job.run import run

    return run(check_score(flags), AutoRunner(flags.ray))


def check_score(flags: ScoreFlags) -> Request:
    """Check everything that can be checked without weights."""
    from raycase.io.inputs import peek
    from raycase.io.schema import CONDITION, ID, OF_PAIRS, find_columns
    from raycase.job.request import ROWS_OF_UNIT, Request, find_model, first_file
    from raycase.job.results import SCORES, Encoding, RowPairs, ScoreResult
    from raycase.models.configs import EmbedderConfig
    from raycase.models.registry import resolve

    given, found, begun = flags.open_places(SCORES)
    found.note_left_out("--input")
    model = find_model(flags.model, flags.prompt_choices | {"dim": flags.dim}, begun, given["output"], resolve)
    reads_conditions = model.known_conditions is None  # DualCSE's two are none: a score takes both
    condition = None
    if reads_conditions and not flags.unconditional:
        condition = CONDITION if flags.condition_column is None else flags.condition_column
    figures = (flags.score_column, *(f"{flags.score_column}_{name}" for name in model.figure_names[1:]))
    first = first_file(found.files, begun)
    schema, own = peek(first), (ID,) if condition is None else (ID, CONDITION)
    kept = schema.names if flags.keep_columns is None else flags.keep_columns
    got = "--unconditional" if flags.unconditional else f"{model.name}: {model.label}"
    problems = {
        f"--condition-column: expected scores under conditions, got {got}; leave the flag out": (
            flags.condition_column is not None and condition is None
        ),
        f"--unconditional: expected a model that gives vectors, got {model.name}, which scores pairs under "
        "conditions": flags.unconditional and reads_conditions and not isinstance(model, EmbedderConfig),
        f"--score-column: expected a name that no other column has, got {flags.score_column!r}; pass another name, or "
        "--keep-columns without it": not flags.score_column.strip() or {*figures} & {*own, *OF_PAIRS, *kept},
    }
    check_problems(problems)
    columns = find_columns(
        schema,
        first.uri,
        text=flags.sentence1_column,
        second=flags.sentence2_column,
        id=flags.id_column,
        condition=condition,
        keep=kept,
        written=(*own, *figures, *OF_PAIRS),
    )
    encoding = Encoding(
        model=model,
        pairs=RowPairs(columns=columns, on_long=flags.on_long, on_unknown=flags.on_unknown),
        result=ScoreResult(figures=figures, sentence2_column=columns.texts[1]),
        compute=flags.compute,
        compile=flags.compile,
        batch_tokens=flags.batch_tokens,
    )
    return Request(encoding=encoding, files=found.files, unit_rows=flags.unit_rows or ROWS_OF_UNIT, **given)
