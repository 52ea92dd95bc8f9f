"""The job that scores pairs of sentences: its flags, checked. What runs it is the embedding job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raycase.commands.flags import Advanced, RunFlags
from raycase.errors import RequestError
from raycase.io.inputs import peek
from raycase.io.rated_pairs import SENTENCE1, SENTENCE2
from raycase.io.schema import CONDITION, ID, ROW_OF_PAIR, Columns, find_columns
from raycase.io.source import InputFile
from raycase.job.pair_result import SCORES, ScoreResult
from raycase.job.request import ROWS_OF_UNIT, Request, check_places, find_model, first_file
from raycase.job.run import run
from raycase.job.runner import Runner
from raycase.models.configs import SCORE, EmbedderConfig
from raycase.models.registry import resolve


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
    sentence1_column: str = SENTENCE1
    """Column of the first sentences; DualCSE's premises."""
    sentence2_column: str = SENTENCE2
    """Column of the second sentences; DualCSE's hypotheses."""
    condition_column: str | None = None
    """Column with the condition of each pair, or a list of conditions, with one output row for each. Default:
    `condition` for a model that reads conditions."""
    unconditional: bool = False
    """Score by the vectors without a condition. Models that know no conditions do so without the flag."""
    score_column: Advanced[str] = SCORE
    """Column of the score in the output; a model's further columns start with this name, such as score_range."""
    id_column: str | None = None
    """Column of the ids, which may repeat. Default: `id`, else the numbers `file:row`."""
    keep_columns: tuple[str, ...] | None = None
    """Columns copied to the output. Default: all that the first file has."""


def score(flags: ScoreFlags, runner: Runner) -> dict[str, Any]:
    """Score the pairs; returns what the last line says. Raises RequestError and WorkError."""
    return run(check_score(flags), runner)


def check_score(flags: ScoreFlags) -> Request:
    """Check everything that can be checked without weights. Raises RequestError."""
    began = time.time()
    output, found, begun = check_places(flags, SCORES, {}, {})
    found.say("--input")
    model = find_model(flags, begun, output, resolve)
    figures = [flags.score_column, *(f"{flags.score_column}_{name}" for name in model.figure_names[1:])]
    columns = _columns(flags, figures, first_file(found.files, begun), _condition_column(flags, model))
    return Request(
        flags=flags,
        files=found.files,
        model=model,
        kind=ScoreResult(columns=columns, on_long=flags.on_long, on_unknown=flags.on_unknown, figures=figures),
        output=output,
        unit_rows=flags.unit_rows or ROWS_OF_UNIT,
        began=began,
    )


def _condition_column(flags: ScoreFlags, model: Any) -> str | None:
    """The column of the conditions; None for scores without them. Raises RequestError where flags and model differ."""
    reads_conditions = model.known_conditions is None  # DualCSE's two are none: a score takes both
    if reads_conditions and not flags.unconditional:
        return CONDITION if flags.condition_column is None else flags.condition_column
    if flags.condition_column is not None:
        got = "--unconditional" if flags.unconditional else f"{model.model}: {model.label}"
        raise RequestError(f"--condition-column: expected scores under conditions, got {got}; leave the flag out")
    if flags.unconditional and reads_conditions and not isinstance(model, EmbedderConfig):
        raise RequestError(
            f"--unconditional: expected a model that gives vectors, got {model.model}, which scores pairs under "
            "conditions"
        )
    return None


def _columns(flags: ScoreFlags, figures: Sequence[str], first: InputFile, condition: str | None) -> Columns:
    """The columns to read. Raises RequestError for one that is missing, and for names that clash."""
    own = (ID,) if condition is None else (ID, CONDITION)
    schema = peek(first)
    kept = schema.names if flags.keep_columns is None else flags.keep_columns
    if not flags.score_column.strip() or {*figures} & {*own, ROW_OF_PAIR, *kept}:
        raise RequestError(
            f"--score-column: expected a name that no other column has, got {flags.score_column!r}; pass another "
            "name, or --keep-columns without it"
        )
    return find_columns(
        schema,
        first.uri,
        text=flags.sentence1_column,
        second=flags.sentence2_column,
        id=flags.id_column,
        condition=condition,
        keep=kept,
        written=(*own, *figures, ROW_OF_PAIR),
    )
