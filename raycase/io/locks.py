"""What threads and processes may share: models and indexes, in which one at a time works."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from raycase.errors import WorkError
from raycase.io.storage import S3, Location, mark

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


@contextmanager
def held(folder: Location, name: str, refused: WorkError) -> Iterator[None]:
    """Hold a local folder, made where there is none, by a file that the system frees when the process ends."""
    if not folder.is_local:
        yield
        return
    os.makedirs(folder.path, exist_ok=True)
    try:
        lock = FileLock(f"{folder.path}/{name}", mode=0o666).acquire(timeout=0)  # another user's build may come next
    except Timeout as error:
        raise refused from error
    with lock:
        try:
            yield
        finally:
            (folder / name).remove()  # while it is held: who opened it meanwhile sees that it has no name left
            with suppress(OSError):  # unless something was written
                os.rmdir(folder.path)


def mark_of(file: Location) -> str | None:
    """The `mark` of a file; None where there is none."""
    return mark(file.fs.info(file.path)) if file.exists() else None


def put_over(file: Location, data: bytes, former: str | None) -> bool:
    """Put a file in place of the one with this mark, or of none; whether it still was. Only S3 does it in one step."""
    if mark_of(file) != former:
        return False
    if file.uri.partition("://")[0] not in S3:
        file.put(data)
        return True
    condition = {"mode": "create"} if former is None else {"IfMatch": former}
    try:
        file.fs.pipe_file(file.path, data, **condition)
    except OSError:
        if mark_of(file) == former:
            raise
        return file.read() == data  # a put whose answer was lost is asked for again, and refused
    return True
