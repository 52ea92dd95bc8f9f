"""A job from the request to the manifest: what its output lacks is made, then every row is accounted for."""

import math
import os
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from raycase.encoder.token_batch import Work
from raycase.errors import TO_UTF8, WorkError, expecting, note
from raycase.io.schema import Reason
from raycase.io.storage import SHOWN_LATE
from raycase.job.manifest import Lines, read_manifest, write_manifest
from raycase.job.output import JobFile, Units, check_held, drop_strays, finished, write_job
from raycase.job.plan import find_job_file, make_plan
from raycase.job.request import Request
from raycase.job.results import TokenResult
from raycase.job.runner import Runner, progress_bar
from raycase.job.sample import choose_basis
from raycase.job.units import DamagedError, UnitLine, WrittenUnit
from raycase.job.verify import listed_defects, repeated_ids, several_rows

COUNTS = ("rows_in", "rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs")


def run(request: Request, runner: Runner) -> dict[str, Any]:
    """Run the job or resume it; returns the counts of the whole output and the rates of this run."""
    output = request.output
    probe = output.root / f".raycase-{os.getpid()}"
    with expecting(f"--output: expected a place to write at {output.root.uri}", OSError, why=output.root.why):
        probe.put(b"raycase\n")
        probe.remove()
    plan = make_plan(request, *find_job_file(request))
    embedding = runner.embed(request, plan) if plan else ()
    result = request.encoding.result
    basis = choose_basis(request, plan, result.token_bytes) if isinstance(result, TokenResult) else None
    write_job(output, plan.job_file, overwrite=request.overwrite)
    if basis:
        output.basis.put(basis)
    plan.save_spans(output.spans)
    if done := sum(plan.rows) - len(plan):
        note(f"Resuming: {done:,} of {sum(plan.rows):,} rows are finished.")
    if request.encoding.pairs.columns.id is None:
        note("no column 'id': ids are file:row; --id-column names another column")
    progress = Progress(progress_bar(total=sum(plan.rows), initial=done, unit=" rows"), plan.units)
    lines = Lines(output)
    if plan:
        check_held(output, plan.job_file)
        lines.begin(plan.done)
        for unit in embedding:
            lines.add(progress.add(unit))
    for wait in SHOWN_LATE:
        units, strays = finished(output.units.list(), plan.job_file.fingerprint[:8])
        if not (missing := units.missing(plan.rows)):
            break
        time.sleep(wait)
    check_held(output, plan.job_file)  # what another job wrote into the output is seen with its record
    if missing:
        raise WorkError(f"{output.root.uri}: {missing} rows are missing; run the same command again")
    for stray in drop_strays(output, units, strays):
        note(f"removed {stray}: not a unit of this job")
    return _account(request, plan.job_file, progress, units, lines, runner)


@dataclass
class Progress:
    """The finished units of this run, and their rates: a progress bar on a terminal, a line now and then in a log."""

    bar: tqdm  # of the rows of the whole job
    units_planned: int
    units: int = 0
    work: Work = field(default_factory=Work)
    first: float = math.inf
    last: float = 0.0

    def add(self, unit: WrittenUnit) -> UnitLine:
        """Count a finished unit; returns its line of the manifest."""
        line = unit.line
        if not self.units:
            self.bar.start_t = self.bar.last_print_t = unit.began  # the ETA leaves the start-up out
        self.units += 1
        self.work += unit.work
        self.first = min(self.first, unit.began)
        self.last = max(self.last, unit.ended)
        rates = self.rates()
        text = f"{rates['tokens_per_second']:,.0f} tokens/s"
        if rates["sharing"] > 1.05:
            text += f" ({rates['sharing']:.1f} times shared)"
        text += f", unit {self.units:,} of {max(self.units, self.units_planned):,}"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(line.rows_out + line.rows_rejected)
        return line

    def rates(self) -> dict[str, float]:
        """From the start of the first unit to the end of the last; 0 if nothing was done.

        Tokens per second are counted as if each prompt were encoded alone; sharing: those over the ones processed.
        """
        work, seconds = self.work, self.last - self.first
        if not (work.processed and seconds > 0):
            return dict.fromkeys(("tokens_per_second", "processed_per_second", "sharing", "padding"), 0.0)
        return {
            "tokens_per_second": round(work.tokens / seconds, 1),
            "processed_per_second": round(work.processed / seconds, 1),
            "sharing": round(work.tokens / work.processed, 3),
            "padding": round(1 - work.processed / work.computed, 4),
        }


def _account(
    request: Request, job_file: JobFile, progress: Progress, units: Units, lines: Lines, runner: Runner
) -> dict[str, Any]:
    """Account for the whole output, put the manifest, and return what the job's last line holds."""
    output, of = request.output, request.encoding
    progress.bar.close()
    if gap := units.inner_gap():
        file, start, end = gap
        raise WorkError(f"rows {start} to {end} of {job_file.files[file].uri} are missing; raise --limit")
    this_run = {
        "tokens": progress.work.tokens,
        "tokens_processed": progress.work.processed,
        "seconds": round(time.time() - request.began, 3),
        "startup_seconds": round(progress.first - request.began, 3) if progress.units else 0.0,
        **progress.rates(),
        "units_done": progress.units,
        "units_resumed": len(units) - progress.units,
    }
    model = request.config["model"]
    values = {
        "fingerprint": job_file.fingerprint,
        "config": job_file.config,
        "input_files": len(job_file.files),
        "model": {
            "name": request.name or of.model.name,
            "weights": model["weights"],
            "dim": of.dim,
            "pooling": model["encoder"]["pooling"][0],
            "prompt": model["encoder"]["prompt"],
        },
        "run": this_run,
    }
    if progress.units or not output.manifest.exists():
        values["repeated_ids"] = repeated_ids(output, job_file.config, units.names, runner)
        write_manifest(output, lines.of(units), values)
    advice = "; remove manifest.json and manifest_files.parquet and run the same command again"
    with expecting(f"{output.root.uri}: expected a whole manifest", DamagedError, advice=advice, raises=WorkError):
        manifest, written = read_manifest(output)
        defects = list(listed_defects(output, manifest, written))
    for defect in defects:
        raise WorkError(f"{output.root.uri}: {defect}; remove the file and run the same command again")
    result = {name: manifest[name] for name in COUNTS} | this_run
    result |= {"output": output.root.uri, "manifest": output.manifest.uri}
    if cut := manifest["rows_truncated"]:
        most = of.model.encoder.max_tokens
        note(f"{cut:,} of {manifest['rows_in']:,} texts were cut at {most:,} tokens (--on-long reject: reject them)")
    if problem := several_rows(manifest["repeated_ids"]):
        raise UnfitError(f"{output.root.uri}: expected {problem}", result)
    if manifest["rows_rejected"] > request.max_rejected * manifest["rows_in"]:
        raise UnfitError(
            f"expected at most {request.max_rejected:.2%} of the rows rejected, got {manifest['rows_rejected']} of "
            f"{manifest['rows_in']} ({', '.join(f'{n} {r}' for r, n in manifest['reasons'].items())}); "
            f"see {output.rejected.uri}, or pass --max-rejected"
            + (f"; {TO_UTF8}" if Reason.INVALID_UTF8 in manifest["reasons"] else ""),
            result,
        )
    return result


class UnfitError(WorkError):
    """The output is complete, but ids repeat or too many rows are rejected; `result` is what `run` returns."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result
