"""What threads may share: models and indexes, in which one thread at a time works."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

Passed = ParamSpec("Passed")
Returned = TypeVar("Returned")
Own = TypeVar("Own", bound="Shared")
_LOCKS = "_locks"  # of an object, by process


class Shared:
    """Base of an object whose `exclusive` methods one thread at a time is in: caches and hooks are for one."""

    @property
    def lock(self) -> RLock:
        """The object's lock in this process."""
        locks: dict[int, RLock] = self.__dict__.setdefault(_LOCKS, {})  # atomic, as the next
        if locks and os.getpid() not in locks:
            self.forked()
        return locks.setdefault(os.getpid(), RLock())

    def forked(self) -> None:
        """Called at the first use in a child that was forked after the parent's: the lock is the child's own."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _LOCKS}


def exclusive(method: Callable[Concatenate[Own, Passed], Returned]) -> Callable[Concatenate[Own, Passed], Returned]:
    """A method that holds its object's lock."""

    @wraps(method)
    def call(self: Own, *args: Passed.args, **options: Passed.kwargs) -> Returned:
        with self.lock:
            return method(self, *args, **options)

    return call
