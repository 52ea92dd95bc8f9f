"""The main job: plan, then read -> encode -> write over Ray Data, then account for every row."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayError

import raycase
from raycase.cluster import cause, nodes, start_ray
from raycase.output import (
    Job,
    Output,
    UnitLine,
    drop_strays,
    find_job,
    finished_units,
    known_lines,
    missing_rows,
    read_line,
    write_job,
    write_manifest,
)
from raycase.progress import Run
from raycase.request import EmbedJob, Plan, Request, actor_range, check, make_plan
from raycase.schema import RequestError, WorkError
from raycase.storage import STORE_ERRORS, UnitFile, gaps
from raycase.systems.protocols import SystemConfig
from raycase.units import EncodeUnits, read_units, task_row, write_units

READ_CPUS, WRITE_CPUS = 0.25, 0.2  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.1  # of an actor that encodes on CPUs, or beside its GPU
PASSES = 3  # over what the listing still lacks after all tasks are done


# -------------------------------------------------------------------------------------------------------- resources


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The actors that encode: how many, and what each takes."""

    least: int
    most: int
    cpus: float
    gpus: float
    threads: int | None


def make_pool(job: EmbedJob, units: int) -> Pool:
    """Fit the actors into the cluster with room left to read and write. Raises RequestError where they do not fit."""
    alive = nodes()
    has_gpus = any(n.get("GPU") for n in alive)
    gpus = job.gpus_per_actor if job.gpus_per_actor is not None else float(has_gpus)
    cpus = LEAST_GPU_CPUS if gpus else LEAST_ENCODE_CPUS
    room = [n.get("CPU", 0) - READ_CPUS - WRITE_CPUS for n in alive]
    fits = [max(0, int(r / cpus)) for r in room]  # most actors on each node
    if gpus:
        fits = [min(f, int(n.get("GPU", 0) / gpus)) for f, n in zip(fits, alive, strict=True)]
    usual = fits if gpus else [min(f, max(1, round(n.get("CPU", 0) / 4))) for f, n in zip(fits, alive, strict=True)]
    least, most = actor_range(job.actors) or (max(1, sum(usual)),) * 2
    if least > sum(fits):
        each = f"{gpus:g} GPUs and {cpus} CPUs" if gpus else f"at least {cpus} CPUs"
        found = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in alive)
        raise RequestError(
            f"--actors: wanted {least} with {each}, and {READ_CPUS + WRITE_CPUS} CPUs a node to read and write, "
            f"found room for {sum(fits)} on nodes with {found}; ask for fewer actors or a larger cluster"
        )
    most = min(most, sum(fits), max(least, units))
    used = [r for r, f in zip(room, fits, strict=True) if f]
    share = min(used) / math.ceil(most / len(used))  # of the smallest node
    if gpus:
        return Pool(least=least, most=most, cpus=min(1.0, math.floor(100 * share) / 100), gpus=gpus, threads=None)
    threads = max(1, min(round(share), os.cpu_count() or 1))
    return Pool(least=least, most=most, cpus=max(cpus, math.floor(100 * share) / 100), gpus=0, threads=threads)


def check_nodes(output: Output) -> None:
    """Local output is one machine's; on several, each node would keep its own part."""
    count = len(nodes())
    if output.root.is_local and count > 1:
        raise RequestError(
            f"--output: wanted object storage on a cluster of {count} nodes, found the local folder {output.root.uri}; "
            "each node would keep its own part of it"
        )


# -------------------------------------------------------------------------------------------------------------- run


Execute = Callable[[Request, Job, Plan], Iterator[dict[str, Any]]]  # gives what `write_units` says of each unit


def embed(job: EmbedJob, *, model: SystemConfig | None = None, execute: Execute | None = None) -> dict[str, Any]:
    """Run the job, or go on with it; returns the counts of the whole output and the rates of this run.

    `model` stands for the one that the flags name. `execute` runs the steps of the planned units; by default Ray Data
    does. Raises RequestError for a wrong request (no earlier output is touched then), WorkError where rows are missing
    at the end or too many are rejected.
    """
    began = time.time()
    request = check(job, model)
    output = request.output
    _check_put(output)
    opened = find_job(output, request.config, request.files, overwrite=job.overwrite)
    before = {} if job.overwrite else finished_units(output, opened.print8)
    known = known_lines(output)
    plan = make_plan(request, opened.files, before)
    if plan.missing and execute is None:
        start_ray()
        check_nodes(output)
        execute = partial(on_ray, pool=make_pool(job, plan.units))
    if job.overwrite:
        output.clear()
    write_job(output, opened)
    run = Run(rows=sum(plan.rows), rows_before=sum(plan.rows) - plan.missing)
    for _ in range(PASSES):
        if plan.missing and execute:
            output.manifest.remove()  # it speaks of less than what will be there
            output.manifest_files.remove()
            for stats in execute(request, opened, plan):
                run.add(stats)
        for stray in drop_strays(output, opened.print8):
            print(f"removed {stray}: not a unit of this job", file=sys.stderr)
        units = finished_units(output, opened.print8)
        missing = missing_rows(plan.rows, units)
        if not missing:
            return _finish(request, opened, run, units, known, began)
        plan = make_plan(request, opened.files, units)
    raise WorkError(f"{output.root.uri}: {missing} rows are missing after {PASSES} passes; run it again")


def _check_put(output: Output) -> None:
    """Whether the folder can be written to at all, said early."""
    probe = output.root / f".raycase-{os.getpid()}"
    try:
        probe.put(b"")
        probe.remove()
    except STORE_ERRORS as error:
        raise RequestError(f"--output: wanted a place to write at {output.root.uri}, found: {error}") from error


def on_ray(request: Request, opened: Job, plan: Plan, *, pool: Pool) -> Iterator[dict[str, Any]]:
    """Run the plan's units over Ray Data. Each stage has its own share of CPUs, so that it gets its own processes."""
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = 1  # every unit is a block of its own: it goes to any actor as soon as it is read
    context.max_consecutive_actor_init_deaths = 3  # a long job survives a node that is lost while its actor starts
    with DataContext.current(context):
        tasks = [task_row(opened.files, pieces) for pieces in plan.tasks()]
        units = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
            read_units,
            fn_kwargs={"config": request.model, "settings": request.encode_settings},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=READ_CPUS,
        )
        encoded = units.map_batches(
            EncodeUnits,
            fn_constructor_kwargs={
                "config": request.model,
                "settings": request.encode_settings,
                "weights": opened.config["model"]["weights"],
                "threads": pool.threads,
                "batch_tokens": request.job.batch_tokens,
                "compute": request.job.compute,
                "compile": request.job.compile,
                "units": math.ceil(plan.units / pool.least),
            },
            compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.least),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=pool.cpus,
            num_gpus=pool.gpus,
        )
        written = encoded.map_batches(
            write_units,
            fn_kwargs={"output": request.output.root.uri, "print8": opened.print8},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=WRITE_CPUS,
        )
    try:
        for stats in written.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from stats.to_pylist()
    except RayError as error:
        raise cause(error) from error


def _finish(
    request: Request,
    opened: Job,
    run: Run,
    units: dict[int, list[UnitFile]],
    known: dict[str, UnitLine],
    began: float,
) -> dict[str, Any]:
    """Account for the whole output, put the manifest, and return what the job's last line says."""
    output, job = request.output, request.job
    run.bar.close()
    names = [unit.name(opened.print8) for file in units.values() for unit in file]
    for file, finished in units.items():
        if gap := next(gaps(0, finished[-1].end, finished), None):
            raise WorkError(f"rows {gap[0]} to {gap[1]} of {opened.files[file].uri} are missing; raise --limit")
    lines = known | run.lines
    with ThreadPoolExecutor(16) as pool:
        unknown = [name for name in names if name not in lines]
        lines |= zip(unknown, pool.map(lambda name: read_line(output, name), unknown), strict=True)
    seconds = time.time() - began
    this_run = {
        "tokens": run.work.tokens,
        "tokens_processed": run.work.processed,
        "seconds": round(seconds, 3),
        "startup_seconds": round(run.first - began, 3) if run.lines else 0.0,
        **run.rates(),
        "units_done": len(run.lines),
        "units_resumed": len(names) - len(run.lines),
    }
    if run.lines or not output.manifest.exists():
        _write_manifest(request, opened, [lines[name] for name in names], this_run | {"actors": run.actor_rates()})
    manifest = output.manifest.read_json()  # where nothing was left to do, that of the run that did the work
    counted = ("rows_in", "rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs")
    result = {name: manifest[name] for name in counted} | this_run
    result |= {"output": output.root.uri, "manifest": output.manifest.uri}
    if manifest["rows_rejected"] > job.max_rejected * manifest["rows_in"]:
        raise TooManyRejectedError(
            f"wanted at most {job.max_rejected:.2%} of the rows rejected, found {manifest['rows_rejected']} of "
            f"{manifest['rows_in']} ({', '.join(f'{n} {r}' for r, n in manifest['reasons'].items())}); "
            f"see {output.rejected.uri}, or say --max-rejected",
            result,
        )
    return result


def _write_manifest(request: Request, opened: Job, lines: list[UnitLine], this_run: dict[str, Any]) -> None:
    model = request.config["model"]
    values = {
        "fingerprint": opened.fingerprint,
        "config": opened.config,
        "model": {
            "name": request.job.model,
            "weights": model["weights"],
            "dim": request.dim,
            "pooling": model["encoder"]["pooling"][0],
            "prompt": model["encoder"]["prompt"],
        },
        "input_files": len(opened.files),
        "versions": {name: version(name) for name in ("ray", "torch", "transformers", "pyarrow")}
        | {"raycase": raycase.__version__},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": this_run,
    }
    write_manifest(request.output, lines, values)


class TooManyRejectedError(WorkError):
    """The output is complete, but more rows are rejected than the job allows; `result` is what `embed` returns."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result
