"""Training and sweeps in one process, without Ray, for notebooks and small data. The fits equal those on Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from raycase.corpus.one_process import execute_here
from raycase.corpus.vector_cache import VectorCache
from raycase.data.schema import Reason
from raycase.data.storage import Location
from raycase.data.stored_states import StoredStates
from raycase.encoder.prepared import Prepared
from raycase.errors import RequestError, WorkError
from raycase.systems.condition_pooling_model import ConditionPoolingConfig
from raycase.systems.contracts import Compute, EmbedderConfig
from raycase.systems.embeds import Embeds
from raycase.systems.pairs import Encoded
from raycase.training.checkpoint import Checkpoint, Fitting, resumed, show
from raycase.training.loop import FitState
from raycase.training.trial_runner import Data, Record, Round

CACHE = VectorCache(lambda *_: execute_here)


@dataclass(frozen=True)
class LocalRunner:
    """`raycase.training.runner.Runner` in this process."""

    device: str

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def vectors_of(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        config: EmbedderConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None = None,
    ) -> np.ndarray:
        """`raycase.systems.contracts.VectorsOf`: embed with the loaded system. Writes nothing to the cache."""
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]
        sentences = [sentence for sentence, _ in pairs]
        plain = isinstance(texts[0], str)
        conditions = None if plain else [str(condition) for _, condition in pairs]
        dtype = None if compute is None else getattr(torch, compute)
        views = []
        for view in config.views_apart[:1] if plain else config.views_apart:
            system = view.load(dtype=dtype, device=self.device)
            views.append(_encoded(system, view.prepare(sentences, conditions), pairs, name).vectors)
        return np.concatenate(views, axis=1)

    def states_of(
        self,
        texts: Sequence[str],
        config: ConditionPoolingConfig,
        *,
        name: str,
        cache: Location,
        compute: Compute | None = None,
    ) -> tuple[StoredStates, np.ndarray]:
        """`raycase.training.runner.TextEmbedder.states_of`. Writes nothing to the cache."""
        system = config.load(dtype=None if compute is None else getattr(torch, compute), device=self.device)
        encoded = _encoded(system, config.prepare(texts, None), [(text, None) for text in texts], name)
        assert isinstance(encoded.kept, StoredStates), "expected a system that keeps states"
        return encoded.kept, encoded.vectors

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device."""
        return module.to(self.device)

    def fit(
        self, fitting: Fitting, train: Any, validation: Any, recipe: Any, *, seed: int, checkpoints: Location
    ) -> FitState:
        """`Runner.fit`; prints a line for each epoch."""
        checkpoint = Checkpoint(checkpoints)
        states = resumed(
            fitting,
            train,
            validation,
            recipe,
            seed=seed,
            checkpoint=checkpoint,
            wrap=self.wrap,
        )
        for state in states:
            show(state.line)
        last = checkpoint.read()
        assert last is not None
        return last


def _encoded(system: Embeds, prepared: Prepared, pairs: Sequence[tuple[str, str | None]], name: str) -> Encoded:
    """Encode texts all of which must have a vector. Raises RequestError."""
    encoded = system.encode_prepared(prepared)
    finite_N = np.isfinite(encoded.vectors).all(axis=1)
    if encoded.kept is not None:
        finite_N &= encoded.kept.finite
    for (sentence, condition), reason, finite in zip(pairs, encoded.refused, finite_N, strict=True):
        if reason is None and not finite:
            reason = Reason.NOT_FINITE
        if reason is not None:
            raise RequestError(
                f"{name}: expected a vector for each sentence, got {reason}: {sentence[:80]!r} under {condition!r}; "
                "fix or remove the row"
            )
    return encoded


class CachedRunner(LocalRunner):
    """`LocalRunner` whose vectors and states are kept in the cache, as those on Ray."""

    vectors_of = CACHE.vectors_of
    states_of = CACHE.states_of


def open_local_runner(*, workers: int, gpus_per_worker: float | None, cache: Location) -> LocalRunner:
    """A runner of one process. Raises RequestError for several workers."""
    if workers != 1:
        raise RequestError(f"--workers: expected 1 in a single process, got {workers}; train on Ray instead")
    gpus = float(torch.cuda.is_available()) if gpus_per_worker is None else gpus_per_worker
    return LocalRunner("cuda" if gpus else "cpu")


@dataclass(frozen=True)
class LocalTrials(LocalRunner):
    """`raycase.training.runner.TrialRunner` in this process: one trial after the other, none stopped early."""

    def run(self, trials: Round, data: Data, record: Record) -> list[float]:
        """Run a round. Raises RequestError for a search."""
        if trials.search is not None:
            raise RequestError("--grid: expected one in a single process, got a search; run on Ray instead")
        for cell, seed in trials.trials:
            history: list[dict[str, float]] = []
            error = None
            try:
                for state in cell.fit(data[cell.data_key], seed=seed, device=self.device):
                    history = state.history
            except (RequestError, WorkError) as failure:
                error = str(failure)
            record(cell, seed, history=history, error=error)
        return []


def open_local_trials(*, cpus_per_trial: float | None, gpus_per_trial: float | None, cache: Location) -> LocalTrials:
    """A runner of trials in this process, which uses all CPUs."""
    gpus = float(torch.cuda.is_available()) if gpus_per_trial is None else gpus_per_trial
    return LocalTrials("cuda" if gpus else "cpu")
