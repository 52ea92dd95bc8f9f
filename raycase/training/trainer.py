"""What a training job runs by: vectors of texts and fits, in this process or on Ray (`raycase.ray.train`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from raycase.encoder.loading import best_device
from raycase.io.storage import Location
from raycase.job.runner import Runner
from raycase.job.vector_cache import VectorCache
from raycase.training.loop import FitState
from raycase.training.track import Tracker

STATE = "state.safetensors"  # of a fit that may resume

Fitting = Callable[..., Iterator[FitState]]  # (train, validation, recipe, *, seed, state, wrap), as `fit_projector`


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What embeds the texts of a training job, and runs its fits: `fit_here`, or one on Ray that equals it."""

    on_gpu: bool
    fit: Callable[..., FitState]
    vectors: VectorCache


def fit_here(
    fitting: Fitting,
    train: Any,
    validation: Any,
    recipe: Any,
    *,
    device: str,
    seed: int,
    checkpoints: Location,
    resume: bool = False,
    tracker: Tracker,
) -> FitState:
    """Run a fit in this process, print and report each epoch, and return the last state. Raises WorkError.

    resume: write a checkpoint into `checkpoints` after each epoch, and go on from the one that is there.
    """
    file = checkpoints / STATE
    state = FitState.from_bytes(file.read()) if resume and file.exists() else None
    wrap = partial(nn.Module.to, device=device)
    with tracker.fit(recipe.record | {"seed": seed}, shown=len(state.history) if state else 0) as report:
        for state in fitting(train, validation, recipe, seed=seed, state=state, wrap=wrap):  # noqa: B020
            if resume:
                file.put(state.to_bytes())
            report(state.history)
    assert state is not None
    return state


def local_trainer(gpus_per_worker: float | None) -> Trainer:
    """That of this process."""
    device = best_device() if gpus_per_worker is None else "cuda" if gpus_per_worker else "cpu"
    return Trainer(on_gpu=device == "cuda", fit=partial(fit_here, device=device), vectors=VectorCache(Runner()))
