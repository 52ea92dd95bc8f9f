"""An index whose shards are held by actors, a process each: a query goes to all, and the best of all are merged.

The driver encodes queries and conditions; actors hold no model. Each opens the version that the driver has open.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError

from raycase.errors import WorkError
from raycase.index.approximate import Options
from raycase.index.combined import Part
from raycase.index.filters import Filter
from raycase.index.index import Index
from raycase.index.shard import Limits, Nearest
from raycase.index.topk import merge_top_k
from raycase.io.storage import locate
from raycase.ray.cluster import cause, nodes
from raycase.ray.resources import CPU_STEP, join_cluster
from raycase.ray.shard_actor import ShardActor, ShardRequest

START_SECONDS = 300.0  # for actors to come up, on machines that are busy
AWAY_SECONDS, POLL_SECONDS = 30.0, 0.1
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)  # the process ended, or its machine with the answer
DEATHS = 3  # of actors at one request, after which it is not asked again
INLINE_BYTES = 2**16  # a larger request is put into the object store once for all shards


class ShardReplicas:
    """The actors of a shard: a request goes to the one with the fewest under way, and to another where it dies."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self.actors = actors
        self.under_way: Counter[Any] = Counter()
        self.pings: dict[Any, ray.ObjectRef] = {}  # of actors that did not answer; nothing else is asked of them
        self.away = 0.0  # since when none answers

    def ask(self, request: Any, wait: float) -> Nearest | None:
        """The answer; None where `DEATHS` actors died of the request, or none has been there for so many seconds."""
        for _ in range(DEATHS):
            actor = self._first_up(wait)
            if actor is None:
                return None
            self.under_way[actor] += 1
            try:
                return ray.get(actor.nearest.remote(request))
            except LOST:
                self.pings[actor] = actor.ping.remote()
            finally:
                self.under_way[actor] -= 1
        return None

    def _first_up(self, wait: float) -> Any | None:
        """The actor to ask, once one is up."""
        while not (up := [actor for actor in self.actors if self._is_up(actor)]):
            self.away = self.away or time.monotonic()
            if time.monotonic() - self.away >= wait:
                return None
            time.sleep(POLL_SECONDS)
        self.away = 0.0
        return min(up, key=self.under_way.__getitem__)

    def _is_up(self, actor: Any) -> bool:
        ping = self.pings.get(actor)
        if ping is None:
            return True
        if not ray.wait([ping], timeout=0)[0]:
            return False
        try:
            ray.get(ping)
        except LOST:
            self.pings[actor] = actor.ping.remote()
            return False
        self.pings.pop(actor, None)
        return True


class ShardActors:
    """The actors of an index, `replicas` a shard, which end with the last object that knows them.

    wait: seconds for which a shard that is away is waited for; default: `AWAY_SECONDS`.
    """

    def __init__(self, uri: str, shards: int, *, limits: Limits, replicas: int = 1, wait: float | None = None) -> None:
        """Start them, each replica of a shard on another node if there are as many. Raises RequestError for a local
        index on several nodes, and WorkError where they do not start."""
        join_cluster([("--index", locate(uri))])
        self.wait, count = AWAY_SECONDS if wait is None else wait, shards * replicas
        remote: Any = ray.remote(
            num_cpus=CPU_STEP,  # it computes while a query is answered, and keeps no job from its CPUs
            max_restarts=-1,
            max_task_retries=0,  # asked again here, perhaps of another replica
            scheduling_strategy="SPREAD",
        )(ShardActor)
        threads = max(1, int(sum(node.get("CPU", 0) for node in nodes()) / count))
        actors = [remote.remote(uri, i // replicas, shards, limits, threads) for i in range(count)]
        self.shards = [ShardReplicas(actors[i : i + replicas]) for i in range(0, count, replicas)]
        self.every = ShardReplicas(actors)  # where any of them may answer
        pings = [actor.ping.remote() for actor in actors]
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

    def ask_all(self, request: ShardRequest) -> list[Nearest | None]:
        """The answer of each shard; None for one that stays away. Raises RequestError and WorkError."""
        return self._ask(request, self.shards)

    def ask_any(self, request: ShardRequest) -> Nearest:
        """The answer of one actor. Raises RequestError and WorkError."""
        [answer] = self._ask(request, [self.every])
        if answer is None:
            raise WorkError(
                f"expected an answer from one of {len(self.every.actors)} shard processes; all were away for "
                f"{self.wait:g} s or kept dying; see the cluster's memory and machines"
            )
        return answer

    def _ask(self, request: ShardRequest, shards: Sequence[ShardReplicas]) -> list[Nearest | None]:
        given: Any = request if request.nbytes < INLINE_BYTES else ray.put(request)
        try:
            with ThreadPoolExecutor(len(shards)) as pool:
                return list(pool.map(lambda shard: shard.ask(given, self.wait), shards))
        except RayError as error:
            raise cause(error) from error


class ShardedIndex(Index):
    """`Index`, whose rows are searched by the actors of its shards."""

    def __init__(self, actors: ShardActors, index: Index) -> None:
        super().__init__(index.root, index.dataset, index.metadata, model=index.model, limits=index.limits)
        self.actors = actors

    def _approximate(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """By one actor: the index of a column is on disk, and that of all rows."""
        parts = [Part(condition=condition, share=1.0, vectors=vectors_QD)]
        request = ShardRequest(version=self.dataset.version, parts=parts, k=k, where=where, approximate=options)
        return self.actors.ask_any(request)

    def _compare(self, parts: Sequence[Part], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        asked = {}
        for condition in [part.condition for part in parts]:
            if condition is not None and self.is_pooled(condition):
                questions, temperatures = self.asked(condition)
                asked[condition] = questions.cpu(), temperatures.cpu()
        request = partial(ShardRequest, version=self.dataset.version, parts=parts, k=k)
        answers = self.actors.ask_all(request(where=where, candidates=candidates, asked=asked))
        there = [answer for answer in answers if answer is not None]
        if len(there) < len(answers):
            lost = ", ".join(str(shard) for shard, answer in enumerate(answers, 1) if answer is None)
            raise WorkError(
                f"expected answers from all {len(answers)} shards; shard {lost} was away for {self.actors.wait:g} s "
                f"or its process kept dying; see the cluster's memory and machines"
            )
        return merge_top_k(there)


def open_sharded(uri: str, *, model: str | None = None, limits: Limits = Limits(), **flags: Any) -> Index:  # noqa: B008
    """`Index.open`, whose rows are searched by actors, on the cluster that RAY_ADDRESS names or a Ray of this process.

    flags: of `ShardActors`. Raises RequestError and WorkError.
    """
    return InShards(also_one=True, **flags)(Index.open(uri, model=model, limits=limits))


class InShards:
    """Gives an index in shards, and later versions of it, to actors that are started once. One shard alone is searched
    in this process, and the actors of what were several end."""

    def __init__(self, *, also_one: bool = False, **flags: Any) -> None:
        """also_one: give one shard to an actor, too. flags: of `ShardActors`."""
        self.also_one, self.flags = also_one, flags
        self.actors: ShardActors | None = None

    def __call__(self, index: Index) -> Index:
        if index.metadata.shards == 1 and not self.also_one:
            self.actors = None
            return index
        if self.actors is None or len(self.actors.shards) != index.metadata.shards:
            self.actors = None  # those of another number of shards end first
            self.actors = ShardActors(index.root.uri, index.metadata.shards, limits=index.limits, **self.flags)
        return ShardedIndex(self.actors, index)
