"""The models that an evaluation compares: resolved, checked against the task, and named."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from raycase.encoder.prompts import PromptStyle, parse_views
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.heads.projector import load_projector, project
from raycase.io.fetch import is_remote
from raycase.io.json_values import loads
from raycase.io.storage import PACKAGE, Location, locate
from raycase.models.case import CaseConfig
from raycase.models.model_folder import METRICS
from raycase.models.registry import embeds, resolve

LABELS = {  # of the built-in ones, as the paper writes them (Table 1); the last two are ours
    PromptStyle.SENT: "sent",
    PromptStyle.COND: "cond",
    PromptStyle.CONCAT_SC: "CONC(s + c)",
    PromptStyle.CONCAT_CS: "CONC(c + s)",
    PromptStyle.QUESTION: "question",
    PromptStyle.STATEMENT: "statement",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the models, resolved and checked; its encoder's weights are not loaded."""

    name: str
    config: Any  # of a system
    projector: nn.Module | None
    cache: Location

    def project(self, vectors_ND: np.ndarray) -> np.ndarray:
        """Apply the model's projector; without one, the vectors as they are."""
        return vectors_ND if self.projector is None else project(self.projector, vectors_ND)


# What a task expects of a model's configuration, if this one does not fit; None if it does.


def any_condition(config: Any) -> str | None:
    """Fits models that take any condition, those that score pairs among them."""
    return None if config.known_conditions is None else "models that take any condition"


def vectors(config: Any) -> str | None:
    """Fits models that give vectors."""
    return None if embeds(config) else "models that give vectors"


def no_condition(config: Any) -> str | None:
    """Fits models that need no condition."""
    fits = config.known_conditions == () or (embeds(config) and config.known_conditions is None)
    return None if fits else "models that need no condition"


def find_models(job: EvaluateJob, expected: Callable[[Any], str | None] = any_condition) -> list[Model]:
    """Resolve the job's models, check what is expected of them and load their projectors.

    Raises RequestError for an unknown or broken model, one that does not fit the task, and one that is given twice.
    """
    configs: list[Any] = [resolve(name, **job.prompt_choices) for name in job.model]
    for name, config in zip(job.model, configs, strict=True):
        if (instead := expected(config)) is not None:
            raise RequestError(f"--model: expected {instead} for --task {job.task}, got {name}: {config.label}")
    folders = [_local_folder(config) for config in configs]
    first = next(filter(None, folders), Path(job.output).absolute())
    return [
        Model(
            name=name,
            config=config,
            projector=load_projector(config.projector, config.local) if is_case(config) and config.top else None,
            cache=locate(job.cache or str(_default_cache(folder or first))),
        )
        for name, config, folder in zip(_model_names(job, configs), configs, folders, strict=True)
    ]


def _model_names(job: EvaluateJob, configs: Sequence[Any]) -> Sequence[str]:
    """The last part of each folder's path; the full paths if two of those are equal."""
    short = [posixpath.basename(c.folder) if c.folder else name for c, name in zip(configs, job.model, strict=True)]
    return short if len(set(short)) == len(short) else job.model


def _local_folder(config: Any) -> Path | None:
    """The model folder, where it is one of this machine's that a cache may stand beside."""
    folder = config.folder
    return None if folder is None or is_remote(folder) or folder.startswith(PACKAGE) else Path(folder)


def _default_cache(folder: Path) -> Path:
    """Where training keeps its vectors: beside the folder; for the best model of a sweep, beside the sweep's."""
    sweep_cache = folder.parent.parent / "cache"
    return sweep_cache if sweep_cache.exists() and not (folder.parent / "cache").exists() else folder.parent / "cache"


def is_case(config: Any) -> bool:
    """Whether the system is CASE, whose vectors can be split into f, base and g (eq. 1)."""
    return isinstance(config, CaseConfig)


def training_metrics(config: Any) -> Any:
    """The content of `metrics.json` in the folder of a system; None where there is none, or no JSON."""
    if config.local is None:
        return None
    try:
        return loads((config.local / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a folder that was saved without training
        return None


def before_g(config: Any, **changes: Any) -> Any:
    """CASE without its projector, with changes to its configuration; any other system unchanged."""
    return replace(config, projector=None, folder=None, **changes) if is_case(config) else config


def encoder_name(config: Any) -> str:
    """The encoder's name in the table of encoders, or its folder's; of a fine-tuned system, its model folder's."""
    if not isinstance(config, CaseConfig):
        return posixpath.basename(config.folder or config.model)
    source = config.encoder.source
    folder = Path(source).parent if source.endswith("/encoder") else Path(source)
    return next((name for name, row in ENCODERS.items() if row.source == source), folder.name)


def setting(config: Any) -> str:
    """Prompt and subtraction as the paper writes them (Table 1), several views in brackets; of a fine-tuned system,
    its label."""
    if not isinstance(config, CaseConfig):
        return str(config.label)
    views = [LABELS.get(style, str(style)) for style, _ in parse_views(config.encoder.prompt)]
    label = views[0] if len(views) == 1 else f"[{', '.join(views)}]"
    return f"{label} - c" if config.subtract else label
