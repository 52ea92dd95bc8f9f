"""Joining a Ray cluster, what it has, and what its errors mean. Imported by every process of a fit: it stays small."""

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
    """Join the cluster that there is (RAY_ADDRESS, or one running here), else start one on this machine."""
    if not ray.is_initialized():
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the driver prints what its C++ side logs
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of Ray Data's own actors, lost with their node
        stop = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, stop)  # Ray puts its own, which exits without a word
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised, and said in one line
    warnings.filterwarnings("ignore", message="The maximum number of concurrent tasks")  # of stages with little to do


def nodes() -> list[dict[str, Any]]:
    """The resources of each node that is alive."""
    return [n["Resources"] for n in ray.nodes() if n["Alive"]]


def cause(error: Exception) -> Exception:
    """The error of ours inside what Ray raises, or a WorkError with the first line of the original one."""
    seen: BaseException | None = error
    while seen is not None:
        inner = getattr(seen, "cause", None) or seen.__cause__
        if inner is None:
            break
        seen = inner
        if isinstance(seen, (RequestError, WorkError)) and not isinstance(seen, RayError):
            return type(seen)(str(seen).splitlines()[0])  # Ray adds lines of its own
    said = (str(seen).strip() or "no message").splitlines()[0]
    return WorkError(f"a step failed with {type(seen).__name__}: {said}; run the same command again to resume")
