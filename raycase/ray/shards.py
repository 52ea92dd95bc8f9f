"""An index whose shards are held by actors, a process each: a query goes to all, and the best of all are merged.

The driver encodes queries and conditions; actors hold no model. Each opens the version that is asked of.

Shapes: Q queries, D dimensions, k neighbours.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError
from torch import Tensor

from raycase.errors import WorkError
from raycase.heads.condition_head import ConditionQueries
from raycase.index.index import Index
from raycase.index.lance_files import lance_errors, open_ready, shard_fragments
from raycase.index.options import Limits
from raycase.index.query_encoder import QueryEncoder
from raycase.index.rows import ConditionVectors, IndexRows
from raycase.index.topk import Nearest, merge_top_k, nothing
from raycase.index.weighted_search import Term
from raycase.io.storage import locate
from raycase.ray.capacity import CPU_STEP
from raycase.ray.cluster import cause, join_cluster
from raycase.ray.in_flight import DEATHS

AskedOfHead = Mapping[str, tuple[ConditionQueries, Tensor]]
OfVersion = tuple[int, ConditionVectors, QueryEncoder]  # its number, what is read of it, what encodes for it

START_SECONDS = 300.0  # for actors to come up, on machines that are busy
AWAY_SECONDS = 30.0
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)  # the process ended, or its machine with the answer


class ShardActor:
    """The process of a shard."""

    def __init__(self, uri: str, shard: int, shards: int, limits: Limits, threads: int) -> None:
        torch.set_num_threads(threads)
        self.root, self.number, self.shards, self.limits = locate(uri), shard, shards, limits
        self.version = -1
        self.rows: IndexRows | None = None

    @ray.method(max_task_retries=-1)
    def ping(self) -> None:
        """Return once the actor is there, perhaps started again."""

    def nearest(self, version: int, asked: AskedOfHead, terms: Sequence[Term], k: int, *how: Any) -> Nearest:
        """`IndexRows.nearest` of the shard in a version. asked: what the head keeps of conditions that are pooled."""
        self.asked = asked
        with lance_errors(self.root):
            if version != self.version:
                self.version, self.rows = -1, None  # what it held of another one is free before this one is read
                opened = open_ready(self.root, version)
                assert opened, "the driver has it open"
                if fragments := shard_fragments(opened.dataset, self.shards)[self.number]:
                    self.rows = IndexRows(opened, self.limits, lambda c: self.asked[c], fragments)
                self.version = version
            if self.rows is None:
                return nothing(len(terms[0].vectors), k)
            return self.rows.nearest(terms, k, *how)


class ShardReplicas:
    """The actors of a shard: a request goes to the one with the fewest under way, and to another where it dies."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = actors
        self.pings = [actor.ping.remote() for actor in actors]  # done once an actor is there, perhaps started again
        self.under_way: Counter[int] = Counter()
        self.away = 0.0  # since when none is there

    def ask(self, request: Sequence[Any], wait: float) -> Nearest | None:
        """The answer; None where `DEATHS` actors died of the request, or none is there within so many seconds."""
        for _ in range(DEATHS):
            pings = [*self.pings]
            there = ray.wait(pings, num_returns=len(pings), timeout=0)[0]
            if not there:
                self.away = self.away or time.monotonic()
                there = ray.wait(pings, timeout=max(0.0, self.away + wait - time.monotonic()))[0]
            if not there:
                return None
            self.away = 0.0
            one = min(map(pings.index, there), key=self.under_way.__getitem__)
            self.under_way[one] += 1
            try:
                return ray.get(self.actors[one].nearest.remote(*request))
            except LOST:
                self.pings[one] = self.actors[one].ping.remote()
            finally:
                self.under_way[one] -= 1
        return None


class InShards:
    """Gives an index in shards, and later versions of it, to actors that are started once, and end with the last one.

    replicas: of each shard; wait: seconds for which a shard that is away is waited for.
    """

    def __init__(self, *, replicas: int = 1, wait: float | None = None) -> None:
        self.replicas, self.wait = replicas, AWAY_SECONDS if wait is None else wait
        self.shards: list[ShardReplicas] = []

    def __call__(self, index: Index) -> Index:
        """The index, whose rows its shards compare."""
        if len(self.shards) != index.metadata.shards:
            self.shards = []  # those of another number of shards end first
            if index.metadata.shards == 1:
                return index
            self.shards = self._start(index)
        version = index.dataset.version, index.vectors, index.query_encoder  # not the index, which would never end
        index.compare = partial(self._nearest, self.shards, version)
        return index

    def _start(self, index: Index) -> list[ShardReplicas]:
        """Start the actors, each replica of a shard on another node if there are as many."""
        uri, shards = index.root.uri, index.metadata.shards
        cluster, count = join_cluster([("--index", index.root)]), shards * self.replicas
        remote: Any = ray.remote(
            num_cpus=CPU_STEP,  # it computes while a query is answered, and keeps no job from its CPUs
            max_restarts=-1,
            scheduling_strategy="SPREAD",
        )(ShardActor)
        threads = max(1, int(sum(node.get("CPU", 0) for node in cluster.alive) / count))
        actors = [remote.remote(uri, i // self.replicas, shards, index.limits, threads) for i in range(count)]
        started = [ShardReplicas(actors[i : i + self.replicas]) for i in range(0, count, self.replicas)]
        pings = [ping for shard in started for ping in shard.pings]
        try:
            _, late = ray.wait(pings, num_returns=count, timeout=START_SECONDS)
            if late:
                raise WorkError(
                    f"expected {count} processes of {CPU_STEP} CPUs for the shards of {uri}, got {count - len(late)} "
                    f"within {START_SECONDS:g} s; free CPUs, or use fewer --replicas"
                )
            ray.get(pings)
        except RayError as error:
            raise cause(error) from error
        return started

    def _nearest(
        self, shards: list[ShardReplicas], version: OfVersion, terms: Sequence[Term], k: int, *how: Any
    ) -> Nearest:
        """`IndexRows.nearest` of all shards."""
        number, vectors, encoder = version
        pooled = [term.condition for term in terms if term.condition is not None]
        kept = {condition: encoder.ask(condition) for condition in pooled if vectors.pooled_rows(condition)}
        asked = {name: (questions.to("cpu"), temperatures.cpu()) for name, (questions, temperatures) in kept.items()}
        request = number, asked, ray.put(terms), k, *how  # which may be large, once for all shards
        try:
            with ThreadPoolExecutor(len(shards)) as pool:
                answers = list(pool.map(lambda shard: shard.ask(request, self.wait), shards))
        except RayError as error:
            raise cause(error) from error
        if lost := [str(shard) for shard, answer in enumerate(answers, 1) if answer is None]:
            raise WorkError(
                f"expected answers from all {len(answers)} shards, got none of shard {', '.join(lost)} in "
                f"{self.wait:g} s, or it kept dying; check the cluster's memory and machines"
            )
        return merge_top_k([answer for answer in answers if answer is not None], k)


def open_sharded(uri: str, *, model: str | None = None, limits: Limits = Limits(), **flags: Any) -> Index:  # noqa: B008
    """`Index.open`, whose rows are searched by actors on the cluster. flags: of `InShards`."""
    return InShards(**flags)(Index.open(uri, model=model, limits=limits))
