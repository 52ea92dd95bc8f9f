"""The request of a sweep: a training job, how its flags are varied, and the output folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raycase.data.claim import begin, claim
from raycase.data.fetch import MODEL_FILE
from raycase.data.provenance import provenance
from raycase.data.storage import fingerprint, locate
from raycase.errors import RequestError, at_least, check_ranges
from raycase.training.job import TrainingJob
from raycase.training.sweep_cells import MOST_CELLS, Cell, Space, grid_of, space_of
from raycase.training.sweep_trials import Table

SWEEP = "sweep.json"
RESULTS = ("trials", "trials.parquet", "trials.csv", "summary.md", "dimensions.png", "choices.png", "best")


@dataclass(frozen=True, kw_only=True)
class TuneFlags:
    """Search the flags of a training command, or run a grid of them: raycase tune [OPTIONS] -- SYSTEM FLAGS.

    What follows -- is what follows `raycase train`; its flags hold for every trial but those that are varied. A sweep
    that was stopped resumes automatically when the same command is run again.
    """

    trials: int | None = None
    """Number of cells in a search, which Optuna's tree-structured Parzen estimator chooses. Default: 60 on a frozen
    encoder, 20 where the encoder is trained."""
    space: str | None = None
    """JSON file of what a search chooses from: flags, each with a sampler of Ray Tune, as {"dropout": {"uniform":
    [0, 0.5]}, "layers": {"choice": [1, 2]}}. Default: the system's own."""
    grid: str | None = None
    """Run a grid instead of a search: a name (case: table7, figure4; condition-pooling: ablation; dualcse, simcse:
    table7; mixsp: table4), or a file NAME.json of lists, as {"dropout": [0.1, 0.3]}, or of several such objects."""
    seeds: int = 3
    """Seeds per cell of a grid, and per finalist of a search."""
    finalists: int = 3
    """Best cells of a search, which are run with every seed at the end."""
    asha: bool | None = None
    """Let ASHA stop trials that fall behind. Default: in a search, not in a grid."""
    cpus_per_trial: float | None = None
    """CPUs, and as many threads, of a trial. Default: 1 on a frozen encoder. Where the encoder is trained, on GPUs the
    CPUs of a node divided among its GPUs; without GPUs all CPUs of the largest node, so that trials run in turn."""
    gpus_per_trial: float | None = None
    """GPUs per trial. Default: none on a frozen encoder; else 1 if the cluster has GPUs."""

    def over(self, training: TrainingJob) -> Sweep:
        """The sweep over a training job."""
        return Sweep(**vars(self), training=training)


@dataclass(frozen=True, kw_only=True)
class Sweep(TuneFlags):
    """A sweep over a training job."""

    training: TrainingJob

    @property
    def resources(self) -> dict[str, float | None]:
        """What `OpenTrialRunner` takes for a trial."""
        default = (1, 0) if self.training.FROZEN else (None, None)
        given = {"cpus_per_trial": self.cpus_per_trial, "gpus_per_trial": self.gpus_per_trial}
        pairs = zip(given.items(), default, strict=True)
        return {name: usual if value is None else value for (name, value), usual in pairs}

    @property
    def count(self) -> int:
        """Number of cells in a search."""
        return self.trials or (60 if self.training.FROZEN else 20)

    @property
    def trial_seeds(self) -> range:
        """The seeds of a cell."""
        return range(self.training.seed, self.training.seed + self.seeds)

    def table(self, base: Cell) -> Table:
        """The trials in the folder."""
        return Table(root=locate(str(self.training.folder)), columns=base.columns, metric_names=base.metric_names)

    def check(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        files = {"--grid": self.grid if self.grid and self.grid.endswith(".json") else None, "--space": self.space}
        self.training.check_source(files, (SWEEP, *RESULTS))
        self.training.check_flags()
        ranges = {
            **at_least(1, self, "trials", "seeds", "finalists", most=MOST_CELLS),
            "cpus_per_trial": (self.cpus_per_trial is None or self.cpus_per_trial > 0, "CPUs above 0"),
            "gpus_per_trial": (self.gpus_per_trial is None or self.gpus_per_trial >= 0, "0 or more"),
            "space": (self.space is None or self.grid is None, "none beside --grid"),
        }
        check_ranges(self, ranges)
        if self.training.workers != 1:
            raise RequestError(f"--workers: expected 1, as a trial is one process, got {self.training.workers}")
        if self.training.gpus_per_worker is not None:
            raise RequestError("--gpus-per-worker: expected none in a sweep, got one; see --gpus-per-trial")
        if self.grid is None and importlib.util.find_spec("optuna") is None:
            raise RequestError(
                "--trials: expected the package optuna, got none; install it with: pip install 'raycase[tune]', or "
                "pass --grid"
            )

    def cells(self, base: Cell) -> tuple[list[Cell] | None, Space | None, list[Cell]]:
        """The distinct cells of the grid, or the space of the search, and a cell for all that cells share. Raises
        RequestError."""
        if self.grid is not None:
            grid = grid_of(self.grid, base)
            return grid, None, list({cell.data_key: cell for cell in reversed(grid)}.values())
        space = space_of(self.space, base)
        flag = base.job.SHARED_BY
        if flag not in space:
            return None, space, [base]
        return None, space, [base.changed(**{flag: value}) for value in space[flag]["choice"]]

    def identity(
        self,
        base: Cell,
        grid: Sequence[Cell] | None,
        space: Space | None,
        models: Mapping[str, Any],
        data: Sequence[str],
    ) -> dict[str, Any]:
        """Everything that determines the trials, and its fingerprint.

        models: `describe()` of each system by `Cell.data_key`; data: the hashes of training and validation data.
        """
        identity: dict[str, Any] = {
            "model": models,
            "compute": self.training.compute,
            "data": data,
            "swept": [c.key for c in grid] if grid else [space, base.job.settings()],
            "asha": self.asha,
            "seed": self.training.seed,
        }
        return identity | {"fingerprint": fingerprint(identity)}

    def check_folder(self, name: str) -> None:
        """Raise RequestError for a folder that holds something else than this sweep."""
        root = locate(str(self.training.folder))
        results = (*RESULTS, MODEL_FILE)
        claim(root, SWEEP, name, job="this very sweep", results=results, overwrite=self.training.overwrite)

    def claim_folder(self, identity: dict[str, Any]) -> None:
        """Claim the folder for this sweep. Called after all checks of the request."""
        record = identity | {"provenance": provenance()}
        begin(locate(str(self.training.folder)), SWEEP, record, RESULTS, overwrite=self.training.overwrite)
