"""The only seam for where work runs: in this process, or on Ray (`raycase.ray.runner`).

`raycase.placement` decides which. Importing this module imports neither torch nor Ray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from raycase.io.storage import Location
from raycase.job.progress import progress_bar
from raycase.job.records import ReadTask, ReadUnit, WrittenUnit, naming, write_encoded

if TYPE_CHECKING:
    from raycase.job.job_record import Job
    from raycase.job.plan import Plan
    from raycase.job.request import Request, RunFlags

AHEAD = 2

Item = TypeVar("Item")
Mapped = TypeVar("Mapped")
Places = Sequence[tuple[str, Location]]  # what all calls must reach, each with the flag that names it


class Runner:
    """Runs the work of a command: this one in this process, those that are derived from it elsewhere.

    Both methods check at once that the work can run, and raise RequestError before the caller writes anything. They
    begin when the first result is asked for.
    """

    def __init__(self, *, ahead: int | None = None) -> None:
        """ahead: most units that are read or encoded and not yet written; 0: each is written before the next is
        encoded. Default: `AHEAD` for the encoder and as many for their files; on Ray by the number of encoders."""
        self.ahead = ahead

    def map(
        self,
        function: Callable[..., Mapped],
        items: Sequence[Item],
        *,
        unit: str,
        places: Places = (),
        threads: int = 1,
        stall_timeout: float | None = None,
        encoder_of: tuple[RunFlags, int] | None = None,
    ) -> Iterator[Mapped]:
        """Call a function with each item; yields the results as they come, and shows how many of the `unit` have.

        Raises what the function raises; errors that are not ours become a WorkError.

        places: what all calls must reach. threads: calls at a time in this process; on Ray each has one CPU.
        stall_timeout: minutes without a result after which Ray is given up. encoder_of: the flags and the units of a
        job: each call runs where one of its encoders would, and is told their number (`encoders`), the `threads` of
        each and `where` it is.
        """
        if encoder_of:
            function = partial(function, threads=None, encoders=1, where="this machine")
        return iter(progress_bar(_results(function, items, threads, unit), total=len(items), unit=f" {unit}"))

    def embed(self, request: Request, opened: Job, plan: Plan) -> Iterator[WrittenUnit]:
        """Read, encode and write the plan's units; yields each when its file is written. Raises RequestError and
        WorkError.

        Not a `map`, for the three steps run at once: here rows are read ahead and files written behind in threads, on
        Ray the encoders are a pool of actors. A row that kills its encoder ends this process; only on Ray is its unit
        rejected.
        """
        from raycase.job.encode_step import EncodeUnits

        encode = EncodeUnits(**request.step, units=plan.units)
        output, ahead = request.output, AHEAD if self.ahead is None else self.ahead
        write = partial(write_encoded, output=output.root.uri, results=output.results, print8=opened.print8)
        writing: deque[Future[WrittenUnit]] = deque()
        with ThreadPoolExecutor(1) as writer:
            for unit in _read_ahead(_read(request, opened, plan), max(1, ahead)):
                writing.append(writer.submit(write, encode(unit)))
                while len(writing) > ahead or (writing and writing[0].done()):
                    yield writing.popleft().result()
            while writing:
                yield writing.popleft().result()


def _results(function: Callable[[Item], Mapped], items: Sequence[Item], threads: int, unit: str) -> Iterator[Mapped]:
    with naming(unit):
        if threads == 1:
            yield from map(function, items)
        else:
            with ThreadPoolExecutor(threads) as pool:
                yield from pool.map(function, items)


def _read(request: Request, opened: Job, plan: Plan) -> Iterator[ReadUnit]:
    from raycase.job.read_step import read_units

    for pieces in plan.tasks():
        yield from read_units(ReadTask.of(opened.files, pieces), config=request.model, kind=request.kind)


def _read_ahead(items: Iterator[Item], most: int) -> Iterator[Item]:
    """The items, of which a thread draws up to `most` before they are asked for. Raises what `items` raises."""
    end = object()
    reader = ThreadPoolExecutor(1)
    try:
        ahead = deque(reader.submit(next, items, end) for _ in range(most))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(reader.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        reader.shutdown(cancel_futures=True)  # what is under way ends first: it reads from files that others close
