"""The flags of every system that is trained, and of those that learn from rated pairs; systems add theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from raycase.commands.flags import RayFlag
from raycase.errors import at_least, check_ranges
from raycase.names import Advanced, Track, TrainCompute
from raycase.training.recipe import LEAST_PAIRS, Loss, Recipe

if TYPE_CHECKING:
    from raycase.io.storage import Location
    from raycase.models.configs import SystemConfig
    from raycase.training.procedure import Training

Ranges = dict[str, tuple[bool, str]]  # as `check_ranges` takes them


@dataclass(frozen=True, kw_only=True)
class TrainFlags(RayFlag, ABC):
    """Flags of every system, and what `train` and a sweep ask of each."""

    workers: Advanced[int] = 1
    """Number of data-parallel processes, among which each batch is divided."""
    gpus_per_worker: Advanced[float | None] = None
    """GPUs per process. Default: 1 if the cluster has GPUs, else 0."""
    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id or local folder."""
    compute: Advanced[TrainCompute | None] = None
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
    """Peak learning rate of AdamW."""
    batch_size: int
    """Rated pairs per batch, over all workers."""
    epochs: int
    """Maximum number of epochs, over which the learning rate falls to 0."""
    dropout: Advanced[float | None] = None
    """Dropout of every layer of the encoder. Default: as in its configuration."""

    SYSTEM: ClassVar[str]  # its name in `raycase train`
    RECIPE: ClassVar[Recipe]  # what of it is the system's
    # flags that determine the weights, besides those of the data and the system, and the seed
    SETTINGS: ClassVar[tuple[str, ...]] = ("learning_rate", "batch_size", "epochs", "dropout")
    SHARED_BY: ClassVar[Sequence[str]] = ("model",)  # flags that decide what the trials of a sweep share
    NOT_SWEPT: ClassVar[Sequence[str]] = ()  # flags that are the same for all cells of a sweep

    @abstractmethod
    def config(self) -> SystemConfig:
        """The system before it is trained."""

    @abstractmethod
    def training(self) -> Training:
        """What it is trained by."""

    @property
    def common(self) -> dict[str, Any]:
        """The arguments of every `Training`."""
        schedule = {name: getattr(self, name) for name in ("learning_rate", "batch_size", "epochs", "seed")}
        return {
            "start": self.config,
            "recipe": replace(self.RECIPE, **schedule),
            "settings": {name: getattr(self, name) for name in self.SETTINGS},
            "compute": self.compute,
            "cache": self.cache_location,
            "train": self.train,
            "validation": self.validation,
        }

    @property
    def folder(self) -> Path:
        return Path(self.output).expanduser().absolute()

    @property
    def cache_uri(self) -> str:
        return str(self.folder.parent / "cache") if self.cache is None else self.cache

    @property
    def cache_location(self) -> Location:
        from raycase.io.storage import locate

        return locate(self.cache_uri)

    @property
    def reads(self) -> dict[str, Any]:
        """Files, folders and globs that are read, by flag."""
        from raycase.encoder.prompts import prompt_file

        prompt = getattr(self, "prompt", None)  # of the systems that have `TextFlags`
        return {"--train": self.train, "--validation": self.validation, "--prompt": prompt_file(prompt)}

    @property
    def opens(self) -> dict[str, Any]:
        """Names of models that are loaded, by flag."""
        return {"--model": [self.model]}

    @property
    def ranges(self) -> Ranges:
        """Whether each flag of `SETTINGS` is in its range, and what is expected."""
        rate = (0 < self.learning_rate < float("inf"), "a number above 0")
        size = (self.batch_size >= LEAST_PAIRS, f"at least {LEAST_PAIRS} with --loss pearson")
        correlated = {"batch_size": size} if getattr(self, "loss", None) == Loss.PEARSON else {}
        share = (self.dropout is None or 0 <= self.dropout < 1, "a share in [0, 1)")
        return {"learning_rate": rate, **at_least(1, self, "batch_size", "epochs"), "dropout": share} | correlated

    @property
    def resumes(self) -> bool:
        """Whether a run that was stopped goes on at its last epoch, or begins again."""
        return not self.RECIPE.frozen

    def check(self) -> None:
        """Raise RequestError for flags out of their range, or that contradict each other or the system."""
        check_ranges(self, self.ranges)
        if not self.RECIPE.frozen:
            self.config()


@dataclass(frozen=True, kw_only=True)
class RatedFlags(TrainFlags):
    """Fine-tune an encoder on rated pairs."""

    learning_rate: float = 1e-4
    batch_size: int = 32
    epochs: int = 3
    loss: Advanced[Loss] = Loss.SQUARED
    """squared is the papers' mean squared error; pearson one minus the correlation over the batch."""

    RECIPE = Recipe(patience=3, weight_decay=0.1, warmup=0.1)
    SETTINGS = (*TrainFlags.SETTINGS, "loss")

    def training(self) -> Training:
        from raycase.training.fine_tune import PairTuning, rated_loss
        from raycase.training.procedure import read_rated_parts

        loss = partial(rated_loss, self.loss)
        return PairTuning(**self.common, task="rated", dropout=self.dropout, read_pairs=read_rated_parts, loss=loss)
