"""The request of a sweep: flags, checks, the cells and prompts to run, and the output folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raycase.data.claim import begin, claim
from raycase.data.fetch import is_trained
from raycase.data.provenance import provenance
from raycase.data.rated import RatedPairs
from raycase.data.storage import check_paths, fingerprint, locate
from raycase.encoder.prompts import INSTRUCTED, PromptStyle, parse_views
from raycase.errors import RequestError
from raycase.systems.case import CaseConfig
from raycase.systems.projector import settings_of
from raycase.training.projector_fit import Recipe
from raycase.training.projector_job import Frozen
from raycase.training.sweep_cells import DIMS, SPACE, Cell, figure4, grid_of, table7
from raycase.training.sweep_trials import Table

GRIDS = {"table7": table7, "figure4": figure4}
SWEEP = "sweep.json"
RESULTS = ("trials", "trials.parquet", "trials.csv", "summary.md", "dimensions.png", "choices.png", "best")


@dataclass(frozen=True, kw_only=True)
class TuneJob(Frozen, Recipe):
    """Search the settings of the projector on a frozen encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    samples: int = 60
    """Number of cells in a search."""
    search: Literal["tpe", "random"] = "tpe"
    """tpe: Optuna's tree-structured Parzen estimator. random: cells at random."""
    grid: str | None = None
    """Run a grid instead of a search: table7, figure4, or a JSON file with lists, as {"dropout": [0.1, 0.3]}."""
    prompts: tuple[str, ...] | None = None
    """Prompts of a search. Default: --prompt; else the encoder's and a combination of two views."""
    seeds: int = 3
    """Seeds per cell of a grid, and per finalist of a search."""
    finalists: int = 5
    """Best cells of a search, which are run with every seed at the end."""
    asha: bool | None = None
    """Let ASHA stop trials that fall behind. Default: in a search, not in a grid."""
    cpus_per_trial: float = 1
    """CPUs and threads per trial."""
    gpus_per_trial: float = 0
    """GPUs per trial."""
    resume: bool = False
    """Resume the sweep in the folder: run its missing trials."""

    @property
    def table(self) -> Table:
        return Table(root=locate(str(self.folder)))

    @property
    def trial_seeds(self) -> range:
        """The seeds of a cell."""
        return range(self.seed, self.seed + self.seeds)


def check_job(job: TuneJob) -> None:
    """Raise RequestError for flags that contradict each other or are out of range."""
    check_paths({"--grid": None if job.grid in GRIDS else job.grid})
    if job.grid is None and job.search == "tpe" and importlib.util.find_spec("optuna") is None:
        raise RequestError(
            "--search tpe: expected the package optuna, got none; install it with: pip install 'raycase[tune]', "
            "or pass --search random"
        )
    if job.prompts is not None and (job.grid is not None or job.prompt is not None):
        raise RequestError("--prompts: expected it for a search, without --prompt, got --grid or --prompt beside it")
    job.recipe.check()
    if job.grid is None:
        replace(job.recipe, dim=min(DIMS)).check()  # a search tries it: nested dimensions must be below
    for flag, value in (("samples", job.samples), ("seeds", job.seeds), ("finalists", job.finalists)):
        if value < 1:
            raise RequestError(f"--{flag}: expected at least 1, got {value}")
    if job.cpus_per_trial <= 0 or job.gpus_per_trial < 0:
        raise RequestError(
            "--cpus-per-trial, --gpus-per-trial: expected some CPUs and 0 or more GPUs, "
            f"got {job.cpus_per_trial:g} and {job.gpus_per_trial:g}"
        )


def grid_cells(job: TuneJob, config: CaseConfig) -> list[Cell] | None:
    """The distinct cells of the grid; None for a search."""
    if job.grid is None:
        return None
    prompt = config.encoder.prompt
    cells = GRIDS[job.grid](job.recipe, prompt) if job.grid in GRIDS else grid_of(job.grid, job.recipe, prompt)
    return list({c.key: c for c in cells}.values())


def search_prompts(job: TuneJob, config: CaseConfig) -> list[str]:
    """The prompts of a search."""
    default = config.encoder.prompt
    if job.prompts is None:
        if job.prompt is not None or is_trained(job.model):
            return [default]
        if default in INSTRUCTED:
            return [default, "+".join(INSTRUCTED)]
        return [default, f"{PromptStyle.QUESTION}+{PromptStyle.STATEMENT}"]  # results/csts_minilm.md
    for prompt in job.prompts:
        parse_views(prompt)
    return list(dict.fromkeys(job.prompts))


def identity_of(
    job: TuneJob, grid: Sequence[Cell] | None, systems: Mapping[str, CaseConfig], pairs: Mapping[str, RatedPairs]
) -> dict[str, Any]:
    """Everything that determines the trials, and its fingerprint."""
    space: list[Any] = [{k: str(v) for k, v in SPACE.items()}, settings_of(job.recipe), job.search, list(systems)]
    identity: dict[str, Any] = {
        "model": {prompt: system.describe() for prompt, system in systems.items()},
        "compute": job.compute,
        "data": [rated.data_sha256 for rated in pairs.values()],
        "swept": [c.key for c in grid] if grid else space,
        "asha": job.asha,
        "seed": job.seed,
    }
    return identity | {"fingerprint": fingerprint(identity)}


def check_folder(job: TuneJob, name: str) -> None:
    """Raise RequestError for a folder that holds another sweep, or this one without --resume."""
    root = job.table.root
    begun = claim(root, SWEEP, name, job="this very sweep", results=RESULTS, overwrite=job.overwrite)
    if begun is not None and not job.resume:
        raise RequestError(
            f"--output: expected a new sweep, got this one begun in {root.uri}; pass --resume or --overwrite"
        )


def claim_folder(job: TuneJob, identity: dict[str, Any]) -> None:
    """Claim the folder for this sweep. Called after all checks of the request."""
    record = identity | {"provenance": provenance()}
    begin(job.table.root, SWEEP, record, RESULTS, overwrite=job.overwrite)
