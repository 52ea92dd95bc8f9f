"""The request of an evaluation: its task, the models that it compares, and the folder of its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raycase.commands.flags import Advanced, PromptFlags, RayFlag
from raycase.encoder.prompts import prompt_file
from raycase.errors import MOST_SEED, RequestError, at_least, check_ranges
from raycase.io.model_files import MODEL_FILE, model_folder
from raycase.io.places import Folder, check_paths
from raycase.models.model_folder import METRICS
from raycase.models.registry import of_papers
from raycase.names import Compute

REPORT = "report.md"
MOST_RESAMPLES = 1_000_000
TASK_OF = {"labels": "labelled", "threshold_from": "rte"}  # flags that one task alone has
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal["csts", "labelled", "rerank", *of_papers("tasks")]


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(PromptFlags, RayFlag):
    """Evaluate one or several models on a task's judgements; writes metrics.json and report.md."""

    model: tuple[str, ...]
    """Model folders, names in the table of encoders (zero-shot) or Hugging Face ids. The others are compared with the
    first."""
    data: str
    """Table of the task: .csv, .jsonl or .parquet. csts: sentence1, sentence2, condition, label. sts: sentence1,
    sentence2, score (0 to 5). rerank, not as .csv: query, and the lists positive and negative. labelled: text and a
    column for each condition; or a glob of tables. rte: premise, explicit_entailment, implied_entailment, neutral,
    contradiction."""
    output: str
    """Folder of the report, on this machine. An earlier report in it is replaced."""
    task: TaskName = "csts"
    """csts: cosines under a condition against people's ratings. labelled: labels of the ten nearest texts under a
    condition. sts: cosines without a condition against scores. rerank: each query's own
    candidates. rte: entailment by a threshold."""
    labels: tuple[str, ...] = ()
    """labelled: JSON files, each named after its table: wordings and groups (docs/training.md)."""
    threshold_from: str | None = None
    """rte: a file like --data, with other premises, to tune the threshold on. Default: tuned on each half of --data for
    the other half."""
    resamples: Advanced[int] = 1000
    """Resamples of the bootstrap."""
    seed: Advanced[int] = 0
    """Seed of the bootstrap."""
    compute: Advanced[Compute | None] = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it."""
    cache: Advanced[str | None] = None
    """Folder or URI for the embedded pairs. Default: `cache` beside the model's folder, else beside the output."""


def check_request(flags: EvaluateFlags) -> Path:
    """Check what does not depend on the task's data; returns the report's folder. Raises RequestError."""
    check_paths(
        reads={
            "--data": flags.data,
            "--threshold-from": flags.threshold_from,
            "--prompt": prompt_file(flags.prompt),
            "--labels": flags.labels,
        },
        opens={"--model": [*filter(None, map(model_folder, flags.model))]},
        writes={"--output": Folder(flags.output, (METRICS, REPORT), here=True), "--cache": Folder(flags.cache)},
    )
    ranges = at_least(0, flags, "seed", most=MOST_SEED) | {
        "model": (len(flags.model) == len(set(flags.model)) > 0, "one model or more, each once"),
        "resamples": (100 <= flags.resamples <= MOST_RESAMPLES, f"100 to {MOST_RESAMPLES:,}, for an interval of 95 %"),
    }
    for name, task in TASK_OF.items():
        ranges[name] = (not getattr(flags, name) or flags.task == task, f"none but for --task {task}")
    check_ranges(flags, ranges)
    folder = Path(flags.output).expanduser().absolute()
    metrics = folder / METRICS
    if (folder / MODEL_FILE).exists() or (metrics.exists() and b'"task"' not in metrics.read_bytes()):
        raise RequestError(
            f"--output: expected a new folder or one with an earlier report, got one of another job: {folder}; "
            f"pass --output {folder / 'report'}"
        )
    return folder
