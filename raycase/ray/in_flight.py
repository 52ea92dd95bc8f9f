"""The units that Ray holds: the plan is fed bit by bit, and a unit that keeps killing its encoder is rejected.

Small, since every worker imports this module.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import ray

from raycase.errors import WorkError
from raycase.job.plan import Plan
from raycase.job.units import spans_to_arrow

DEATHS = 3  # of encoders at a unit, after which it is rejected; of actors at a search, after which it is given up
HOPELESS = 3  # units rejected before any was encoded, after which the job ends

Key = tuple[int, int]  # a unit: its file and first row


def feed_spans(_: pa.Table, *, plan: ray.ObjectRef, in_flight: ray.actor.ActorHandle) -> Iterator[pa.Table]:
    """Yield the plan's spans, those of one task of the read step together, as soon as `in_flight` has room for them."""
    planned: Plan = ray.get(plan)
    fed = 0
    for spans in planned.spans_together():
        ray.get(in_flight.wait_for_room.remote(fed))
        fed += sum(end - start for span in spans for start, end in span.units)
        yield spans_to_arrow(spans)


@ray.remote(num_cpus=0, max_concurrency=8)
class InFlight:
    """Bounds the rows that Ray has and has not written; counts encoders that died at each unit, as Ray does not."""

    def __init__(self, ahead: int, *, encoded: bool = False) -> None:
        """ahead: most rows in Ray. encoded: whether an earlier run has encoded any."""
        self.ahead = ahead
        self.left = 0  # rows in units that are written or rejected
        self.changed = asyncio.Condition()
        self.begun: Counter[Key] = Counter()  # of units that are not encoded: how often each was begun
        self.encoded = encoded
        self.rejected: dict[Key, pa.Table] = {}

    async def is_there(self) -> None:
        """Return: the job goes on."""

    async def add_written(self, rows: int) -> None:
        async with self.changed:
            self.left += rows
            self.changed.notify_all()

    async def wait_for_room(self, fed: int) -> None:
        """Return when Ray, which has received `fed` rows so far, may receive more."""
        async with self.changed:
            await self.changed.wait_for(lambda: fed - self.left < self.ahead)

    async def begin(self, unit: Key) -> bool:
        """Whether to encode the unit; False: `DEATHS` encoders died at it, so reject it."""
        self.begun[unit] += 1
        return self.begun[unit] <= DEATHS

    async def end(self, unit: Key) -> None:
        """The unit is encoded."""
        del self.begun[unit]
        self.encoded = True

    async def reject(self, unit: Key, row: pa.Table) -> None:
        """Keep a rejected unit, an `EncodedUnit` as an Arrow row. Raises WorkError where no unit can be encoded."""
        if unit in self.rejected:  # tried again after its node was lost
            return
        self.rejected[unit] = row
        if len(self.rejected) >= HOPELESS:
            self._check_encoded()
        await self.add_written(row["rows_in"][0].as_py())

    async def take_rejected(self) -> list[pa.Table]:
        """The rejected units, to be written once all others are. Raises WorkError where no unit was encoded."""
        if self.rejected:
            self._check_encoded()
        return list(self.rejected.values())

    def _check_encoded(self) -> None:
        """Where every unit kills the encoder, it is not the rows."""
        if not self.encoded:
            raise WorkError(
                f"the encoder was killed {DEATHS * len(self.rejected)} times and encoded no unit: expected enough "
                "memory for this model on each node; try fewer --batch-tokens, --unit-rows or --actors, or larger "
                "nodes, then run the same command again"
            )
