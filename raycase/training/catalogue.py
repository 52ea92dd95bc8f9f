"""The training jobs by the name of their system: our own, and those of the papers."""

from __future__ import annotations

from raycase.models.registry import of_paper, of_papers
from raycase.training.condition_head_job import ConditionPoolingJob
from raycase.training.job import TrainingJob
from raycase.training.projector_job import ProjectorJob

TRAIN_JOBS: dict[str, type[TrainingJob]] = {job.SYSTEM: job for job in (ProjectorJob, ConditionPoolingJob)}
TRAIN_JOBS |= {name: of_paper("jobs", name) for name in of_papers("jobs")}
