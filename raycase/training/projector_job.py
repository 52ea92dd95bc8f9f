"""The training job of CASE: embed the rated pairs once, fit g, save a model folder."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raycase.corpus.ray_flag import RayFlag
from raycase.data.fetch import is_trained, model_folder
from raycase.data.places import Folder, check_paths
from raycase.data.provenance import provenance
from raycase.data.rated import NOT_APPLICABLE, RatedPairs, read_rated, rows_in
from raycase.data.storage import Location, fingerprint, locate
from raycase.encoder.prompt_flags import PromptFlags
from raycase.errors import MOST_SEED, RequestError, at_least, check_ranges, note
from raycase.systems.bi_encoder import BiEncoderConfig
from raycase.systems.case import CaseConfig, write_model_folder
from raycase.systems.case import resolve as resolve_case
from raycase.systems.contracts import Compute
from raycase.systems.lora import LoraConfig
from raycase.systems.model_folder import WRITTEN, open_model_folder
from raycase.systems.pair_vectors import PairVectors, pair_vectors
from raycase.systems.projector import settings_of
from raycase.systems.registry import resolve
from raycase.training.loop import FitState
from raycase.training.projector_fit import Recipe, best_projector, evaluation, fit_projector
from raycase.training.runner import OpenRunner


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Flags of everything that leaves a model folder: encoder and result."""

    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id or local folder."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it, else float32."""
    output: str
    """Output folder, on this machine."""
    cache: str | None = None
    """Folder or URI of the vectors of embedded pairs and of the checkpoints of stopped runs. Default: `cache` beside
    the output."""
    overwrite: bool = False
    """Replace an earlier result in the folder."""
    seed: int = 0
    """Seed of random weights, order and dropout; the first seed of a sweep."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Files, folders and globs of data, by flag."""
        return {}

    @property
    def written(self) -> tuple[str, ...]:
        """The names of what is written into the output folder."""
        return WRITTEN

    @property
    def folder(self) -> Path:
        return Path(self.output).expanduser().absolute()

    @property
    def cache_uri(self) -> str:
        return str(self.folder.parent / "cache") if self.cache is None else self.cache

    @property
    def cache_location(self) -> Location:
        return locate(self.cache_uri)

    def check_source(self) -> None:
        """Check the flags before anything is read. Raises RequestError."""
        check_paths(
            reads=self.sources,
            opens={"--model": model_folder(self.model)},
            writes={
                "--output": Folder(self.output, self.written, left_out=True, here=True),
                "--cache": Folder(self.cache_uri),
            },
        )
        check_ranges(self, at_least(0, self, "seed", most=MOST_SEED))


@dataclass(frozen=True, kw_only=True)
class Source(Saved):
    """Flags of all training jobs and sweeps on rated pairs: data, encoder and result."""

    train: str
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5)."""
    validation: str
    """Validation pairs, which select the best epoch; never trained on. Label -1: the condition does not apply."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Files, folders and globs of data, by flag."""
        return {"--train": self.train, "--validation": self.validation}

    def read(self) -> tuple[RatedPairs, RatedPairs]:
        """Read and check training and validation pairs. Raises RequestError."""
        train, validation = read_rated(self.train, "--train"), read_rated(self.validation, "--validation")
        invalid = sorted({float(r) for r in train.ratings if r != NOT_APPLICABLE and not 1 <= r <= 5})
        if invalid:
            raise RequestError(f"--train: expected labels from 1 to 5 (or -1: does not apply), got {invalid[0]:g}")
        for flag, rated in (("--train", train), ("--validation", validation)):
            if len({float(r) for r in rated.ratings if r != NOT_APPLICABLE}) < 2:
                raise RequestError(
                    f"{flag}: expected at least two distinct labels besides -1 in {rated.uri}, got fewer"
                )
        shared = rows_in(validation, train)
        if len(shared):
            raise RequestError(
                f"--validation: expected no pair that is trained on, got {len(shared)} of {len(validation)} in "
                f"{self.train}, the first in row {shared[0]}"
            )
        return train, validation


@dataclass(frozen=True, kw_only=True)
class Frozen(PromptFlags, Saved):
    """How a frozen encoder embeds a sentence under a condition."""

    def config(self) -> CaseConfig:
        """The system without g: zero-shot CASE, or the encoder of a fine-tuned bi-encoder. Raises RequestError."""
        self.check_source()
        if not is_trained(self.model):
            return resolve_case(
                self.model, prompt=self.prompt, pooling=self.pooling, own=self.own, subtract=self.subtract
            )
        system = resolve(self.model, **self.prompt_choices | {"subtract": None})
        if not isinstance(system, (BiEncoderConfig, LoraConfig)):
            raise RequestError(
                f"--model: expected an encoder without projector, or a fine-tuned bi-encoder, got the trained model "
                f"{self.model}"
            )
        return CaseConfig(model=self.model, encoder=system.encoder, subtract=bool(self.subtract))


@dataclass(frozen=True, kw_only=True)
class Workers(RayFlag):
    """Flags of the processes that train."""

    workers: int = 1
    """Number of data-parallel processes, among which each batch is divided."""
    gpus_per_worker: float | None = None
    """GPUs per process. Default: 1 if the cluster has GPUs, else 0."""

    def check_workers(self) -> None:
        """Raise RequestError for less than one worker, or less than no GPUs for each."""
        gpus = self.gpus_per_worker
        check_ranges(self, at_least(1, self, "workers") | {"gpus_per_worker": (gpus is None or gpus >= 0, "0 or more")})


@dataclass(frozen=True, kw_only=True)
class TrainJob(Frozen, Source, Recipe, Workers):
    """Fit a projector on a frozen encoder by eq. 2 (CASE, section 3.2) and save a model folder.

    A run that was stopped resumes automatically when the same command is run again.
    """


def train_projector(job: TrainJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Embed, fit, save; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    began = time.time()
    job.recipe.check()
    job.check_workers()
    config = job.config()
    job.recipe.projector(config.views_dim)  # refuses nested dimensions above its own
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "data": {part: rated.data_sha256 for part, rated in pairs.items()},
        "recipe": settings_of(job.recipe) | {"dropout": job.recipe.dropout_share},
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        note(f"{job.folder}: trained before; nothing to do")
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
    facts = {
        "fingerprint": name,
        "unseeded": fingerprint(identity | {"seed": None}),  # equal for the seeds of one system
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "seed": job.seed,
        "workers": job.workers,
    }
    metrics = save_fit(job.folder, config, job.recipe, state, vectors["validation"], pairs, facts)
    checkpoints.remove()
    return metrics


def open_checkpoints(job: Source, name: str) -> Location:
    """The checkpoint folder of the job with this fingerprint and output; emptied by --overwrite."""
    checkpoints = job.cache_location / "fits" / fingerprint([name, str(job.folder)])[:16]
    if job.overwrite:
        checkpoints.remove()
    return checkpoints


def save_fit(
    folder: Path,
    config: CaseConfig,
    recipe: Recipe,
    state: FitState,
    validation: PairVectors,
    pairs: dict[str, RatedPairs],
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write the model folder of a fit; returns the contents of `metrics.json`, `facts` among them."""
    shape = recipe.projector(validation.dim)
    metrics = {
        **facts,
        **fit_metrics(state),
        "zero_shot": evaluation(validation)(torch.nn.Identity()),
        "data": data_metrics(pairs),
        "recipe": settings_of(recipe) | {"dim": shape.output_dim, "dropout": shape.dropout},
        "provenance": provenance(),
    }
    write_model_folder(folder, replace(config, projector=shape), best_projector(state, shape), metrics)
    return metrics


def fit_metrics(state: FitState) -> dict[str, Any]:
    """Metrics of the best epoch, and of every epoch."""
    best = state.history[state.best_epoch - 1]
    return {
        "validation": {name: value for name, value in best.items() if name not in ("epoch", "loss", "seconds", "mib")},
        "best_epoch": state.best_epoch,
        "epochs": len(state.history),
        "history": state.history,
    }


def data_metrics(pairs: dict[str, RatedPairs]) -> dict[str, Any]:
    """File, rows and hash of each part of the data, for `metrics.json`."""
    return {
        part: {
            "file": Path(rated.uri).name,
            "rows": len(rated),
            "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
            "sha256": rated.data_sha256,
        }
        for part, rated in pairs.items()
    }
