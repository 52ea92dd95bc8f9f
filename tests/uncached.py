"""Training, sweeps and evaluations in this process without a cache, for tests: the fits equal those of the commands."""

from dataclasses import dataclass

import numpy as np
import torch

from raycase.data.schema import Reason
from raycase.errors import RequestError, WorkError
from raycase.training import local_runner


@dataclass(frozen=True)
class LocalRunner(local_runner.LocalRunner):
    """The package's runner, which embeds with the loaded system."""

    def vectors_of(self, texts, config, *, name, cache, compute=None):
        pairs = [(text, None) if isinstance(text, str) else text for text in texts]
        sentences, conditions = map(list, zip(*pairs, strict=True))
        plain = isinstance(texts[0], str)
        dtype = None if compute is None else getattr(torch, compute)
        views = []
        for view in config.views_apart[:1] if plain else config.views_apart:
            system = view.load(dtype=dtype, device=self.device)
            views.append(encode(system, view.prepare(sentences, None if plain else conditions), pairs, name).vectors)
        return np.concatenate(views, axis=1)

    def states_of(self, texts, config, *, name, cache, compute=None):
        system = config.load(dtype=None if compute is None else getattr(torch, compute), device=self.device)
        encoded = encode(system, config.prepare(texts, None), [(text, None) for text in texts], name)
        return encoded.kept, encoded.vectors


def encode(system, prepared, pairs, name):
    """Encode texts all of which must have a vector."""
    encoded = system.encode_prepared(prepared)
    finite = np.isfinite(encoded.vectors).all(axis=1)
    if encoded.kept is not None:
        finite &= encoded.kept.finite
    for (sentence, condition), reason, is_finite in zip(pairs, encoded.refused, finite, strict=True):
        if reason is not None or not is_finite:
            raise RequestError(
                f"{name}: expected a vector for each sentence, got {reason or Reason.NOT_FINITE}: {sentence[:80]!r} "
                f"under {condition!r}; fix or remove the row"
            )
    return encoded


def open_local_runner(**options):
    return LocalRunner(local_runner.open_local_runner(**options).device)


class LocalTrials(LocalRunner):
    """A `raycase.training.trial_runner.TrialRunner`: one trial after the other, none stopped early."""

    def run(self, trials, data, record):
        if trials.search is not None:
            raise RequestError("--grid: expected one in a single process, got a search; run on Ray instead")
        for cell, seed in trials.trials:
            history, error = [], None
            try:
                for state in cell.fit(data[cell.data_key], seed=seed, device=self.device):
                    history = state.history
            except (RequestError, WorkError) as failure:
                error = str(failure)
            record(cell, seed, history=history, error=error)
        return []


def open_local_trials(*, cpus_per_trial, gpus_per_trial, cache):
    return LocalTrials("cuda" if gpus_per_trial else "cpu")
