"""`raycase train SYSTEM`: the flags of each system, and from them to a model folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from raycase.commands.flags import PromptFlags
from raycase.commands.systems import Ranges, TrainFlags
from raycase.encoder.pooling import Pooling
from raycase.errors import MOST_SEED, RequestError, at_least, check_ranges, note, visible
from raycase.names import Activation, Advanced, DropoutAt, Hidden
from raycase.training.recipe import Loss, Recipe, nested_range

if TYPE_CHECKING:
    from raycase.heads.condition_head import HeadConfig
    from raycase.heads.projector import ProjectorConfig
    from raycase.models.configs import SystemConfig
    from raycase.training.procedure import Trainer, Training

EXAMPLE = "raycase train SYSTEM --train train.csv --validation validation.csv --output runs/SYSTEM"
MOST_NUMBER = 2**40  # of a distance: its products fit into float32
OUTPUT_DIM, HIDDEN, DROPOUT = 512, 1024, 0.15  # of a projector, by default
LEAST_DIM = 512  # of the vectors of condition pooling, by default


@dataclass(frozen=True, kw_only=True)
class ProjectorFlags(PromptFlags, TrainFlags):
    """Fit a projector on a frozen encoder (CASE, section 3.2) and save a model folder.

    The defaults are the paper's, but vectors are no longer than their input.
    """

    dim: Advanced[int | None] = None
    """Output dimension of the projector. Default: 512, or its input dimension if that is smaller."""
    layers: Advanced[Literal[0, 1, 2]] = 1
    """0: linear; 1: linear and activation; 2: a hidden layer of 1,024 before them."""
    activation: Advanced[Activation] = "leaky_relu"
    """The non-linearity."""
    dropout: Advanced[float | None] = None
    """Dropout rate. Default: 0.15, and none for --layers 0."""
    dropout_at: Advanced[DropoutAt] = "output"
    """Dropout on the output of the projector, its input or both; between two layers in any case."""
    bias: Advanced[bool] = False
    """Linear layers with a bias; the paper has none."""
    nested: Advanced[tuple[int, ...]] = ()
    """Also train the first N dimensions, for each N given, so that vectors can be cut to them."""
    loss: Advanced[Loss] = Loss.SQUARED
    """squared: mean squared error (the paper's); pearson: one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    batch_size: int = 512
    epochs: int = 60
    """Maximum number of epochs."""

    SYSTEM = "case"
    RECIPE = Recipe(patience=10, frozen=True)
    SETTINGS = (
        *TrainFlags.SETTINGS, "dim", "layers", "activation", "dropout_at", "bias", "nested", "loss",
    )  # fmt: skip
    SHARED_BY = ("prompt", "pooling", "subtract", "model", "compute")
    NOT_SWEPT = ("nested",)

    @property
    def ranges(self) -> Ranges:
        from raycase.heads.projector import MOST_WIDTH

        return super().ranges | {
            **at_least(1, self, "dim", most=MOST_WIDTH),
            "nested": nested_range(self.nested, self.dim or OUTPUT_DIM),
        }

    def check(self) -> None:
        super().check()
        _ = self.text_choices  # reads the prompt

    def config(self) -> SystemConfig:
        from raycase.training.projector import starting_system

        return starting_system(self.model, self.text_choices, self.prompt, subtract=self.subtract)

    def shape(self, input_dim: int) -> ProjectorConfig:
        """That of g for vectors of `input_dim`."""
        from raycase.heads.projector import ProjectorConfig

        dim = self.dim or min(OUTPUT_DIM, input_dim)
        check_ranges(self, {"nested": nested_range(self.nested, dim)})
        return ProjectorConfig(
            input_dim=input_dim,
            output_dim=dim,
            layers=self.layers,
            hidden=HIDDEN,
            activation=self.activation,
            dropout=DROPOUT * (self.layers > 0) if self.dropout is None else self.dropout,
            dropout_at=self.dropout_at,
            bias=self.bias,
            nested=tuple(sorted(set(self.nested))),
        )

    def training(self) -> Training:
        from raycase.training.projector import ProjectorTraining

        return ProjectorTraining(**self.common, shape=self.shape, loss=self.loss)


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingFlags(TrainFlags):
    """Condition pooling: fit the head that lets a condition weigh a sentence's words, on a frozen encoder."""

    train: str = ""
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5). Needed unless
    there is --labelled."""
    validation: str = ""
    """Validation pairs, which select the best epoch; never trained on. Default: drawn from a fifth of the labelled
    texts, which are then not trained on."""
    labelled: tuple[str, ...] = ()
    """Labelled texts: .csv, .jsonl or .parquet with a column `text` and one for each condition."""
    labels: tuple[str, ...] = ()
    """JSON files, each named after its table in --labelled: wordings, groups and answers (docs/training.md)."""
    layers: Advanced[tuple[float, ...]] = (2 / 3, 1.0)
    """Layers that the head reads, as fractions of the encoder's depth: 0 input of the first, 1 output of the last."""
    heads: Advanced[int] = 8
    """Number of attention distributions that are mixed."""
    head_dim: Advanced[int] = 64
    """Dimension of the queries and keys of each."""
    hidden: Advanced[int] = 512
    """Width of the networks that add to the conditions' queries and gate; 0: none."""
    dim: Advanced[int | None] = None
    """Dimension of the vectors. Default: 512, or that of the encoder's states if larger."""
    activation: Advanced[Activation | None] = None
    """Non-linearity of the tokens' values. Default: none; they then start as the states of the last layer."""
    dropout: Advanced[float] = 0.3
    """Dropout on the states of tokens and conditions."""
    gate: Hidden[bool] = True
    """Whether the condition gates the dimensions of the vector."""
    nested: Advanced[tuple[int, ...]] = ()
    """Also train the first N dimensions, for each N given, so that vectors can be cut to them."""
    loss: Advanced[Loss] = Loss.SQUARED
    """squared is the mean squared error; pearson one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    batch_size: int = 256
    epochs: int = 5
    """Number of epochs, over which the learning rate falls to 0."""
    unconditional_share: Advanced[float] = 0.5
    """Share of the unconditional vector in the vectors of sentences unlike the training data; 0: none."""
    unconditional_rise: Advanced[tuple[float, float, float, float]] = (1.4, 2.0, 3.2, 4.0)
    """Four distances of a sentence from the training data, in units of a typical sentence's. The share starts at the
    first, is full at the second, rises again from the third, and is all from the fourth."""

    pooling: Advanced[Pooling | None] = None
    """Pooling of the vectors without a condition. Default: the encoder's."""

    SYSTEM = "condition-pooling"
    RECIPE = Recipe(patience=5, weight_decay=0.01, warmup=0.1, frozen=True)
    SETTINGS = (
        *TrainFlags.SETTINGS, "layers", "heads", "head_dim", "hidden", "dim", "activation", "gate", "nested", "loss",
        "unconditional_share", "unconditional_rise",
    )  # fmt: skip
    SHARED_BY = ("layers", "model", "compute")
    NOT_SWEPT = ("nested", "unconditional_share", "unconditional_rise", "pooling")

    @property
    def ranges(self) -> Ranges:
        from raycase.heads.projector import MOST_WIDTH

        a, b, c, d = self.unconditional_rise
        return super().ranges | {
            **at_least(1, self, "heads", "dim", most=MOST_WIDTH),
            **at_least(1, self, "head_dim", most=MOST_WIDTH // max(1, self.heads)),
            **at_least(0, self, "hidden", most=MOST_WIDTH),
            "nested": nested_range(self.nested, self.dim or LEAST_DIM),
            "unconditional_share": (0 <= self.unconditional_share < 1, "a share in [0, 1)"),
            "unconditional_rise": (0 <= a < b <= MOST_NUMBER and 0 <= c < d <= MOST_NUMBER, "two pairs that rise"),
        }

    @property
    def reads(self) -> dict[str, Any]:
        rated = {"--train": self.train or None, "--validation": self.validation or None}
        return super().reads | rated | {"--labelled": self.labelled, "--labels": self.labels}

    def check(self) -> None:
        super().check()
        if not (self.train or self.labelled) or (self.train and not self.validation):
            raise RequestError("expected --train and --validation, or --labelled, or all three")

    def config(self) -> SystemConfig:
        from raycase.models.condition_pooling import ConditionPoolingConfig

        return ConditionPoolingConfig.untrained(self.model, self.pooling, self.layers)

    def shape(self, states_dim: int) -> HeadConfig:
        """That of the head for states of this dimension."""
        from raycase.heads.condition_head import HeadConfig

        return HeadConfig(
            states_dim=states_dim,
            heads=self.heads,
            head_dim=self.head_dim,
            hidden=self.hidden or None,
            output_dim=self.dim or max(LEAST_DIM, states_dim // len(self.layers)),
            activation=self.activation,
            dropout=self.dropout,
            gate=self.gate,
            nested=tuple(sorted(set(self.nested))),
        )

    def training(self) -> Training:
        from raycase.training.condition_head import HeadTraining

        names = "labelled labels loss unconditional_share unconditional_rise"
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names.split()}
        return HeadTraining(**self.common, **chosen, shape=self.shape, layers=len(self.layers))


def __getattr__(name: str) -> dict[str, type[TrainFlags]]:
    """`TRAIN_FLAGS`, the flags of each system: our own, and those that the papers' table names when it is asked."""
    if name != "TRAIN_FLAGS":
        raise AttributeError(name)
    found: dict[str, type[TrainFlags]] = {flags.SYSTEM: flags for flags in (ProjectorFlags, ConditionPoolingFlags)}
    for paper, (_, systems, _) in import_module("raycase.papers").PAPERS.items():
        found |= import_module(f"raycase.papers.{paper}.train").FLAGS if systems else {}
    return found


def check_request(flags: TrainFlags, reads: Mapping[str, str | None], written: Sequence[str]) -> None:
    """Check the flags before anything is read. reads: what is read besides; written: names in the output folder."""
    from raycase.encoder.model_files import model_folder
    from raycase.io.places import Folder, check_paths
    from raycase.training.tracking import check_track

    opens = {flag: [f for model in models if (f := model_folder(model))] for flag, models in flags.opens.items()}
    writes = {"--output": Folder(flags.output, tuple(written), here=True), "--cache": Folder(flags.cache_uri)}
    check_paths(reads={**flags.reads, **reads}, opens=opens, writes=writes)
    ranges = at_least(0, flags, "seed", most=MOST_SEED) | at_least(1, flags, "workers")
    check_ranges(flags, ranges | at_least(0, flags, "gpus_per_worker"))
    check_track(flags.track)
    flags.check()


def open_trainer(flags: TrainFlags) -> Trainer:
    """What the fits run by, by the rule of `raycase.commands.place`."""
    from raycase.commands.place import why_ray
    from raycase.training.procedure import local_trainer

    if not why_ray(flags.ray, f"--workers {flags.workers}" if flags.workers > 1 else ""):
        return local_trainer(flags.gpus_per_worker)
    from raycase.ray.train import ray_trainer

    return ray_trainer(flags.workers, flags.gpus_per_worker, flags.cache_location)


def train_model(flags: TrainFlags, open_trainer: Callable[[TrainFlags], Trainer] = open_trainer) -> dict[str, Any]:
    """Read, fit, save a model folder; returns the contents of `metrics.json`. Raises RequestError and WorkError.

    open_trainer: called after all checks, for it may start a cluster.
    """
    from raycase.io.provenance import provenance
    from raycase.io.storage import fingerprint
    from raycase.models.model_folder import WRITTEN, open_model_folder
    from raycase.training.procedure import data_metrics
    from raycase.training.tracking import Tracker

    began = time.time()
    check_request(flags, {}, WRITTEN)
    training = flags.training()
    parts = training.read()
    identity = training.identity(parts)
    name = fingerprint(identity)
    if done := open_model_folder(flags.folder, name, overwrite=flags.overwrite):
        note(f"{flags.folder}: already trained; nothing to do")
        return done
    trainer = open_trainer(flags)
    training = training.on(gpu=trainer.on_gpu)
    data = training.data(training.share(parts, trainer.vectors))
    embedded = time.time()
    checkpoints = flags.cache_location / "fits" / fingerprint([name, str(flags.folder)])[:16]
    if flags.overwrite:
        checkpoints.remove()
    facts = {"system": flags.SYSTEM, "model": flags.model, **training.settings}
    fit = partial(trainer.fit, checkpoints=checkpoints, tracker=Tracker(flags.track, flags.folder, facts))
    fitted = training.fit_all(fit, parts, data, trainer.vectors)
    record = {
        "fingerprint": name,
        "unseeded": fingerprint(identity | {"seed": None}),  # equal for the seeds of one system
        "seed": flags.seed,
        "workers": flags.workers,
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "on_gpu": trainer.on_gpu,
        "recipe": training.settings,
        "data": data_metrics(parts),
        "provenance": provenance(),
    }
    metrics = training.save(flags.folder, data, fitted, record)
    checkpoints.remove()
    return metrics


def train(flags: TrainFlags) -> dict[str, Any]:
    """Train a head or a projector on a frozen encoder, or fine-tune an encoder."""
    metrics = train_model(flags)
    chosen = f"best epoch {metrics['best_epoch']}; " if "best_epoch" in metrics else ""
    print(f"{chosen}the model is in {visible(flags.folder)}")
    names = ("validation", "zero_shot", "best_epoch", "epochs", "seconds", "embed_seconds", "fingerprint")
    return {name: metrics[name] for name in names if name in metrics} | {"output": str(flags.folder)}
