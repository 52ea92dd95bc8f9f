"""The command evaluate: models on a task's judgements, as metrics.json and report.md."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raycase.commands.flags import PromptFlags, RayFlag
from raycase.errors import MOST_SEED, RequestError, at_least, check_ranges, visible
from raycase.names import Advanced, Compute

if TYPE_CHECKING:
    from raycase.evaluation.models import VectorsOf
    from raycase.evaluation.tasks import Task

MOST_RESAMPLES = 1_000_000
TASKS_OF = {paper: tasks.split() for paper, (*_, tasks) in import_module("raycase.papers").PAPERS.items() if tasks}
OF_PAPERS = [import_module(f"raycase.papers.{paper}") for paper in TASKS_OF]
FLAGS_OF = [paper.TaskFlags for paper in OF_PAPERS if hasattr(paper, "TaskFlags")]
TASK_OF = {"labels": "labelled"} | {flag.name: of.TASK for of in FLAGS_OF for flag in fields(of)}  # that alone has it
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal["csts", "labelled", "rerank", *chain(*TASKS_OF.values())]

EXAMPLE = "raycase evaluate --model minilm-conditional-v3 minilm --data validation.csv --output report/"


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags(*FLAGS_OF, PromptFlags, RayFlag):  # type: ignore[misc]
    """Evaluate one or several models on a task's judgements; writes metrics.json and report.md."""

    MORE_DOCS = {name: " ".join(paper.MORE_DOCS[name] for paper in OF_PAPERS) for name in ("data", "task")}  # noqa: RUF012

    model: tuple[str, ...]
    """Model folders, names in the table of encoders (zero-shot) or Hugging Face ids. The others are compared with the
    first."""
    data: str
    """Table of the task: .csv, .jsonl or .parquet. csts: sentence1, sentence2, condition, label. rerank, not as .csv:
    query, and the lists positive and negative. labelled: text and a column for each condition; or a glob of tables."""
    output: str
    """Folder of the report, on this machine. An earlier report in it is replaced."""
    task: TaskName = "csts"
    """csts: cosines under a condition against people's ratings. labelled: labels of the ten nearest texts under a
    condition. rerank: each query's own candidates."""
    labels: tuple[str, ...] = ()
    """labelled: JSON files, each named after its table: wordings and groups (docs/training.md)."""
    resamples: Advanced[int] = 1000
    """Resamples of the bootstrap."""
    seed: Advanced[int] = 0
    """Seed of the bootstrap."""
    compute: Advanced[Compute | None] = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it."""
    cache: Advanced[str | None] = None
    """Folder or URI for the embedded pairs. Default: `cache` beside the model's folder, else beside the output."""


def evaluate(flags: EvaluateFlags) -> dict[str, Any]:
    """Evaluate models on a task and write a report."""
    metrics = measure(flags)
    output = Path(flags.output).expanduser().absolute()
    print(f"the report is {visible(output / 'report.md')}")
    return {"systems": {s["name"]: s["figures"] for s in metrics["systems"]}, "output": str(output)}


def measure(flags: EvaluateFlags, *, task: Task | None = None, vectors_of: VectorsOf | None = None) -> dict[str, Any]:
    """Measure and write the report; returns what `metrics.json` holds. Raises RequestError and WorkError.

    Everything is checked before anything is embedded. task: instead of the one that the flags name; vectors_of: instead
    of the vectors of an embedding job.
    """
    from raycase.commands.place import AutoRunner
    from raycase.evaluation.models import find_models
    from raycase.evaluation.report import Settings, write_report
    from raycase.evaluation.tasks import find_task
    from raycase.training.vector_cache import VectorCache

    began = time.time()
    folder, task = check_places(flags), task or find_task(flags.task)
    data = task.read(flags.data, **{name: getattr(flags, name) for name, of in TASK_OF.items() if of == flags.task})
    models = find_models(
        flags.model,
        task.expected,
        vectors_of or VectorCache(AutoRunner(flags.ray)).vectors_of,
        task=flags.task,
        data=flags.data,
        output=folder,
        cache=flags.cache,
        compute=flags.compute,
        **flags.prompt_choices,
    )
    settings = Settings(resamples=flags.resamples, seed=flags.seed, compute=flags.compute)
    metrics = {"task": flags.task, **task.measure(settings, data, models)}
    return write_report(folder, metrics, task.render, began)


def check_places(flags: EvaluateFlags) -> Path:
    """Check what does not depend on the task's data; returns the report's folder. Raises RequestError."""
    from raycase.encoder.model_files import MODEL_FILE, model_folder
    from raycase.encoder.prompts import prompt_file
    from raycase.io.places import Folder, check_paths
    from raycase.models.model_folder import METRICS

    reads = {f"--{name.replace('_', '-')}": getattr(flags, name) for name in ("data", *TASK_OF)}
    check_paths(
        reads=reads | {"--prompt": prompt_file(flags.prompt)},
        opens={"--model": [*filter(None, map(model_folder, flags.model))]},
        writes={"--output": Folder(flags.output, (METRICS, "report.md"), here=True), "--cache": Folder(flags.cache)},
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
