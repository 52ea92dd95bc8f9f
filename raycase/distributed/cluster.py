"""Joins a Ray cluster, lists its nodes, translates its errors. Small, since every process of a fit imports it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from typing import Any

import ray
from ray.exceptions import RayError

from raycase.distributed.ray_internals import never_start_unasked
from raycase.errors import RequestError, WorkError


def start_ray() -> None:
    """Join the cluster at RAY_ADDRESS or one running on this machine; otherwise start one."""
    never_start_unasked()
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver would print the log of its C++ part
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # errors of Ray Data's own actors on lost nodes
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own handler exits without a message
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, and printed in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with few tasks


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
