"""The actors of a job, fitted into the nodes that the cluster has and those that its autoscaler offers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from raycase.corpus.request import actor_range
from raycase.data.storage import Location
from raycase.distributed.cluster import nodes
from raycase.distributed.ray_internals import autoscaler_command, is_head, node_groups, started_here
from raycase.errors import RequestError

READ_CPUS, WRITE_CPUS = 0.25, 0.2  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.1  # of an actor that encodes on CPUs, or beside its GPU
MOST_OFFERED = 10_000  # nodes of one type that are counted; an autoscaler may offer any number
Node = dict[str, Any]  # resources of a node, by Ray's names


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The actors that encode: how many, and what each takes."""

    least: int
    most: int
    cpus: float
    gpus: float
    threads: int | None

    def __str__(self) -> str:
        count = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        each = f"{self.gpus:g} GPU and " if self.gpus else ""
        return f"{count} encoder{'s' * (count != '1')} with {each}{self.cpus:g} CPUs each"


@dataclass(frozen=True)
class Capacity:
    """The nodes that are alive, and those that the autoscaler can still start; None where that is unknown."""

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
    """The flags of a job that are about its actors."""

    @property
    def actors(self) -> str | None:
        """How many, MIN:MAX."""

    @property
    def gpus_per_actor(self) -> float | None:
        """GPUs of each."""


def make_pool(job: ActorFlags, units: int, cluster: Capacity) -> Pool:
    """Fit the actors into what the cluster has and what its autoscaler offers, with room left to read and write.

    Raises RequestError where they do not fit. Where it is unknown what the autoscaler offers, the requested actors are
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
    fits = [max(0, int(r / cpus)) for r in room]  # most actors on each node
    if gpus:
        fits = [min(f, int(n.get("GPU", 0) / gpus)) for f, n in zip(fits, every, strict=True)]
    usual = fits if gpus else [min(f, max(1, round(n.get("CPU", 0) / 4))) for f, n in zip(fits, every, strict=True)]
    # an autoscaler brings one node after the other, and may never bring all
    least, most = requested or (1 if coming else max(1, sum(usual)), max(1, sum(usual)))
    if least > sum(fits):
        needs = f"{gpus:g} GPU and {cpus} CPUs" if gpus else f"at least {cpus} CPUs"
        raise RequestError(
            f"--actors: expected {least} with {needs} each, and {READ_CPUS + WRITE_CPUS} CPUs a node to read and "
            f"write; got room for {sum(fits)}: {cluster}; ask for fewer actors or a larger cluster"
        )
    most = min(most, sum(fits), max(least, units))
    used = [r for r, f in zip(room, fits, strict=True) if f]
    share = min(used) / math.ceil(most / len(used))  # of the smallest node
    if gpus:
        return Pool(least=least, most=most, cpus=min(1.0, math.floor(100 * share) / 100), gpus=gpus, threads=None)
    threads = max(1, round(share))
    return Pool(least=least, most=most, cpus=max(cpus, math.floor(100 * share) / 100), gpus=0, threads=threads)


def check_nodes(root: Location, cluster: Capacity, flag: str = "--output") -> None:
    """Raise RequestError for a local folder on a cluster of several nodes, where each would hold its own part."""
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
    """The nodes that the autoscaler can still start; None where it runs on another machine, and so is unknown.

    Ray has no call for this outside of managed services. On the head, its autoscaler ("monitor") runs beside the
    driver, and its configuration is a file.
    """
    local = started_here()
    if local:
        return []
    if groups := node_groups():
        return _left([(r, MOST_OFFERED if most < 0 else most) for r, most in groups], MOST_OFFERED)
    monitor = autoscaler_command()
    if monitor is None:  # where Ray does not say who started it, one node is taken for this machine's own Ray
        return [] if local is None and len(nodes()) == 1 else None
    path = next((a.partition("=")[2] for a in monitor if a.startswith("--autoscaling-config=")), None)
    if path is None:
        return []
    config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    most = config.get("max_workers", MOST_OFFERED)
    types = {n: t for n, t in config["available_node_types"].items() if n != config.get("head_node_type")}
    return _left([(t.get("resources", {}), t.get("max_workers", most)) for t in types.values()], most)


def _left(types: list[tuple[Node, int]], most: int) -> list[Node]:
    """The nodes of these types (resources, greatest count) that are not alive yet, at most `most` of all together.

    Those with GPUs come first: where not all can be started, the job's actors decide which ones are.
    """
    workers = [n for n in nodes() if not is_head(n)]
    left: list[Node] = []
    for resources, count in sorted(types, key=lambda kind: -kind[0].get("GPU", 0)):
        there = sum(all(n.get(k, 0) == resources.get(k, 0) for k in ("CPU", "GPU")) for n in workers)
        left += [resources] * (min(count, MOST_OFFERED) - there)
    return left[: max(0, most - len(workers))]
