"""Where embed, score, join, verify and evaluate run: here or on Ray (`raycase.ray.runner`), and what fits there."""

from __future__ import annotations

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm import tqdm

from raycase.errors import RequestError
from raycase.io.storage import Location
from raycase.job.units import WrittenUnit, naming, write_encoded

if TYPE_CHECKING:
    from raycase.job.plan import Plan
    from raycase.job.request import Actors, Request

# CPUs are multiples of 1/16, so that their sums are exact: Ray Data reserves a node's CPUs stage by stage, in floats,
# and where the last does not fit by 1e-16, its tasks never start while an earlier stage waits for it
CPU_STEP = 1 / 16
READ_CPUS, WRITE_CPUS = 0.25, 0.125  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.125  # per encoder: on CPUs, and in addition to a GPU
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


# ------------------------------------------------------------------------------------------------------------- capacity


@dataclass(frozen=True, kw_only=True)
class ActorPool:
    """The actors that encode: their number, and the resources of each."""

    least: int
    most: int
    cpus: float
    gpus: float
    threads: int | None

    @property
    def each(self) -> str:
        return (f"{self.gpus:g} GPU and " if self.gpus else "") + f"{self.cpus:g} CPUs"

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{count} encoder{'s' * (count != '1')} with {self.each} each"


@dataclass(frozen=True)
class Capacity:
    """The live nodes, each by its resources under Ray's names, and whether an autoscaler may add others."""

    alive: list[dict[str, Any]]
    grows: bool = False

    def gpus(self, asked: float | None) -> float:
        """GPUs of each worker: as many as asked for, else one where a node has any."""
        return float(any(n.get("GPU") for n in self.alive)) if asked is None else asked

    def room(self, cpus: float, gpus: float) -> int:
        """How many workers with so many CPUs and GPUs fit."""
        return sum(_most(node, cpus, gpus) for node in self.alive)

    def __str__(self) -> str:
        counts = Counter((n.get("CPU", 0), n.get("GPU", 0)) for n in self.alive)
        shapes = [f"{n} node{'s' * (n > 1)} with {c:g} CPUs and {g:g} GPUs" for (c, g), n in sorted(counts.items())]
        return f"the cluster has {', '.join(shapes) or 'no node'}"


def _most(node: dict[str, Any], cpus: float, gpus: float, kept: float = 0.0) -> int:
    """The most workers with so many CPUs and GPUs that fit a node, beside CPUs that are kept."""
    by_gpus = node.get("GPU", 0) / gpus if gpus else math.inf
    return max(0, int(min((node.get("CPU", 0) - kept) / cpus, by_gpus)))


def make_pool(actors: Actors, units: int, cluster: Capacity) -> ActorPool:
    """Fit the actors into the nodes, with CPUs left to read and write. Where the cluster grows, Ray asks for more."""
    requested = actors.count
    gpus = cluster.gpus(actors.gpus)
    cpus = LEAST_GPU_CPUS if gpus else LEAST_ENCODE_CPUS
    kept = READ_CPUS + WRITE_CPUS
    nodes = [(node.get("CPU", 0), _most(node, cpus, gpus, kept)) for node in cluster.alive]
    fit = sum(most for _, most in nodes)
    may_grow = requested is not None and cluster.grows
    usual = sum(most if gpus else min(most, max(1, round(there / CPUS_OF_ENCODER))) for there, most in nodes)
    least, wanted = requested or (max(1, usual),) * 2
    if least > fit and not may_grow:
        needs = f"{gpus:g} GPU and {cpus} CPUs" if gpus else f"at least {cpus} CPUs"
        raise RequestError(
            f"--actors: expected {least} with {needs} each, and {kept} CPUs a node to read and "
            f"write; got room for {fit}: {cluster}; ask for fewer, or pass --actors MIN:MAX on a cluster "
            "whose autoscaler adds nodes"
        )
    most = min(wanted if may_grow else min(wanted, fit), max(least, units))
    used = [there - kept for there, most_here in nodes if most_here] or [1.0]
    left, here = min(used), math.ceil(min(most, max(1, fit)) / len(used))
    if most > fit and not gpus:  # where Ray could add one to a node, there are fewer, so that rows can be read
        here = next((n for n in range(here, 1, -1) if (n + 1) * whole_steps(left / n) > left + kept), 1)
    share = whole_steps(left / here)
    threads = None if gpus else max(1, round(left / here))
    cpus = min(1.0, share) if gpus else max(cpus, share)
    return ActorPool(least=least, most=most, cpus=cpus, gpus=gpus, threads=threads)


def whole_steps(cpus: float) -> float:
    """At most so many CPUs, in multiples of `CPU_STEP`."""
    return math.floor(cpus / CPU_STEP) * CPU_STEP
