"""Codes of stored tokens as numbers, and sketches of 16 bytes a token, which find the rows that a search then pools
exactly. Without torch, whose import takes longer than to index a few rows.

    i_1 = nearest of 256 centroids to z,  i_2 = nearest of 256 others to what is left of z,  i_3, i_4 likewise,
    i_5 = nearest of 256 to every twelfth component of what is left,  i_6 = to those after them,  ...  i_16

z: the first components of a token's code (`raycase.tokens.basis`). This is residual quantisation (Chen et al., 2010,
Approximate nearest neighbor search by residual vector quantization), then product quantisation (Jégou et al., 2011,
Product quantization for nearest neighbor search).

Shapes: T tokens, M components, L levels, E centroids of a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from raycase.errors import expecting

MOST_BITS = 8  # of a component
TOKENS_AT_ONCE = 2**12
WHOLE, PARTS = 4, 12  # levels whose centroids have all components, and every twelfth of them
CENTROIDS, COMPONENTS = 256, 128
ROUNDS = 6  # of k-means

BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
# For each plane, what the eight bits of a byte add to eight codes: (256,) of eight bytes.
TABLES = [(BYTES << bit).view(np.uint64)[:, 0] for bit in range(MOST_BITS)]


@dataclass(frozen=True)
class Quantizer:
    """How codes stand for components: steps (M,) float32 and bits (M,) uint8, falling, of a `TokenBasis`."""

    steps: np.ndarray
    bits: np.ndarray

    @classmethod
    def from_bytes(cls, basis: bytes, source: str) -> Self:
        """Of the file of a basis."""
        with expecting(f"{source}: expected the basis of stored tokens", SafetensorError, KeyError):
            tensors = load(basis)
            return cls(tensors["steps"], tensors["bits"])

    @cached_property
    def planes(self) -> list[int]:
        """How many components have a first, second, ... bit."""
        return [int((self.bits > bit).sum()) for bit in range(int(self.bits.max()))]

    def unpack(self, packed: np.ndarray, components: int | None = None) -> np.ndarray:
        """Signed codes of packed ones, of the first components or all: (T, token_bytes) uint8 -> (T, M) int8."""
        bits = self.bits[:components].astype(np.int16)
        codes_TM = np.zeros((len(packed), len(bits)), np.uint8)
        start = 0
        for table, count in zip(TABLES, self.planes, strict=False):
            used = min(count, len(bits))
            first_byte = start // 8
            plane = table.take(packed[:, first_byte : -(-(start + used) // 8)]).view(np.uint8)
            codes_TM[:, :used] |= plane[:, start - 8 * first_byte :][:, :used]
            start += count
        codes_TM -= (1 << (bits - 1)).astype(np.uint8)
        return codes_TM.view(np.int8)

    def components(self, packed: np.ndarray) -> np.ndarray:
        """The first components of z, without the half step that all have: (T, M) float32."""
        return self.unpack(packed, COMPONENTS) * self.steps[:COMPONENTS]


@dataclass(frozen=True)
class TokenSketch:
    """The centroids of each level, (L, E, M) float32, in the units of z; 0 in components that a level leaves alone. An
    index of an earlier version has the first four levels."""

    centroids: np.ndarray

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Self:
        """Read what `to_bytes` wrote."""
        with expecting(f"{source}: expected centroids of stored tokens", SafetensorError, TypeError):
            return cls(**load(data))

    def to_bytes(self) -> bytes:
        """As safetensors."""
        return save({"centroids": self.centroids})

    @classmethod
    def fit(cls, quantizer: Quantizer, packed: np.ndarray) -> Self:
        """From the codes of a sample of tokens, (T, token_bytes), which is not empty."""
        left_TM = quantizer.components(packed)
        centroids_LEM = np.zeros((WHOLE + PARTS, CENTROIDS, left_TM.shape[1]), np.float32)
        for level, centroids_EM in enumerate(centroids_LEM):
            found_EM = _k_means(np.ascontiguousarray(left_TM[:, _used(level)]))
            centroids_EM[: len(found_EM), _used(level)] = found_EM  # a sample of few tokens has fewer
            _take_nearest(left_TM, centroids_EM, level)
        return cls(centroids_LEM)

    def code(self, quantizer: Quantizer, packed: np.ndarray) -> np.ndarray:
        """Sketches of tokens by their codes: (T, token_bytes) -> (T, L) uint8."""
        sketch_TL = np.empty((len(packed), len(self.centroids)), np.uint8)
        for start in range(0, len(packed), TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            left_TM = quantizer.components(packed[part])
            for level, centroids_EM in enumerate(self.centroids):
                sketch_TL[part, level] = _take_nearest(left_TM, centroids_EM, level)
        return sketch_TL


def _used(level: int) -> slice:
    """The components that a level's centroids have."""
    return slice(None) if level < WHOLE else slice(level - WHOLE, None, PARTS)


def _take_nearest(left_TM: np.ndarray, centroids_EM: np.ndarray, level: int) -> np.ndarray:
    """Which centroid of a level is nearest to each row: (T,). It is subtracted where a later level goes on."""
    nearest_T = _nearest(np.ascontiguousarray(left_TM[:, _used(level)]), centroids_EM[:, _used(level)])
    if level < WHOLE:
        left_TM -= centroids_EM[nearest_T]
    return nearest_T


def _nearest(x_TM: np.ndarray, centroids_EM: np.ndarray) -> np.ndarray:
    """The nearest centroid of each row, by Euclidean distance: (T,)."""
    nearness_TE = x_TM @ centroids_EM.T
    nearness_TE -= np.square(centroids_EM).sum(1) / 2
    return nearness_TE.argmax(1)


def _k_means(x_TM: np.ndarray) -> np.ndarray:
    """Lloyd's algorithm from random rows, (E, M), or fewer where there are fewer: far faster than SciPy's `kmeans2`."""
    centroids_EM = x_TM[np.random.default_rng(0).permutation(len(x_TM))[:CENTROIDS]]
    for _ in range(ROUNDS):
        nearest_T = _nearest(x_TM, centroids_EM)
        order_T = np.argsort(nearest_T, kind="stable")
        found_F, first_F, count_F = np.unique(nearest_T[order_T], return_index=True, return_counts=True)
        centroids_EM[found_F] = np.add.reduceat(x_TM[order_T], first_F) / count_F[:, None].astype(np.float32)
    return centroids_EM
