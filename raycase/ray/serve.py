"""`raycase serve`: the HTTP service as an application of Ray Serve, which has the server, the replicas and the batches.

A replica is a process with a model; what it answers is in `raycase/serve/`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn
from urllib.request import urlopen

import ray
import torch
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from raycase.errors import RequestError, WorkError, first_line, note
from raycase.index.query_encoder import resolve_query_encoder
from raycase.io.storage import locate
from raycase.models.registry import resolve_embedder
from raycase.ray.cluster import cause, named_cluster, nodes, start_ray
from raycase.ray.prometheus import ServiceMetrics
from raycase.ray.resources import CPU_STEP, Capacity, check_nodes
from raycase.ray.shards import InShards
from raycase.serve.app import make_app
from raycase.serve.guard import Door
from raycase.serve.live_index import open_index
from raycase.serve.serve_job import TOKEN, ServeJob, ServeSettings, check_serve, free_port
from raycase.serve.service import STUCK, EmbeddedText, Engine, Service

NAME = "raycase"  # of the application, and of its deployment
BATCH, WAIT = 256, 0.001  # texts of a batch, and seconds in which it fills
ARRIVING = 1024  # requests of a replica whose bodies arrive, beside those in its queue
DRAIN = 60.0  # seconds for what is under way when the service ends
LINGER = 1.0  # seconds in which the last answers reach their clients
CLUSTER_CPUS = 4.0  # of a replica without a GPU on a cluster, at most `SHARE` of a node's
SHARE = 3 / 4  # what is left is for the processes of shards
STEADY = {  # else oneDNN keeps what it made for each shape of a batch, and glibc what is freed: a GiB in ten minutes
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
    "LRU_CACHE_CAPACITY": "16",
    "MALLOC_ARENA_MAX": "1",
}
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)


class BatchedEngine(Engine):
    """Texts of many requests are embedded together; those with conditions apart from those without.

    What comes while a batch computes waits before Ray's queue, and makes the next one; Ray would cut it into batches of
    what comes within `WAIT`.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._idle = asyncio.Event()
        self._idle.set()

    async def embed(self, texts: Sequence[str], conditions: Sequence[str] | None) -> list[EmbeddedText]:
        await self._idle.wait()
        if conditions is None:
            return await asyncio.gather(*map(self._plain, texts))
        return await asyncio.gather(*map(self._conditional, texts, conditions))

    @ray_serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def _plain(self, texts: list[str]) -> list[EmbeddedText]:
        return await self._batch(texts, None)

    @ray_serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def _conditional(self, texts: list[str], conditions: list[str]) -> list[EmbeddedText]:
        return await self._batch(texts, conditions)

    async def _batch(self, texts: list[str], conditions: list[str] | None) -> list[EmbeddedText]:
        self._idle.clear()
        try:
            return await self.run(self.service.embed, texts, conditions)
        finally:
            self._idle.set()


@ray_serve.ingress()
class Replica:
    """A process with a loaded model."""

    def __init__(self, settings: ServeSettings, threads: int | None, *, alone: bool) -> None:
        """threads: of PyTorch; alone: on a Ray of one machine."""
        if alone:
            _listen_on_localhost()
        if threads is not None:
            torch.set_num_threads(threads)
        shard = None if alone else InShards()  # starts their processes with the first index
        self.settings, self.engine = settings, BatchedEngine(Service.load(settings, shard))
        self.door = Door(self.engine.stuck)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self.engine, self.settings, ServiceMetrics(), self.door)

    async def check_health(self) -> None:
        """Raise WorkError where the engine hangs: Ray Serve asks, and replaces the replica."""
        if self.engine.stuck():
            raise WorkError(f"expected work to end within {STUCK:g} s, got some that goes on")

    async def end(self) -> None:
        """Refuse what is new, and return when what is under way has reached its clients, or after `DRAIN`."""
        await self.door.close(DRAIN)
        await asyncio.sleep(LINGER)


def _listen_on_localhost() -> None:
    """Make a replica, which calls this as it starts, listen on 127.0.0.1 alone.

    Its server for calls of other deployments would listen on every interface, and no option of Ray changes that.
    """
    from ray.serve._private import replica

    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(server, address.replace("[::]", "127.0.0.1"))


def application(flags: dict[str, Any]) -> ray_serve.Application:
    """The application for a config of Ray Serve, as KubeRay's RayService has it; flags: of `ServeJob`, in `args`.

    It needs a token in the environment of the nodes (RAYCASE_TOKEN), for the proxies may listen anywhere. Raises
    RequestError.
    """
    if ignored := flags.keys() & {"host", "port", "metrics_port"}:
        raise RequestError(
            f"args: expected host and port in http_options, and Ray's own port of metrics, got {min(ignored)}"
        )
    origins = tuple(flags.pop("allow_origin", ()))
    job = ServeJob(**flags, allow_origin=origins)
    up = Capacity(nodes(), grows=True)  # machines may be on their way
    return _bound(job, check_serve(job, on_cluster=True), up, alone=False)


def _bound(job: ServeJob, settings: ServeSettings, cluster: Capacity, *, alone: bool) -> ray_serve.Application:
    """The application of a job. alone: on a Ray of this machine. Raises RequestError for replicas that do not fit."""
    cpus, gpus = replica_resources(job, cluster, alone=alone)
    deployment = ray_serve.deployment(
        Replica,
        name=NAME,
        num_replicas=job.replicas,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus, "runtime_env": {"env_vars": STEADY}},
        max_ongoing_requests=job.queue + ARRIVING,
        max_queued_requests=job.queue + ARRIVING,
        graceful_shutdown_timeout_s=DRAIN,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return deployment.bind(settings, None if gpus else max(1, round(cpus)), alone=alone)


def replica_resources(job: ServeJob, cluster: Capacity, *, alone: bool) -> tuple[float, float]:
    """CPUs and GPUs of a replica; alone: they share this machine's. Raises RequestError for those that never fit, which
    Ray would wait for."""
    every = cluster.alive
    gpus = job.gpus_per_replica if job.gpus_per_replica is not None else float(any(n.get("GPU") for n in every))
    most = max((n.get("CPU", 0.0) for n in every), default=0.0) or CLUSTER_CPUS  # or: whose nodes are to come
    cpus = most / job.replicas if alone else min(1.0 if gpus else CLUSTER_CPUS, SHARE * most)
    cpus = max(CPU_STEP, math.floor(cpus / CPU_STEP) * CPU_STEP)
    rooms = [int(min(n.get("CPU", 0) / cpus, n.get("GPU", 0) / gpus if gpus else math.inf)) for n in every]
    if not cluster.grows and sum(rooms) < job.replicas:
        raise RequestError(
            f"--replicas: expected room for {job.replicas} with {gpus:g} GPUs and {cpus:g} CPUs each, got room for "
            f"{sum(rooms)}: {cluster}"
        )
    return cpus, gpus


def serve(job: ServeJob) -> NoReturn:
    """Serve until SIGINT or SIGTERM, then answer what is under way and exit with 130 or 143. Raises RequestError, and
    WorkError where the service cannot start."""
    on_cluster = named_cluster() is not None
    settings = check_serve(job, on_cluster=on_cluster)
    os.environ.pop(TOKEN, None)  # which the processes of Ray would inherit; they know its SHA-256
    model = _checked_model(settings)
    port = job.port if on_cluster else free_port(job.host, job.port)
    for setting in ("USER_CODE_IN_SEPARATE_THREAD", "ROUTER_IN_SEPARATE_LOOP"):
        os.environ.setdefault(f"RAY_SERVE_RUN_{setting}", "0")  # of its processes; what computes has a thread of ours
    start_ray(metrics_port=job.metrics_port)
    cluster = Capacity(nodes())
    if settings.index is not None:
        check_nodes(locate(settings.index), cluster, "--index")
    bound = _bound(job, settings, cluster, alone=not on_cluster)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    options = HTTPOptions(host=job.host, port=port)
    try:
        ran_before = bool(ray_serve.status().proxies)
        ray_serve.start(proxy_location=ProxyLocation.EveryNode, http_options=options, logging_config=QUIET)
    except (RayError, RayServeException, RuntimeError) as error:
        raise cause(error) from error
    url = f"http://[{job.host}]:{port}" if ":" in job.host else f"http://{job.host}:{port}"
    if ran_before:
        _check_listening(url)
    if NAME in ray_serve.status().applications:
        raise RequestError(
            f"expected no application {NAME!r} on this cluster, got one, of another raycase serve or of one that "
            f"was killed; end it there, or by ray.serve.delete({NAME!r})"
        )
    try:
        note("starting the replicas, which load the model")
        try:
            handle = ray_serve.run(bound, name=NAME, route_prefix="/", logging_config=QUIET)
        except (RayError, RayServeException, RuntimeError) as error:
            raise _failure(error) from error
        _say_where(job, url, model)
        own = None if on_cluster else ray.nodes()[0]
        number = wait_for_signal()
        note("stopping: running requests are answered first")
        drained = threading.Event()
        threading.Thread(target=_end_late, args=(number, own, drained), daemon=True).start()
        with suppress(RayError, RayServeException, RuntimeError, TimeoutError):
            handle.broadcast("end").results(timeout_s=DRAIN + 2 * LINGER)
            drained.set()
    finally:
        if on_cluster:  # a Ray of its own ends with all that is in it
            ray_serve.delete(NAME)
            if not ran_before and not ray_serve.status().applications:
                ray_serve.shutdown()
        ray.shutdown()
    sys.exit(128 + number)


def _end_late(number: int, own: dict[str, Any] | None, drained: threading.Event) -> None:
    """End this process after 3 `DRAIN`, and at once where a signal to the group has ended the node of its own Ray: Ray
    would wait for itself for a minute, and end the process with 1."""
    until = time.monotonic() + 3 * DRAIN
    with suppress(OSError):
        while own and not drained.wait(LINGER) and time.monotonic() < until:
            socket.create_connection((own["NodeManagerAddress"], own["NodeManagerPort"])).close()
        time.sleep(max(0.0, until - time.monotonic()))
    os._exit(128 + number)


def _check_listening(url: str) -> None:
    """Raise RequestError unless the Ray Serve that ran before listens there: it keeps the address of its start."""
    try:
        with urlopen(f"{url}/-/healthz", timeout=10):
            pass
    except OSError as error:
        if getattr(error, "code", None) == 503:  # it has no application yet
            return
        raise RequestError(
            f"--port: expected the Ray Serve that runs on this cluster already at {url}, got: {first_line(error)}; "
            "pass the --host and --port that it was started with, or end it there (ray.serve.shutdown())"
        ) from error


def _say_where(job: ServeJob, url: str, model: str) -> None:
    metrics = [f"http://{n['NodeManagerAddress']}:{n['MetricsExportPort']}/metrics" for n in ray.nodes() if n["Alive"]]
    index = "" if job.index is None else f" and {job.index}"
    note(f"listening on {url}: {model}{index}, replicas: {job.replicas}; metrics: {metrics[0]}; Ctrl-C ends it")
    print(json.dumps({"url": url, "model": model, "index": job.index, "metrics": metrics}), flush=True)


def _checked_model(settings: ServeSettings) -> str:
    """The model's name. Raises RequestError for what no replica could load, before Ray starts."""
    if settings.index is None:
        assert settings.model is not None, "check_serve gives the default"
        return resolve_embedder(settings.model).model
    index = open_index(settings.index, model=settings.model, token_memory=settings.token_memory)
    resolve_query_encoder(index.metadata, index.model)
    return index.model


def _failure(error: Exception) -> Exception:
    """Why the application does not run: what a replica raised, where one did."""
    with suppress(RayServeException, KeyError):
        return raised_in(ray_serve.status().applications[NAME].deployments[NAME].message) or cause(error)
    return cause(error)


def raised_in(message: str) -> Exception | None:
    """The last error of the traceback in a deployment's message, as one of ours; None where there is none."""
    found = re.findall(r"^\s*([\w.]*(?:Error|Exception)): (.+)", message, re.MULTILINE)
    if not found:
        return None
    name, said = found[-1]
    if name.endswith(RequestError.__name__):
        return RequestError(said)
    return WorkError(f"expected a replica that loads its model, got {name}: {said}")


def wait_for_signal() -> int:
    """The number of SIGINT or SIGTERM, when one comes; a second one ends the process at once."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
        told.put(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return told.get()
