"""What can be trained."""

from __future__ import annotations

from raycase.training.encoder_job import FineTuneJob
from raycase.training.inference_jobs import DualCseJob, SimCseJob
from raycase.training.projector_job import TrainJob
from raycase.training.rated_jobs import BiEncoderJob, CrossEncoderJob, CsrJob, LoraJob, TriEncoderJob
from raycase.training.scored_jobs import MixSpJob, SentenceEncoderJob

TRAIN_JOBS: dict[str, type[TrainJob | FineTuneJob]] = {
    "case": TrainJob,
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
