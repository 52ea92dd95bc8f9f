"""The main job: plan, then read -> encode -> write over Ray Data, then account for every row."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import raycase
from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.job_record import Job, find_job, write_job
from raycase.corpus.listing import Units, drop_strays, finished_units
from raycase.corpus.manifest import Lines, write_manifest
from raycase.corpus.plan import Plan, make_plan
from raycase.corpus.progress import Run
from raycase.corpus.read_step import read_units
from raycase.corpus.records import WrittenUnit
from raycase.corpus.request import EmbedJob, Request, check
from raycase.corpus.write_step import write_units
from raycase.data.storage import STORE_ERRORS, Location
from raycase.distributed.cluster import cause, start_ray
from raycase.distributed.handover import Pace, hand_over
from raycase.distributed.ray_data import data_context
from raycase.distributed.resources import READ_CPUS, WRITE_CPUS, Pool, capacity, check_nodes, make_pool
from raycase.distributed.watch import Watch
from raycase.errors import RequestError, WorkError
from raycase.systems.contracts import SystemConfig

PASSES = 3  # over what the listing still lacks after all tasks are done
HANDED_UNITS, HANDED_AN_ACTOR = 64, 16  # units handed to Ray and not yet written, at most: in all, or an actor
READERS_AN_ACTOR, WRITERS_AN_ACTOR = 4, 2  # else Ray starts a process for each that fits a node's CPUs, all at once
HEARTBEAT = 60.0  # seconds without a finished unit after which the job says what it waits for

Item = TypeVar("Item")
Execute = Callable[[Request, Job, Plan], Iterator[WrittenUnit]]


def embed(job: EmbedJob, *, model: SystemConfig | None = None, execute: Execute | None = None) -> dict[str, Any]:
    """Run the job, or go on with it; returns the counts of the whole output and the rates of this run.

    `model` stands for the one that the flags name. `execute` runs the steps of the planned units; by default Ray Data
    does. Raises RequestError for a wrong request (no earlier output is touched then), WorkError where rows are missing
    at the end or too many are rejected.
    """
    began = time.time()
    request = check(job, model)
    output = request.output
    _check_put(output.root)
    opened, units = find_job(output, request.config, request.files, overwrite=job.overwrite)
    plan = make_plan(request, opened.files, units)
    _check_space(request, plan)
    if plan.missing and execute is None:
        start_ray()
        cluster = capacity()
        check_nodes(output.root, cluster)
        pool = make_pool(job, plan.units, cluster)
        print(f"needs {pool}; {cluster}", file=sys.stderr)
        execute = partial(on_ray, pool=pool)
    if job.overwrite:
        output.clear()
    write_job(output, opened)
    if plan.learned:
        plan.spans.save(output, plan.unit_rows)
    lines = Lines(output)
    run = Run(rows=sum(plan.rows), rows_before=sum(plan.rows) - plan.missing, units=plan.units)
    for _ in range(PASSES):
        if plan.missing and execute:
            output.manifest.remove()  # it speaks of less than what will be there
            lines.forget_all_but(units)
            for unit in execute(request, opened, plan):
                lines.add(run.add(unit))
        units, strays = finished_units(output, opened.print8)
        for stray in drop_strays(output, units, strays):
            print(f"removed {stray}: not a unit of this job", file=sys.stderr)
        plan = plan.after(units)
        if not plan.missing:
            return _finish(request, opened, run, units, lines, began)
    raise WorkError(f"{output.root.uri}: {plan.missing} rows are missing after {PASSES} passes; run it again")


def _check_put(root: Location) -> None:
    """Whether the folder can be written to at all, said early."""
    probe = root / f".raycase-{os.getpid()}"
    try:
        probe.put(b"raycase\n")
        probe.remove()
    except STORE_ERRORS as error:
        raise RequestError(f"--output: expected a place to write at {root.uri}, got: {root.why(error)}") from error


def _check_space(request: Request, plan: Plan) -> None:
    """Whether the disk holds the vectors that are still to come, where it is known how many."""
    pairs = plan.missing * len(request.conditions or "a")
    wanted = pairs * request.dim * np.dtype(request.job.dtype).itemsize
    if request.output.root.is_local and not request.job.overwrite:
        free = shutil.disk_usage(request.output.root.path).free
        if wanted > free:
            raise RequestError(
                f"--output: expected {wanted / 1e9:,.1f} GB for {pairs:,} vectors at {request.output.root.uri}, "
                f"got {free / 1e9:,.1f} GB free; choose another disk, or --dtype float16"
            )


# -------------------------------------------------------------------------------------------------------------- ray


def on_ray(request: Request, opened: Job, plan: Plan, *, pool: Pool) -> Iterator[WrittenUnit]:
    """Run the plan's units over Ray Data. Each stage has its own share of CPUs, so that it gets its own processes.

    One execution, however many units: they are handed over in bounded pieces while the actors work.
    """
    here = ray.get_runtime_context().get_node_id()
    pace = Pace.options(  # type: ignore[attr-defined]
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)
    ).remote(max(HANDED_UNITS, HANDED_AN_ACTOR * pool.most))
    with data_context():
        written = _stages(request, opened, plan, pool, pace)
    watch = Watch(job=opened.print8, units=plan.units)
    quiet_since = time.monotonic()
    try:
        for batch in heard(written.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)):
            if batch is None:
                _wait(time.monotonic() - quiet_since, request.job.patience, pool)
                continue
            quiet_since = time.monotonic()
            pace.wrote.remote(len(batch))
            for i in range(len(batch)):
                unit = WrittenUnit.from_arrow(batch.slice(i, 1))
                watch.add(unit)
                yield unit
    except RayError as error:
        raise cause(error) from error
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(pace)


def _stages(request: Request, opened: Job, plan: Plan, pool: Pool, pace: Any) -> Dataset:
    """Plan -> read -> encode -> write; one small row per unit comes out."""
    here = ray.get_runtime_context().get_node_id()
    tasks = ray.data.from_items([0], override_num_blocks=1).map_batches(
        hand_over,
        fn_kwargs={"plan": ray.put((plan, opened.files)), "pace": pace},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,
        label_selector={"ray.io/node-id": here},  # where the driver is: it is lost with it alone
    )
    units = tasks.map_batches(
        read_units,
        fn_kwargs={"config": request.model, "settings": request.encode_settings},
        compute=TaskPoolStrategy(size=READERS_AN_ACTOR * pool.most),
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
        compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.most),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )
    return encoded.map_batches(
        write_units,
        fn_kwargs={"output": request.output.root.uri, "print8": opened.print8},
        compute=TaskPoolStrategy(size=WRITERS_AN_ACTOR * pool.most),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=WRITE_CPUS,
    )


def heard(stream: Iterable[Item], seconds: float = HEARTBEAT) -> Iterator[Item | None]:
    """The items of a stream that a thread of its own runs, and None whenever none has come for so long.

    The thread ends with its next item when nobody listens any more.
    """
    items: SimpleQueue[Any] = SimpleQueue()
    end, left = object(), Event()

    def run() -> None:
        try:
            for item in stream:
                if left.is_set():
                    return
                items.put(item)
            items.put(end)
        except BaseException as error:
            items.put(error)

    Thread(target=run, daemon=True).start()
    try:
        while True:
            try:
                item = items.get(timeout=seconds)
            except Empty:
                yield None
                continue
            if item is end:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()


def _wait(seconds: float, patience: float, pool: Pool) -> None:
    """Say what the job waits for. Raises WorkError after `patience` minutes."""
    waited = f"no unit was finished for {seconds / 60:.0f} minutes: the job needs {pool}; {capacity()}"
    if seconds > 60 * patience:
        raise WorkError(f"{waited}; run the same command again to resume (--patience: wait longer)")
    print(waited, file=sys.stderr)


# ---------------------------------------------------------------------------------------------------------- account


def _finish(
    request: Request,
    opened: Job,
    run: Run,
    units: Units,
    lines: Lines,
    began: float,
) -> dict[str, Any]:
    """Account for the whole output, put the manifest, and return what the job's last line says."""
    output, job = request.output, request.job
    run.bar.close()
    for file in units.files:
        if gap := next(units.gaps(file, 0, units.last_row(file)), None):
            raise WorkError(f"rows {gap[0]} to {gap[1]} of {opened.files[file].uri} are missing; raise --limit")
    seconds = time.time() - began
    this_run = {
        "tokens": run.work.tokens,
        "tokens_processed": run.work.processed,
        "seconds": round(seconds, 3),
        "startup_seconds": round(run.first - began, 3) if run.units else 0.0,
        **run.rates(),
        "units_done": run.units,
        "units_resumed": len(units) - run.units,
    }
    if run.units or not output.manifest.exists():
        _write_manifest(request, opened, lines.of(units), this_run | {"actors": run.actor_rates()})
    manifest = output.manifest.read_json()  # where nothing was left to do, that of the run that did the work
    counted = ("rows_in", "rows_out", "rows_rejected", "rows_truncated", "pairs", "distinct_pairs")
    result = {name: manifest[name] for name in counted} | this_run
    result |= {"output": output.root.uri, "manifest": output.manifest.uri}
    if manifest["rows_rejected"] > job.max_rejected * manifest["rows_in"]:
        raise TooManyRejectedError(
            f"expected at most {job.max_rejected:.2%} of the rows rejected, got {manifest['rows_rejected']} of "
            f"{manifest['rows_in']} ({', '.join(f'{n} {r}' for r, n in manifest['reasons'].items())}); "
            f"see {output.rejected.uri}, or say --max-rejected",
            result,
        )
    return result


def _write_manifest(request: Request, opened: Job, lines: pa.Table, this_run: dict[str, Any]) -> None:
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
