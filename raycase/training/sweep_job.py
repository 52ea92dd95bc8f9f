"""The request of a sweep: flags, checks, what a kind of sweep adds to them, and the output folder."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raycase.data.claim import begin, claim
from raycase.data.fetch import MODEL_FILE
from raycase.data.provenance import provenance
from raycase.data.rated import RatedPairs
from raycase.data.storage import fingerprint, locate
from raycase.errors import RequestError, at_least, check_ranges
from raycase.systems.projector import settings_of
from raycase.training.loop import FitState
from raycase.training.projector_job import Source
from raycase.training.runner import Embedder, Runner
from raycase.training.sweep_cells import MOST_CELLS, Cell, Space, grid_of
from raycase.training.sweep_trials import CellScore, Table

SWEEP = "sweep.json"
RESULTS = ("trials", "trials.parquet", "trials.csv", "summary.md", "dimensions.png", "choices.png", "best")


@dataclass(frozen=True, kw_only=True)
class SweepJob(Source):
    """Flags of every sweep. A subclass is the job of one kind of cells."""

    samples: int = 60
    """Number of cells in a search."""
    search: Literal["tpe", "random"] = "tpe"
    """tpe: Optuna's tree-structured Parzen estimator. random: cells at random."""
    grid: str | None = None
    """Run a grid instead of a search: a name (case: table7, figure4; condition-pooling: ablation; dualcse, simcse:
    table7; mixsp: table4), or a JSON file with lists, as {"dropout": [0.1, 0.3]}: at most 10,000 cells."""
    seeds: int = 3
    """Seeds per cell of a grid, and per finalist of a search."""
    finalists: int = 5
    """Best cells of a search, which are run with every seed at the end."""
    asha: bool | None = None
    """Let ASHA stop trials that fall behind. Default: in a search, not in a grid."""
    cpus_per_trial: float | None = 1
    """CPUs and threads per trial."""
    gpus_per_trial: float | None = 0
    """GPUs per trial."""
    resume: bool = False
    """Resume the sweep in the folder: run its missing trials."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Files, folders and globs of data, by flag; a grid that is a file."""
        return super().sources | {"--grid": None if self.grid in self.cells.grids else self.grid}

    @property
    def written(self) -> tuple[str, ...]:
        """The names of what is written into the output folder."""
        return (SWEEP, *RESULTS)

    @property
    def cells(self) -> Cell:
        """The cell of the flags, of which the others are changes; some of them the system may still set."""
        raise NotImplementedError

    @property
    def recipe(self) -> Any:
        """The recipe among the flags."""
        raise NotImplementedError

    def config(self) -> Any:
        """The system before it is trained. Raises RequestError."""
        raise NotImplementedError

    def base(self, config: Any) -> Cell:
        """The cell of the flags and the system."""
        return self.cells

    def search_space(self, config: Any) -> Space:
        """What a search chooses from."""
        return self.cells.space

    @property
    def fixed(self) -> dict[str, Any]:
        """The flags that hold for all cells of a search, unless it chooses them."""
        return settings_of(self.recipe)

    def read_parts(self) -> tuple[Any, Any]:
        """Read the training and the validation data, with their hashes as `data_sha256`. Raises RequestError."""
        return self.read()

    def system(self, config: Any, read: str) -> Any:
        """The system of the cells that read `read` (`Cell.read`)."""
        raise NotImplementedError

    def embed(self, part: Any, system: Any, runner: Embedder) -> Any:
        """Data as a fit reads it; pairs that are embedded have their dimension as `dim`."""
        raise NotImplementedError

    def save(
        self,
        cell: Cell,
        state: FitState,
        system: Any,
        validation: Any,
        pairs: dict[str, RatedPairs],
        facts: dict[str, Any],
    ) -> None:
        """Write the model folder of a fit into `best`; `facts` are further metrics."""
        raise NotImplementedError

    def save_best(
        self, best: CellScore, cell: Cell, system: Any, data: tuple[Any, Any], parts: dict[str, Any], runner: Runner
    ) -> None:
        """Fit the best cell again with its first seed, and save it as a model folder."""
        began = time.time()
        trial = best.first
        *_, state = cell.fit(*data, seed=trial.seed)
        facts = {
            "fingerprint": fingerprint([trial.key, trial.seed]),
            "seed": trial.seed,
            "workers": 1,
            "seconds": round(time.time() - began, 1),
            "sweep": {"spearman_mean": best.mean, "spearman": [t.score for t in best.trials]},
        }
        self.save(cell, state, system, data[1], parts, facts)

    @property
    def table(self) -> Table:
        cells = self.cells
        root = locate(str(self.folder))
        return Table(root=root, columns=cells.columns, earlier=cells.earlier, figures=cells.figures)

    @property
    def trial_seeds(self) -> range:
        """The seeds of a cell."""
        return range(self.seed, self.seed + self.seeds)

    def check_sweep(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        if self.grid is None and self.search == "tpe" and importlib.util.find_spec("optuna") is None:
            raise RequestError(
                "--search tpe: expected the package optuna, got none; install it with: pip install 'raycase[tune]', "
                "or pass --search random"
            )
        self.recipe.check()
        if self.grid is None and "dim" in self.cells.space:  # the smallest is tried: nested dimensions must be below
            replace(self.recipe, dim=min(self.cells.space["dim"])).check()
        ranges = {
            **at_least(1, self, "samples", "seeds", "finalists", most=MOST_CELLS),
            "cpus_per_trial": (self.cpus_per_trial is None or self.cpus_per_trial > 0, "CPUs above 0"),
            "gpus_per_trial": (self.gpus_per_trial is None or self.gpus_per_trial >= 0, "0 or more"),
        }
        check_ranges(self, ranges)


def grid_cells(job: SweepJob, base: Cell) -> list[Cell] | None:
    """The distinct cells of the grid; None for a search."""
    if job.grid is None:
        return None
    cells = base.grids[job.grid](base) if job.grid in base.grids else grid_of(job.grid, base)
    return list({c.key: c for c in cells}.values())


def identity_of(
    job: SweepJob, grid: Sequence[Cell] | None, models: Mapping[str, dict[str, Any]], data: Sequence[str]
) -> dict[str, Any]:
    """Everything that determines the trials, and its fingerprint.

    models: `describe()` of each system by what it embeds; data: the hashes of training and validation pairs.
    """
    ranges = {k: str(v) for k, v in job.cells.space.items()}
    identity: dict[str, Any] = {
        "model": models,
        "compute": job.compute,
        "data": data,
        "swept": [c.key for c in grid] if grid else [ranges, job.fixed, job.search, list(models)],
        "asha": job.asha,
        "seed": job.seed,
    }
    return identity | {"fingerprint": fingerprint(identity)}


def check_folder(job: SweepJob, name: str) -> None:
    """Raise RequestError for a folder that holds another sweep, or this one without --resume."""
    root = job.table.root
    begun = claim(root, SWEEP, name, job="this very sweep", results=(*RESULTS, MODEL_FILE), overwrite=job.overwrite)
    if begun is not None and not job.resume:
        raise RequestError(
            f"--output: expected a new sweep, got this one begun in {root.uri}; pass --resume or --overwrite"
        )


def claim_folder(job: SweepJob, identity: dict[str, Any]) -> None:
    """Claim the folder for this sweep. Called after all checks of the request."""
    record = identity | {"provenance": provenance()}
    begin(job.table.root, SWEEP, record, RESULTS, overwrite=job.overwrite)
