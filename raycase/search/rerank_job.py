"""Re-ranking the answers to a file of queries: one file per unit.

The files in `answers/` are the checkpoint: units with a file are not scored again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import pyarrow.dataset as ds
import tyro

from raycase.corpus.ray_flag import RayFlag
from raycase.corpus.resume import run_files
from raycase.corpus.tasks import OpenTasks
from raycase.data.claim import check_held, claim_or_begin
from raycase.data.fetch import model_folder
from raycase.data.inputs import InputFile, find_input
from raycase.data.parquet import parquet_bytes
from raycase.data.places import Folder, check_paths
from raycase.data.schema import SCORE
from raycase.data.storage import Location, fingerprint, locate
from raycase.errors import STALL_TIMEOUT, at_least, check_ranges, minutes_range
from raycase.search.answer_units import UNIT_ROWS, AnswerUnit, cut_answers, read_unit
from raycase.search.queries import TEXT, read_queries
from raycase.search.rescore import find_scorer, rerank
from raycase.systems.fine_tuned_module import Scorer

RECORD, ANSWERS = "rerank.json", "answers"  # file and folder in the output


@dataclass(frozen=True, kw_only=True)
class RerankJob(RayFlag):
    """Re-rank the answers of a search with a model that scores pairs of query and answer, and keep the best.

    A job that was stopped resumes automatically when the same command is run again.
    """

    answers: str
    """Output of `raycase search --queries`: a .parquet file, or a folder of them."""
    queries: str
    """The file of queries of that search."""
    model: str
    """Folder of mixsp or cross-encoder, local or on object storage."""
    output: str
    """Folder of the result: answers/*.parquet with the columns of the answers, and `cosine`, the search's score."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """Number of answers to keep per query."""
    text_column: str = TEXT
    """The column with the answers' texts."""
    actors: str | None = None
    """Number of actors on Ray, MIN:MAX, with one scorer each. Default: in this process one; with --ray one per GPU,
    else one per four CPUs."""
    gpus_per_actor: float | None = None
    """GPUs per actor. Default: 1 if the cluster has GPUs, else 0."""
    stall_timeout: float = STALL_TIMEOUT
    """Minutes without progress after which the job gives up, as when no machine is available."""
    overwrite: bool = False
    """Remove an earlier result in the folder first."""


def rerank_all(job: RerankJob, open_tasks: OpenTasks, *, unit_rows: int = UNIT_ROWS) -> dict[str, Any]:
    """Re-rank all answers; returns counts. Raises RequestError and WorkError."""
    began = time.time()
    check_ranges(job, at_least(1, job, "k") | {"stall_timeout": minutes_range(job.stall_timeout)})
    check_paths(
        reads={"--answers": job.answers, "--queries": job.queries},
        opens={"--model": model_folder(job.model)},
        writes={"--output": Folder(job.output, (RECORD, ANSWERS))},
    )
    sentences, _ = read_queries(job.queries)
    files = find_input(job.answers, "--answers")
    units: list[AnswerUnit] = []
    for file in files:
        units += cut_answers(file, text=job.text_column, queries=len(sentences), unit_rows=unit_rows)
    conditional = not any(unit.unconditional for unit in units)
    config = find_scorer(job.model, conditional=conditional, flag="--model")
    root = locate(job.output)
    tasks = open_tasks([("--output", root), ("--answers", locate(job.answers))])
    name = _claim_output(root, job, files, config.describe())
    folder = root / ANSWERS
    work = RerankUnits(config=config, sentences=sentences, text=job.text_column, k=job.k, folder=folder.uri)
    by_name = {f"{i:06d}.parquet": asdict(unit) | {"name": f"{i:06d}.parquet"} for i, unit in enumerate(units)}
    held = partial(check_held, root, RECORD, name)
    done = run_files(folder, by_name, partial(tasks.run, work, progress="re-ranked units:"), held, root, "units")
    rows_out, rows_scored = 0, 0
    if units:
        answers = ds.dataset(folder.path, filesystem=folder.fs, format="parquet")
        rows_out, rows_scored = answers.count_rows(), answers.count_rows(filter=ds.field(SCORE).is_valid())
    return {
        "queries": len(sentences),
        "answers_in": sum(unit.stop - unit.start for unit in units),
        "answers_out": rows_out,
        "answers_unscored": rows_out - rows_scored,
        "units_done": done,
        "units_resumed": len(units) - done,
        "seconds": round(time.time() - began, 3),
        "output": root.uri,
    }


def _claim_output(root: Location, job: RerankJob, files: Sequence[InputFile], model: dict[str, Any]) -> str:
    """Claim the output folder; returns the job's fingerprint.

    Raises RequestError for a folder that holds the result of another job.
    """
    marks = [[file.uri, file.size, file.mark] for file in (*files, *find_input(job.queries, "--queries"))]
    name = fingerprint([model, marks, job.k, job.text_column])
    record = {"fingerprint": name}
    claim_or_begin(root, RECORD, record, job="this very job", results=(ANSWERS,), overwrite=job.overwrite)
    return name


@dataclass(frozen=True, kw_only=True)
class RerankUnits:
    """Reads units of answers and writes the best of each query to a file; the scorer is loaded for the first."""

    config: Any
    sentences: Sequence[str]
    text: str
    k: int
    folder: str

    @cached_property
    def scorer(self) -> Scorer:
        return self.config.load()

    def __call__(self, *, name: str, **unit: Any) -> None:
        best = rerank(read_unit(AnswerUnit(**unit)), self.sentences, self.scorer, text=self.text, k=self.k)
        (locate(self.folder) / name).put(parquet_bytes(best))
