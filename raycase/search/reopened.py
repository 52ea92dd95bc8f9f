"""A search beside builds: two that finish meanwhile remove the version that it has open, so it opens the new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from raycase.errors import WorkError, note
from raycase.search.index import Index
from raycase.search.lance_files import open_newest

T = TypeVar("T")


def on_index(
    open_index: Callable[[], Index], work: Callable[[Index], T], may_ask: Callable[[], bool] = lambda: True
) -> tuple[Index, T]:
    """Open an index and work on it, once more where its version was removed meanwhile, which is a WorkError.

    may_ask: whether the storage may be asked if it was removed, after a failure. Raises what the work raises, and
    WorkError where its version was removed twice.
    """
    for again in (False, True):
        index = open_index()
        try:
            return index, work(index)
        except WorkError as error:  # a wrong request is wrong in any version
            if not (may_ask() and _is_removed(index)):
                raise
            removed = error.with_traceback(None)  # its frames hold the index, and this one the error
        if not again:
            note(f"{index.root.uri}: builds removed the version that was searched; searching the new one")
    raise WorkError(
        f"--index: expected a version of {index.root.uri} that stays while it is searched, got two that builds "
        "removed; search again when fewer are at work"
    ) from removed


def _is_removed(index: Index) -> bool:
    """Whether the version that is open is gone."""
    newest = open_newest(index.root)
    return newest is None or index.dataset.version not in [each["version"] for each in newest.versions()]
