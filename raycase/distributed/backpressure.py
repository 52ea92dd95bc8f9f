"""Gives Ray the plan in bounded pieces while the actors work. Every worker imports this module, so it stays small."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import ray

from raycase.corpus.plan import Plan
from raycase.corpus.records import ReadTask
from raycase.data.inputs import InputFile


def feed_tasks(_: pa.Table, *, plan: ray.ObjectRef, backpressure: ray.actor.ActorHandle) -> Iterator[pa.Table]:
    """The plan's tasks for `read_units`, each as soon as `backpressure` allows it."""
    planned: tuple[Plan, list[InputFile]] = ray.get(plan)
    fed = 0
    for pieces in planned[0].tasks():
        ray.get(backpressure.wait_for_room.remote(fed))
        fed += sum(len(units) for _, units in pieces)
        yield ReadTask.of(planned[1], pieces).to_arrow()


@ray.remote(num_cpus=0, max_concurrency=8)
class Backpressure:
    """Bounds how many units were given to Ray and are not yet written."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.written = 0
        self.changed = asyncio.Condition()

    async def add_written(self, units: int) -> None:
        async with self.changed:
            self.written += units
            self.changed.notify_all()

    async def wait_for_room(self, fed: int) -> None:
        """Return when another task may follow the `fed` units that were given so far."""
        async with self.changed:
            await self.changed.wait_for(lambda: fed - self.written < self.ahead)
