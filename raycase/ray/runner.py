"""Runs the work of a command on the cluster that this process joins, or on a Ray of its own.

The embedding job is one execution of Ray Data: plan -> read (tasks) -> encode (actors) -> write (tasks).
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Thread
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset, TaskPoolStrategy
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycase.errors import WorkError, is_verbose, note
from raycase.io.schema import Reason
from raycase.job.plan import Plan
from raycase.job.request import Actors, Request
from raycase.job.runner import Item, Mapped, Places, Runner, progress_bar
from raycase.job.steps import EncodeUnits, read_units
from raycase.job.units import ReadUnit, WrittenUnit, spans_from_arrow, write_arrow
from raycase.ray.capacity import READ_CPUS, WRITE_CPUS, ActorPool, make_pool
from raycase.ray.cluster import call, capacity, cause, join_cluster
from raycase.ray.in_flight import DEATHS, InFlight, feed_spans

CALLS_AT_ONCE = 2048  # that Ray holds
AHEAD_UNITS, AHEAD_UNITS_AN_ACTOR = 64, 16  # units in Ray and not yet written: the larger of 64 and 16 per actor
READERS_AN_ACTOR, WRITERS_AN_ACTOR = 4, 2  # unbounded, Ray would start as many processes at once as fit the CPUs
WATCH = 5.0  # seconds between two looks of an encoder at whether its job goes on


class RayRunner(Runner):
    """`Runner` on Ray."""

    def map(
        self,
        function: Callable[..., Mapped],
        items: Sequence[Item],
        *,
        unit: str,
        places: Places = (),
        stall_timeout: float | None = None,
        encoder_of: tuple[Actors, int] | None = None,
        **here: Any,
    ) -> Iterator[Mapped]:
        """`Runner.map` by tasks. One whose worker dies is tried again: three times, or until the stall timeout."""
        cluster = join_cluster(places)
        options: dict[str, Any] = {"num_cpus": 1}
        if encoder_of:
            pool = make_pool(*encoder_of, cluster)
            options = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
            where = f"a worker with {pool.each}"
            note(f"measuring on {where}, once one is free")
            function = partial(function, threads=pool.threads, encoders=pool.most, where=where)
        task = ray.remote(call).options(max_retries=3 if stall_timeout is None else -1, **options)
        begin = partial(task.remote, ray.put(function), alone=encoder_of is None)
        results = _ray_errors(_results(begin, items, stall_timeout), "task was finished", stall_timeout)
        return iter(progress_bar(results, total=len(items), unit=f" {unit}"))

    def embed(self, request: Request, plan: Plan) -> Iterator[WrittenUnit]:
        """`Runner.embed` by Ray Data. A unit that keeps killing its encoder is rejected."""
        cluster = join_cluster([("--output", request.output.root)])
        pool = make_pool(request.actors, plan.units, cluster)
        note(f"needs {pool}; {cluster}")
        return _ray_errors(execute(request, plan, pool), f"unit was finished by {pool}", request.actors.stall_timeout)


def _results(
    begin: Callable[[Item], ray.ObjectRef], items: Sequence[Item], stall_timeout: float | None
) -> Iterator[Any]:
    """What the tasks of the items return, as it comes. What is under way ends with the iterator."""
    seconds = None if stall_timeout is None else 60 * stall_timeout
    left = iter(items)
    waiting = [begin(item) for item in islice(left, CALLS_AT_ONCE)]
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=seconds)
            if not done:
                raise GetTimeoutError
            waiting += [begin(item) for item in islice(left, len(done))]
            yield from ray.get(done)
    finally:
        with suppress(RayError):  # the cluster may be gone
            for ref in waiting:
                ray.cancel(ref)


def _ray_errors(results: Iterator[Any], what: str, stall_timeout: float | None) -> Iterator[Any]:
    """The results; errors of Ray become ours: "no {what} for ... minutes" where nothing went on."""
    try:
        yield from results
    except (ExecutionTimeoutError, GetTimeoutError) as error:
        raise WorkError(
            f"no {what} for {stall_timeout:g} minutes: {capacity()}; run the same command again "
            "(--stall-timeout: wait longer)"
        ) from error
    except RayError as error:
        raise cause(error) from error


# -------------------------------------------------------------------------------------------------- the embedding job


def execute(request: Request, plan: Plan, pool: ActorPool) -> Iterator[WrittenUnit]:
    """Read, encode and write the plan's units in one execution, fed bit by bit; yields each when it is written."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    in_flight = InFlight.options(scheduling_strategy=here).remote(  # type: ignore[attr-defined]
        max(AHEAD_UNITS, AHEAD_UNITS_AN_ACTOR * pool.most) * plan.unit_rows, encoded=len(plan.done) > 0
    )
    output = request.output
    name = plan.job_file.fingerprint[:8]
    write = partial(write_arrow, output=output.root.uri, results=output.results, fingerprint8=name)
    context = DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = is_verbose()
    context.raise_original_map_exception = True  # else a step's own error is lost with its cause
    context.target_max_block_size = 1  # one block per unit, which any actor can take as soon as it is read
    context.max_consecutive_actor_init_deaths = 3  # tolerates nodes lost while their actor starts
    context.execution_no_progress_timeout_s = 60 * request.actors.stall_timeout
    try:
        with DataContext.current(context):
            written = _stages(request, plan, pool, in_flight, write)
        for batch in written.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            units = [WrittenUnit.from_arrow(batch.slice(i, 1)) for i in range(len(batch))]
            in_flight.add_written.remote(sum(unit.line.rows_out + unit.line.rows_rejected for unit in units))
            yield from units
        for row in ray.get(in_flight.take_rejected.remote()):
            unit = WrittenUnit.from_arrow(write(row))
            note(f"rejected {unit.line.name}, which killed the encoder {DEATHS} times")
            yield unit
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(in_flight)


def _read(spans: pa.Table, *, encoding: ray.ObjectRef) -> Iterator[pa.Table]:
    """`read_units` in a task."""
    for unit in read_units(spans_from_arrow(spans), ray.get(encoding)):
        yield unit.to_arrow()


def _stages(
    request: Request, plan: Plan, pool: ActorPool, in_flight: ray.actor.ActorHandle, write: Callable[..., pa.Table]
) -> Dataset:
    """The dataset of `WrittenUnit`. CPUs differ by stage; otherwise Ray Data would fuse stages."""
    batches: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    # Ray Data's own actors look into arguments, and would import torch of it: seconds, and 320 MB on the head node
    encoding, here = ray.put(request.encoding), ray.get_runtime_context().get_node_id()
    weights, units = request.config["model"]["weights"], math.ceil(plan.units / pool.least)
    planned = ray.data.from_items([0], override_num_blocks=1).map_batches(
        feed_spans,
        fn_kwargs={"plan": ray.put(replace(plan, learned=[])), "in_flight": in_flight},
        num_cpus=0,
        label_selector={"ray.io/node-id": here},  # lost only with the driver
        **batches,
    )
    read = planned.map_batches(
        _read,
        fn_kwargs={"encoding": encoding},
        compute=TaskPoolStrategy(size=READERS_AN_ACTOR * pool.most),
        num_cpus=READ_CPUS,
        **batches,
    )
    encoded = read.map_batches(
        EncodeInPool,
        fn_constructor_args=(encoding, in_flight),
        fn_constructor_kwargs={"weights": weights, "threads": pool.threads, "units": units},
        compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.most),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
        **batches,
    )
    return encoded.map_batches(
        write, compute=TaskPoolStrategy(size=WRITERS_AN_ACTOR * pool.most), num_cpus=WRITE_CPUS, **batches
    )


class EncodeInPool:
    """The encode step in Ray Data's pool of actors: rejects units at which encoders keep dying.

    It ends with its job's `in_flight`, whatever still refers to it: others wait for its CPUs and GPUs.
    """

    def __init__(self, encoding: ray.ObjectRef, in_flight: ray.actor.ActorHandle, **how: Any) -> None:
        ray.get(in_flight.is_there.remote())  # raises where Ray started it again after its job, and so ends that
        self.in_flight = in_flight
        Thread(target=self._end_with_job, daemon=True).start()
        self.step = EncodeUnits(ray.get(encoding), **how)

    def __call__(self, row: pa.Table) -> Iterator[pa.Table]:
        unit = ReadUnit.from_arrow(row)
        key = unit.file, unit.start
        if ray.get(self.in_flight.begin.remote(key)):
            encoded = self.step(unit)
            self.in_flight.end.remote(key)
            yield encoded.to_arrow()
        else:
            rejected = self.step.rejecting(unit, dict.fromkeys(range(len(unit.rows)), (Reason.KILLED, "")))
            ray.get(self.in_flight.reject.remote(key, rejected.to_arrow()))

    def _end_with_job(self) -> None:
        """End this process once `in_flight` has died; not where it is only not reached for now."""
        while True:
            time.sleep(WATCH)
            try:
                ray.get(self.in_flight.is_there.remote())
            except ActorDiedError:
                os._exit(0)
            except RayError:  # it is not reached for now
                continue
