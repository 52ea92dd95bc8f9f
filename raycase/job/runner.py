"""Where embed, score, join, verify and evaluate run: in this process, or on Ray (`raycase.ray.runner`)."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from raycase.io.storage import Location
from raycase.job.units import WrittenUnit, naming, write_encoded

if TYPE_CHECKING:
    from raycase.job.plan import Plan
    from raycase.job.request import Actors, Request

CPUS_OF_ENCODER = 4  # by default
LOG_FORMAT = "{percentage:.1f} %, {n_fmt} of {total_fmt}{unit}, {elapsed} gone, {remaining} left{postfix}"

Item = TypeVar("Item")
Mapped = TypeVar("Mapped")
Places = Sequence[tuple[str, Location]]  # what all calls must reach, each with the flag that names it


class Runner:
    """Runs the work of a command here. On Ray, the cluster is checked at the call, before anything is written."""

    ahead = 2  # units that are read before the encoder, and as many that are encoded and not yet written

    def map(
        self,
        function: Callable[..., Mapped],
        items: Sequence[Item],
        *,
        unit: str,
        places: Places = (),
        threads: int = 1,
        stall_timeout: float | None = None,
        encoder_of: tuple[Actors, int] | None = None,
    ) -> Iterator[Mapped]:
        """Call a function with each item; yields the results as they come, and shows how many of the `unit` have.

        places: what all calls must reach. threads: calls at a time here; on Ray each has one CPU. stall_timeout: in
        minutes. encoder_of: a job's encoders and units; calls run where one would, with `encoders`, `threads`, `where`.
        """
        if encoder_of:
            function = partial(function, threads=None, encoders=1, where="this machine")
        with naming(unit), ThreadPoolExecutor(threads) as pool:
            results = map(function, items) if threads == 1 else pool.map(function, items)
            yield from progress_bar(results, total=len(items), unit=f" {unit}")

    def embed(self, request: Request, plan: Plan) -> Iterator[WrittenUnit]:
        """Read, encode and write the plan's units; yields each when its file is written.

        The three steps run at once, here in threads, on Ray with a pool of actors. A row that kills its encoder ends
        this process; only on Ray is its unit rejected.
        """
        from raycase.job.steps import EncodeUnits, read_units

        encode = EncodeUnits(request.encoding, weights=request.config["model"]["weights"], units=plan.units)
        output, fingerprint8 = request.output, plan.job_file.fingerprint[:8]
        write = partial(write_encoded, output=output.root.uri, results=output.results, fingerprint8=fingerprint8)
        units = read_units(plan.spans_left(), request.encoding)
        writing: deque[Future[WrittenUnit]] = deque()
        with ThreadPoolExecutor(1) as writer:
            for unit in _read_ahead(units, max(1, self.ahead)):
                writing.append(writer.submit(write, encode(unit)))
                while len(writing) > self.ahead or (writing and writing[0].done()):
                    yield writing.popleft().result()
            while writing:
                yield writing.popleft().result()


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


class _Log:
    """Standard error for tqdm, with each update on a line of its own."""

    def write(self, text: str) -> None:
        if text := text.strip():
            sys.stderr.write(f"{text}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(items: Iterable[Any] | None = None, *, total: int, unit: str, initial: int = 0) -> tqdm:
    """A bar on a terminal, a line now and then in a log; of these items, which it yields."""
    terminal = sys.stderr.isatty()
    looks = {"mininterval": 0.5} if terminal else {"mininterval": 15.0, "file": _Log(), "bar_format": LOG_FORMAT}
    return tqdm(items, total=total, initial=initial, unit=unit, unit_scale=True, delay=0.1, leave=terminal, **looks)
