"""An open index that takes each new version as it is published. Not for several threads at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from raycase.errors import RequestError, WorkError, first_line, note
from raycase.index.index import Index, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.metadata import READY
from raycase.index.shard import Limits

T = TypeVar("T")


def open_index(
    uri: str, *, model: str | None, token_memory: int, shard: Callable[[Index], Index] | None = None
) -> Index:
    """The index that is served. Raises RequestError.

    shard: makes of an open index one whose shards are searched by processes of their own.
    """
    index = Index.open(uri, model=model, limits=Limits(token_memory=token_memory))
    return shard(index) if shard else index


def is_newest(index: Index) -> bool:
    """Whether no later version was published. Raises RequestError and WorkError where the storage does not answer."""
    with lance_errors(index.root):
        ready = index.dataset.tags.list().get(READY)
    return ready is None or ready["version"] == index.dataset.version  # None: an overwrite is at work


@dataclass(kw_only=True)
class LiveIndex:
    """An index by which requests are answered: those that have begun end on their version.

    checked_for: seconds for which the version that is open is taken for the newest.
    """

    open: Callable[[], Index]
    checked_for: float = 1.0
    index: Index = field(init=False)
    checked: float = field(init=False)

    def __post_init__(self) -> None:
        self.index, self.checked = self.open(), time.monotonic()

    def on(self, work: Callable[[Index], T]) -> T:
        """Do some work on the newest version; once more where builds removed it meanwhile. Raises what the work
        raises."""
        return on_index(self.newest, work)[1]

    def newest(self) -> Index:
        """The newest version, with the model that is loaded; the one that is open where another cannot be opened."""
        if time.monotonic() - self.checked > self.checked_for:
            self.checked = time.monotonic()
            try:
                if not is_newest(self.index):
                    self.index = self._opened()
            except (RequestError, WorkError) as error:
                note(f"still using the open version of the index: {first_line(error)}")
        return self.index

    def _opened(self) -> Index:
        index, before = self.open(), self.index
        if index.metadata.model != before.metadata.model:
            raise RequestError(
                f"expected an index of {before.metadata.name}, got one of {index.metadata.name}; restart the service"
            )
        index.encoder = before.encoder
        return index
