"""Fits the actors of a job into the live nodes and those that the autoscaler offers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from raycase.corpus.request import actor_range
from raycase.corpus.tasks import Places
from raycase.data.storage import Location
from raycase.distributed.cluster import nodes, start_ray
from raycase.distributed.ray_internals import autoscaler_command, is_head, node_groups, started_here
from raycase.errors import RequestError

# CPUs are multiples of 1/16, so that their sums are exact: Ray Data reserves a node's CPUs stage by stage, in floats,
# and where the last does not fit by 1e-16, its tasks never start while an earlier stage waits for it
CPU_STEP = 1 / 16
READ_CPUS, WRITE_CPUS = 0.25, 0.125  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.125  # per actor: on CPUs, and in addition to a GPU
MOST_OFFERED = 10_000  # nodes counted per type; an autoscaler may offer any number
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
    """The live nodes, and those that the autoscaler can still start (None: unknown)."""

    alive: list[Node]
    offered: list[Node] | None

    def __str__(self) -> str:
        has = f"the cluster has {_counted(self.alive)}"
        if self.offered is None:
            return f"{has}, and an autoscaler that does not say what it offers"
        more = f"its autoscaler offers {_counted(self.offered)}" if self.offered else "no autoscaler offers more"
        return f"{has}, and {more}"


def _counted(nodes: Iterable[Node]) -> str:
    counts = Counter((n.get("CPU", 0), n.get("GPU", 0)) for n in nodes)
    shapes = sorted(counts.items(), key=lambda item: item[0])
    return ", ".join(f"{n} node{'s' * (n > 1)} with {c:g} CPUs and {g:g} GPUs" for (c, g), n in shapes) or "no node"


class ActorFlags(Protocol):
    """The flags of a job that concern its actors."""

    @property
    def actors(self) -> str | None:
        """Number of actors, MIN:MAX."""

    @property
    def gpus_per_actor(self) -> float | None:
        """GPUs per actor."""


def make_pool(job: ActorFlags, units: int, cluster: Capacity) -> ActorPool:
    """Fit the actors into the live and offered nodes, with CPUs left to read and write.

    Raises RequestError for actors that do not fit. If the autoscaler's offer is unknown, the requested actors are
    assumed to fit.
    """
    coming = cluster.offered
    every = cluster.alive + (coming or [])
    requested = actor_range(job.actors)
    has_gpus = any(n.get("GPU") for n in every)
    gpus = job.gpus_per_actor if job.gpus_per_actor is not None else float(has_gpus)
    cpus = LEAST_GPU_CPUS if gpus else LEAST_ENCODE_CPUS
    if coming is None and requested:
        coming = [{"CPU": 1 + READ_CPUS + WRITE_CPUS, "GPU": gpus}] * requested[1]
        every = cluster.alive + coming
    room = [n.get("CPU", 0) - READ_CPUS - WRITE_CPUS for n in every]
    fits = [max(0, int(r / cpus)) for r in room]  # maximum number of actors per node
    if gpus:
        fits = [min(f, int(n.get("GPU", 0) / gpus)) for f, n in zip(fits, every, strict=True)]
    usual = fits if gpus else [min(f, max(1, round(n.get("CPU", 0) / 4))) for f, n in zip(fits, every, strict=True)]
    # an autoscaler starts nodes one by one, and perhaps never all
    least, most = requested or (1 if coming else max(1, sum(usual)), max(1, sum(usual)))
    if least > sum(fits):
        needs = f"{gpus:g} GPU and {cpus} CPUs" if gpus else f"at least {cpus} CPUs"
        raise RequestError(
            f"--actors: expected {least} with {needs} each, and {READ_CPUS + WRITE_CPUS} CPUs a node to read and "
            f"write; got room for {sum(fits)}: {cluster}; ask for fewer actors or a larger cluster"
        )
    most = min(most, sum(fits), max(least, units))
    used = [r for r, f in zip(room, fits, strict=True) if f]
    share = min(used) / math.ceil(most / len(used))  # on the smallest node
    whole_steps = math.floor(share / CPU_STEP) * CPU_STEP
    if gpus:
        return ActorPool(least=least, most=most, cpus=min(1.0, whole_steps), gpus=gpus, threads=None)
    return ActorPool(least=least, most=most, cpus=max(cpus, whole_steps), gpus=0, threads=max(1, round(share)))


def fits_a_node(pool: ActorPool, cluster: Capacity) -> bool:
    """Whether a live node has the resources of an actor, whatever of them is in use."""
    return any(n.get("CPU", 0) >= pool.cpus and n.get("GPU", 0) >= pool.gpus for n in cluster.alive)


def join_cluster(places: Places) -> Capacity:
    """Join or start Ray, whose nodes must all reach these places. Raises RequestError."""
    start_ray()
    cluster = capacity()
    for flag, place in places:
        check_nodes(place, cluster, flag)
    return cluster


def check_nodes(root: Location, cluster: Capacity, flag: str = "--output") -> None:
    """Raise RequestError for a local folder on a cluster of several nodes, each of which would hold only a part."""
    if root.is_local and (len(cluster.alive) > 1 or cluster.offered != []):
        raise RequestError(
            f"{flag}: expected object storage on a cluster of several nodes ({cluster}), got the local {root.uri}; "
            "each node has its own part of it"
        )


# --------------------------------------------------------------------------------------------------- the autoscaler


def capacity() -> Capacity:
    """The capacity of the cluster that this process has joined."""
    return Capacity(nodes(), _offered())


def _offered() -> list[Node] | None:
    """The nodes that the autoscaler can still start; None if it runs on another machine and is thus unknown.

    Ray has no API for this outside managed services. On the head node, the autoscaler ("monitor") runs on the driver's
    machine and its configuration is a file.
    """
    local = started_here()
    if local:
        return []
    if groups := node_groups():
        return _left([(r, MOST_OFFERED if most < 0 else most) for r, most in groups], MOST_OFFERED)
    monitor = autoscaler_command()
    if monitor is None:  # if Ray does not tell who started it, assume that one node is a local Ray
        return [] if local is None and len(nodes()) == 1 else None
    path = next((a.partition("=")[2] for a in monitor if a.startswith("--autoscaling-config=")), None)
    if path is None:
        return []
    config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    most = config.get("max_workers", MOST_OFFERED)
    types = {n: t for n, t in config["available_node_types"].items() if n != config.get("head_node_type")}
    return _left([(t.get("resources", {}), t.get("max_workers", most)) for t in types.values()], most)


def _left(types: list[tuple[Node, int]], most: int) -> list[Node]:
    """The nodes of these types (resources, maximum count) that are not alive yet, at most `most` in total.

    Those with GPUs come first: if not all can start, the job's actors determine which ones do.
    """
    workers = [n for n in nodes() if not is_head(n)]
    left: list[Node] = []
    for resources, count in sorted(types, key=lambda kind: -kind[0].get("GPU", 0)):
        alive = sum(all(n.get(k, 0) == resources.get(k, 0) for k in ("CPU", "GPU")) for n in workers)
        left += [resources] * (min(count, MOST_OFFERED) - alive)
    return left[: max(0, most - len(workers))]
