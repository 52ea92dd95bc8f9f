"""Evaluate models: python jobs/evaluate.py --model runs/case --data ... --output runs/case/report"""

from pathlib import Path
from typing import Any

from raycase.cli import main
from raycase.distributed.evaluate import evaluate
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.scores import CORRELATIONS


def work(job: EvaluateJob) -> dict[str, Any]:
    """Evaluate; each system's figures, the differences, and where the report is."""
    metrics = evaluate(job)
    report = Path(job.output).expanduser().absolute() / "report.md"
    print(f"the report is {report}")
    if job.task != "csts":
        return {"systems": {s["name"]: s["figures"] for s in metrics["systems"]}, "output": str(report.parent)}
    models = {m["name"]: {name: m["variants"][m["system"]][name] for name in CORRELATIONS} for m in metrics["models"]}
    return {"models": models, "comparison": metrics["comparison"], "output": str(report.parent)}


if __name__ == "__main__":
    main(EvaluateJob, work)
