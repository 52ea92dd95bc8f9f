"""The request of a sweep, the cells of its grid or the space of its search, and its results.

A cell is a choice of flags, a trial a cell with a seed. Each trial that ended is a file in `trials/`, put atomically.
`raycase.ray.tune` runs them.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pandas as pd

from raycase.errors import RequestError, at_least, check_ranges, expecting
from raycase.io.json_values import from_json
from raycase.io.provenance import provenance
from raycase.io.storage import Location, fingerprint, json_file, locate
from raycase.training.job import TrainFlags

SWEEP, BEST, TRIALS = "sweep.json", "best", "trials"
RESULTS = (TRIALS, "results.parquet", "results.md", "tune", BEST)
MOST_CELLS = 10_000  # of a grid: to check more takes minutes
SAMPLERS = ("choice", "uniform", "loguniform", "randint", "lograndint")

Choices = Mapping[str, Any]  # flag -> value, as a grid or a search gave it
Space = Mapping[str, Mapping[str, list[Any]]]  # flag -> {"uniform": [0, 0.5]}: a function of `ray.tune`, its arguments
Trial = dict[str, Any]  # choices, seed, phase, error; score (None where it failed) and other figures of the best epoch


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """Search the flags of a training command, or run a grid of them: raycase tune [OPTIONS] -- SYSTEM FLAGS. After --
    write what follows `raycase train`. The same command again keeps finished trials."""

    trials: int | None = None
    """Cells of a search by Optuna (TPE, ASHA). Default: 60 on a frozen encoder, 20 where the encoder is trained."""
    space: str | None = None
    """JSON file of what a search chooses from: flags, each with a sampler of Ray Tune, as {"dropout": {"uniform":
    [0, 0.5]}, "layers": {"choice": [1, 2]}}. Default: the system's own."""
    grid: str | None = None
    """Run a grid instead of a search. A name (case: table7, figure4; condition-pooling: ablation; dualcse, simcse:
    table7), or a file NAME.json, as {"dropout": [0.1, 0.3]}, or several such objects."""
    seeds: int = 3
    """Seeds per cell of a grid, and of the three best cells of a search."""

    def over(self, training: TrainFlags) -> Sweep:
        """The sweep over a training job."""
        return Sweep(**vars(self), training=training)


@dataclass(frozen=True, kw_only=True)
class Sweep(TuneFlags):
    """A sweep over a training job."""

    training: TrainFlags

    @property
    def built_in(self) -> dict[str, Any]:
        """The search space and the grids of the system, which stand beside the module of its job."""
        file = Path(inspect.getfile(type(self.training))).with_name("sweeps.json")
        return json.loads(file.read_text(encoding="utf-8")).get(self.training.SYSTEM, {}) if file.is_file() else {}

    @property
    def root(self) -> Location:
        """The output folder."""
        return locate(str(self.training.folder))

    @property
    def trial_seeds(self) -> range:
        """The seeds of a cell."""
        return range(self.training.seed, self.training.seed + self.seeds)

    def check(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        named = {"--grid": self.grid, "--space": self.space}
        is_file = {flag: file if file and file.endswith(".json") else None for flag, file in named.items()}
        self.training.check_request(is_file, (SWEEP, *RESULTS))
        self.training.check_flags()
        both = self.space is not None and self.grid is not None
        ranges = at_least(1, self, "trials", "seeds") | {"space": (not both, "none beside --grid")}
        check_ranges(self, ranges)
        check_ranges(self.training, {"workers": (self.training.workers == 1, "1, as a trial is one process")})

    def cells(self) -> list[Choices]:
        """The cells of the grid, each once: the product of an object of lists, or those of several. Raises
        RequestError."""
        assert self.grid is not None
        built_in = self.built_in.get("grids", {})
        if not self.grid.endswith(".json") and self.grid not in built_in:
            raise RequestError(f"--grid: expected {', '.join([*built_in, 'a file NAME.json'])}, got {self.grid}")
        grid = json_file(self.grid, "--grid") if self.grid.endswith(".json") else built_in[self.grid]
        cells: dict[str, Choices] = {}
        with expecting(f"--grid {self.grid}: expected lists of values by flag", AttributeError, TypeError, ValueError):
            grids = grid if isinstance(grid, list) else [grid]
            if (count := sum(math.prod(map(len, lists.values())) for lists in grids)) > MOST_CELLS:
                raise ValueError(f"{count:,} cells, more than {MOST_CELLS:,}; leave values out")
            for lists in grids:
                for values in itertools.product(*lists.values()):
                    cell = dict(zip(lists, values, strict=True))
                    changed(self.training, cell)
                    cells[text_of(cell)] = cell
        if not cells:
            raise RequestError(f"--grid {self.grid}: expected lists of values by flag, got none")
        return list(cells.values())

    def search_space(self) -> Space:
        """What a search chooses from; its values are those of flags. Raises RequestError."""
        space = json_file(self.space, "--space") if self.space else self.built_in.get("space", {})
        expected = '--space: expected samplers by flag, as {"dropout": {"uniform": [0, 0.5]}}'
        with expecting(expected, AttributeError, TypeError, ValueError):
            for flag, sampler in space.items():
                [(kind, given)] = sampler.items()
                if kind not in SAMPLERS:
                    raise ValueError(f"{kind}, which is none of {', '.join(SAMPLERS)}")
                for value in (given[0], given[1] - 1) if "randint" in kind else given:
                    changed(self.training, {flag: value})
        if not space:
            raise RequestError(f"--space: expected a JSON file for {self.training.SYSTEM}, got none")
        return space

    def read_trials(self) -> list[Trial]:
        """Every trial that ended."""
        folder = self.root / TRIALS
        return [(folder / name).read_json() for name in sorted(folder.list())]

    def put_trial(self, trial: Trial) -> None:
        """Write a trial that ended."""
        name = fingerprint(trial["choices"])[:10]
        (self.root / TRIALS / f"{name}-{trial['seed']}.json").put_json(trial)

    def write_results(self, trials: Sequence[Trial]) -> None:
        """Write `results.parquet`, a row for each trial, and `results.md`, one for each cell."""
        rows = [t | {f"config/{name}": v for name, v in t["choices"].items()} for _, of in by_cell(trials) for t in of]
        table = pd.DataFrame(rows).drop(columns="choices")
        (self.root / "results.parquet").put(table.to_parquet(index=False))
        made, metric = provenance(), next((t["metric"] for t in trials if "metric" in t), "score")
        lines = [
            "# Sweep\n",
            f"{len(trials)} trials. Figures: {metric} x 100 on the validation data, of the best epoch; mean ± sample "
            "standard deviation over the seeds. These data also chose epoch and cell, so the best are optimistic.\n",
            f"    {made['command']}\n\nCommit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}.\n",
            f"| {metric} | seeds | failed | cell |\n|---|---|---|---|",
        ]
        for scores, of in by_cell(trials):
            mean = f"{statistics.fmean(scores):.2f}" if scores else ""
            spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
            lines.append(f"| {mean}{spread} | {len(scores)} | {len(of) - len(scores)} | {text_of(of[0]['choices'])} |")
        (self.root / "results.md").put(("\n".join(lines) + "\n").encode())


def changed(flags: TrainFlags, choices: Choices) -> TrainFlags:
    """The job with some flags replaced. Raises RequestError for unknown flags and values out of range."""
    common = {f.name for f in fields(TrainFlags)} - {"model", "compute", *TrainFlags.RECIPE}
    known = [f.name for f in fields(flags) if f.name not in common and f.name not in flags.NOT_SWEPT]
    if unknown := [flag for flag in choices if flag not in known]:
        raise RequestError(f"{unknown[0]!r}, which is none of {', '.join(known)}")
    hints = get_type_hints(type(flags))
    flags = replace(flags, **{flag: _typed(flag, value, hints[flag]) for flag, value in choices.items()})
    flags.check_flags()
    return flags


def _typed(flag: str, value: Any, hint: Any) -> Any:
    """A value of a JSON file as the flag's; several numbers are a text, as "2/3 1", or a list."""
    try:
        if isinstance(value, str) and Ellipsis in get_args(hint):
            value = [float(Fraction(part)) for part in value.split()]
        return from_json(hint, value)
    except ValueError as error:
        raise RequestError(f"{flag} {json.dumps(value)}") from error


def text_of(choices: Choices) -> str:
    """Choices in a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in choices.items()) or "as the flags"


def by_cell(trials: Sequence[Trial]) -> list[tuple[list[float], list[Trial]]]:
    """The scores and the trials of each cell, the best first: by their mean, among the cells of the most seeds."""
    cells: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t["seed"]):
        cells.setdefault(text_of(trial["choices"]), []).append(trial)
    scored = [([t["score"] for t in of if t["score"] is not None], of) for of in cells.values()]
    return sorted(scored, key=lambda cell: (len(cell[0]), statistics.fmean(cell[0] or [0])), reverse=True)
