"""`raycase tune -- SYSTEM`: the cells of a sweep's grid or the space of its search, its trials, and its best cell."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from raycase.commands.systems import TrainFlags
from raycase.commands.train import check_request, train_model
from raycase.errors import RequestError, WorkError, at_least, check_ranges, expecting, visible
from raycase.names import Hidden

if TYPE_CHECKING:
    from raycase.training.procedure import Training
    from raycase.training.sweep import Choices

EXAMPLE = "raycase tune --trials 60 -- case --train train.csv --validation validation.csv --output runs/sweep"
OVER = "train"
MOST_CELLS = 10_000  # of a grid: to check more takes minutes
SAMPLERS = ("choice", "uniform", "loguniform", "randint", "lograndint")
FINALISTS = 3  # cells of a search that are run with every seed

Space = Mapping[str, Mapping[str, list[Any]]]  # flag -> {"uniform": [0, 0.5]}: a function of `ray.tune`, its arguments


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
    training: Hidden[TrainFlags]

    @property
    def built_in(self) -> dict[str, Any]:
        """The search space and the grids of the system, which stand beside the module of its flags."""
        file = Path(inspect.getfile(type(self.training))).with_name("sweeps.json")
        return json.loads(file.read_text(encoding="utf-8")).get(self.training.SYSTEM, {}) if file.is_file() else {}

    def check(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        from raycase.training.sweep import RESULTS, SWEEP

        if self.training.ray is False:
            raise RequestError("--no-ray: expected Ray, which runs the trials of a sweep, got none")
        reads = {"--space": self.space, "--grid": self.grid if (self.grid or "").endswith(".json") else None}
        check_request(self.training, reads, (SWEEP, *RESULTS))
        both = self.space is not None and self.grid is not None
        check_ranges(self, at_least(1, self, "trials", "seeds") | {"space": (not both, "none beside --grid")})
        check_ranges(self.training, {"workers": (self.training.workers == 1, "1, as a trial is one process")})

    def cells(self) -> list[Choices]:
        """The cells of the grid, each once: the product of an object of lists, or those of several."""
        from raycase.io.storage import json_file
        from raycase.training.sweep import text_of

        assert self.grid is not None
        built_in = self.built_in.get("grids", {})
        grid = json_file(self.grid, "--grid") if self.grid.endswith(".json") else built_in.get(self.grid)
        if grid is None:
            raise RequestError(f"--grid: expected {', '.join([*built_in, 'a file NAME.json'])}, got {self.grid}")
        cells: dict[str, Choices] = {}
        with expecting(f"--grid {self.grid}: expected lists of values by flag", AttributeError, TypeError, ValueError):
            grids = grid if isinstance(grid, list) else [grid]
            if not 0 < (count := sum(math.prod(map(len, lists.values())) for lists in grids)) <= MOST_CELLS:
                raise ValueError(f"{count:,} cells; a grid has 1 to {MOST_CELLS:,}")
            for lists in grids:
                for values in itertools.product(*lists.values()):
                    cell = dict(zip(lists, values, strict=True))
                    changed(self.training, cell)
                    cells[text_of(cell)] = cell
        return list(cells.values())

    def search_space(self) -> Space:
        """What a search chooses from; its values are those of flags."""
        from raycase.io.storage import json_file

        space: Space = json_file(self.space, "--space") if self.space else self.built_in.get("space", {})
        expected = '--space: expected samplers by flag, as {"dropout": {"uniform": [0, 0.5]}}'
        with expecting(expected, AttributeError, TypeError, ValueError):
            for flag, sampler in space.items():
                [(name, given)] = sampler.items()
                if name not in SAMPLERS:
                    raise ValueError(f"{name}, which is none of {', '.join(SAMPLERS)}")
                for value in (given[0], given[1] - 1) if "randint" in name else given:
                    changed(self.training, {flag: value})
        if not space:
            raise RequestError(f"--space: expected a JSON file for {self.training.SYSTEM}, got none")
        return space


def changed(flags: TrainFlags, choices: Choices) -> TrainFlags:
    """The flags with some replaced, by values of a JSON file; several numbers are a text, as "2/3 1", or a list."""
    from raycase.io.json_values import from_json

    common = {f.name for f in fields(TrainFlags)} - {"model", "compute", *TrainFlags.SETTINGS}
    known = [f.name for f in fields(flags) if f.name not in common and f.name not in flags.NOT_SWEPT]
    if unknown := [flag for flag in choices if flag not in known]:
        raise RequestError(f"{unknown[0]!r}, which is none of {', '.join(known)}")
    hints = get_type_hints(type(flags))
    several = [flag for flag, value in choices.items() if isinstance(value, str) and Ellipsis in get_args(hints[flag])]
    numbers = {flag: [float(Fraction(part)) for part in choices[flag].split()] for flag in several}
    flags = from_json(type(flags), {**vars(flags), **choices, **numbers})
    flags.check()
    return flags


def trial_of(flags: TrainFlags, choices: Choices, seed: int) -> tuple[str, Training]:
    """What a trial shares with others, and what it trains by."""
    cell = replace(changed(flags, choices), seed=seed)
    return str([getattr(cell, name) for name in cell.SHARED_BY]), cell.training()


def _sharing(flags: TrainFlags, cells: Sequence[Choices], space: Space) -> dict[str, Training]:
    """A training for each of what cells share, as vectors, by its key."""
    if not cells:
        varied = {flag: space[flag]["choice"] for flag in flags.SHARED_BY if flag in space}
        cells = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    shared = [{flag: value for flag, value in cell.items() if flag in flags.SHARED_BY} for cell in cells]
    return dict(trial_of(flags, choices, flags.seed) for choices in shared)


def tune(sweep: TuneFlags) -> dict[str, Any]:
    """Search the flags of `raycase train`, or run a grid of them.

    The best cell is trained again and saved.
    """
    from raycase.io.places import begin, claim
    from raycase.io.provenance import provenance
    from raycase.io.storage import fingerprint, locate
    from raycase.models.model_folder import METRICS
    from raycase.ray.train import ray_trainer
    from raycase.ray.tune import Trials
    from raycase.training.sweep import BEST, RESULTS, SWEEP, SweepResults, by_cell, text_of

    began = time.time()
    flags = sweep.training
    sweep.check()
    cells, space = (sweep.cells(), {}) if sweep.grid else ([], sweep.search_space())
    training = flags.training()
    parts = training.read()
    sharing = _sharing(flags, cells, space)
    models = {key: each.config.describe() for key, each in sharing.items()}
    identity = training.identity(parts) | {"cells": cells, "space": space, "models": models}
    identity |= {"fingerprint": fingerprint(identity)}
    root = locate(str(flags.folder))
    claim(root, SWEEP, identity["fingerprint"], job="this very sweep", results=RESULTS, overwrite=flags.overwrite)
    trainer = ray_trainer(flags.workers, flags.gpus_per_worker, flags.cache_location)
    trials = Trials(
        results=SweepResults(root),
        training_of=partial(trial_of, flags),
        shared={key: each.share(parts, trainer.vectors) for key, each in sharing.items()},
        recipe=training.recipe,
        gpus_per_worker=flags.gpus_per_worker,
        track=flags.track,
    )
    begin(root, SWEEP, identity | {"provenance": provenance()}, RESULTS, overwrite=flags.overwrite)
    if not sweep.grid:
        trials.search(space, sweep.trials or (60 if training.recipe.frozen else 20))
        searched = [t for t in trials.results.read_trials() if t["phase"] == "search"]
        cells = [of[0]["choices"] for _, of in by_cell(searched)[:FINALISTS]]
    seeds = range(flags.seed, flags.seed + sweep.seeds)
    trials.run([(cell, seed) for seed in seeds for cell in cells], "grid" if sweep.grid else "finals")
    ended = trials.results.read_trials()
    trials.results.write_tables(ended)
    scores, best = by_cell(ended)[0]
    if not scores:
        raise WorkError(f"expected trials that finish, got {len(ended)} that failed; the first: {best[0]['error']}")
    choices = best[0]["choices"]
    cell = replace(changed(flags, choices), output=f"{flags.folder}/{BEST}", cache=flags.cache_uri, overwrite=False)
    metrics = locate(cell.output) / METRICS
    if metrics.exists() and metrics.read_json()["fingerprint"] != fingerprint(cell.training().identity(parts)):
        locate(cell.output).remove()  # the best of fewer trials
    train_model(cell, lambda _: trainer)
    print(f"the tables are in {visible(flags.folder)}, the best cell's model in {visible(flags.folder)}/best")
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    figures = {"mean": statistics.fmean(scores), "deviation": deviation, "seeds": len(scores)}
    return {
        "trials": len(ended),
        "failed": sum(t["score"] is None for t in ended),
        "best": {"cell": text_of(choices)} | figures,
        "seconds": round(time.time() - began, 1),
        "fit_seconds": round(sum(t.get("seconds", 0) for t in ended), 1),
        "output": str(flags.folder),
    }
