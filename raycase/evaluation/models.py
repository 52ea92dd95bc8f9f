"""The models that an evaluation compares: resolved, checked against the task, and named."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateFlags
from raycase.heads.projector import project
from raycase.io.json_values import loads
from raycase.io.model_files import is_remote
from raycase.io.storage import PACKAGE, Location, locate
from raycase.io.vectors import pair_cosines
from raycase.models.case import CaseConfig
from raycase.models.configs import EmbedderConfig
from raycase.models.model_folder import METRICS
from raycase.models.registry import resolve

AT_ONCE = 2**16  # pairs that a scorer tokenises together


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the models, resolved and checked; its encoder's weights are not loaded.

    vectors_of: gives its vectors, as `VectorCache.vectors_of`; None where none are asked for.
    """

    name: str
    config: Any  # of a system
    projector: nn.Module | None
    cache: Location
    flags: EvaluateFlags
    vectors_of: Callable[..., np.ndarray] | None

    def embed(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> np.ndarray:
        """f(s) of distinct sentences; of distinct (sentence, condition) the vectors before g: P -> (P, D) float32.

        Raises RequestError where a text has no vector.
        """
        assert self.vectors_of is not None
        return self.vectors_of(texts, self.config, name=self.flags.data, cache=self.cache, compute=self.flags.compute)

    def load(self) -> Any:
        """The model with its weights, in the job's number format."""
        return self.config.load(dtype=None if self.flags.compute is None else getattr(torch, self.flags.compute))

    def scores(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Scores by a model that scores pairs, cosines by one that embeds; without conditions of unconditional vectors:
        N, N, N -> (N,) float64. Raises RequestError for a text that the model cannot read."""
        if isinstance(self.config, EmbedderConfig):
            sides: list[Any] = [firsts, seconds]
            if conditions is not None:
                sides = [list(zip(side, conditions, strict=True)) for side in sides]
            row_of = {text: row for row, text in enumerate(dict.fromkeys([*sides[0], *sides[1]]))}
            vectors_PD = self.embed(list(row_of))
            pairs = np.array([[row_of[a], row_of[b]] for a, b in zip(*sides, strict=True)])
            return pair_cosines(vectors_PD if conditions is None else self.project(vectors_PD), pairs)
        scorer, columns = self.load(), [firsts, seconds, *([] if conditions is None else [conditions])]
        starts = range(0, len(firsts), AT_ONCE)
        parts = [scorer.score(*(column[start : start + AT_ONCE] for column in columns)) for start in starts]
        return np.concatenate(parts).astype(np.float64)

    def project(self, vectors_ND: np.ndarray) -> np.ndarray:
        """Apply the model's projector; without one, the vectors as they are."""
        return vectors_ND if self.projector is None else project(self.projector, vectors_ND)


# What a task expects of a model's configuration, if this one does not fit; None if it does.


def any_condition(config: Any) -> str | None:
    """Fits models that take any condition, those that score pairs among them."""
    return None if config.known_conditions is None else "models that take any condition"


def vectors(config: Any) -> str | None:
    """Fits models that give vectors."""
    return None if isinstance(config, EmbedderConfig) else "models that give vectors"


def no_condition(config: Any) -> str | None:
    """Fits models that need no condition."""
    fits = config.known_conditions == () or (isinstance(config, EmbedderConfig) and config.known_conditions is None)
    return None if fits else "models that need no condition"


def find_models(
    flags: EvaluateFlags,
    expected: Callable[[Any], str | None] = any_condition,
    vectors_of: Callable[..., np.ndarray] | None = None,
) -> list[Model]:
    """Resolve the job's models, check what is expected of them and load their projectors.

    Raises RequestError for an unknown or broken model, and for one that does not fit the task.
    """
    configs: list[Any] = [resolve(name, **flags.prompt_choices) for name in flags.model]
    for name, config in zip(flags.model, configs, strict=True):
        if (instead := expected(config)) is not None:
            raise RequestError(f"--model: expected {instead} for --task {flags.task}, got {name}: {config.label}")
    folders = [  # on this machine, so that a cache may stand beside one
        None if c.folder is None or is_remote(c.folder) or c.folder.startswith(PACKAGE) else Path(c.folder)
        for c in configs
    ]
    first = next(filter(None, folders), Path(flags.output).absolute())  # beside it training keeps its vectors
    short = [posixpath.basename(c.folder) if c.folder else name for c, name in zip(configs, flags.model, strict=True)]
    names = short if len(set(short)) == len(short) else flags.model  # the whole paths where two end alike
    return [
        Model(
            name=name,
            config=config,
            projector=config.load_projector() if isinstance(config, CaseConfig) else None,
            cache=locate(flags.cache or str((folder or first).parent / "cache")),
            flags=flags,
            vectors_of=vectors_of,
        )
        for name, config, folder in zip(names, configs, folders, strict=True)
    ]


def training_metrics(config: Any) -> Any:
    """The content of `metrics.json` in the folder of a system; None where there is none, or no JSON."""
    if config.local is None:
        return None
    try:
        return loads((config.local / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a folder that was saved without training
        return None
