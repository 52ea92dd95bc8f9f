"""The trials of a sweep, each a cell with a seed. Their table is the sweep's checkpoint.

Each finished trial is one file in `trials/`, written atomically: a resumed sweep runs the trials that are missing.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa
import pyarrow.csv

from raycase.data.parquet import parquet_bytes
from raycase.data.storage import Location
from raycase.training.loop import best_epoch_of
from raycase.training.projector_fit import Recipe
from raycase.training.sweep_cells import SWEPT, Cell, make_cell

CHOICES = (
    "prompt",
    "loss",
    "rating_map",
    "layers",
    "hidden",
    "activation",
    "dim",
    "dropout",
    "learning_rate",
    "weight_decay",
    "batch_size",
    "average",
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A finished trial: metrics of its best epoch x 100 on the validation pairs, None if it failed."""

    key: str
    name: str
    phase: str  # grid, search, or finals (more seeds of the best cells of a search)
    seed: int
    activation: str
    dropout: float
    layers: int
    hidden: int
    dim: int
    input_dim: int
    above_encoder: bool  # g's dimension is above its input's
    learning_rate: float
    weight_decay: float
    batch_size: int
    rating_map: str
    loss: str
    average: float
    prompt: str
    spearman: float | None
    spearman_rated: float | None
    pearson: float | None
    best_epoch: int
    epochs: int  # epochs run
    most_epochs: int
    patience: int
    stopped: str  # patience, epochs, asha, or the error
    seconds: float  # of the fit alone

    def cell(self, base: Recipe) -> Cell:
        """The trial's cell."""
        values = {n: getattr(self, n) for n in SWEPT} | {"epochs": self.most_epochs}
        return make_cell(base, self.prompt, self.name, **values)

    def describe(self) -> str:
        """The settings in one line."""
        kind = {0: "linear", 1: self.activation, 2: f"{self.activation} {self.hidden}-{self.activation}"}[self.layers]
        return (
            f"{self.prompt}, {kind} {self.dim}, dropout {self.dropout:.2g}, lr {self.learning_rate:.2g}, "
            f"decay {self.weight_decay:g}, batch {self.batch_size}, {self.loss}, {self.rating_map}"
        )


_ARROW = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "bool": pa.bool_(),
}
TRIALS_SCHEMA = pa.schema([(f.name, _ARROW[str(f.type)]) for f in fields(Trial)])


def make_trial(
    cell: Cell, *, seed: int, phase: str, input_dim: int, history: Sequence[dict[str, float]], stopped: str
) -> Trial:
    """A trial from the metrics of its epochs."""
    best = history[best_epoch_of(history) - 1] if history else {}
    shape = cell.recipe.projector(input_dim)
    return Trial(
        **cell.values | {"dim": shape.output_dim, "epochs": len(history), "most_epochs": cell.recipe.epochs},
        key=cell.key,
        name=cell.name,
        phase=phase,
        seed=seed,
        input_dim=input_dim,
        above_encoder=shape.output_dim > input_dim,
        spearman=_figure(best.get("spearman")),
        spearman_rated=_figure(best.get("spearman_rated")),
        pearson=_figure(best.get("pearson")),
        best_epoch=int(best.get("epoch", 0)),
        stopped=stopped,
        seconds=sum(line["seconds"] for line in history),
    )


def stopped_by(history: Sequence[dict[str, float]], recipe: Recipe) -> str:
    """Why a successful trial ended: epochs, patience or asha."""
    if len(history) >= recipe.epochs:
        return "epochs"
    return "patience" if len(history) - best_epoch_of(history) >= recipe.patience else "asha"


def _figure(value: float | None) -> float | None:
    """The value, or None for NaN, which is written to no file."""
    return None if value is None or math.isnan(value) else value


@dataclass(frozen=True, kw_only=True)
class Table:
    """The trials of a sweep's folder."""

    root: Location

    def put(self, trial: Trial) -> None:
        """Write a finished trial atomically."""
        (self.root / "trials" / f"{trial.key}-{trial.seed}.json").put_json(asdict(trial))

    def read(self) -> list[Trial]:
        """Every finished trial, by cell and seed."""
        folder = self.root / "trials"
        return [Trial(**(folder / name).read_json()) for name in sorted(folder.list())]

    def write(self) -> list[Trial]:
        """Write `trials.parquet` and `trials.csv`, best first; returns the trials."""
        trials = sorted(self.read(), key=lambda t: (t.spearman is None, -(t.spearman or 0)))
        table = pa.Table.from_pylist([asdict(t) for t in trials], schema=TRIALS_SCHEMA)
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
        """Spearman x 100 of the trials that did not fail."""
        return [t.spearman for t in self.trials if t.spearman is not None]

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
        mark = "*" if self.first.above_encoder else ""
        return (f"{self.mean:.2f}{spread}{mark}" if self.scores else "n/a") + lost


def cell_scores(trials: Iterable[Trial]) -> list[CellScore]:
    """Cells by their mean over the seeds, best first."""
    by_key: dict[str, list[Trial]] = {}
    for trial in trials:
        by_key.setdefault(trial.key, []).append(trial)
    scores = [CellScore(trials=tuple(sorted(group, key=lambda t: t.seed))) for group in by_key.values()]
    return sorted(scores, key=lambda s: -s.mean)


def finished(trials: Iterable[Trial]) -> set[tuple[str, int]]:
    """(key, seed) of the successful trials; a resumed sweep runs all others."""
    return {(t.key, t.seed) for t in trials if t.spearman is not None}


def finalists(trials: Sequence[Trial], count: int, seeds: Iterable[int]) -> list[tuple[str, int]]:
    """The (key, seed) that the best `count` cells of a search still need for a mean over all `seeds`."""
    best = cell_scores(t for t in trials if t.phase == "search")[:count]
    done = finished(trials)
    needed = [(score.first.key, seed) for seed in seeds for score in best]
    return [pair for pair in needed if pair not in done]


def varied_choices(trials: Sequence[Trial]) -> list[str]:
    """The settings in which trials differ."""
    return [name for name in CHOICES if len({getattr(t, name) for t in trials}) > 1]


def best_cell(trials: Sequence[Trial]) -> CellScore:
    """The cell with the best mean among those with the most seeds: runs of a cell differ more than most cells do."""
    scores = cell_scores(trials)
    most = max(len(s.scores) for s in scores)
    return next(s for s in scores if len(s.scores) == most)
