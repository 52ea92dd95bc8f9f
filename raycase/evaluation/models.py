"""The models that an evaluation compares: resolved, checked against the task, and named."""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from raycase.encoder.model_files import is_remote
from raycase.errors import RequestError
from raycase.heads.projector import project
from raycase.io.json_values import loads
from raycase.io.storage import PACKAGE, Location, locate
from raycase.io.vectors import pair_cosines
from raycase.models.case import CaseConfig
from raycase.models.configs import EmbedderConfig, SystemConfig
from raycase.models.model_folder import METRICS
from raycase.models.registry import resolve
from raycase.names import Compute

AT_ONCE = 2**16  # pairs that a scorer tokenises together
TextsOrPairs = Sequence[str] | Sequence[tuple[str, str]]  # sentences, or sentences with their conditions


class VectorsOf(Protocol):
    """What gives vectors of texts or pairs, as `VectorCache.vectors_of` does."""

    def __call__(
        self, texts: TextsOrPairs, config: EmbedderConfig, *, name: str, cache: Location, compute: Compute | None = None
    ) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the models, resolved and checked; its encoder's weights are not loaded."""

    name: str
    config: SystemConfig
    projector: nn.Module | None
    vectors_of: VectorsOf
    cache: Location
    data: str  # where its texts stand, for messages
    compute: Compute | None  # the number format inside its encoder

    def embed(self, texts: TextsOrPairs) -> np.ndarray:
        """`VectorsOf` of this model."""
        assert isinstance(self.config, EmbedderConfig)
        return self.vectors_of(texts, self.config, name=self.data, cache=self.cache, compute=self.compute)

    def load(self) -> Any:
        """The loaded system, an `Embedder` or a `Scorer`, in the number format."""
        return self.config.load(dtype=None if self.compute is None else getattr(torch, self.compute))

    def scores(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Scores by a model that scores pairs, cosines by one that embeds; without conditions of unconditional vectors:
        N, N, N -> (N,) float64."""
        if isinstance(self.config, EmbedderConfig):
            sides: list[TextsOrPairs] = [firsts, seconds]
            if conditions is not None:
                sides = [list(zip(side, conditions, strict=True)) for side in (firsts, seconds)]
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


def any_condition(config: SystemConfig) -> str | None:
    """Fits models that take any condition, those that score pairs among them."""
    return None if config.known_conditions is None else "models that take any condition"


def vectors(config: SystemConfig) -> str | None:
    """Fits models that give vectors."""
    return None if isinstance(config, EmbedderConfig) else "models that give vectors"


def no_condition(config: SystemConfig) -> str | None:
    """Fits models that need no condition."""
    fits = config.known_conditions == () or (isinstance(config, EmbedderConfig) and config.known_conditions is None)
    return None if fits else "models that need no condition"


def find_models(
    names: Sequence[str],
    expected: Callable[[SystemConfig], str | None],
    vectors_of: VectorsOf,
    *,
    task: str,
    data: str,
    output: Path,
    cache: str | None = None,
    compute: Compute | None = None,
    **choices: Any,
) -> list[Model]:
    """Resolve the models by these choices of `resolve`, check what the task expects of them and load their projectors.
    cache: of their vectors; default: beside the model's folder, else the first one's, else the output."""
    configs = [resolve(name, **choices) for name in names]
    for name, config in zip(names, configs, strict=True):
        if (instead := expected(config)) is not None:
            raise RequestError(f"--model: expected {instead} for --task {task}, got {name}: {config.label}")
    folders = [  # on this machine, so that a cache may stand beside one
        None if c.folder is None or is_remote(c.folder) or c.folder.startswith(PACKAGE) else Path(c.folder)
        for c in configs
    ]
    first = next(filter(None, folders), output)  # beside it training keeps its vectors
    short = [posixpath.basename(c.folder) if c.folder else name for c, name in zip(configs, names, strict=True)]
    names = short if len(set(short)) == len(short) else names  # the whole paths where two end alike
    return [
        Model(
            name=name,
            config=config,
            projector=config.load_projector() if isinstance(config, CaseConfig) else None,
            vectors_of=vectors_of,
            cache=locate(cache or str((folder or first).parent / "cache")),
            data=data,
            compute=compute,
        )
        for name, config, folder in zip(names, configs, folders, strict=True)
    ]


def training_metrics(config: SystemConfig) -> Any:
    """The content of `metrics.json` in the folder of a system; None where there is none, or no JSON."""
    if config.local is None:
        return None
    try:
        return loads((config.local / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a folder that was saved without training
        return None
