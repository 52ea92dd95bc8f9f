"""Joins a Ray cluster, lists its nodes, translates its errors. Small, since every process of a fit imports it."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from raycase.distributed.ray_internals import listen_on_localhost, never_start_unasked
from raycase.errors import RequestError, WorkError


def start_ray() -> None:
    """Join the cluster at RAY_ADDRESS or one running on this machine; otherwise start one, for this machine alone."""
    never_start_unasked()
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver would print the log of its C++ part
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # errors of Ray Data's own actors on lost nodes
        handler = signal.getsignal(signal.SIGTERM)
        _join_or_start(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own handler exits without a message
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, and printed in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with few tasks


def _join_or_start(**options: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    try:
        if address != "local":
            ray.init(address or "auto", **options)
            return
    except ConnectionError:
        if address:
            raise
    listen_on_localhost()
    own_token_file(Path.home() / ".ray" / "auth_token")
    ray.init("local", **options)


def own_token_file(file: Path) -> None:
    """Make Ray's token, where there is none, readable for its owner alone; Ray itself would make it readable for all.

    Whoever has the token and reaches a port of Ray can run code.
    """
    if any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
            handle.write(secrets.token_hex(32))
    except FileExistsError:
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
