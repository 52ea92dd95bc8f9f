"""Joins a Ray cluster, checks what its nodes see, translates its errors."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from raycase.errors import RequestError, WorkError, check_problems, expecting, first_line, is_verbose, named, visible
from raycase.io.storage import Location
from raycase.job.runner import Places
from raycase.ray.capacity import Capacity
from raycase.ray.private import listen_locally

SECONDS = 15.0  # within which a cluster takes a connection
ANSWER = 60.0  # seconds for each node to look for a file


def start_ray(*, metrics_port: int | None = None) -> None:
    """Join the cluster that RAY_ADDRESS or a Ray job names; without one, start a Ray for this process alone.

    metrics_port: of the Ray that is started (default: a free one).
    """
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray's processes are other programs
    if not ray.is_initialized():
        verbose, handler = is_verbose(), signal.getsignal(signal.SIGTERM)
        if not verbose:
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver would print the log of its C++ part
            os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # errors of Ray Data's own actors on lost nodes
        options: dict[str, Any] = {"log_to_driver": verbose, "include_dashboard": verbose}
        options["logging_level"] = logging.INFO if verbose else logging.ERROR
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
    if not is_verbose():
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
    refused = (
        f"RAY_ADDRESS: expected host:port of a cluster, auto or local, got {visible(address)}; from outside a "
        "cluster: `ray job submit --address http://HOST:8265 -- COMMAND`"
    )
    check_problems({refused: "://" in address})
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


def join_cluster(places: Places, *, metrics_port: int | None = None) -> Capacity:
    """`start_ray`; refuses a local place that not all of several nodes see: each would hold only a part."""
    start_ray(metrics_port=metrics_port)
    cluster = capacity()
    for flag, place in places:
        if place.is_local and len(cluster.alive) > 1 and (blind := _blind_nodes(place)):
            raise RequestError(
                f"{flag}: expected object storage on a cluster of several nodes ({cluster}), or a path that each of "
                f"them mounts, got the local {place.uri}; {blind[0]} does not see what this node writes there"
            )
    return cluster


def _blind_nodes(place: Location) -> list[str]:
    """The live nodes that do not see a file which this one writes to a place, or to the folder where it will be."""
    folder = next(filter(os.path.isdir, [place.path, *map(str, Path(place.path).parents)]))
    with expecting(f"{place.uri}: expected a folder to write to", OSError), NamedTemporaryFile(dir=folder) as probe:
        look = ray.remote(num_cpus=0)(os.path.exists)
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        on_node = {id_: look.options(label_selector={"ray.io/node-id": id_}).remote(probe.name) for id_ in nodes}
        there, _ = ray.wait([*on_node.values()], num_returns=len(nodes), timeout=ANSWER)
        blind = [nodes[id_] for id_, answer in on_node.items() if answer not in there or not ray.get(answer)]
    return [f"the node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in blind]


def capacity() -> Capacity:
    """The nodes of the cluster that this process has joined; one that it started for itself does not grow."""
    return Capacity([n["Resources"] for n in ray.nodes() if n["Alive"]], grows=named_cluster() is not None)
