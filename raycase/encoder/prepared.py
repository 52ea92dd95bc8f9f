"""Pairs tokenised ahead of the encoder, and sent to it as bytes.

Shapes: N pairs, M distinct pairs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load, save

from raycase.encoder.token_batch import REASONS, TokenBatch
from raycase.io.schema import Reason

KINDS = ("pairs", "alone", "bases")  # the fields of `Prepared` that hold prompts


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """N tokenised pairs; each distinct text and pair is held once.

    rows (N,): index of each pair among the M distinct pairs; conditions: the distinct conditions, None without
    conditions; sentence, condition (M,): index among the distinct sentences and conditions. A system has any number of
    prompts of the distinct pairs (`pairs`), of the sentences alone (`alone`), and of the conditions alone (`bases`).
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
        """The reason why each distinct pair is refused, of its first refused prompt, or None: (M,)."""
        reason_M = np.full(len(self.condition), -1)
        for refused_M in (
            *(batch.refused for batch in self.pairs),
            *(batch.refused[self.sentence] for batch in self.alone),
            *(batch.refused[self.condition] for batch in self.bases),
        ):
            reason_M = np.where(reason_M == -1, refused_M, reason_M)
        return [None if i < 0 else REASONS[i] for i in reason_M.tolist()]

    @property
    def refused(self) -> list[Reason | None]:
        """The reason why each pair is refused, or None: (N,)."""
        reasons = self.reasons
        return [reasons[i] for i in self.rows.tolist()]

    @property
    def truncated(self) -> np.ndarray:
        """Whether each distinct pair lost tokens of its sentence: (M,) bool."""
        truncated = [*(b.truncated for b in self.pairs), *(b.truncated[self.sentence] for b in self.alone)]
        return np.any(truncated, axis=0)

    def take(self, rows: np.ndarray) -> Prepared:
        """The pairs of `rows`, with only the texts that they need."""
        pairs, index = np.unique(self.rows[rows], return_inverse=True)
        sentences, sentence = np.unique(self.sentence[pairs], return_inverse=True)
        conditions, condition = np.unique(self.condition[pairs], return_inverse=True)
        return Prepared(
            rows=index,
            conditions=None if self.conditions is None else [self.conditions[i] for i in conditions.tolist()],
            sentence=sentence,
            condition=condition,
            pairs=[batch.take(pairs) for batch in self.pairs],
            alone=[batch.take(sentences) for batch in self.alone],
            bases=[batch.take(conditions) for batch in self.bases],
        )

    def to_bytes(self) -> bytes:
        """The pairs as bytes (safetensors), for transport; the opposite of `from_bytes`."""
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
        for kind, of_kind in batches.items():
            while columns := {k.split(".")[2]: a for k, a in arrays.items() if k.startswith(f"{kind}.{len(of_kind)}.")}:
                of_kind.append(TokenBatch.from_arrays(columns))
        conditions = json.loads(arrays["conditions"].tobytes())
        rows, sentence, condition = (arrays[name] for name in ("rows", "sentence", "condition"))
        return cls(rows=rows, conditions=conditions, sentence=sentence, condition=condition, **batches)
