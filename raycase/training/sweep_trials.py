"""The trials of a sweep, each a cell with a seed. Their table is the sweep's checkpoint.

Each finished trial is one file in `trials/`, written atomically: a resumed sweep runs the trials that are missing.
"""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.csv

from raycase.data.json_values import finite, from_json, loads
from raycase.data.parquet import parquet_bytes
from raycase.data.storage import Location
from raycase.errors import RequestError
from raycase.training.loop import best_epoch_of
from raycase.training.sweep_cells import Cell, choices_text

DERIVED = "input_dim"  # a column that no cell chooses


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A finished trial: metrics of its best epoch x 100 on the validation data, None if it failed."""

    key: str
    name: str
    phase: str  # grid, search, or finals (more seeds of the best cells of a search)
    seed: int
    settings: Mapping[str, Any]  # `Cell.columns`
    metrics: Mapping[str, float | None]  # by `Cell.metric_names`
    best_epoch: int
    epochs: int  # epochs run
    most_epochs: int
    patience: int
    stopped: str  # patience, epochs, asha, or the error
    seconds: float  # of the fit alone
    choices: str = "{}"  # `Cell.choices` as JSON

    @classmethod
    def of(cls, row: Mapping[str, Any], metric_names: Sequence[str]) -> Trial:
        """From a row of the table. Raises ValueError for another one."""
        own = {f.name: row[f.name] for f in fields(cls) if f.name in row}
        own["settings"] = {name: value for name, value in row.items() if name not in {*own, *metric_names}}
        if lacking := next((name for name in metric_names if name not in row), None):
            raise ValueError(f"{lacking}: expected it, got none")
        return from_json(cls, own | {"metrics": {name: row[name] for name in metric_names}})

    @property
    def row(self) -> dict[str, Any]:
        """A row of the table."""
        own = {name: value for name, value in vars(self).items() if name not in ("settings", "metrics")}
        return own | dict(self.metrics) | dict(self.settings)

    @property
    def score(self) -> float | None:
        """The metric by which cells are compared."""
        return next(iter(self.metrics.values()))

    def cell(self, base: Cell) -> Cell:
        """The trial's cell, by the base of its sweep."""
        return base.drawn(self.chosen)

    @property
    def label(self) -> str:
        """The cell in a line."""
        return self.name or choices_text(self.chosen)

    @property
    def chosen(self) -> dict[str, Any]:
        """`Cell.choices`."""
        return loads(self.choices)


_ARROW = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "bool": pa.bool_(),
}


def trial_schema(columns: Mapping[str, type], metric_names: Sequence[str]) -> pa.Schema:
    """The schema of the table, with the columns and metrics of one kind of cells among the others."""
    types = {f.name: {f.name: str(f.type)} for f in fields(Trial)}
    types["settings"] = {name: kind.__name__ for name, kind in columns.items()}
    types["metrics"] = dict.fromkeys(metric_names, "float | None")
    return pa.schema([(name, _ARROW[kind]) for part in types.values() for name, kind in part.items()])


def make_trial(
    cell: Cell, *, seed: int, phase: str, input_dim: int, history: Sequence[dict[str, float]], stopped: str
) -> Trial:
    """A trial from the metrics of its epochs."""
    epoch = best_epoch_of(history, cell.metric_names[0])
    best = history[epoch - 1] if epoch else {}
    row = cell.row(input_dim)
    return Trial(
        key=cell.key,
        name=cell.name,
        phase=phase,
        seed=seed,
        settings={name: row[name] for name in cell.columns},
        metrics={name: finite(best.get(name)) for name in cell.metric_names},
        best_epoch=int(best.get("epoch", 0)),
        epochs=len(history),
        most_epochs=cell.job.recipe.epochs,
        patience=cell.job.recipe.patience,
        stopped=stopped,
        seconds=sum(line["seconds"] for line in history),
        choices=json.dumps(dict(cell.choices)),
    )


def stopped_by(history: Sequence[dict[str, float]], cell: Cell) -> str:
    """Why a trial ended without an error: epochs, patience or asha, and where it has no score, that."""
    if not best_epoch_of(history, cell.metric_names[0]):
        return f"expected an epoch whose {cell.metric_names[0]} is a number, got none in {len(history)}"
    if len(history) >= cell.job.recipe.epochs:
        return "epochs"
    since = len(history) - best_epoch_of(history, cell.metric_names[0])
    return "patience" if since >= cell.job.recipe.patience else "asha"


def _read_trial(file: Location, metric_names: Sequence[str]) -> Trial:
    try:
        return Trial.of(from_json(dict[str, Any], file.read_json()), metric_names)
    except ValueError as error:
        raise RequestError(f"{file.uri}: expected a trial of this sweep, got: {error}; remove it") from error


@dataclass(frozen=True, kw_only=True)
class Table:
    """The trials of a sweep's folder."""

    root: Location
    columns: Mapping[str, type]  # `Cell.columns`
    metric_names: Sequence[str]  # `Cell.metric_names`

    def put(self, trial: Trial) -> None:
        """Write a finished trial atomically."""
        (self.root / "trials" / f"{trial.key}-{trial.seed}.json").put_json(trial.row)

    def read(self) -> list[Trial]:
        """Every finished trial, by cell and seed."""
        folder = self.root / "trials"
        return [_read_trial(folder / name, self.metric_names) for name in sorted(folder.list())]

    def write(self) -> list[Trial]:
        """Write `trials.parquet` and `trials.csv`, best first; returns the trials."""
        trials = sorted(self.read(), key=lambda t: (t.score is None, -(t.score or 0)))
        table = pa.Table.from_pylist([t.row for t in trials], schema=trial_schema(self.columns, self.metric_names))
        (self.root / "trials.parquet").put(parquet_bytes(table))
        sink = io.BytesIO()
        pyarrow.csv.write_csv(table, sink)
        (self.root / "trials.csv").put(sink.getvalue())
        return trials


@dataclass(frozen=True, kw_only=True)
class CellScore:
    """The trials of a cell over its seeds."""

    trials: tuple[Trial, ...]

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def scores(self) -> list[float]:
        """The scores of the trials that did not fail."""
        return [t.score for t in self.trials if t.score is not None]

    @property
    def mean(self) -> float:
        """Mean over the trials that did not fail; minus infinity if all failed."""
        return statistics.fmean(self.scores) if self.scores else -math.inf

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds; None below two."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def text(self) -> str:
        """The score as printed in tables."""
        spread = f" ± {self.deviation:.2f}" if self.deviation is not None else ""
        failed = len(self.trials) - len(self.scores)
        lost = f" ({failed} of {len(self.trials)} failed)" if failed else ""
        return (f"{self.mean:.2f}{spread}" if self.scores else "n/a") + lost


def cell_scores(trials: Iterable[Trial]) -> list[CellScore]:
    """Cells by their mean over the seeds, best first."""
    by_key: dict[str, list[Trial]] = {}
    for trial in trials:
        by_key.setdefault(trial.key, []).append(trial)
    scores = [CellScore(trials=tuple(sorted(group, key=lambda t: t.seed))) for group in by_key.values()]
    return sorted(scores, key=lambda s: -s.mean)


def finished_trials(trials: Iterable[Trial]) -> set[tuple[str, int]]:
    """(key, seed) of the successful trials; a resumed sweep runs all others."""
    return {(t.key, t.seed) for t in trials if t.score is not None}


def finalists(trials: Sequence[Trial], count: int, seeds: Iterable[int]) -> list[tuple[str, int]]:
    """The (key, seed) that the best `count` cells of a search still need for a mean over all `seeds`."""
    best = cell_scores(t for t in trials if t.phase == "search")[:count]
    done = finished_trials(trials)
    needed = [(score.first.key, seed) for seed in seeds for score in best]
    return [pair for pair in needed if pair not in done]


def varied_choices(trials: Sequence[Trial]) -> list[str]:
    """The settings in which trials differ."""
    named = [set(t.settings) for t in trials]  # trials of earlier versions lack some
    names = [name for name in trials[0].settings if name != DERIVED and all(name in n for n in named)] if trials else []
    return [name for name in names if len({t.settings[name] for t in trials}) > 1]


def best_cell(trials: Sequence[Trial]) -> CellScore:
    """The cell with the best mean among those with the most seeds: runs of a cell differ more than most cells do."""
    scores = cell_scores(trials)
    most = max(len(s.scores) for s in scores)
    return next(s for s in scores if len(s.scores) == most)
