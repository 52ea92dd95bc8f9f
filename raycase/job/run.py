"""One embedding job from the request to the manifest: what the listing lacks is executed, then every row accounted for.

Knows no Ray: the runner of its units is an argument.
"""

from __future__ import annotations

import os
import time
from typing import Any

from raycase.errors import TO_UTF8, RequestError, WorkError, note
from raycase.io.schema import Reason
from raycase.io.storage import Location
from raycase.job.dry_run import dry_run
from raycase.job.job_record import Job, write_job
from raycase.job.listing import Units
from raycase.job.manifest import Lines
from raycase.job.plan import make_plan
from raycase.job.progress import Run
from raycase.job.request import EmbedJob, Request, check_embed
from raycase.job.resume import account, run_units
from raycase.job.runner import Runner
from raycase.job.sample import choose_basis
from raycase.job.score_request import ScoreJob, check_score

NAMES = 100  # of files that are left out, in the manifest
COUNTS = ("rows_in", "rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs")


def embed(job: EmbedJob, runner: Runner) -> dict[str, Any]:
    """Run or resume the job, or estimate it; returns what its last line says. Raises RequestError and WorkError."""
    began = time.time()
    return dry_run(job, runner) if job.dry_run else run(check_embed(job), began, runner)


def score(job: ScoreJob, runner: Runner) -> dict[str, Any]:
    """Score the pairs; returns what the last line says. Raises RequestError and WorkError."""
    began = time.time()
    return run(check_score(job), began, runner)


def run(request: Request, began: float, runner: Runner) -> dict[str, Any]:
    """Run the job or resume it, which began at that second: of vectors or of scores. Returns the counts of the whole
    output and the rates of this run.

    Raises RequestError (an earlier output is unchanged then), and WorkError where rows are missing at the end or too
    many are rejected.
    """
    job, output = request.job, request.output
    _check_writable(output.root)
    opened, units = request.find_job()
    plan = make_plan(request, opened.files, units, opened.sharing)
    embedding = runner.embed(request, opened, plan) if plan else ()
    basis = choose_basis(request, plan, opened.files) if request.kind.token_bytes else None
    write_job(output, opened, overwrite=job.overwrite)
    if basis:
        output.basis.put(basis)
    if plan.learned:
        plan.learned.save(output, plan.unit_rows)
    if finished := sum(plan.rows) - len(plan):
        note(f"Resuming: {finished:,} of {sum(plan.rows):,} rows are finished.")
    if request.kind.columns.id is None:
        note("no column 'id': ids are file:row; --id-column names another column")
    progress = Run(rows=sum(plan.rows), rows_before=finished, units=plan.units)
    written = map(progress.add, embedding)
    units, lines = run_units(output, opened, units, lambda done: done.missing(plan.rows), written, "rows")
    return _account(request, opened, progress, units, lines, began)


def _check_writable(root: Location) -> None:
    """Raise RequestError where the folder cannot be written to."""
    probe = root / f".raycase-{os.getpid()}"
    try:
        probe.put(b"raycase\n")
        probe.remove()
    except OSError as error:
        raise RequestError(f"--output: expected a place to write at {root.uri}, got: {root.why(error)}") from error


# ---------------------------------------------------------------------------------------------------------- account


def _account(request: Request, opened: Job, progress: Run, units: Units, lines: Lines, began: float) -> dict[str, Any]:
    """Account for the whole output, put the manifest, and return what the job's last line says."""
    output, job = request.output, request.job
    progress.bar.close()
    for file in units.files:
        if gap := next(units.gaps(file, 0, units.last_row(file)), None):
            raise WorkError(f"rows {gap[0]} to {gap[1]} of {opened.files[file].uri} are missing; raise --limit")
    this_run = {
        "tokens": progress.work.tokens,
        "tokens_processed": progress.work.processed,
        "seconds": round(time.time() - began, 3),
        "startup_seconds": round(progress.first - began, 3) if progress.units else 0.0,
        **progress.rates(),
        "units_done": progress.units,
        "units_resumed": len(units) - progress.units,
    }
    model = request.config["model"]
    values = {
        "model": {
            "name": request.name,
            "weights": model["weights"],
            "dim": request.dim,
            "pooling": model["encoder"]["pooling"][0],
            "prompt": model["encoder"]["prompt"],
        },
        "left_out": {"files": len(request.left_out), "names": list(request.left_out[:NAMES])},
        "run": this_run,
    }
    manifest = account(output, opened, units, lines, progress.units, values)
    result = {name: manifest[name] for name in COUNTS} | this_run
    result |= {"output": output.root.uri, "manifest": output.manifest.uri}
    if cut := manifest["rows_truncated"]:
        most = request.model.encoder.max_tokens
        note(f"{cut:,} of {manifest['rows_in']:,} texts were cut at {most:,} tokens (--on-long reject: reject them)")
    if manifest["rows_rejected"] > job.max_rejected * manifest["rows_in"]:
        raise TooManyRejectedError(
            f"expected at most {job.max_rejected:.2%} of the rows rejected, got {manifest['rows_rejected']} of "
            f"{manifest['rows_in']} ({', '.join(f'{n} {r}' for r, n in manifest['reasons'].items())}); "
            f"see {output.rejected.uri}, or pass --max-rejected"
            + (f"; {TO_UTF8}" if Reason.INVALID_UTF8 in manifest["reasons"] else ""),
            result,
        )
    return result


class TooManyRejectedError(WorkError):
    """The output is complete, but more rows are rejected than the job allows; `result` is what `run` returns."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result
