"""Feeds the plan to Ray in bounded pieces while the actors work. Small, since every worker imports this module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import ray

from raycase.corpus.plan import Plan
from raycase.corpus.records import ReadTask
from raycase.data.inputs import InputFile


def feed_tasks(_: pa.Table, *, plan: ray.ObjectRef, backpressure: ray.actor.ActorHandle) -> Iterator[pa.Table]:
    """Yield the plan's tasks for `read_units`, each as soon as `backpressure` has room for it."""
    planned: tuple[Plan, list[InputFile]] = ray.get(plan)
    fed = 0
    for pieces in planned[0].tasks():
        ray.get(backpressure.wait_for_room.remote(fed))
        fed += sum(len(units) for _, units in pieces)
        yield ReadTask.of(planned[1], pieces).to_arrow()


@ray.remote(num_cpus=0, max_concurrency=8)
class Backpressure:
    """Bounds the number of units that Ray has received and not yet written."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.written = 0
        self.changed = asyncio.Condition()

    async def add_written(self, units: int) -> None:
        async with self.changed:
            self.written += units
            self.changed.notify_all()

    async def wait_for_room(self, fed: int) -> None:
        """Return when Ray, which has received `fed` units so far, may receive another task."""
        async with self.changed:
            await self.changed.wait_for(lambda: fed - self.written < self.ahead)
