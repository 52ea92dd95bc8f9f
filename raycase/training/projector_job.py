"""A training job: embed the rated pairs once, fit g, save a model folder."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raycase.data.fetch import MODEL_FILE
from raycase.data.provenance import provenance
from raycase.data.rated import NOT_APPLICABLE, RatedPairs, read_rated, rows_in
from raycase.data.storage import Location, check_paths, fingerprint, locate
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.systems.bi_encoder import BiEncoderConfig
from raycase.systems.case import CaseConfig, write_model_folder
from raycase.systems.case import resolve as resolve_case
from raycase.systems.contracts import Compute
from raycase.systems.lora import LoraConfig
from raycase.systems.model_folder import open_model_folder
from raycase.systems.pair_vectors import PairVectors, pair_vectors
from raycase.systems.registry import resolve
from raycase.training.loop import FitState
from raycase.training.projector_fit import Recipe, best_projector, evaluation, fit_projector
from raycase.training.runner import OpenRunner


@dataclass(frozen=True, kw_only=True)
class Source:
    """The rated pairs, the encoder and the result: what training and tuning have in common."""

    train: str
    """Rated pairs to learn from: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5)."""
    validation: str
    """Rated pairs to choose the epoch by; never trained on. Label -1: the condition does not apply."""
    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id or local folder."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    output: str
    """Folder of the result, on this machine."""
    cache: str | None = None
    """Folder or URI for embedded pairs and the states of stopped runs. Default: `cache`
    beside the output."""
    overwrite: bool = False
    """Replace another result in the folder."""
    seed: int = 0
    """Of initial weights, order and dropout; a sweep counts its seeds from here."""

    @property
    def folder(self) -> Path:
        return Path(self.output).expanduser().absolute()

    @property
    def cache_location(self) -> Location:
        return locate(self.cache or str(self.folder.parent / "cache"))

    def check_source(self) -> None:
        """Raise RequestError for what is wrong before anything is read."""
        check_paths({f"--{n}": getattr(self, n) for n in ("train", "validation", "output", "cache")})
        if self.seed < 0:
            raise RequestError(f"--seed: expected 0 or more, got {self.seed}")
        if "://" in self.output:
            raise RequestError(f"--output: expected a folder on this machine, got {self.output}; copy the result there")

    def read(self) -> tuple[RatedPairs, RatedPairs]:
        """Training and validation pairs. Raises RequestError."""
        train, validation = read_rated(self.train, "--train"), read_rated(self.validation, "--validation")
        odd = sorted({float(r) for r in train.ratings if r != NOT_APPLICABLE and not 1 <= r <= 5})
        if odd:
            raise RequestError(f"--train: expected labels from 1 to 5 (or -1: does not apply), got {odd[0]:g}")
        for flag, rated in (("--train", train), ("--validation", validation)):
            if len({float(r) for r in rated.ratings if r != NOT_APPLICABLE}) < 2:
                raise RequestError(
                    f"{flag}: expected at least two distinct labels besides -1 in {rated.uri}, got fewer"
                )
        both = rows_in(validation, train)
        if len(both):
            raise RequestError(
                f"--validation: expected no pair that is trained on, got {len(both)} of {len(validation)} in "
                f"{self.train}, the first in row {both[0]}"
            )
        return train, validation


@dataclass(frozen=True, kw_only=True)
class Frozen(Source):
    """Prompt, subtraction and pooling of a frozen encoder."""

    prompt: str | None = None
    """How sentence and condition become one text, or several ways side by side, a+b. Default: the encoder's."""
    subtract: bool | None = None
    """Whether the base, the condition's own vector, is subtracted (eq. 1). Default: the encoder's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""

    def config(self) -> CaseConfig:
        """The zero-shot system that g is fitted on; of a fine-tuned bi-encoder, its encoder. Raises RequestError."""
        self.check_source()
        if not is_tuned(self.model):
            return resolve_case(self.model, prompt=self.prompt, pooling=self.pooling, subtract=self.subtract)
        config = resolve(self.model, prompt=self.prompt, pooling=self.pooling)
        if not isinstance(config, (BiEncoderConfig, LoraConfig)):
            raise RequestError(
                f"--model: expected an encoder without projector, or a fine-tuned bi-encoder, got the trained model "
                f"{self.model}"
            )
        return CaseConfig(model=self.model, encoder=config.encoder, subtract=bool(self.subtract))


def is_tuned(model: str) -> bool:
    """Whether it is a folder that training left."""
    return (Path(model) / MODEL_FILE).is_file()


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where training runs."""

    workers: int = 1
    """Data-parallel processes; the batch is shared out among them."""
    gpus_per_worker: float | None = None
    """Default: 1 if the cluster has GPUs, else 0."""

    def check_workers(self) -> None:
        """Raise RequestError for none."""
        if self.workers < 1:
            raise RequestError(f"--workers: expected at least 1, got {self.workers}")


@dataclass(frozen=True, kw_only=True)
class TrainJob(Frozen, Recipe, Workers):
    """Fit a projector on a frozen encoder (CASE, section 3.2), by eq. 2, and save a model folder.

    A stopped run resumes when the same command is run again.
    """


def train_projector(job: TrainJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Embed, fit, save; returns what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    job.recipe.check()
    job.check_workers()
    config = job.config()
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "data": {part: rated.data_sha256 for part, rated in pairs.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    runner = open_runner(workers=job.workers, gpus_per_worker=job.gpus_per_worker, cache=job.cache_location)
    vectors = {
        part: pair_vectors(rated, config, runner.vectors_of, cache=job.cache_location, compute=job.compute)
        for part, rated in pairs.items()
    }
    embedded = time.time()
    checkpoints = open_checkpoints(job, name)
    state = runner.fit(
        fit_projector, vectors["train"], vectors["validation"], job.recipe, seed=job.seed, checkpoints=checkpoints
    )
    shape = job.recipe.projector(vectors["train"].dim)
    seconds = {"seconds": round(time.time() - began, 1), "embed_seconds": round(embedded - began, 1)}
    metrics = {"fingerprint": name} | model_metrics(state, vectors["validation"], pairs) | seconds
    metrics |= {"recipe": asdict(job.recipe) | {"dim": shape.output_dim}, "seed": job.seed, "workers": job.workers}
    write_model_folder(job.folder, replace(config, projector=shape), best_projector(state, shape), metrics)
    checkpoints.remove()
    return metrics


def open_checkpoints(job: Source, name: str) -> Location:
    """Where the fit of that fingerprint into that folder keeps where it stands; emptied by --overwrite."""
    checkpoints = job.cache_location / "fits" / fingerprint([name, str(job.folder)])[:16]
    if job.overwrite:
        checkpoints.remove()
    return checkpoints


def model_metrics(state: FitState, validation: PairVectors, pairs: dict[str, RatedPairs]) -> dict[str, Any]:
    """The figures of a fit, with and without g, and what it was made from."""
    zero_shot = evaluation(validation)(torch.nn.Identity())
    return fit_metrics(state) | {"zero_shot": zero_shot, "data": data_metrics(pairs), "provenance": provenance()}


def fit_metrics(state: FitState) -> dict[str, Any]:
    """The figures of the best epoch, and those of each."""
    best = state.history[state.best_epoch - 1]
    return {
        "validation": {name: value for name, value in best.items() if name not in ("epoch", "loss", "seconds", "mib")},
        "best_epoch": state.best_epoch,
        "epochs": len(state.history),
        "history": state.history,
    }


def data_metrics(pairs: dict[str, RatedPairs]) -> dict[str, Any]:
    """File, rows and hash of each part of the data."""
    return {
        part: {
            "file": Path(rated.uri).name,
            "rows": len(rated),
            "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
            "sha256": rated.data_sha256,
        }
        for part, rated in pairs.items()
    }
