"""Joins a Ray cluster, lists its nodes and translates its errors. Every process of a fit imports it: it stays small."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from typing import Any

import ray
from ray.exceptions import RayError

from raycase.errors import RequestError, WorkError


def start_ray() -> None:
    """Join the cluster of RAY_ADDRESS or one that runs on this machine, else start one here."""
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver prints what its C++ side logs
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of Ray Data's own actors, lost with their node
        stop = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stop)  # Ray's own handler exits without a message
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # a failure is raised, and printed in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with little to do


def nodes() -> list[dict[str, Any]]:
    """The resources of each node that is alive."""
    return [n["Resources"] for n in ray.nodes() if n["Alive"]]


def cause(error: Exception) -> Exception:
    """The RequestError or WorkError inside an error of Ray, else a WorkError with the first line of the original."""
    seen: BaseException | None = error
    while seen is not None:
        inner = getattr(seen, "cause", None) or seen.__cause__
        if inner is None:
            break
        seen = inner
        if isinstance(seen, (RequestError, WorkError)) and not isinstance(seen, RayError):
            return type(seen)(str(seen).splitlines()[0])  # Ray adds lines of its own
    message = (str(seen).strip() or "no message").splitlines()[0]
    return WorkError(f"a step failed with {type(seen).__name__}: {message}; run the same command again to resume")
