"""The units that Ray holds: the plan is fed in bounded pieces, and those that kill their encoder are set aside.

Small, since every worker imports this module.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import ray

from raycase.corpus.plan import Plan
from raycase.corpus.records import ReadTask
from raycase.data.inputs import InputFile
from raycase.errors import WorkError

DEATHS = 3  # of encoders at a unit, after which it is set aside
HOPELESS = 3  # units set aside before any was encoded, after which the job ends

Key = tuple[int, int]  # a unit: its file and first row


def feed_tasks(_: pa.Table, *, plan: ray.ObjectRef, in_flight: ray.actor.ActorHandle) -> Iterator[pa.Table]:
    """Yield the plan's tasks for `read_units`, each as soon as `in_flight` has room for it."""
    planned: tuple[Plan, list[InputFile]] = ray.get(plan)
    fed = 0
    for pieces in planned[0].tasks():
        ray.get(in_flight.wait_for_room.remote(fed))
        fed += sum(len(units) for _, units in pieces)
        yield ReadTask.of(planned[1], pieces).to_arrow()


@ray.remote(num_cpus=0, max_concurrency=8)
class InFlight:
    """Bounds the units that Ray has received and not yet written, and counts the encoders that died at each.

    It outlives the encoders: Ray itself tries a unit whose encoder dies again without end.
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.left = 0  # units that are written or set aside
        self.changed = asyncio.Condition()
        self.begun: Counter[Key] = Counter()  # of units that are not encoded: how often each was begun
        self.encoded = False  # whether any unit was
        self.aside: dict[Key, pa.Table] = {}

    async def is_there(self) -> None:
        """Return: the job goes on."""

    async def add_written(self, units: int) -> None:
        async with self.changed:
            self.left += units
            self.changed.notify_all()

    async def wait_for_room(self, fed: int) -> None:
        """Return when Ray, which has received `fed` units so far, may receive another task."""
        async with self.changed:
            await self.changed.wait_for(lambda: fed - self.left < self.ahead)

    async def begin(self, unit: Key) -> bool:
        """Whether to encode the unit; False: `DEATHS` encoders died at it, so set it aside."""
        if unit in self.aside:  # tried again with others of its pack, or after its node was lost
            return False
        self.begun[unit] += 1
        return self.begun[unit] <= DEATHS

    async def end(self, unit: Key) -> None:
        """The unit is encoded."""
        del self.begun[unit]
        self.encoded = True

    async def set_aside(self, unit: Key, row: pa.Table) -> None:
        """Keep a unit, a `ReadUnit` as an Arrow row, until all others are done.

        Raises WorkError where no unit can be encoded.
        """
        if unit in self.aside:
            return
        del self.begun[unit]
        self.aside[unit] = row
        if len(self.aside) >= HOPELESS and not self.encoded:
            raise WorkError(no_unit_encoded(DEATHS * len(self.aside)))
        await self.add_written(1)

    async def take_aside(self) -> tuple[list[pa.Table], bool]:
        """The units that were set aside, and whether any other was encoded."""
        return list(self.aside.values()), self.encoded


def no_unit_encoded(deaths: int) -> str:
    """Where every unit kills the encoder, it is not the rows."""
    return (
        f"the encoder was killed {deaths} times and encoded no unit: expected enough memory for this model on each "
        "node; try fewer --batch-tokens, --unit-rows or --actors, or larger nodes, then run the same command again"
    )
