"""The plan handed to Ray in bounded pieces while the actors work. Imported by every worker, so it stays small: a
context that names a class brings its module with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import ray

from raycase.corpus.plan import Plan
from raycase.corpus.records import ReadTask
from raycase.data.inputs import InputFile


def hand_over(_: pa.Table, *, plan: ray.ObjectRef, pace: ray.actor.ActorHandle) -> Iterator[pa.Table]:
    """The plan's tasks for `read_units`, no more at a time than `pace` allows."""
    todo: tuple[Plan, list[InputFile]] = ray.get(plan)
    handed = 0
    for pieces in todo[0].tasks():
        ray.get(pace.room.remote(handed))
        handed += sum(len(wanted) for _, wanted in pieces)
        yield ReadTask.of(todo[1], pieces).to_arrow()


@ray.remote(num_cpus=0, max_concurrency=8)
class Pace:
    """How far the units that are handed to Ray may be ahead of those that are written."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.written = 0
        self.changed = asyncio.Condition()

    async def wrote(self, units: int) -> None:
        async with self.changed:
            self.written += units
            self.changed.notify_all()

    async def room(self, before: int) -> None:
        """Come back when more may be handed over after so many units."""
        async with self.changed:
            await self.changed.wait_for(lambda: before - self.written < self.ahead)
