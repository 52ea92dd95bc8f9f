"""The training jobs and the sweeps by name, and one function that runs any training job."""

from __future__ import annotations

from typing import Any

from raycase.training.condition_head_job import ConditionPoolingJob, train_condition_head
from raycase.training.encoder_job import FineTuneJob, fine_tune
from raycase.training.inference_jobs import DualCseJob, SimCseJob
from raycase.training.projection_job import ProjectionJob, train_projection
from raycase.training.projector_job import TrainJob, train_projector
from raycase.training.rated_jobs import BiEncoderJob, CrossEncoderJob, CsrJob, LoraJob, TriEncoderJob
from raycase.training.runner import OpenRunner
from raycase.training.scored_jobs import MixSpJob, SentenceEncoderJob
from raycase.training.sweep_condition_head import TuneHeadJob
from raycase.training.sweep_job import SweepJob
from raycase.training.sweep_projector import TuneJob

TrainingJob = TrainJob | ProjectionJob | ConditionPoolingJob | FineTuneJob
TRAIN_JOBS: dict[str, type[TrainingJob]] = {
    "case": TrainJob,
    "condition-pooling": ConditionPoolingJob,
    "projection": ProjectionJob,
    "bi-encoder": BiEncoderJob,
    "tri-encoder": TriEncoderJob,
    "cross-encoder": CrossEncoderJob,
    "csr": CsrJob,
    "lora": LoraJob,
    "dualcse": DualCseJob,
    "simcse": SimCseJob,
    "sentence-encoder": SentenceEncoderJob,
    "mixsp": MixSpJob,
}
TUNE_JOBS: dict[str, type[SweepJob]] = {"case": TuneJob, "condition-pooling": TuneHeadJob}


def train(job: TrainingJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Train and save a model folder; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    if isinstance(job, ConditionPoolingJob):
        return train_condition_head(job, open_runner)
    if isinstance(job, ProjectionJob):
        return train_projection(job, open_runner)
    return fine_tune(job, open_runner) if isinstance(job, FineTuneJob) else train_projector(job, open_runner)
