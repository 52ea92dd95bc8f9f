"""What the nodes of a cluster have, and how encoders fit into it."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from raycase.errors import RequestError
from raycase.job.request import Actors
from raycase.job.runner import CPUS_OF_ENCODER

# CPUs are multiples of 1/16, so that their sums are exact: Ray Data reserves a node's CPUs stage by stage, in floats,
# and where the last does not fit by 1e-16, its tasks never start while an earlier stage waits for it
CPU_STEP = 1 / 16
READ_CPUS, WRITE_CPUS = 0.25, 0.125  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.125  # per encoder: on CPUs, and in addition to a GPU


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
