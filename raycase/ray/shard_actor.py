"""The process of a shard: it opens the version that is asked of, and answers with the best of its rows.

Small, since every actor imports this module: of the encoders nothing.

Shapes: Q queries, D dimensions, k neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raycase.heads.condition_head import Questions
from raycase.index.approximate import Options, approximate_nearest
from raycase.index.filters import Filter
from raycase.index.lance_files import lance_errors, open_version, shard_fragments
from raycase.index.shard import Limits, Nearest, Shard
from raycase.io.storage import locate

ASKED = 64  # conditions that an actor remembers


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """What an actor answers. asked: what the head keeps of a condition, by which vectors are pooled; candidates: by
    sketches; None: all rows are compared; approximate: by the index of the column, over the rows of all shards."""

    version: int
    vectors: np.ndarray  # (Q, D)
    condition: str | None
    k: int
    where: Filter | None
    asked: tuple[Questions, Tensor] | None = None
    candidates: int | None = None
    approximate: Options | None = None


class ShardActor:
    """The process of a shard."""

    def __init__(self, uri: str, shard: int, shards: int, limits: Limits, threads: int) -> None:
        torch.set_num_threads(threads)
        self.root, self.number, self.shards, self.limits = locate(uri), shard, shards, limits
        self.version = -1
        self.asked: dict[str, tuple[Questions, Tensor]] = {}

    def ping(self) -> None:
        """Returns once the actor answers."""

    def nearest(self, request: ShardRequest) -> Nearest:
        """The best k of the shard's rows. Raises RequestError, WorkError."""
        with lance_errors(self.root):
            if request.version != self.version:
                self._open(request.version)
            if request.approximate is not None:
                return approximate_nearest(
                    self.dataset,
                    self.metadata,
                    request.vectors,
                    request.condition,
                    request.k,
                    request.where,
                    request.approximate,
                )
            if self.shard is None:
                shape = len(request.vectors), request.k
                return np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
            if request.asked is not None and request.condition is not None:
                self.asked.pop(request.condition, None)
                self.asked[request.condition] = request.asked
                while len(self.asked) > ASKED:
                    del self.asked[next(iter(self.asked))]
            return self.shard.nearest(request.vectors, request.condition, request.k, request.where, request.candidates)

    def _open(self, version: int) -> None:
        self.version, self.shard = -1, None  # what it held of another one is free before this one is read
        self.dataset, self.metadata = open_version(self.root, version)
        fragments = shard_fragments(self.dataset, self.shards)[self.number]
        if fragments:
            ask = self.asked.__getitem__
            self.shard = Shard(self.root, self.dataset, self.metadata, self.limits, ask, fragments)
        self.version = version
