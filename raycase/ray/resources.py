"""Fits the encoders of a job into the nodes of a cluster."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from raycase.errors import RequestError
from raycase.io.storage import Location
from raycase.job.request import RunFlags, actor_range
from raycase.job.runner import Places
from raycase.ray.cluster import named_cluster, nodes, start_ray

# CPUs are multiples of 1/16, so that their sums are exact: Ray Data reserves a node's CPUs stage by stage, in floats,
# and where the last does not fit by 1e-16, its tasks never start while an earlier stage waits for it
CPU_STEP = 1 / 16
READ_CPUS, WRITE_CPUS = 0.25, 0.125  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.125  # per encoder: on CPUs, and in addition to a GPU
CPUS_OF_ENCODER = 4  # by default
Node = dict[str, Any]  # resources of a node, under Ray's names


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
        """The resources of one actor, for display."""
        return (f"{self.gpus:g} GPU and " if self.gpus else "") + f"{self.cpus:g} CPUs"

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{count} encoder{'s' * (count != '1')} with {self.each} each"


@dataclass(frozen=True)
class Capacity:
    """The live nodes of a cluster, and whether an autoscaler may add others, which Ray does not tell."""

    alive: list[Node]
    grows: bool = False

    def __str__(self) -> str:
        counts = Counter((n.get("CPU", 0), n.get("GPU", 0)) for n in self.alive)
        shapes = [f"{n} node{'s' * (n > 1)} with {c:g} CPUs and {g:g} GPUs" for (c, g), n in sorted(counts.items())]
        return f"the cluster has {', '.join(shapes) or 'no node'}"


def make_pool(job: RunFlags, units: int, cluster: Capacity) -> ActorPool:
    """Fit the actors into the live nodes, with CPUs left to read and write. Raises RequestError for those that do not
    fit, unless the job asks for them and the cluster may grow: then Ray asks for nodes."""
    requested = actor_range(job.actors)
    gpus = float(any(n.get("GPU") for n in cluster.alive)) if job.gpus_per_actor is None else job.gpus_per_actor
    cpus = LEAST_GPU_CPUS if gpus else LEAST_ENCODE_CPUS
    free = [n.get("CPU", 0) - READ_CPUS - WRITE_CPUS for n in cluster.alive]
    fits = [max(0, int(f / cpus)) for f in free]  # most actors of each node
    usual = [min(f, max(1, round(n.get("CPU", 0) / CPUS_OF_ENCODER))) for f, n in zip(fits, cluster.alive, strict=True)]
    if gpus:
        usual = fits = [min(f, int(n.get("GPU", 0) / gpus)) for f, n in zip(fits, cluster.alive, strict=True)]
    least, most = requested or (max(1, sum(usual)),) * 2
    if not (requested and cluster.grows):
        if least > sum(fits):
            needs = f"{gpus:g} GPU and {cpus} CPUs" if gpus else f"at least {cpus} CPUs"
            raise RequestError(
                f"--actors: expected {least} with {needs} each, and {READ_CPUS + WRITE_CPUS} CPUs a node to read and "
                f"write; got room for {sum(fits)}: {cluster}; ask for fewer, or pass --actors MIN:MAX on a cluster "
                "whose autoscaler adds nodes"
            )
        most = min(most, sum(fits))
    most = min(most, max(least, units))
    used = [f for f, count in zip(free, fits, strict=True) if count] or [1.0]
    smallest, count = min(used), math.ceil(min(most, max(1, sum(fits))) / len(used))
    if most > sum(fits) and not gpus:
        while count > 1 and (count + 1) * _whole_steps(smallest / count) <= smallest + READ_CPUS + WRITE_CPUS:
            count -= 1  # else Ray would start one more there, and nothing could be read
    share = smallest / count
    whole_steps = _whole_steps(share)
    if gpus:
        return ActorPool(least=least, most=most, cpus=min(1.0, whole_steps), gpus=gpus, threads=None)
    return ActorPool(least=least, most=most, cpus=max(cpus, whole_steps), gpus=0, threads=max(1, round(share)))


def _whole_steps(cpus: float) -> float:
    return math.floor(cpus / CPU_STEP) * CPU_STEP


def join_cluster(places: Places) -> Capacity:
    """Join or start Ray, whose nodes must all reach these places. Raises RequestError."""
    start_ray()
    cluster = capacity()
    for flag, place in places:
        check_nodes(place, cluster, flag)
    return cluster


def capacity() -> Capacity:
    """The nodes of the cluster that this process has joined; one that it started for itself does not grow."""
    return Capacity(nodes(), grows=named_cluster() is not None)


def check_nodes(root: Location, cluster: Capacity, flag: str = "--output") -> None:
    """Raise RequestError for a local folder on a cluster of several nodes, each of which would hold only a part."""
    if root.is_local and len(cluster.alive) > 1:
        raise RequestError(
            f"{flag}: expected object storage on a cluster of several nodes ({cluster}), got the local {root.uri}; "
            "each node has its own part of it"
        )
