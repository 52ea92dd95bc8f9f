"""The training jobs by the name of their system."""

from __future__ import annotations

from raycase.training.condition_head_job import ConditionPoolingJob
from raycase.training.inferences import DualCseJob, SimCseJob
from raycase.training.job import TrainingJob
from raycase.training.projector import ProjectorJob
from raycase.training.rated_jobs import BiEncoderJob, CrossEncoderJob, CsrJob, LoraJob, TriEncoderJob
from raycase.training.scored_jobs import MixSpJob, SentenceEncoderJob

TRAIN_JOBS: dict[str, type[TrainingJob]] = {
    job.SYSTEM: job
    for job in (
        ProjectorJob,
        ConditionPoolingJob,
        BiEncoderJob,
        TriEncoderJob,
        CrossEncoderJob,
        CsrJob,
        LoraJob,
        DualCseJob,
        SimCseJob,
        SentenceEncoderJob,
        MixSpJob,
    )
}
