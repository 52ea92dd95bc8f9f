"""Sweeps of fine-tuned encoders: a trial trains what `train` does with the same flags and seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, get_args, get_type_hints

from raycase.data.inferences import HYPOTHESES
from raycase.data.storage import fingerprint, locate
from raycase.errors import check_ranges
from raycase.evaluation.graph_metrics import MEASURES
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.model_folder import METRICS
from raycase.training.encoder_fit import fit_tuned
from raycase.training.encoder_job import FineTuneJob, fine_tune, identity_of, objective_of
from raycase.training.inference_jobs import InferencesJob
from raycase.training.loop import FitState
from raycase.training.rated_jobs import RatedJob
from raycase.training.runner import Embedder, Runner
from raycase.training.sweep_cells import CORRELATIONS, Cell, Columns, Grids, Space
from raycase.training.sweep_job import SweepJob
from raycase.training.sweep_report import titled
from raycase.training.sweep_trials import CellScore

# flags of `train` that are the same for all cells: the data, where the result goes, on what, and how it is saved
SAME = ("train", "validation", "output", "cache", "overwrite", "seed", "workers", "gpus_per_worker", "task", "merged")
COUNTED = ("epochs", "patience")  # the table of trials has them for every kind of cells
ENTAILMENT = ("rte", "eis", *(f"rte_{kind}" for kind in HYPOTHESES.values()))


@dataclass(frozen=True, kw_only=True)
class FineTunedCell(Cell):
    """The flags of a training job. Every flag that changes the weights is a setting."""

    recipe: FineTunedSweep
    source: ClassVar[str] = "model"

    @property
    def names(self) -> Sequence[str]:
        """The flags of the training job, but for `SAME` and those that only a sweep has."""
        among = {f.name for f in fields(SweepJob)} - {"model", "compute"}
        return [f.name for f in fields(self.recipe) if f.name not in among and f.name not in SAME]

    @property
    def space(self) -> Space:
        """What a search chooses from."""
        return {**self.recipe.space, "model": [self.recipe.model]}

    @property
    def grids(self) -> Grids:
        """The grids that have a name."""
        return self.recipe.grids

    @property
    def figures(self) -> Sequence[str]:
        """The metrics of the task."""
        if isinstance(self.recipe, InferencesJob):
            return ENTAILMENT
        return MEASURES if isinstance(self.recipe, RatedJob) and self.recipe.task == "kgc" else CORRELATIONS

    @property
    def columns(self) -> Columns:
        """The settings, as the table of trials has them."""
        hints = get_type_hints(type(self.recipe))
        return {name: _column(hints[name]) for name in self.names if name not in COUNTED}

    @cached_property
    def key(self) -> str:
        """Of all settings."""
        return fingerprint(self.values)[:10]

    def fit(self, train: Any, validation: Any, *, seed: int, device: str = "cpu") -> Iterator[FitState]:
        """Fine-tune as `raycase.training.encoder_job.fine_tune` does."""
        job = self.recipe
        task = job.task_of(job.config(), train, validation)
        objective = objective_of(job, task, on_gpu=device != "cpu")
        texts = task.texts()
        return fit_tuned(texts[0], texts[1], job.recipe, objective, seed=seed, wrap=lambda module: module.to(device))

    def check(self, system: Any = None) -> None:
        """Raise RequestError for values out of their range, or that contradict each other."""
        self.recipe.recipe.check()
        check_ranges(self.recipe)
        self.recipe.objective(self.recipe.config())

    def describe(self, row: Mapping[str, Any]) -> str:
        """What differs from the flags of the sweep."""
        own = self.values
        changed = [f"{name.replace('_', ' ')} {row[name]}" for name in self.columns if row[name] != own[name]]
        return ", ".join(changed) or "as the flags"

    def tables(self, scores: Sequence[CellScore], grid: str | None) -> list[str]:
        """A grid that has a name, in its order."""
        if grid is None or grid not in self.grids:
            return []
        place = {cell.name: i for i, cell in enumerate(self.grids[grid](self))}
        lines = [f"## {grid}\n", f"| | {titled(self)} | seeds |", "|---|---|---|"]
        for s in sorted(scores, key=lambda s: place.get(s.first.name, len(place))):
            lines.append(f"| {s.first.name} | {s.text()} | {len(s.trials)} |")
        return ["\n".join(lines) + "\n"]


def _column(hint: Any) -> type:
    """The type of a flag's column in the table of trials."""
    kind = next((kind for kind in get_args(hint) if kind is not NoneType), hint)
    return kind if kind in (bool, int, float) and Ellipsis not in get_args(hint) else str


@dataclass(frozen=True, kw_only=True)
class FineTunedSweep(FineTuneJob, SweepJob):
    """A sweep over the flags of a training job; a subclass adds the job."""

    samples: int = 20
    """Number of cells in a search."""
    finalists: int = 3
    """Best cells of a search, which are run with every seed at the end."""
    cpus_per_trial: float | None = None
    """CPUs and threads per trial. Default: as `train`, all of the largest node, so that trials run one after the other;
    with GPUs, each trial's share of a node."""
    gpus_per_trial: float | None = None
    """GPUs per trial. Default: 1 if the cluster has GPUs, else 0."""
    workers: ClassVar[int] = 1  # type: ignore[misc]  # a trial is one process
    gpus_per_worker: ClassVar[float | None] = None  # type: ignore[misc]
    ray: ClassVar[bool | None] = None  # type: ignore[misc]
    grids: ClassVar[Grids] = {}

    @property
    def space(self) -> Space:
        """What a search chooses from."""
        raise NotImplementedError

    @property
    def cells(self) -> FineTunedCell:
        """The cell of the flags."""
        return FineTunedCell(recipe=self)

    @property
    def fixed(self) -> dict[str, Any]:
        """The flags that hold for all cells of a search, unless it chooses them."""
        return self.cells.values

    def check_sweep(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        self.check_source()
        super().check_sweep()

    def system(self, config: FineTunedConfig, read: str) -> FineTunedConfig:
        """The system of the flags on an encoder."""
        return replace(self, model=read).config()

    def embed(self, part: Any, system: FineTunedConfig, runner: Embedder) -> Any:
        """The data as read: each trial tokenises it for its own system."""
        return part

    def save_best(
        self, best: CellScore, cell: Cell, system: Any, data: tuple[Any, Any], parts: dict[str, Any], runner: Runner
    ) -> None:
        """Train the best cell again with its first seed, as `train` does, into `best`; a stopped training resumes."""
        folder = self.folder / "best"
        cache = self.cache_location.uri
        job = replace(cell.recipe, seed=best.first.seed, output=str(folder), cache=cache, overwrite=False)
        config = job.config()
        metrics = locate(str(folder)) / METRICS
        if metrics.exists():
            name = fingerprint(identity_of(job, config, job.task_of(config, *parts.values())))
            if metrics.read_json().get("fingerprint") != name:  # the best of fewer trials
                locate(str(folder)).remove()
        fine_tune(job, lambda **_: runner)
