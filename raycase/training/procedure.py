"""What a system is trained by, from data to a model folder, and what its fits run by: this process, or Ray Train
(`raycase.ray.train`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from torch import nn

from raycase.encoder.loading import best_device
from raycase.encoder.model_files import dataset_of
from raycase.errors import RequestError
from raycase.io.labelled_texts import LabelledTexts
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated, rows_in
from raycase.io.storage import Location
from raycase.job.runner import Runner
from raycase.names import Compute
from raycase.training.loop import FitState, Learner, fit
from raycase.training.recipe import Recipe
from raycase.training.tracking import Tracker
from raycase.training.vector_cache import VectorCache

STATE = "state.safetensors"  # of a fit that may resume
Fit = Callable[..., FitState]  # recipe, what makes the `Learner` of it and of data, and these data -> the last state


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """What a system is trained by.

    start: gives the system before it is trained. settings: the flags that determine the weights, besides those of the
    data and the system, and the seed, as fingerprints and `metrics.json` have them. compute: the number format inside
    the encoder. cache: of vectors. train, validation: files.
    """

    start: Callable[[], Any]
    recipe: Recipe
    settings: Mapping[str, Any]
    compute: Compute | None
    cache: Location
    train: str
    validation: str

    @cached_property
    def config(self) -> Any:
        """The system before it is trained. Raises RequestError."""
        return self.start()

    def read(self) -> tuple[Any, ...]:
        """Read the training and the validation data, each with its `uri` and `data_sha256`. Raises RequestError."""
        return read_rated_parts(self.train, self.validation)

    def identity(self, parts: Sequence[Any]) -> dict[str, Any]:
        """Everything that determines the weights. Raises RequestError for flags that do not fit the system."""
        return {
            "model": self.config.describe(),
            "compute": self.compute,
            "data": {name: part.data_sha256 for name, part in named_parts(parts).items()},
            "recipe": self.settings,
            "seed": self.recipe.seed,
        }

    def share(self, parts: Sequence[Any], vectors: VectorCache) -> Any:
        """What all fits on this data share, trials of a sweep among them."""
        return parts

    def data(self, shared: Any) -> tuple[Any, Any]:
        """Training and validation data as a fit reads them; by default what is shared."""
        train, validation = shared
        return train, validation

    def on(self, *, gpu: bool) -> Self:
        """This training on a machine with a GPU or without."""
        return self

    @abstractmethod
    def learner(self, recipe: Recipe, train: Any, validation: Any) -> Learner:
        """What a fit trains, from the seed of the recipe on. Called where the fit runs."""

    def fit_all(self, fit: Fit, parts: Sequence[Any], data: tuple[Any, Any], vectors: VectorCache) -> Any:
        """Run the fits on the data of `data`, here one; returns what `save` saves."""
        return fit(self.recipe, self.learner, *data)

    @abstractmethod
    def save(self, folder: Path, data: tuple[Any, Any], fitted: Any, record: dict[str, Any]) -> dict[str, Any]:
        """Write the model folder of a fit; returns the contents of `metrics.json`, `record` among them."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What embeds the texts of a training, and runs its fits: `fit_here`, or one on Ray that equals it. Fits are also
    told where their checkpoints are, and by which `Tracker` they report."""

    on_gpu: bool
    fit: Callable[..., FitState]
    vectors: VectorCache


def fit_here(
    recipe: Recipe,
    learner: Callable[..., Learner],
    *data: Any,
    device: str,
    checkpoints: Location,
    tracker: Tracker,
) -> FitState:
    """Run a fit in this process, print and report each epoch, and return the last state. Raises WorkError.

    An encoder's fit writes a checkpoint after each epoch, and goes on from the one that is there.
    """
    file = checkpoints / STATE
    state = FitState.from_bytes(file.read()) if not recipe.frozen and file.exists() else None
    to_device = partial(nn.Module.to, device=device)
    with tracker.open_run(recipe, shown=len(state.history) if state else 0) as report:
        for state in fit(recipe, learner(recipe, *data), state=state, wrap=to_device):  # noqa: B020
            if not recipe.frozen:
                file.put(state.to_bytes())
            report(state.history)
    assert state is not None
    return state


def local_trainer(gpus_per_worker: float | None) -> Trainer:
    """The trainer that fits in this process."""
    device = best_device() if gpus_per_worker is None else "cuda" if gpus_per_worker else "cpu"
    return Trainer(on_gpu=device == "cuda", fit=partial(fit_here, device=device), vectors=VectorCache(Runner()))


def read_rated_parts(train_uri: str, validation_uri: str) -> tuple[RatedPairs, RatedPairs]:
    """Read rated pairs to train on and to validate with, which are others. Raises RequestError."""
    train, validation = read_rated(train_uri, "--train"), read_rated(validation_uri, "--validation")
    invalid = sorted({float(r) for r in train.ratings if r != NOT_APPLICABLE and not 1 <= r <= 5})
    if invalid:
        raise RequestError(f"--train: expected labels from 1 to 5 (or -1: does not apply), got {invalid[0]:g}")
    shared = rows_in(validation, train)
    if len(shared):
        raise RequestError(
            f"--validation: expected pairs that are not in --train, got {len(shared)} of {len(validation)} in "
            f"{train.uri}, the first in row {shared[0]}"
        )
    return train, validation


def named_parts(parts: Sequence[Any]) -> dict[str, Any]:
    """The parts of `Training.read` by name: what follows training and validation data are labelled texts."""
    tables = (f"labelled: {Path(part.uri).stem}" for part in parts[2:])  # `labels_of` has seen that their names differ
    return dict(zip(("train", "validation", *tables), parts, strict=True))


def fit_metrics(state: FitState) -> dict[str, Any]:
    """Metrics of the best epoch, and of every epoch."""
    return {
        "validation": {
            name: value for name, value in state.best_line.items() if name not in ("epoch", "loss", "seconds", "mib")
        },
        "best_epoch": state.best_epoch,
        "epochs": len(state.history),
        "history": state.history,
    }


def data_metrics(parts: Sequence[Any]) -> dict[str, Any]:
    """What `metrics.json` has of each part of the data; its dataset where it is one of the Hugging Face hub."""
    found: dict[str, Any] = {}
    for name, part in named_parts(parts).items():
        found[name] = {"file": Path(part.uri).name, "rows": len(part), "sha256": part.data_sha256}
        if isinstance(part, LabelledTexts):
            found[name] |= {"columns": len(part.columns), "left_out": part.left_out}
        if dataset := dataset_of(part.uri):
            found[name]["dataset"] = dataset
        if isinstance(part, RatedPairs):
            found[name] |= {"drawn": 0, "not_applicable": int((part.ratings == NOT_APPLICABLE).sum())}
        found[name] |= getattr(part, "counts", {})
    return found
