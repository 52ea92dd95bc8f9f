"""Joins a Ray cluster, fits encoders into its nodes, translates its errors."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from raycase.errors import RequestError, WorkError, expecting, first_line, named, visible
from raycase.job.request import Actors
from raycase.job.runner import CPUS_OF_ENCODER, Places
from raycase.ray.private import listen_locally

SECONDS = 15.0  # within which a cluster takes a connection
# CPUs are multiples of 1/16, so that their sums are exact: Ray Data reserves a node's CPUs stage by stage, in floats,
# and where the last does not fit by 1e-16, its tasks never start while an earlier stage waits for it
CPU_STEP = 1 / 16
READ_CPUS, WRITE_CPUS = 0.25, 0.125  # different, or Ray fuses stages into one process
LEAST_ENCODE_CPUS, LEAST_GPU_CPUS = 0.5, 0.125  # per encoder: on CPUs, and in addition to a GPU


def start_ray(*, metrics_port: int | None = None) -> None:
    """Join the cluster that RAY_ADDRESS or a Ray job names; without one, start a Ray for this process alone.

    metrics_port: of the Ray that is started (default: a free one).
    """
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray's processes are other programs
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver would print the log of its C++ part
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # errors of Ray Data's own actors on lost nodes
        handler = signal.getsignal(signal.SIGTERM)
        options = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        try:
            if address := named_cluster():
                join(address, **options)
            else:
                _start_own(_metrics_export_port=metrics_port or None, **options)
        except SystemExit:  # of Ray's own handler of SIGTERM: without a message, with the status 15
            signal.signal(signal.SIGTERM, handler)
            signal.raise_signal(signal.SIGTERM)
            raise
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, and printed in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with few tasks


def _start_own(**options: Any) -> None:
    """Start a Ray for this process alone."""
    listen_locally()
    own_token_file(Path.home() / ".ray" / "auth_token")
    advice = "; run the same command again when the machine is less busy, or with --no-ray where it has that flag"
    # where the machine is busy, an error without a class
    with expecting("expected Ray to start for this command", Exception, advice=advice, raises=WorkError):
        ray.init("local", **options)


def named_cluster() -> str | None:
    """The address in RAY_ADDRESS, which Ray sets for its jobs; None for none. One that merely runs is another's."""
    job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    address = os.environ.get("RAY_ADDRESS") or ("auto" if job else "local")
    return None if address == "local" else address


def join(address: str, *, seconds: float = SECONDS, **options: Any) -> None:
    """`ray.init`, which itself would try for minutes where nothing listens."""
    if "://" in address:
        raise RequestError(
            f"RAY_ADDRESS: expected host:port of a cluster, auto or local, got {visible(address)}; from outside a "
            "cluster: `ray job submit --address http://HOST:8265 -- COMMAND`"
        )
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # until `ray.init`: what Ray logs stands in the error
    errors = (OSError, RuntimeError, ValueError, RayError)
    expected = f"RAY_ADDRESS={visible(address)}: expected a cluster to join"
    advice = "; start it, correct the address, or unset RAY_ADDRESS to work on this machine alone"
    with expecting(expected, *errors, why=lambda error: first_line(error).rstrip("."), advice=advice, raises=WorkError):
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=seconds).close()
        ray.init(address, **options)


def own_token_file(file: Path) -> None:
    """Make Ray's token for its owner alone, where there is none: who has it can run code, and Ray's is for all."""
    with suppress(OSError):  # there by now; or nothing can be written, and Ray raises where it needs to
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            with NamedTemporaryFile("w", dir=file.parent, prefix=file.name) as handle:  # for its owner alone
                handle.write(secrets.token_hex(32))
                handle.flush()
                os.link(handle.name, file)  # no command finds one that is empty
    with suppress(OSError):  # another user's, as in a shared home
        file.chmod(0o600)


def cause(error: Exception) -> Exception:
    """The RequestError or WorkError inside an error of Ray, else a WorkError with the first line of the root cause."""
    root: BaseException = error
    while inner := getattr(root, "cause", None) or root.__cause__:
        root = inner
        if isinstance(root, (RequestError, WorkError)) and not isinstance(root, RayError):
            return type(root)(str(root).splitlines()[0])  # Ray adds further lines
    return WorkError(f"a step failed with {named(root)}; run the same command again")


def call(function: Callable[[Any], Any], item: Any, *, alone: bool) -> Any:
    """What a function returns, in a task of Ray; alone: on one CPU."""
    if alone:
        for threads in ("OMP_NUM_THREADS", "LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
            os.environ[threads] = "1"  # read once, by torch when it is imported, and by Lance when it is first used
        pa.set_cpu_count(1)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
    return function(item)


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
    share = _share(min(used), math.ceil(min(most, max(1, fit)) / len(used)), may_add=most > fit and not gpus)
    if gpus:
        return ActorPool(least=least, most=most, cpus=min(1.0, whole_steps(share)), gpus=gpus, threads=None)
    threads = max(1, round(share))
    return ActorPool(least=least, most=most, cpus=max(cpus, whole_steps(share)), gpus=0, threads=threads)


def _share(cpus: float, actors: int, *, may_add: bool) -> float:
    """CPUs of each of a node's actors. may_add: where Ray could add one, there are fewer, so that rows can be read."""
    if may_add:
        whole = cpus + READ_CPUS + WRITE_CPUS
        actors = next((n for n in range(actors, 1, -1) if (n + 1) * whole_steps(cpus / n) > whole), 1)
    return cpus / actors


def whole_steps(cpus: float) -> float:
    """At most so many CPUs, in multiples of `CPU_STEP`."""
    return math.floor(cpus / CPU_STEP) * CPU_STEP


def join_cluster(places: Places, *, metrics_port: int | None = None) -> Capacity:
    """`start_ray`; refuses a local place on several nodes, each of which would hold only a part."""
    start_ray(metrics_port=metrics_port)
    cluster = capacity()
    for flag, place in places:
        if place.is_local and len(cluster.alive) > 1:
            raise RequestError(
                f"{flag}: expected object storage on a cluster of several nodes ({cluster}), got the local "
                f"{place.uri}; each node has its own part of it"
            )
    return cluster


def capacity() -> Capacity:
    """The nodes of the cluster that this process has joined; one that it started for itself does not grow."""
    return Capacity([n["Resources"] for n in ray.nodes() if n["Alive"]], grows=named_cluster() is not None)
