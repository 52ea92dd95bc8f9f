"""Joins a Ray cluster, lists its nodes, translates its errors. Small, since every process of a fit imports it."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import signal
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import ray
from ray.exceptions import RayError

from raycase.distributed.ray_internals import (
    died,
    errors_to_stderr,
    listen_on_localhost,
    never_start_unasked,
    why_unreachable,
)
from raycase.errors import RequestError, WorkError, first_line, note, visible

SECONDS = 15.0  # within which a cluster answers, busy as it may be


def start_ray(*, metrics_port: int | None = None) -> None:
    """Join the cluster that RAY_ADDRESS or a Ray job names; without one, start a Ray for this process alone.

    metrics_port: of the Ray that is started (default: a free one). Raises RequestError for what is no address,
    WorkError for a cluster that cannot be joined.
    """
    never_start_unasked()
    errors_to_stderr()
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray's processes are other programs
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver would print the log of its C++ part
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # errors of Ray Data's own actors on lost nodes
        handler = signal.getsignal(signal.SIGTERM)
        options = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        if address := named_cluster():
            join(address, **options)
        else:
            listen_on_localhost()
            own_token_file(Path.home() / ".ray" / "auth_token")
            ray.init("local", _metrics_export_port=metrics_port or None, **options)
            end_with_ray()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own handler exits without a message
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, and printed in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with few tasks


def named_cluster() -> str | None:
    """The address in RAY_ADDRESS, which Ray sets for its jobs; None for none. One that merely runs is another's."""
    job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    address = os.environ.get("RAY_ADDRESS") or ("auto" if job else "local")
    return None if address == "local" else address


def join(address: str, *, seconds: float = SECONDS, **options: Any) -> None:
    """`ray.init`, which itself would try for minutes where nothing answers."""
    if "://" in address:
        raise RequestError(
            f"RAY_ADDRESS: expected host:port of a cluster, auto or local, got {visible(address)}; from outside a "
            "cluster: ray job submit --address http://HOST:8265 -- COMMAND"
        )
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # until `ray.init`: what Ray logs stands in the error
    try:
        problem = why_unreachable(address, seconds)
        if problem is None:
            ray.init(address, **options)
            return
    except (OSError, RuntimeError, ValueError, RayError) as error:
        problem = first_line(error).rstrip(".")
    raise WorkError(
        f"RAY_ADDRESS={visible(address)}: expected a cluster to join, got: {visible(problem)}; start it, correct the "
        "address, or unset RAY_ADDRESS to work on this machine alone"
    )


def end_with_ray() -> None:
    """End this process in one line when its own Ray dies, as by the kernel when memory runs out.

    Ray's core would end it without a word: a minute later, and between two instructions of Python.
    """
    leaving = threading.Event()
    atexit.register(leaving.set)  # before Ray's own, which ends its processes

    def watch() -> None:
        while not leaving.wait(0.5):
            if (dead := died()) and not leaving.is_set():
                message = f"error: Ray's {dead} died, as when memory runs out; run the same command again to resume"
                note(message)
                os._exit(1)

    threading.Thread(target=watch, name="end_with_ray", daemon=True).start()


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
