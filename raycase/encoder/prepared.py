"""Pairs that are tokenised ahead of the encoder, and travel to it as bytes.

Shapes: N pairs, M distinct ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load, save

from raycase.data.schema import Reason
from raycase.encoder.token_batch import REASONS, TokenBatch

KINDS = ("pairs", "alone", "bases")  # of prompts in `Prepared`


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """N pairs, tokenised: what an encoder needs of their texts.

    rows (N,): place of each pair among M distinct ones; conditions: the distinct conditions (None: without);
    sentence, condition (M,): places among the distinct ones; pairs, alone, bases: the prompts that a system has of
    the distinct pairs, of the sentences alone, and of the conditions alone.
    """

    rows: np.ndarray
    conditions: list[str] | None
    sentence: np.ndarray
    condition: np.ndarray
    pairs: list[TokenBatch]
    alone: list[TokenBatch]
    bases: list[TokenBatch]

    @property
    def reasons(self) -> list[Reason | None]:
        """Why a distinct pair is refused: the first of its prompts that is; else None: (M,)."""
        found = np.full(len(self.condition), -1)
        for refused_M in (
            *(batch.refused for batch in self.pairs),
            *(batch.refused[self.sentence] for batch in self.alone),
            *(batch.refused[self.condition] for batch in self.bases),
        ):
            found = np.where(found == -1, refused_M, found)
        return [None if i < 0 else REASONS[i] for i in found.tolist()]

    @property
    def truncated(self) -> np.ndarray:
        """Whether a distinct pair lost tokens of its sentence: (M,) bool."""
        cut = [*(b.truncated for b in self.pairs), *(b.truncated[self.sentence] for b in self.alone)]
        return np.any(cut, axis=0)

    def take(self, rows: np.ndarray) -> Prepared:
        """The pairs of `rows`, with the texts that they need alone."""
        pairs, places = np.unique(self.rows[rows], return_inverse=True)
        sentences, sentence = np.unique(self.sentence[pairs], return_inverse=True)
        conditions, condition = np.unique(self.condition[pairs], return_inverse=True)
        return Prepared(
            rows=places,
            conditions=None if self.conditions is None else [self.conditions[i] for i in conditions.tolist()],
            sentence=sentence,
            condition=condition,
            pairs=[batch.take(pairs) for batch in self.pairs],
            alone=[batch.take(sentences) for batch in self.alone],
            bases=[batch.take(conditions) for batch in self.bases],
        )

    def to_bytes(self) -> bytes:
        """For transport."""
        arrays = {"rows": self.rows, "sentence": self.sentence, "condition": self.condition}
        arrays["conditions"] = np.frombuffer(json.dumps(self.conditions).encode(), dtype=np.uint8)
        for kind in KINDS:
            for i, batch in enumerate(getattr(self, kind)):
                arrays |= {f"{kind}.{i}.{name}": np.ascontiguousarray(a) for name, a in batch.arrays().items()}
        return save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Prepared:
        """The opposite of `to_bytes`."""
        arrays = load(data)
        batches: dict[str, list[TokenBatch]] = {kind: [] for kind in KINDS}
        for kind, found in batches.items():
            while own := {k.split(".")[2]: a for k, a in arrays.items() if k.startswith(f"{kind}.{len(found)}.")}:
                found.append(TokenBatch.from_arrays(own))
        conditions = json.loads(arrays["conditions"].tobytes())
        rows, sentence, condition = (arrays[name] for name in ("rows", "sentence", "condition"))
        return cls(rows=rows, conditions=conditions, sentence=sentence, condition=condition, **batches)
