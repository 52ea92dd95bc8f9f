"""`raycase serve`: the HTTP service as an application of Ray Serve, which has the server, the replicas and the batches.

A replica is a process with a model; what it answers is in `raycase/serve/`.
"""

import asyncio
import json
import logging
import os
import queue
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import ray
import torch
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig
from ray.util.metrics import Counter, Histogram

from raycase.errors import RequestError, WorkError, note
from raycase.io.storage import locate
from raycase.ray.capacity import CPU_STEP, Capacity, whole_steps
from raycase.ray.cluster import capacity, cause, join_cluster, named_cluster
from raycase.ray.private import serve_locally
from raycase.ray.shards import InShards
from raycase.serve.app import make_app
from raycase.serve.service import STUCK, EmbeddedText, Engine, Service
from raycase.serve.settings import TOKEN, ServeFlags, check_serve, free_port

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
BOUNDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]  # of the histogram of seconds
ERRORS = (RayError, RayServeException, RuntimeError)  # of Ray Serve
QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)


class BatchedEngine(Engine):
    """Embeds texts of many requests together, those with conditions apart; what comes meanwhile is the next batch."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._idle = asyncio.Event()
        self._idle.set()

    async def embed(self, texts: Sequence[str], conditions: Sequence[str] | None) -> list[EmbeddedText]:
        await self._idle.wait()
        if conditions is None:
            return await asyncio.gather(*map(self._unconditional, texts))
        return await asyncio.gather(*map(self._conditional, texts, conditions))

    @ray_serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def _unconditional(self, texts: list[str]) -> list[EmbeddedText]:
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


class ServiceMetrics:
    """Counts requests on every node's Prometheus endpoint, and so in Ray's Grafana: `raycase.serve.guard.Observe`."""

    def __init__(self) -> None:
        self.requests = Counter("raycase_requests", "Requests answered", ("route", "status"))
        self.seconds = Histogram("raycase_request_seconds", "Seconds of a request", BOUNDS, ("route",))
        self.texts = Counter("raycase_request_texts", "Texts embedded for requests")
        self.tokens = Counter("raycase_request_tokens", "Their tokens")

    def __call__(self, route: str, status: int, seconds: float, *, texts: int = 0, tokens: int = 0) -> None:
        self.requests.inc(tags={"route": route, "status": str(status)})
        self.seconds.observe(seconds, tags={"route": route})
        for counter, value in ((self.texts, texts), (self.tokens, tokens)):
            if value:  # Ray's counters raise for 0
                counter.inc(value)


@ray_serve.ingress()
class Replica:
    """A process with a loaded model."""

    def __init__(self, settings: ServeFlags, threads: int | None, *, alone: bool) -> None:
        """threads: of PyTorch; alone: on a Ray of one machine."""
        if alone:
            serve_locally()
        if threads is not None:
            torch.set_num_threads(threads)
        shard = None if alone else InShards()  # starts their processes with the first index
        self.settings, self.engine = settings, BatchedEngine(Service.load(settings, shard))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self.engine, self.settings, ServiceMetrics())

    async def check_health(self) -> None:
        """Raise WorkError where the engine hangs: Ray Serve asks, and replaces the replica."""
        if self.engine.stuck():
            raise WorkError(f"expected work to end within {STUCK:g} s, got some that goes on")

    async def end(self) -> None:
        """Refuse what is new, and return when what is under way has reached its clients, or after `DRAIN`."""
        await self.engine.close(DRAIN)
        await asyncio.sleep(LINGER)


def application(flags: dict[str, Any]) -> ray_serve.Application:
    """The application for a config of Ray Serve, as KubeRay's RayService has it; flags: `ServeFlags`, in `args`.

    Host and port are the config's. The nodes' environment has a token (RAYCASE_TOKEN): proxies may listen anywhere.
    """
    origins = tuple(flags.pop("allow_origin", ()))
    settings = check_serve(ServeFlags(**flags, allow_origin=origins), on_cluster=True)
    return _bound(settings, Capacity(capacity().alive, grows=True), alone=False)  # machines may be on their way


def _bound(settings: ServeFlags, cluster: Capacity, *, alone: bool) -> ray_serve.Application:
    """The application. alone: on a Ray of this machine."""
    cpus, gpus = replica_resources(settings, cluster, alone=alone)
    deployment = ray_serve.deployment(
        Replica,
        name=NAME,
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus, "runtime_env": {"env_vars": STEADY}},
        max_ongoing_requests=settings.queue + ARRIVING,
        max_queued_requests=settings.queue + ARRIVING,
        graceful_shutdown_timeout_s=DRAIN,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return deployment.bind(settings, None if gpus else max(1, round(cpus)), alone=alone)


def replica_resources(settings: ServeFlags, cluster: Capacity, *, alone: bool) -> tuple[float, float]:
    """CPUs and GPUs of a replica, where they fit: Ray would wait for ever. alone: the replicas share this machine's."""
    gpus = cluster.gpus(settings.gpus_per_replica)
    most = max((n.get("CPU", 0.0) for n in cluster.alive), default=0.0) or CLUSTER_CPUS  # or: whose nodes are to come
    cpus = most / settings.replicas if alone else min(1.0 if gpus else CLUSTER_CPUS, SHARE * most)
    cpus = max(CPU_STEP, whole_steps(cpus))
    if not cluster.grows and cluster.room(cpus, gpus) < settings.replicas:
        raise RequestError(
            f"--replicas: expected room for {settings.replicas} with {gpus:g} GPUs and {cpus:g} CPUs each, got room "
            f"for {cluster.room(cpus, gpus)}: {cluster}"
        )
    return cpus, gpus


def serve(settings: ServeFlags) -> NoReturn:
    """Serve until SIGINT or SIGTERM, then answer what is under way and exit with 130 or 143."""
    on_cluster = named_cluster() is not None
    settings = check_serve(settings, on_cluster=on_cluster)
    os.environ.pop(TOKEN, None)  # which the processes of Ray would inherit; they know its SHA-256
    model = Service.model_of(settings)  # refuses what no replica could load, before Ray starts
    port = settings.port if on_cluster else free_port(settings.host, settings.port)
    for setting in ("USER_CODE_IN_SEPARATE_THREAD", "ROUTER_IN_SEPARATE_LOOP"):
        os.environ.setdefault(f"RAY_SERVE_RUN_{setting}", "0")  # of its processes; what computes has a thread of ours
    places = [] if settings.index is None else [("--index", locate(settings.index))]
    cluster = join_cluster(places, metrics_port=settings.metrics_port)
    bound = _bound(settings, Capacity(cluster.alive), alone=not on_cluster)  # as if no nodes would come
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if ray_serve.status().proxies:  # they would keep their own address and port
        raise RequestError(
            "expected no Ray Serve on the cluster, got one, perhaps left by a killed raycase serve; end it there "
            "(ray.serve.shutdown())"
        )
    try:
        note("starting the replicas, which load the model")
        options = HTTPOptions(host=settings.host, port=port)
        try:
            ray_serve.start(proxy_location=ProxyLocation.EveryNode, http_options=options, logging_config=QUIET)
            handle = ray_serve.run(bound, name=NAME, route_prefix="/", logging_config=QUIET)
        except ERRORS as error:
            raise _failure(error) from error
        url = f"http://[{settings.host}]:{port}" if ":" in settings.host else f"http://{settings.host}:{port}"
        up = [node for node in ray.nodes() if node["Alive"]]
        metrics = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in up]
        index = "" if settings.index is None else f" and {settings.index}"
        note(
            f"listening on {url}: {model}{index}, replicas: {settings.replicas}; metrics: {metrics[0]}; Ctrl-C ends it"
        )
        print(json.dumps({"url": url, "model": model, "index": settings.index, "metrics": metrics}), flush=True)
        number = wait_for_signal()
        note("stopping: running requests are answered first")
        drained = threading.Event()
        if not on_cluster:
            threading.Thread(target=_exit_with_ray, args=(up[0], drained, 128 + number), daemon=True).start()
        with suppress(*ERRORS, TimeoutError):
            handle.broadcast("end").results(timeout_s=DRAIN + 2 * LINGER)
            drained.set()
    finally:
        if on_cluster:  # a Ray of its own ends with all that is in it
            ray_serve.delete(NAME)
            if not ray_serve.status().applications:
                ray_serve.shutdown()
        ray.shutdown()
    sys.exit(128 + number)


def _exit_with_ray(node: dict[str, Any], drained: threading.Event, status: int) -> None:
    """End this process where a signal has ended its Ray's node, too: Ray would wait for a minute, and end with 1."""
    try:
        while not drained.wait(LINGER):
            socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"])).close()
    except OSError:
        os._exit(status)


def _failure(error: Exception) -> Exception:
    """Why the application does not run: the last error in the traceback of a replica, where there is one."""
    with suppress(RayServeException, KeyError):
        message = ray_serve.status().applications[NAME].deployments[NAME].message
        if raised := re.findall(r"^\s*([\w.]*(?:Error|Exception): .+)", message, re.MULTILINE):
            name, _, message = raised[-1].partition(": ")
            if name.endswith("RequestError"):
                return RequestError(message)
            return WorkError(f"expected a replica that loads its model, got {raised[-1]}")
    return cause(error)


def wait_for_signal() -> int:
    """The number of SIGINT or SIGTERM, when one comes; a second one ends the process at once."""
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    signals = signal.SIGINT, signal.SIGTERM
    for each in signals:
        signal.signal(each, lambda number, frame: came.put(number))
    first = came.get()
    for each in signals:
        signal.signal(each, lambda number, frame: os._exit(128 + number))
    return first
