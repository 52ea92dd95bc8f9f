"""A cache of a method's values that does not keep its object alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar
from weakref import WeakMethod

V = TypeVar("V")


def cached_method(method: Callable[..., V], most: int) -> Callable[..., V]:
    """The bound method, with its last values remembered.

    For an attribute of its own object: `lru_cache` would hold the object in a circle, which only a full collection
    frees, and with it what it holds: an index's words, the processes of its shards.
    """
    weak = WeakMethod(method)

    def call(*arguments: object) -> V:
        bound = weak()
        assert bound is not None, "the object that has the cache calls it"
        return bound(*arguments)

    return lru_cache(most)(call)
