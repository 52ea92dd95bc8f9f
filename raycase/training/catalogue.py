"""The training jobs by the name of their system: our own, and those of the papers."""

from __future__ import annotations

from raycase.models.registry import of_paper, of_papers
from raycase.training.condition_head_job import ConditionPoolingFlags
from raycase.training.job import TrainFlags
from raycase.training.projector_job import ProjectorFlags

TRAIN_FLAGS: dict[str, type[TrainFlags]] = {job.SYSTEM: job for job in (ProjectorFlags, ConditionPoolingFlags)}
TRAIN_FLAGS |= {name: of_paper("jobs", name) for name in of_papers("jobs")}
