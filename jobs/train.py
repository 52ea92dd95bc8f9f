"""Train a model on rated pairs: python jobs/train.py case --train ... --validation ... --output runs/case"""

from typing import Any

from raycase.cli import main
from raycase.distributed.train import train
from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.encoder_job import FineTuneJob
from raycase.training.projector_job import TrainJob


def work(job: TrainJob | FineTuneJob) -> dict[str, Any]:
    """Train; the figures of the chosen epoch and where the model is."""
    metrics = train(job)
    print(f"best epoch {metrics['best_epoch']}; the model is in {job.folder}")
    kept = ("validation", "zero_shot", "best_epoch", "epochs", "seconds", "embed_seconds", "fingerprint")
    return {name: metrics[name] for name in kept if name in metrics} | {"output": str(job.folder)}


if __name__ == "__main__":
    main(TRAIN_JOBS, work)
