"""Encoders as Ray actors: those of the pool, and one of its own for units that kill theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.records import EncodedUnit, ReadUnit, pack, unpack
from raycase.distributed.in_flight import Key
from raycase.errors import WorkError

WATCH = 5.0  # seconds between two looks at whether the job goes on


class EncodeInPool(EncodeUnits):
    """The encode step, on packs, in Ray Data's pool of actors: sets units aside at which encoders keep dying.

    It ends with `in_flight`, which its job ends, whatever still refers to it: others wait for its CPUs and GPUs.
    """

    def __init__(self, *, in_flight: ray.actor.ActorHandle, **step: Any) -> None:
        if _has_ended(in_flight):  # Ray started it again after its job; it does not where this raises
            raise WorkError("the job of this encoder has ended")
        Thread(target=_end_with, args=(in_flight,), daemon=True).start()
        super().__init__(**step)
        self.in_flight = in_flight

    def __call__(self, row: pa.Table) -> Iterator[pa.Table]:
        encoded = [unit for unit in map(self._encode, unpack(row)) if unit is not None]
        if encoded:
            yield pack(encoded)

    def _encode(self, row: pa.Table) -> pa.Table | None:
        """Encode a unit, unless it is set aside."""
        unit: Key = row["file"][0].as_py(), row["start"][0].as_py()
        if not ray.get(self.in_flight.begin.remote(unit)):
            ray.get(self.in_flight.set_aside.remote(unit, row))
            return None
        encoded = super().__call__(row)
        self.in_flight.end.remote(unit)
        return encoded


def _end_with(in_flight: ray.actor.ActorHandle) -> None:
    """End this process once the actor has died."""
    while not _has_ended(in_flight):
        time.sleep(WATCH)
    os._exit(0)


def _has_ended(in_flight: ray.actor.ActorHandle) -> bool:
    """Whether the actor has died; False where it is not reached for now."""
    with suppress(Exception):
        try:
            ray.get(in_flight.is_there.remote())
        except ActorDiedError:
            return True
    return False


class LoneEncoder:
    """One encoder beside the pool, started when it is needed and again when it was killed."""

    def __init__(self, step: dict[str, Any], wait: Callable[[ray.ObjectRef], Any], **resources: Any) -> None:
        """step: arguments of `EncodeUnits`. wait: `ray.get` that gives up at some time. resources: options of actors"""
        start = ray.remote(EncodeUnits).options(max_restarts=0, max_task_retries=0, **resources)
        self.start = partial(start.remote, **step)
        self.wait = wait
        self.actor: Any = None
        self.deaths = 0

    def encode(self, unit: ReadUnit) -> EncodedUnit | None:
        """Encode a unit; None where that killed the encoder. Raises what the encoder raises."""
        self.actor = self.actor or self.start()
        try:
            return EncodedUnit.from_arrow(self.wait(self.actor.__call__.remote(unit.to_arrow())))
        except (RayActorError, OutOfMemoryError) as error:  # the latter by Ray's own monitor
            if getattr(error, "actor_init_failed", False):
                raise
            self.actor = None
            self.deaths += 1
            return None

    def stop(self) -> None:
        """Give its resources back."""
        if self.actor is not None:
            ray.kill(self.actor)
