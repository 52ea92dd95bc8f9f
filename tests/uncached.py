"""Training and evaluations in this process without a cache, for tests: the fits equal those of the commands."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from raycase.errors import RequestError
from raycase.io.schema import Reason
from raycase.job.runner import Runner
from raycase.job.vector_cache import VectorCache
from raycase.training.trainer import local_trainer


@dataclass(frozen=True)
class Uncached(VectorCache):
    """The package's vectors, by the loaded system."""

    runner: Runner = field(default_factory=Runner)  # of scores
    device: str = "cpu"

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


def open_trainer(job):
    trainer = local_trainer(job.gpus_per_worker)
    return replace(trainer, vectors=Uncached(device="cuda" if trainer.on_gpu else "cpu"))
