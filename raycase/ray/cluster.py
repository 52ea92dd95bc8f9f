"""Joins a Ray cluster, lists its nodes, translates its errors. Small, since every process of a fit imports it."""

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

from raycase.errors import RequestError, WorkError, first_line, visible

SECONDS = 15.0  # within which a cluster takes a connection


def start_ray(*, metrics_port: int | None = None) -> None:
    """Join the cluster that RAY_ADDRESS or a Ray job names; without one, start a Ray for this process alone.

    metrics_port: of the Ray that is started (default: a free one). Raises RequestError for what is no address,
    WorkError for a cluster that cannot be joined.
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
    """Start a Ray for this process alone. Raises WorkError."""
    _listen_on_localhost()
    own_token_file(Path.home() / ".ray" / "auth_token")
    try:
        ray.init("local", **options)
    except Exception as error:  # where the machine is busy, one without a class
        raise WorkError(
            f"expected Ray to start for this command, got: {visible(first_line(error))}; run the same command again "
            "when the machine is less busy, or with --no-ray where it has that flag"
        ) from error


def _listen_on_localhost() -> None:
    """Make the Ray that this process starts next listen on 127.0.0.1 alone, as it does on macOS and Windows.

    By its defaults on Linux all of its processes listen on every interface, and no option of Ray changes that.
    """
    from ray._private import ray_constants

    assert hasattr(ray_constants, "ENABLE_RAY_CLUSTER"), "expected the Ray of constraints.txt"
    ray_constants.ENABLE_RAY_CLUSTER = False


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
            "cluster: ray job submit --address http://HOST:8265 -- COMMAND"
        )
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # until `ray.init`: what Ray logs stands in the error
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=seconds).close()
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        problem = visible(first_line(error).rstrip("."))
        raise WorkError(
            f"RAY_ADDRESS={visible(address)}: expected a cluster to join, got: {problem}; start it, correct the "
            "address, or unset RAY_ADDRESS to work on this machine alone"
        ) from error


def own_token_file(file: Path) -> None:
    """Make Ray's token, where there is none, readable for its owner alone; Ray itself would make it readable for all.

    Whoever has the token and reaches a port of Ray can run code. Commands that begin at once get the same: no file is
    there before its token is.
    """
    if any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, prefix=file.name) as handle:  # for its owner alone
            handle.write(secrets.token_hex(32))
            handle.flush()
            with suppress(OSError):  # there by now; or a file system without links, and Ray writes its own
                os.link(handle.name, file)
    with suppress(OSError):  # another user's, as in a shared home
        file.chmod(0o600)


def nodes() -> list[dict[str, Any]]:
    """The resources of each live node."""
    return [n["Resources"] for n in ray.nodes() if n["Alive"]]


def cause(error: Exception) -> Exception:
    """The RequestError or WorkError inside an error of Ray, else a WorkError with the first line of the root cause."""
    root: BaseException | None = error
    while root is not None:
        inner = getattr(root, "cause", None) or root.__cause__
        if inner is None:
            break
        root = inner
        if isinstance(root, (RequestError, WorkError)) and not isinstance(root, RayError):
            return type(root)(str(root).splitlines()[0])  # Ray adds further lines
    message = (str(root).strip() or "no message").splitlines()[0]
    return WorkError(f"a step failed with {type(root).__name__}: {message}; run the same command again to resume")


def call(function: Callable[[Any], Any], item: Any, *, alone: bool) -> Any:
    """What a function returns, in a task of Ray; alone: on one CPU."""
    if alone:
        for threads in ("OMP_NUM_THREADS", "LANCE_CPU_THREADS", "RAYON_NUM_THREADS"):
            os.environ[threads] = "1"  # read once, by torch when it is imported, and by Lance when it is first used
        pa.set_cpu_count(1)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
    return function(item)
