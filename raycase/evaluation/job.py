"""What an evaluation is asked for: its task, the models that it compares, and the folder of its report."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from raycase.data.fetch import is_remote
from raycase.data.storage import Location, check_paths, locate
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.systems.case import CaseConfig
from raycase.systems.contracts import Compute
from raycase.systems.model_folder import METRICS, SYSTEM
from raycase.systems.projector import load_projector
from raycase.systems.registry import embeds, known_conditions, resolve


@dataclass(frozen=True, kw_only=True)
class EvaluateJob:
    """Evaluate one model or several by a task's judgements; writes metrics.json, report.md and plots."""

    model: tuple[str, ...]
    """Folders that training saved, or names in the table of encoders (zero-shot). The others are compared with the
    first."""
    data: str
    """csts: rated pairs, .csv, .jsonl or .parquet with sentence1, sentence2, condition, label. csfcube: the folder of
    corpus.jsonl, queries.csv and qrels_dev.csv. caption-attributes: the folder of captions.parquet. kgc: the folder of
    train.tsv, validation.tsv, entities.tsv and relations.tsv. rte, eis: premises with hypotheses, .csv, .jsonl or
    .parquet with premise, explicit_entailment, implied_entailment, neutral, contradiction. sts, pairs: the same with
    sentence1, sentence2, and score (0 to 5) or label (0, 1)."""
    output: str
    """Folder of the report, on this machine. An earlier report in it is replaced."""
    task: Literal["csts", "csfcube", "caption-attributes", "kgc", "rte", "eis", "sts", "pairs"] = "csts"
    """csts: the cosine of two sentences under a condition, against people's rating of their similarity. csfcube: papers
    like another one in background, method or result, against experts' grades. caption-attributes: do the nearest
    captions share what the condition asks for, by lists of words; a measure of ours. kgc: knowledge graph completion,
    the true tail of a head and a relation among all entities. rte: entailment by a threshold; eis: which of two
    sentences is more implicit, for models with a vector for each (dualcse). sts: the similarity of two sentences
    without a condition, against people's scores; pairs: against a label."""
    qrels: str | None = None
    """csfcube: judgements (query_id, facet, candidate_id, relevance). Default: qrels_dev.csv in the data folder."""
    prompt: str | None = None
    """How sentence and condition become one text, or several ways side by side, a+b. Default: the model's."""
    subtract: bool | None = None
    """Whether the condition's own vector is taken away (eq. 1). Default: the model's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the model's."""
    cases: str | None = None
    """File with sentence1, sentence2, condition, answer1, answer2: the case study of Table 5."""
    ablate: bool = False
    """Each encoder zero-shot under every pooling and prompt, minus base or not (Table 10)."""
    resamples: int = 1000
    """Of the bootstrap."""
    seed: int = 0
    """Of the bootstrap, and of the directions that isotropy is measured in."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    cache: str | None = None
    """Folder or URI for the embedded pairs. Default: `cache` beside the model's folder, else beside the output."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the models, found and checked; its encoder's weights are not loaded."""

    name: str
    config: Any  # of a system
    projector: nn.Module | None
    cache: Location


def check_request(job: EvaluateJob) -> Path:
    """Check what every task has in common; gives the report's folder. Raises RequestError."""
    check_paths({f"--{n}": getattr(job, n) for n in ("data", "output", "cases", "qrels", "cache")})
    folder = open_report_folder(job.output)
    if job.seed < 0:
        raise RequestError(f"--seed: expected 0 or more, got {job.seed}")
    if job.resamples < 100:
        raise RequestError(f"--resamples: expected at least 100 for an interval of 95 %, got {job.resamples}")
    for name, task in (("cases", "csts"), ("ablate", "csts"), ("qrels", "csfcube")):
        if getattr(job, name) and job.task != task:
            raise RequestError(f"--{name}: expected --task {task}, got {job.task}")
    return folder


def open_report_folder(output: str) -> Path:
    """The report's folder. Raises RequestError where it holds something else."""
    if "://" in output:
        raise RequestError(f"--output: expected a folder on this machine, got {output}; copy the report there")
    folder = Path(output).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"--output: expected a folder, got the file {folder}")
    found = "a model" if (folder / SYSTEM).exists() else None
    if found is None and (folder / METRICS).exists():
        try:
            earlier = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = None
        if not isinstance(earlier, dict) or "task" not in earlier:
            found = f"another {METRICS}"
    if found:
        raise RequestError(
            f"--output: expected a new folder or one with an earlier report, got {found} in {folder}; "
            f"pass --output {folder / 'report'}"
        )
    return folder


def _misfit(task: str, config: Any) -> str | None:
    """What a task wants of a model, where this one is not it."""
    vectors, known = embeds(config), known_conditions(config)
    if task in ("sts", "pairs"):
        return None if known == () or (vectors and known is None) else "models that need no condition"
    if task == "eis":
        return None if known else "models with two vectors a sentence (dualcse)"
    if not vectors and task != "csts":
        return "models that give vectors"
    return None if known is None or task == "rte" else "models that take any condition"


def find_models(job: EvaluateJob) -> list[Model]:
    """The models asked for, with g. Raises RequestError for an unknown or broken one, and for one that comes twice."""
    if not job.model:
        raise RequestError("--model: expected at least one, got none")
    configs: list[Any] = []
    for name in job.model:
        known = is_remote(name) or "/" not in name or Path(name).exists()
        if not (known or (job.prompt and job.pooling)):  # else a Hugging Face id
            raise RequestError(f"--model: expected a model folder or one of {', '.join(ENCODERS)}, got no {name}")
        config = resolve(name, prompt=job.prompt, subtract=job.subtract, pooling=job.pooling)
        if (wanted := _misfit(job.task, config)) is not None:
            raise RequestError(f"--model: expected {wanted} for --task {job.task}, got {name}: {config.label}")
        if job.ablate and not is_case(config):
            raise RequestError(f"--ablate: expected CASE on an encoder, got {name}: {config.label}")
        if job.cases and not embeds(config):
            raise RequestError(f"--cases: expected models that give vectors, got {name}, which scores pairs")
        for other, same in zip(job.model, configs, strict=False):
            if same.describe() == config.describe():
                raise RequestError(f"--model: expected each model once, got the same as {other} and as {name}")
        configs.append(config)
    short = tuple(
        posixpath.basename(c.folder) if c.folder else name for c, name in zip(configs, job.model, strict=True)
    )
    names = short if len(set(short)) == len(short) else job.model
    here = [None if c.folder is None or is_remote(c.folder) else Path(c.folder) for c in configs]
    first = next(filter(None, here), Path(job.output).absolute())
    return [
        Model(
            name=name,
            config=config,
            projector=_projector(config),
            cache=locate(job.cache or str(_cache_beside(folder or first))),
        )
        for name, config, folder in zip(names, configs, here, strict=True)
    ]


def is_case(config: Any) -> bool:
    """Whether it is CASE, whose vectors come apart into f, base and g."""
    return isinstance(config, CaseConfig)


def before_g(config: Any, **changes: Any) -> Any:
    """CASE without its projector, with some changes; another system as it is."""
    return replace(config, projector=None, folder=None, **changes) if is_case(config) else config


def _projector(config: Any) -> nn.Module | None:
    if is_case(config) and config.projector and config.local:
        return load_projector(config.projector, config.local)
    return None


def _cache_beside(folder: Path) -> Path:
    """Where training put its vectors: beside the folder, or for the best of a sweep beside the sweep's."""
    above = folder.parent.parent / "cache"
    return above if above.exists() and not (folder.parent / "cache").exists() else folder.parent / "cache"
