"""A sweep without Ray: its cells, the table of trials that is its checkpoint, and the summary.

A cell is a recipe and a prompt; a trial is a cell with a seed. Each finished trial is one file in `trials/`, put as a
whole: a sweep started again does what is missing.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from raycase.corpus.output import parquet_bytes
from raycase.data.storage import Location, fingerprint, locate
from raycase.encoder.prompts import parse_views
from raycase.errors import RequestError
from raycase.systems.projector import Activation
from raycase.training.loop import best_epoch_of
from raycase.training.losses import Loss, RatingMap
from raycase.training.projector_fit import OUTPUT_DIM, RECIPE_FIELDS, Recipe

DIMS = (50, *range(100, 1001, 100))  # Figure 4
HIDDEN = (256, 768, 1024, 2048, 8192)  # appendix B

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

# What the search chooses from. Lists: one of them; pairs: a number in between, log-uniform where marked.
SPACE: dict[str, Any] = {
    "activation": list(Activation),
    "dropout": (0.0, 0.5),
    "layers": [1, 2],
    "hidden": list(HIDDEN),
    "dim": list(DIMS),
    "learning_rate": ("log", 1e-4, 5e-3),
    "weight_decay": [0.0, 0.01, 0.1, 1.0],
    "batch_size": [128, 256, 512, 1024],
    "rating_map": list(RatingMap),
}
WHOLE = {"layers", "hidden", "dim", "batch_size", "epochs", "patience"}
ENUMS = {"activation": Activation, "loss": Loss, "rating_map": RatingMap}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One choice of everything; `name` says which of a grid it is."""

    recipe: Recipe
    prompt: str
    name: str = ""

    @cached_property
    def key(self) -> str:
        """Names the cell: equal cells fit the same g. What has no effect is left out."""
        values = asdict(self.recipe) | {"prompt": self.prompt}
        if self.recipe.layers < 2:
            del values["hidden"]
        if self.recipe.layers == 0:
            del values["activation"]
        return fingerprint(values)[:10]

    @property
    def values(self) -> dict[str, Any]:
        """The choices by name, as they stand in the table."""
        return {k: str(v) if k in ENUMS else v for k, v in asdict(self.recipe).items()} | {"prompt": self.prompt}


# --------------------------------------------------------------------------------------------------------------- cells


def table7(base: Recipe, prompt: str) -> list[Cell]:
    """The cells of the paper's Table 7: linear, two layers, one layer; each activation; with and without dropout."""
    base = replace(base, dim=base.dim or OUTPUT_DIM)  # the paper's, even above the encoder's
    cells = [_cell(base, prompt, "Linear", layers=0, dropout=d) for d in (0.2, 0.0)]
    for layers, title in ((2, "Two-layer"), (1, "One-layer")):
        cells += [
            _cell(base, prompt, f"{title} {a}", layers=layers, hidden=1024, activation=a, dropout=d)
            for a in Activation
            for d in (0.15, 0.0)
        ]
    return cells


def figure4(base: Recipe, prompt: str) -> list[Cell]:
    """The cells of the paper's Figure 4: dimensions 50 to 1000."""
    return [_cell(base, prompt, f"{dim}", dim=dim) for dim in DIMS]


def grid_of(uri: str, base: Recipe, prompt: str) -> list[Cell]:
    """The product of the lists in a JSON file, as {"dropout": [0.1, 0.3], "prompt": ["cond", "cond+sent"]}.

    Raises RequestError for what is no JSON object of lists, an unknown name, and a value out of its range.
    """
    source = locate(uri)
    if not source.exists():
        raise RequestError(f"--grid: expected table7, figure4 or a JSON file, got {uri}")
    values = source.read_json()
    known = (*RECIPE_FIELDS, "prompt")
    if not isinstance(values, dict) or not all(isinstance(v, list) and v for v in values.values()):
        raise RequestError(f"--grid: expected an object of lists in {uri}, got {json.dumps(values)[:80]}")
    for name in values:
        if name not in known:
            raise RequestError(f"--grid: expected names among {', '.join(known)} in {uri}, got {name!r}")
    cells = []
    for chosen in itertools.product(*values.values()):
        choice = dict(zip(values, chosen, strict=True))
        label = ", ".join(f"{k} {v}" for k, v in choice.items()) or "base"
        cells.append(_cell(base, choice.pop("prompt", prompt), label, **choice))
    return cells


def _cell(base: Recipe, prompt: str, label: str, **choices: Any) -> Cell:
    try:
        typed: dict[str, Any] = {k: ENUMS[k](v) if k in ENUMS else v for k, v in choices.items()}
        for name in typed.keys() & WHOLE:
            if not isinstance(typed[name], int) and (name, typed[name]) != ("dim", None):
                raise TypeError(f"expected a whole number as {name}")
        parse_views(prompt)
        recipe = replace(base, **typed)
        recipe.check()
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"--grid: expected values of a recipe, got {choices}: {error}") from error
    return Cell(recipe=recipe, prompt=prompt, name=label)


def random_cells(base: Recipe, prompts: Sequence[str], count: int, seed: int) -> list[Cell]:
    """The first `count` cells of a random search; a longer list begins with the shorter one."""
    return [cell_of(_draw(np.random.default_rng([seed, i]), prompts), base) for i in range(count)]


def _draw(random: np.random.Generator, prompts: Sequence[str]) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, choices in (SPACE | {"prompt": list(prompts)}).items():
        match choices:
            case list():
                point[name] = choices[random.integers(len(choices))]
            case ("log", low, high):
                point[name] = float(np.exp(random.uniform(np.log(low), np.log(high))))
            case (low, high):
                point[name] = float(random.uniform(low, high))
    return point


def cell_of(point: dict[str, Any], base: Recipe) -> Cell:
    """The cell of a point of the search space."""
    choices = dict(point)
    return _cell(base, choices.pop("prompt"), "", **choices)


# -------------------------------------------------------------------------------------------------------------- trials


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A finished trial: figures of its best epoch (None where it failed), x 100, on the validation pairs."""

    key: str
    name: str
    phase: str  # grid, search, or finals: more seeds of the best cells of a search
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
    epochs: int  # that were run
    most_epochs: int
    patience: int
    stopped: str  # patience, epochs, asha, or the error
    seconds: float  # of the fit alone

    def cell(self, base: Recipe) -> Cell:
        """The trial's cell."""
        values = {n: getattr(self, n) for n in RECIPE_FIELDS} | {"epochs": self.most_epochs}
        return _cell(base, self.prompt, self.name, **values)

    def describe(self) -> str:
        """The choices in a line."""
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
    """The line of a trial from the figures of its epochs."""
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


def _figure(value: float | None) -> float | None:
    """None for one that does not exist (NaN): no file holds NaN."""
    return None if value is None or math.isnan(value) else value


@dataclass(frozen=True, kw_only=True)
class Table:
    """The trials of a sweep's folder."""

    root: Location

    def put(self, trial: Trial) -> None:
        """Keep a finished trial; whole or not at all."""
        (self.root / "trials" / f"{trial.key}-{trial.seed}.json").put_json(asdict(trial))

    def read(self) -> list[Trial]:
        """Every finished trial, by cell and seed."""
        folder = self.root / "trials"
        return [Trial(**(folder / name).read_json()) for name in sorted(folder.list())]

    def write(self) -> list[Trial]:
        """Put `trials.parquet` and `trials.csv`, the best first; returns the trials."""
        trials = sorted(self.read(), key=lambda t: (t.spearman is None, -(t.spearman or 0)))
        table = pa.Table.from_pylist([asdict(t) for t in trials], schema=TRIALS_SCHEMA)
        (self.root / "trials.parquet").put(parquet_bytes(table))
        sink = io.BytesIO()
        pyarrow.csv.write_csv(table, sink)
        (self.root / "trials.csv").put(sink.getvalue())
        return trials


@dataclass(frozen=True, kw_only=True)
class CellScore:
    """A cell over its seeds."""

    trials: tuple[Trial, ...]

    @property
    def first(self) -> Trial:
        return self.trials[0]

    @property
    def scores(self) -> list[float]:
        """Spearman of the seeds that did not fail."""
        return [t.spearman for t in self.trials if t.spearman is not None]

    @property
    def mean(self) -> float:
        """Over the seeds that did not fail; below everything where all did."""
        return statistics.fmean(self.scores) if self.scores else -math.inf

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds, where there are two."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def text(self) -> str:
        """As it stands in tables."""
        spread = f" ± {self.deviation:.2f}" if self.deviation is not None else ""
        failed = len(self.trials) - len(self.scores)
        lost = f" ({failed} of {len(self.trials)} failed)" if failed else ""
        mark = "*" if self.first.above_encoder else ""
        return (f"{self.mean:.2f}{spread}{mark}" if self.scores else "n/a") + lost


def cell_scores(trials: Iterable[Trial]) -> list[CellScore]:
    """Cells by their mean over the seeds, the best first."""
    by_key: dict[str, list[Trial]] = {}
    for trial in trials:
        by_key.setdefault(trial.key, []).append(trial)
    scores = [CellScore(trials=tuple(sorted(group, key=lambda t: t.seed))) for group in by_key.values()]
    return sorted(scores, key=lambda s: -s.mean)


def finished(trials: Iterable[Trial]) -> set[tuple[str, int]]:
    """(key, seed) of the trials that a resumed sweep need not run; those that failed are tried again."""
    return {(t.key, t.seed) for t in trials if t.spearman is not None}


def finalists(trials: Sequence[Trial], count: int, seeds: Iterable[int]) -> list[tuple[str, int]]:
    """The (key, seed) that the best `count` cells of a search lack, for a mean over all `seeds`."""
    best = cell_scores(t for t in trials if t.phase == "search")[:count]
    done = finished(trials)
    wanted = [(score.first.key, seed) for seed in seeds for score in best]
    return [pair for pair in wanted if pair not in done]


def varied_choices(trials: Sequence[Trial]) -> list[str]:
    """The choices in which trials differ."""
    return [name for name in CHOICES if len({getattr(t, name) for t in trials}) > 1]


def best_cell(trials: Sequence[Trial]) -> CellScore:
    """The cell with the best mean, among those with the most seeds: a single run differs by more than most cells do."""
    scores = cell_scores(trials)
    most = max(len(s.scores) for s in scores)
    return next(s for s in scores if len(s.scores) == most)
