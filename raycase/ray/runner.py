"""Runs the work of a command on the cluster that this process joins, or on a Ray of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import ray
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import GetTimeoutError, RayError

from raycase.errors import WorkError, note
from raycase.job.plan import Plan
from raycase.job.request import Actors, Request
from raycase.job.runner import Item, Mapped, Places, Runner, progress_bar
from raycase.job.units import WrittenUnit
from raycase.ray.cluster import call, capacity, cause, join_cluster, make_pool
from raycase.ray.embed import execute

CALLS_AT_ONCE = 2048  # that Ray holds


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
        what = f"unit was finished by {pool}"
        return _ray_errors(execute(request, plan, pool), what, request.actors.stall_timeout)


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
