"""A corpus job as one Ray Data execution: plan -> read (tasks) -> encode (actors) -> write (tasks)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycase.corpus.isolation import isolate
from raycase.corpus.job_record import Job
from raycase.corpus.plan import Plan
from raycase.corpus.records import EncodedUnit, ReadUnit, WrittenUnit, unpack
from raycase.corpus.request import Request
from raycase.corpus.unit_pairs import prepare_rows
from raycase.corpus.write_step import write_units
from raycase.data.schema import Reason
from raycase.distributed.cluster import cause
from raycase.distributed.encoders import EncodeInPool, LoneEncoder
from raycase.distributed.in_flight import DEATHS, InFlight, feed_tasks, no_unit_encoded
from raycase.distributed.packs import pack_units, read_packs, write_packs
from raycase.distributed.prometheus import RunMetrics
from raycase.distributed.ray_data import Opaque, data_context, drop_execution
from raycase.distributed.resources import READ_CPUS, WRITE_CPUS, ActorPool, capacity
from raycase.errors import WorkError, note

AHEAD_UNITS, AHEAD_UNITS_AN_ACTOR = 64, 16  # units in Ray and not yet written: the larger of 64 and 16 per actor
READERS_AN_ACTOR, WRITERS_AN_ACTOR = 4, 2  # unbounded, Ray would start as many processes at once as fit the CPUs
LONE_DEATHS = 14  # of an encoder for halves, quarters and eighths, before any was encoded, after which the job ends
HEARTBEAT = 60.0  # seconds without a finished unit after which the job prints what it waits for

T = TypeVar("T")


def execute_on_ray(
    request: Request, opened: Job, plan: Plan, *, pool: ActorPool, ahead: int | None = None, size: int | None = None
) -> Iterator[WrittenUnit]:
    """Read, encode and write the plan's units; yields each when its file is written.

    Any number of units is one execution, to which they are fed in bounded pieces, `size` units an item. Raises
    RequestError and WorkError.
    """
    in_flight = InFlight.options(  # type: ignore[attr-defined]
        scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    ).remote(ahead or max(AHEAD_UNITS, AHEAD_UNITS_AN_ACTOR * pool.most))
    step = {
        "config": Opaque(request.model),
        "kind": request.kind,
        "weights": opened.config["model"]["weights"],
        "threads": pool.threads,
        "batch_tokens": request.job.batch_tokens,
        "compute": request.job.compute,
    }
    with data_context(stall_timeout=None):  # `_report_waiting` decides
        written = _stages(request, opened, plan, pool, step, in_flight, size or pack_units(pool.most))
    metrics = RunMetrics(job=opened.print8, units=plan.units)
    last_unit = time.monotonic()
    try:
        for batch in with_heartbeat(written.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)):
            if batch is None:
                _report_waiting(time.monotonic() - last_unit, request.job.stall_timeout, pool)
                continue
            last_unit = time.monotonic()
            for i in range(len(batch)):
                units = unpack(batch.slice(i, 1))
                in_flight.add_written.remote(len(units))
                for unit in map(WrittenUnit.from_arrow, units):
                    metrics.add(unit)
                    yield unit
        for unit in _isolated(request, opened, pool, step, *ray.get(in_flight.take_aside.remote())):
            metrics.add(unit)
            yield unit
    except RayError as error:
        del written  # the error's traceback has this frame, and Ray may keep the error
        drop_execution(error)
        raise cause(error) from error
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(in_flight)


def _stages(
    request: Request, opened: Job, plan: Plan, pool: ActorPool, step: dict[str, Any], in_flight: Any, size: int
) -> Dataset:
    """The dataset of packs of `WrittenUnit`. CPUs differ by stage; otherwise Ray Data would fuse stages."""
    tasks = ray.data.from_items([0], override_num_blocks=1).map_batches(
        feed_tasks,
        fn_kwargs={"plan": ray.put((plan, opened.files)), "in_flight": in_flight},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,
        label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},  # lost only with the driver
    )
    units = tasks.map_batches(
        read_packs,
        fn_kwargs={"size": size, "config": Opaque(request.model), "kind": request.kind},
        compute=TaskPoolStrategy(size=READERS_AN_ACTOR * pool.most),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=READ_CPUS,
    )
    encoded = units.map_batches(
        EncodeInPool,
        fn_constructor_kwargs=step
        | {
            "in_flight": in_flight,
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
        write_packs,
        fn_kwargs=_output(request, opened),
        compute=TaskPoolStrategy(size=WRITERS_AN_ACTOR * pool.most),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=WRITE_CPUS,
    )


def _output(request: Request, opened: Job) -> dict[str, str]:
    """Where `write_units` writes."""
    return {"output": request.output.root.uri, "results": request.output.results, "print8": opened.print8}


def _isolated(
    request: Request, opened: Job, pool: ActorPool, step: dict[str, Any], aside: list[pa.Table], encoded: bool
) -> Iterator[WrittenUnit]:
    """The units that were set aside, without the rows that kill the encoder; `encoded`: whether any other unit was.

    Raises WorkError where nothing can be encoded.
    """
    if not aside:
        return
    lone = LoneEncoder(step, partial(_wait, request, pool), num_cpus=pool.cpus, num_gpus=pool.gpus)

    def attempt(part: ReadUnit) -> EncodedUnit | None:
        nonlocal encoded
        done = lone.encode(part)
        encoded = encoded or done is not None
        if not encoded and lone.deaths >= LONE_DEATHS:
            raise WorkError(no_unit_encoded(DEATHS * len(aside) + lone.deaths))
        return done

    try:
        for row in aside:
            unit = ReadUnit.from_arrow(row)
            rows = f"rows {unit.start} to {unit.start + unit.rows_in} of {unit.uri}"
            note(f"{rows} killed the encoder {DEATHS} times: tried again in halves")
            whole = isolate(unit, partial(prepare_rows, request.model, kind=request.kind), attempt)
            written = write_units(whole.to_arrow(), **_output(request, opened))
            killers = [(r["file"], r["row"]) for r in whole.rejected.to_pylist() if r["reason"] == Reason.KILLED]
            note(f"rejected for killing the encoder (file, row): {killers}")
            yield WrittenUnit.from_arrow(written)
    finally:
        lone.stop()


def _wait(request: Request, pool: ActorPool, result: ray.ObjectRef) -> Any:
    """`ray.get`, which says what it waits for. Raises WorkError after the job's --stall-timeout."""
    began = time.monotonic()
    while not ray.wait([result], timeout=HEARTBEAT)[0]:
        _report_waiting(time.monotonic() - began, request.job.stall_timeout, pool)
    return ray.get(result)


def with_heartbeat(stream: Iterable[T], seconds: float = HEARTBEAT) -> Iterator[T | None]:
    """The items of a stream, and None after every `seconds` without an item.

    A thread reads the stream; it ends at the next item after the caller has stopped.
    """
    items: SimpleQueue[Any] = SimpleQueue()
    end, stopped = object(), Event()

    def produce() -> None:
        try:
            for item in stream:
                if stopped.is_set():
                    return
                items.put(item)
            items.put(end)
        except BaseException as error:
            drop_execution(error)
            items.put(error)

    Thread(target=produce, daemon=True).start()
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
                try:
                    raise item
                finally:  # its traceback refers to this frame: a circle would keep the dataset, and Ray its encoders
                    del item
            yield item
    finally:
        stopped.set()


def _report_waiting(seconds: float, stall_timeout: float, pool: ActorPool) -> None:
    """Print what the job waits for. Raises WorkError after `stall_timeout` minutes without a finished unit."""
    waited = f"no unit was finished for {seconds / 60:.0f} minutes: the job needs {pool}; {capacity()}"
    if seconds > 60 * stall_timeout:
        raise WorkError(f"{waited}; run the same command again to resume (--stall-timeout: wait longer)")
    note(waited)
