"""The job of a projection without labels: embed sentences under conditions, fit g, save a model folder."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from raycase.corpus.ray_flag import RayFlag
from raycase.data.conditions import conditions_file, read_conditions
from raycase.data.provenance import provenance
from raycase.data.rated import SENTENCE1, SENTENCE2, read_rated, read_unrated, texts_sha256
from raycase.data.storage import fingerprint
from raycase.errors import RequestError, note
from raycase.systems.case import write_model_folder
from raycase.systems.model_card import projection_card
from raycase.systems.model_folder import open_model_folder
from raycase.systems.pair_vectors import pair_vectors
from raycase.training.projection_fit import Projection, fit_projection
from raycase.training.projector_fit import evaluation
from raycase.training.projector_job import Frozen, data_metrics
from raycase.training.runner import OpenRunner


@dataclass(frozen=True, kw_only=True)
class ProjectionJob(Frozen, Projection, RayFlag):
    """Project the vectors of a frozen encoder without labels, by PCA, whitening, at random or by truncation.

    The model folder is one of CASE with a linear projector. A run that was stopped resumes automatically when the same
    command is run again.
    """

    train: str
    """Sentences under conditions: .csv, .jsonl or .parquet with sentence1, sentence2, condition. No label is read."""
    text_columns: tuple[str, ...] = (SENTENCE1, SENTENCE2)
    """Columns of --train that hold sentences."""
    conditions: tuple[str, ...] = ()
    """Conditions under each of which every sentence of --train is embedded, or one file of them, as in `raycase embed`.
    Default: the column `condition`."""
    validation: str | None = None
    """Rated pairs on which the vectors are measured. Nothing is fitted to them or chosen by them."""

    @property
    def sources(self) -> dict[str, str | None]:
        """Files, folders and globs of data, by flag."""
        conditions = conditions_file(self.conditions)
        return {"--train": self.train, "--validation": self.validation, "--conditions": conditions}

    def check_source(self) -> None:
        """Check the flags before anything is read. Raises RequestError."""
        super().check_source()
        if not self.text_columns:
            raise RequestError("--text-columns: expected at least one column, got none")

    def read(self) -> list[tuple[str, str]]:
        """The distinct (sentence, condition) of --train. Raises RequestError."""
        conditions = read_conditions(self.conditions) if self.conditions else None
        return read_unrated(self.train, "--train", self.text_columns, conditions)


def train_projection(job: ProjectionJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Embed, fit, save; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    began = time.time()
    job.check()
    config = job.config()
    texts = job.read()
    validation = None if job.validation is None else read_rated(job.validation, "--validation")
    shape = job.shape(config.views_dim, len(texts))
    train = {"file": Path(job.train).name, "rows": len(texts), "sha256": texts_sha256(texts)}
    made = {"method": job.method, "dim": shape.output_dim, "nested": shape.nested}
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "data": {"train": train["sha256"], "validation": validation and validation.data_sha256},
        "projection": made,
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        note(f"{job.folder}: fitted before; nothing to do")
        return done
    runner = open_runner(workers=1, gpus_per_worker=None, cache=job.cache_location)
    cached: dict[str, Any] = {"cache": job.cache_location, "compute": job.compute}
    vectors_PD = runner.vectors_of(texts, config, name=job.train, **cached)
    embedded = time.time()
    g, variance = fit_projection(vectors_PD, job, seed=job.seed)
    unseeded = fingerprint(identity | {"seed": None})  # equal for the seeds of one system
    metrics: dict[str, Any] = {
        "fingerprint": name,
        "unseeded": unseeded,
        "projection": made,
        "variance": variance,
        "data": {"train": train},
    }
    if validation is not None:
        pairs = pair_vectors(validation, config, runner.vectors_of, **cached)
        metrics["validation"] = evaluation(pairs, shape.nested)(g)
        metrics["zero_shot"] = evaluation(pairs)(torch.nn.Identity())
        metrics["data"] |= data_metrics({"validation": validation})
    metrics |= {
        "seed": job.seed,
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
        "provenance": provenance(),
    }
    write_model_folder(job.folder, replace(config, projector=shape), g, metrics, projection_card)
    return metrics
