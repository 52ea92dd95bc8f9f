"""The process of a shard: it opens the version that is asked of, and answers with the best of its rows.

Small, since every actor imports this module: of the encoders nothing.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries
from raycase.index.approximate import Options, approximate_nearest
from raycase.index.combined import Part
from raycase.index.filters import Filter
from raycase.index.lance_files import lance_errors, open_version, shard_fragments
from raycase.index.shard import Limits, Nearest, Shard
from raycase.io.storage import locate

ASKED = 64  # conditions that an actor remembers


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """What an actor answers. asked: what the head keeps of conditions, by which vectors are pooled; candidates: by
    sketches; None: all rows are compared; approximate: by the index of the column, over the rows of all shards."""

    version: int
    parts: Sequence[Part]
    k: int
    where: Filter | None
    asked: Mapping[str, tuple[ConditionQueries, Tensor]] = field(default_factory=dict)
    candidates: int | None = None
    approximate: Options | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.vectors.nbytes for part in self.parts)


class ShardActor:
    """The process of a shard."""

    def __init__(self, uri: str, shard: int, shards: int, limits: Limits, threads: int) -> None:
        torch.set_num_threads(threads)
        self.root, self.number, self.shards, self.limits = locate(uri), shard, shards, limits
        self.version = -1
        self.asked: dict[str, tuple[ConditionQueries, Tensor]] = {}

    def ping(self) -> None:
        """Returns once the actor answers."""

    def nearest(self, request: ShardRequest) -> Nearest:
        """The best k of the shard's rows. Raises RequestError, WorkError."""
        with lance_errors(self.root):
            if request.version != self.version:
                self._open(request.version)
            shape = len(request.parts[0].vectors), request.k
            if request.approximate is not None:
                [part] = request.parts
                searched = part.vectors, part.condition, request.k, request.where, request.approximate
                return approximate_nearest(self.dataset, self.metadata, *searched)
            if self.shard is None:
                return np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
            for condition, asked in request.asked.items():
                self.asked.pop(condition, None)
                self.asked[condition] = asked
            while len(self.asked) > ASKED:
                del self.asked[next(iter(self.asked))]
            return self.shard.nearest(request.parts, request.k, request.where, request.candidates)

    def _open(self, version: int) -> None:
        self.version, self.shard = -1, None  # what it held of another one is free before this one is read
        self.dataset, self.metadata = open_version(self.root, version)
        fragments = shard_fragments(self.dataset, self.shards)[self.number]
        if fragments:
            ask = self.asked.__getitem__
            self.shard = Shard(self.root, self.dataset, self.metadata, self.limits, ask, fragments)
        self.version = version
