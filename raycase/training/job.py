"""Training jobs: their common flags, what each kind defines, and `train`, which checks, fits and saves."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from raycase.commands.flags import Advanced, RayFlag
from raycase.encoder.prompts import prompt_file
from raycase.errors import MOST_SEED, RequestError, at_least, check_ranges, note
from raycase.io.labelled_texts import LabelledTexts
from raycase.io.model_files import dataset_of, model_folder
from raycase.io.places import Folder, Paths, check_paths
from raycase.io.provenance import provenance
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated, rows_in
from raycase.io.storage import Location, fingerprint, locate
from raycase.models.model_folder import WRITTEN, open_model_folder
from raycase.names import Compute, Loss, Track
from raycase.training.loop import FitState
from raycase.training.losses import LEAST_PAIRS
from raycase.training.trainer import Tracker, Trainer, check_track
from raycase.training.vector_cache import VectorCache

Ranges = dict[str, tuple[bool, str]]  # as `check_ranges` takes them
SHARE = "a share in [0, 1)"


@dataclass(frozen=True, kw_only=True)
class TrainFlags(RayFlag, ABC):
    """Flags of every training job, and what a fit, a model folder and a sweep ask of each kind.

    A run that was stopped goes on at its last epoch where an encoder is trained, and begins again where none is.
    """

    workers: Advanced[int] = 1
    """Number of data-parallel processes, among which each batch is divided."""
    gpus_per_worker: Advanced[float | None] = None
    """GPUs per process. Default: 1 if the cluster has GPUs, else 0."""
    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id or local folder."""
    compute: Advanced[Compute | None] = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it, else float32."""
    output: str
    """Output folder, on this machine."""
    cache: Advanced[str | None] = None
    """Folder or URI of the vectors of embedded pairs and of the checkpoints of encoders. Default: `cache` beside the
    output."""
    overwrite: bool = False
    """Replace an earlier result in the folder."""
    track: Track | None = None
    """Also report the figures of each epoch, and the parameters, to TensorBoard, MLflow or Weights & Biases."""
    seed: Advanced[int] = 0
    """Seed of random weights, order and dropout; the first seed of a sweep."""
    train: str
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5)."""
    validation: str
    """Validation pairs, which select the best epoch; never trained on. Label -1: the condition does not apply."""
    learning_rate: float
    batch_size: int
    epochs: int

    SYSTEM: ClassVar[str]  # its name in `raycase train`
    # flags that determine the weights, besides those of the data and the system, and the seed
    RECIPE: ClassVar[tuple[str, ...]] = ("learning_rate", "batch_size", "epochs")
    PATIENCE: ClassVar[int] = 0  # epochs without a better one, after which a fit stops
    WEIGHT_DECAY: ClassVar[float] = 0.0  # decoupled (AdamW)
    WARMUP: ClassVar[float | None] = None  # share of the steps up to the peak learning rate, then down to 0
    FROZEN: ClassVar[bool] = False  # the encoder: fits are short and never resumed; trials of a sweep take one CPU each
    SHARED_BY: ClassVar[Sequence[str]] = ("model",)  # flags that decide what `shared` gives
    NOT_SWEPT: ClassVar[Sequence[str]] = ()  # flags that are the same for all cells of a sweep

    # ------------------------------------------------------------------------------------------------ of the request

    @property
    def reads(self) -> dict[str, str | None]:
        """Files, folders and globs that are read, by flag."""
        prompt = getattr(self, "prompt", None)  # of the kinds that have `TextFlags`
        return {"--train": self.train, "--validation": self.validation, "--prompt": prompt_file(prompt)}

    @property
    def opens(self) -> Paths:
        """Models that are loaded, by flag."""
        return {"--model": model_folder(self.model)}

    @property
    def folder(self) -> Path:
        return Path(self.output).expanduser().absolute()

    @property
    def cache_uri(self) -> str:
        return str(self.folder.parent / "cache") if self.cache is None else self.cache

    @property
    def cache_location(self) -> Location:
        return locate(self.cache_uri)

    def check_request(self, reads: dict[str, str | None] | None = None, written: Sequence[str] = WRITTEN) -> None:
        """Check the flags before anything is read. Raises RequestError.

        reads: what is read besides, by flag; written: the names of what is written into the output folder.
        """
        check_paths(
            reads=self.reads | (reads or {}),
            opens=self.opens,
            writes={"--output": Folder(self.output, tuple(written), here=True), "--cache": Folder(self.cache_uri)},
        )
        gpus = self.gpus_per_worker
        ranges = at_least(0, self, "seed", most=MOST_SEED) | at_least(1, self, "workers")
        check_ranges(self, ranges | {"gpus_per_worker": (gpus is None or gpus >= 0, "0 or more")})
        check_track(self.track)

    # ------------------------------------------------------------------------------------------- what each kind says

    @property
    def recipe(self) -> dict[str, Any]:
        """The flags of `RECIPE`, as fingerprints and `metrics.json` have them."""
        return {name: getattr(self, name) for name in self.RECIPE}

    @property
    def ranges(self) -> Ranges:
        """Whether each flag of the recipe is in its range, and what is expected."""
        rate = (0 < self.learning_rate < float("inf"), "a number above 0")
        size = (self.batch_size >= LEAST_PAIRS, f"at least {LEAST_PAIRS} with --loss pearson")
        correlated = {"batch_size": size} if getattr(self, "loss", None) == Loss.PEARSON else {}
        return {"learning_rate": rate, **at_least(1, self, "batch_size", "epochs")} | correlated

    @property
    def loop(self) -> dict[str, Any]:
        """The settings of `raycase.training.loop.fit`."""
        schedule = {"epochs": self.epochs, "patience": self.PATIENCE, "learning_rate": self.learning_rate}
        return schedule | {"weight_decay": self.WEIGHT_DECAY, "warmup": self.WARMUP, "seed": self.seed}

    @abstractmethod
    def config(self) -> Any:
        """The system before it is trained. Raises RequestError."""

    def check_flags(self) -> None:
        """Raise RequestError for flags out of their range, or that contradict each other."""
        check_ranges(self, self.ranges)

    def read_parts(self) -> tuple[Any, Any]:
        """Read the training and the validation data, with their hashes as `data_sha256`. Raises RequestError."""
        train, validation = read_rated(self.train, "--train"), read_rated(self.validation, "--validation")
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

    def identity(self, config: Any, parts: Sequence[Any]) -> dict[str, Any]:
        """Everything that determines the weights. Raises RequestError for flags that do not fit the system."""
        return {
            "model": config.describe(),
            "compute": self.compute,
            "data": {part: read.data_sha256 for part, read in named_parts(parts).items()},
            "recipe": self.recipe,
            "seed": self.seed,
        }

    def shared(self, config: Any, parts: Sequence[Any], vectors: VectorCache) -> Any:
        """What all fits on this data share, trials of a sweep among them."""
        return parts

    def fit_data(self, shared: Any) -> tuple[Any, Any]:
        """Training and validation data as the fit reads them; by default what is shared."""
        train, validation = shared
        return train, validation

    @abstractmethod
    def fit_epochs(
        self, config: Any, train: Any, validation: Any, *, on_gpu: bool = False, **how: Any
    ) -> Iterator[FitState]:
        """Run one fit, of a job or of a trial, and yield its state after each epoch. how: `state` and `wrap` of
        `raycase.training.loop.fit`."""

    def fit_all(
        self, config: Any, parts: Sequence[Any], data: tuple[Any, Any], trainer: Trainer, checkpoints: Location
    ) -> Any:
        """Run the fits on the data of `fit_data`, here one; returns what `save` saves."""
        return trainer.fit(self, config, *data, checkpoints=checkpoints)

    @abstractmethod
    def save(self, config: Any, data: tuple[Any, Any], fitted: Any, record: dict[str, Any]) -> dict[str, Any]:
        """Write the model folder of a fit; returns the contents of `metrics.json`, `record` among them."""


def train(flags: TrainFlags, open_trainer: Callable[[TrainFlags], Trainer]) -> dict[str, Any]:
    """Read, fit, save a model folder; returns the contents of `metrics.json`. Raises RequestError and WorkError.

    open_trainer: called after all checks, for it may start a cluster.
    """
    began = time.time()
    flags.check_request()
    flags.check_flags()
    config = flags.config()
    parts = flags.read_parts()
    identity = flags.identity(config, parts)
    name = fingerprint(identity)
    if done := open_model_folder(flags.folder, name, overwrite=flags.overwrite):
        note(f"{flags.folder}: already trained; nothing to do")
        return done
    trainer = open_trainer(flags)
    data = flags.fit_data(flags.shared(config, parts, trainer.vectors))
    embedded = time.time()
    checkpoints = flags.cache_location / "fits" / fingerprint([name, str(flags.folder)])[:16]
    if flags.overwrite:
        checkpoints.remove()
    tracker = Tracker(flags.track, flags.folder, {"system": flags.SYSTEM, "model": flags.model})
    trainer = replace(trainer, fit=partial(trainer.fit, tracker=tracker))
    fitted = flags.fit_all(config, parts, data, trainer, checkpoints)
    record = {
        "fingerprint": name,
        "unseeded": fingerprint(identity | {"seed": None}),  # equal for the seeds of one system
        "seed": flags.seed,
        "workers": flags.workers,
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "on_gpu": trainer.on_gpu,
        "recipe": flags.recipe,
        "data": data_metrics(named_parts(parts)),
        "provenance": provenance(),
    }
    metrics = flags.save(config, data, fitted, record)
    checkpoints.remove()
    return metrics


def named_parts(parts: Sequence[Any]) -> dict[str, Any]:
    """The parts of `read_parts` by name: what follows training and validation data are labelled texts."""
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


def data_metrics(parts: dict[str, Any]) -> dict[str, Any]:
    """What `metrics.json` says of each part of the data; its dataset where it is one of the Hugging Face hub."""
    found: dict[str, Any] = {}
    for part, read in parts.items():
        found[part] = {"file": Path(read.uri).name, "rows": len(read), "sha256": read.data_sha256}
        if isinstance(read, LabelledTexts):
            found[part] |= {"columns": len(read.columns), "left_out": read.left_out}
        if dataset := dataset_of(read.uri):
            found[part]["dataset"] = dataset
        if isinstance(read, RatedPairs):
            found[part] |= {"rows": int((read.epochs == 0).sum()), "drawn": int((read.epochs != 0).sum())}
            found[part]["not_applicable"] = int((read.ratings == NOT_APPLICABLE).sum())
    return found
