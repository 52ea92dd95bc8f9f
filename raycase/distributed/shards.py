"""An index whose shards are held by actors, a process each: a query goes to all, and the best of all are merged.

The driver encodes queries and conditions; actors hold no model. Each opens the version that the driver has open.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raycase.data.storage import locate
from raycase.distributed.cluster import cause
from raycase.distributed.resources import CPU_STEP, join_cluster
from raycase.distributed.shard_actor import ShardActor, ShardRequest
from raycase.errors import WorkError
from raycase.search.answers import Missing, PartialAnswers, with_missing
from raycase.search.approximate import Options
from raycase.search.filters import Filter
from raycase.search.index import Index
from raycase.search.lance_files import shard_fragments
from raycase.search.shard import Limits, Nearest
from raycase.search.topk import merge_top_k

START_SECONDS = 300.0  # for actors to come up, on machines that are busy
POLL_SECONDS = 0.1
LOST = (RayActorError, OutOfMemoryError, ObjectLostError)  # the process ended, or its machine with the answer
DEATHS = 3  # of actors at one request, after which it is not asked again
ANY = -1  # in the place of a shard's number, where any actor may answer
INLINE_BYTES = 2**16  # a larger request is put into the object store once for all shards

_missing: ContextVar[set[int] | None] = ContextVar("missing", default=None)


@dataclass(eq=False)
class ShardReplica:
    """An actor of a shard, as this process knows it."""

    actor: Any
    under_way: set[ray.ObjectRef] = field(default_factory=set)
    ping: ray.ObjectRef | None = None  # of one that did not answer

    def lost(self) -> None:
        """It did not answer: nothing is asked of it until it does again."""
        self.ping = self.actor.ping.remote()

    def is_up(self) -> bool:
        """Whether it may be asked."""
        ping = self.ping  # threads share a replica
        if ping is None:
            return True
        if not ray.wait([ping], timeout=0)[0]:
            return False
        try:
            ray.get(ping)
        except LOST:
            self.lost()
            return False
        if self.ping is ping:  # else another thread lost it meanwhile
            self.ping = None
        return True


@dataclass(eq=False)
class Asking:
    """A request on its way to one replica of each shard."""

    request: Any
    shards: Mapping[int, Sequence[ShardReplica]]
    answers: dict[int, Nearest] = field(default_factory=dict)
    asked: dict[ray.ObjectRef, tuple[int, ShardReplica]] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.to_ask = set(self.shards)

    def ask(self, shard: int) -> bool:
        """Ask the shard's replica with the fewest requests under way; False where none is up, or too many died."""
        up = [replica for replica in self.shards[shard] if replica.is_up()]
        if not up or self.deaths[shard] >= DEATHS:
            return False
        replica = min(up, key=lambda replica: len(replica.under_way))
        ref = replica.actor.nearest.remote(self.request)
        replica.under_way.add(ref)
        self.asked[ref] = shard, replica
        self.to_ask.remove(shard)
        return True

    def give_up(self, shard: int) -> None:
        """Ask the shard no more: it has no answer."""
        self.to_ask.remove(shard)

    def wait(self) -> None:
        """Wait for an answer or, where shards are still to be asked, a moment."""
        if not self.asked:
            time.sleep(POLL_SECONDS if self.to_ask else 0)
            return
        done, _ = ray.wait(list(self.asked), num_returns=1, timeout=POLL_SECONDS if self.to_ask else None)
        for ref in done:
            self._take(ref)

    def _take(self, ref: ray.ObjectRef) -> None:
        """An answer that came; a shard whose replica died of it or before it is to be asked again."""
        shard, replica = self.asked.pop(ref)
        replica.under_way.discard(ref)
        try:
            self.answers[shard] = ray.get(ref)
        except LOST:
            replica.lost()
            self.deaths[shard] += 1
            self.to_ask.add(shard)

    def forget(self) -> None:
        """Wait for no answer any more, where one of them was an error."""
        for ref, (_, replica) in self.asked.items():
            replica.under_way.discard(ref)


class ShardActors:
    """The actors of an index, `replicas` a shard, which end with the last object that knows them.

    wait: seconds for which a shard that is away is waited for. partial: then the others answer without it.
    """

    def __init__(
        self, uri: str, shards: int, *, limits: Limits, replicas: int = 1, wait: float = 30.0, partial: bool = False
    ) -> None:
        """Start them, each replica of a shard on another node if there are as many. Raises RequestError for a local
        index on several nodes, and WorkError where they do not start."""
        join_cluster([("--index", locate(uri))])
        self.wait, self.partial = wait, partial
        self.away: dict[int, float] = {}  # since when a shard has no replica that answers
        every = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not every:
            raise WorkError(f"expected a node with CPUs for {shards * replicas} shards of {uri}, got none")
        share = min(node["Resources"]["CPU"] for node in every) / math.ceil(shards * replicas / len(every))
        own = (
            "" if ray.get_runtime_context().get_actor_id() else os.environ.get("OMP_NUM_THREADS", "")
        )  # Ray sets an actor's
        threads = max(1, int(own if own.isdecimal() else share))
        self.replicas: list[list[ShardReplica]] = []
        remote: Any = ray.remote(ShardActor)
        for shard in range(shards):
            actors = []
            for replica in range(replicas):
                node = every[(shard + replica) % len(every)]["NodeID"]
                options = {
                    "num_cpus": CPU_STEP,  # it computes while a query is answered, and keeps no job from its CPUs
                    "max_restarts": -1,
                    "max_task_retries": 0,  # asked again here, perhaps of another replica
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
                }
                actors.append(remote.options(**options).remote(uri, shard, shards, limits, threads))
            self.replicas.append([ShardReplica(actor) for actor in actors])
        pings = [replica.actor.ping.remote() for replicas_ in self.replicas for replica in replicas_]
        try:
            _, late = ray.wait(pings, num_returns=len(pings), timeout=START_SECONDS)
            if late:
                raise WorkError(
                    f"expected {len(pings)} processes of {CPU_STEP} CPUs for the shards of {uri}, got "
                    f"{len(pings) - len(late)} within {START_SECONDS:g} s; free CPUs, or use fewer --replicas"
                )
            ray.get(pings)
        except RayError as error:
            raise cause(error) from error

    def over(self, index: Index) -> ShardedIndex:
        """The version that this index has open, searched by the actors."""
        return ShardedIndex(self, index)

    def ask_all(self, request: ShardRequest) -> list[Nearest | None]:
        """The answer of each shard; None for one that stays away. Raises RequestError and WorkError."""
        answers = self._ask(request, dict(enumerate(self.replicas)))
        return [answers.get(shard) for shard in range(len(self.replicas))]

    def ask_any(self, request: ShardRequest) -> Nearest:
        """The answer of one actor. Raises RequestError and WorkError."""
        every = [replica for replicas in self.replicas for replica in replicas]
        answers = self._ask(request, {ANY: every})
        if not answers:
            raise WorkError(
                f"expected an answer of one of {len(every)} processes of shards, got none for {self.wait:g} s, or they "
                "died of it; see the cluster's memory and machines"
            )
        return answers[ANY]

    def _ask(self, request: ShardRequest, shards: Mapping[int, Sequence[ShardReplica]]) -> dict[int, Nearest]:
        """Ask one replica of each shard, again where it died, until all have answered or stay away."""
        given: Any = request if request.vectors.nbytes < INLINE_BYTES else ray.put(request)
        asking = Asking(given, shards)
        try:
            while asking.to_ask or asking.asked:
                for shard in sorted(asking.to_ask):
                    if asking.ask(shard):
                        self.away.pop(shard, None)
                    elif asking.deaths[shard] >= DEATHS or self._is_away(shard):
                        asking.give_up(shard)
                asking.wait()
        except RayError as error:
            raise cause(error) from error
        finally:
            asking.forget()
        return asking.answers

    def _is_away(self, shard: int) -> bool:
        """Whether a shard without a replica that answers has been waited for long enough."""
        now = time.monotonic()
        return now - self.away.setdefault(shard, now) >= self.wait


class ShardedIndex(Index):
    """`Index`, whose rows are searched by the actors of its shards.

    A table of answers from which rows are missing says so (`raycase.search.answers.missing_of`), and a warning
    `PartialAnswers` is given.
    """

    def __init__(self, actors: ShardActors, index: Index) -> None:
        super().__init__(index.root, index.dataset, index.metadata, model=index.model, limits=index.limits)
        self.actors = actors

    def search(self, *arguments: Any, **options: Any) -> pa.Table:
        """`Index.search`. Raises WorkError where a shard stays away, unless answers may be partial."""
        missing: set[int] = set()
        token = _missing.set(missing)
        try:
            answers = super().search(*arguments, **options)
        finally:
            _missing.reset(token)
        if not missing:
            return answers
        lost = self._missing_rows(missing)
        warnings.warn(PartialAnswers(f"missing: {lost}"), stacklevel=2)
        return with_missing(answers, lost)

    def _approximate(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """By one actor: the index of a column is on disk, and that of all rows."""
        return self.actors.ask_any(self._request(vectors_QD, condition, k, where, approximate=options))

    def _compare(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, candidates: int | None
    ) -> Nearest:
        asked = None
        if condition is not None and self.is_pooled(condition):
            questions, temperatures = self.asked(condition)
            asked = questions.cpu(), temperatures.cpu()
        answers = self.actors.ask_all(
            self._request(vectors_QD, condition, k, where, candidates=candidates, asked=asked)
        )
        missing = {shard for shard, answer in enumerate(answers) if answer is None}
        if missing:
            lost = self._missing_rows(missing)
            if not self.actors.partial or len(missing) == len(answers):
                raise WorkError(
                    f"expected answers of all shards, got none for {self.actors.wait:g} s, or deaths of it, of {lost}; "
                    "see the cluster's memory and machines, or take what the others answer (--partial)"
                )
            collected = _missing.get()
            if collected is None:
                warnings.warn(PartialAnswers(f"missing: {lost}"), stacklevel=4)
            else:
                collected |= missing
        return merge_top_k([answer for answer in answers if answer is not None])

    def _request(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, **options: Any
    ) -> ShardRequest:
        version = self.dataset.version
        return ShardRequest(version=version, vectors=vectors_QD, condition=condition, k=k, where=where, **options)

    def _missing_rows(self, shards: set[int]) -> Missing:
        fragments = shard_fragments(self.dataset, len(self.actors.replicas))
        lost = sorted(fragment for shard in shards for fragment in fragments[shard])
        rows = sum(self.dataset.get_fragment(fragment).metadata.num_rows for fragment in lost)
        return Missing(
            rows=rows,
            of=self.metadata.rows,
            shards=sorted(shards),
            of_shards=len(fragments),
            fragments=lost,
        )


def open_sharded(
    uri: str,
    *,
    model: str | None = None,
    limits: Limits = Limits(),  # noqa: B008
    shards: int | None = None,
    replicas: int = 1,
    wait: float = 30.0,
    partial: bool = False,
) -> ShardedIndex:
    """`Index.open`, whose rows are searched by actors, on the cluster that RAY_ADDRESS names or a Ray of this process.

    shards: default: the index's. For replicas, wait and partial see `ShardActors`. Raises RequestError and WorkError.
    """
    index = Index.open(uri, model=model, limits=limits)
    shards = shards or index.metadata.shards
    return ShardActors(index.root.uri, shards, limits=limits, replicas=replicas, wait=wait, partial=partial).over(index)


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
        if self.actors is None or len(self.actors.replicas) != index.metadata.shards:
            self.actors = None  # those of another number of shards end first
            self.actors = ShardActors(index.root.uri, index.metadata.shards, limits=index.limits, **self.flags)
        return self.actors.over(index)
