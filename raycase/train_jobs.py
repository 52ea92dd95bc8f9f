"""What can be trained."""

from __future__ import annotations

from raycase.finetuning import FineTuneJob
from raycase.inference_jobs import DualCseJob, SimCseJob
from raycase.rated_jobs import BiEncoderJob, CrossEncoderJob, CsrJob, LoraJob, TriEncoderJob
from raycase.scored_jobs import MixSpJob, SentenceEncoderJob
from raycase.training import TrainJob

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
