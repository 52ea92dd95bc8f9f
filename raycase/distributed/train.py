"""Training jobs on Ray: vectors from the embedding job, fits on Ray Train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.train import ScalingConfig

from raycase.corpus.vector_cache import VectorCache
from raycase.data.storage import Location
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.embed import prepare_ray
from raycase.distributed.fit import fit_on_ray, make_scaling
from raycase.errors import RequestError
from raycase.training.checkpoint import Fitting
from raycase.training.loop import FitState

CACHE = VectorCache(prepare_ray)


@dataclass(frozen=True)
class RayRunner:
    """`raycase.training.runner.Runner` on the cluster that this process has joined."""

    scaling: ScalingConfig
    vectors_of = staticmethod(CACHE.vectors_of)
    states_of = staticmethod(CACHE.states_of)
    scores_of = staticmethod(CACHE.scores_of)

    @property
    def on_gpu(self) -> bool:
        return bool(self.scaling.use_gpu)

    def fit(
        self, fitting: Fitting, train: Any, validation: Any, recipe: Any, *, seed: int, checkpoints: Location
    ) -> FitState:
        """Run a fit on data-parallel workers."""
        return fit_on_ray(fitting, train, validation, recipe, seed=seed, scaling=self.scaling, checkpoints=checkpoints)


def open_runner(*, workers: int, gpus_per_worker: float | None, cache: Location) -> RayRunner:
    """Join or start Ray. Raises RequestError for workers that do not fit, or a local cache on several machines."""
    start_ray()
    check_cache(cache)
    return RayRunner(make_scaling(workers, gpus_per_worker))


def check_cache(cache: Location) -> None:
    """Raise RequestError for a local cache on a cluster of several machines."""
    count = len(nodes())
    if cache.is_local and count > 1:
        raise RequestError(f"--cache: expected object storage on a cluster of {count} nodes, got {cache.uri}")
