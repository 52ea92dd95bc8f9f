"""Tokenised prompts: one (`Tokens`), many (`TokenBatch`), and those of pairs (`Prepared`); the work of encoding them.

Shapes: N prompts or pairs, M distinct pairs, V views.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from raycase.io.ragged import Ragged
from raycase.io.schema import Reason

REASONS = list(Reason)
FIELDS = ("of_pairs", "of_sentences", "of_conditions")  # the fields of `Prepared` that hold prompts
NEVER = int(np.iinfo(np.int32).max)  # place of a token that does not come; devices are sent int32


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One tokenised prompt."""

    ids: list[int]
    start: int  # the pooled tokens are [start, end)
    end: int
    truncated: bool = False
    unknown: bool = False  # the encoder knows no token of its sentence (`PromptTokenizer.is_unknown`)
    refused: Reason | None = None
    second: int = NEVER  # the first token of type 1, a segment id: that of a pair's second text


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """N tokenised prompts."""

    sequences: Ragged  # their ids
    start: np.ndarray  # (N, V), as `end`: the pooled tokens of each view
    end: np.ndarray
    truncated: np.ndarray  # (N,) bool, as `unknown`
    unknown: np.ndarray
    refused: np.ndarray  # (N,) index in `REASONS`, or -1
    second: np.ndarray | None = None  # (N,) as in `Tokens`; None: every token is of type 0
    shared: np.ndarray | None = None  # (N,) equal for prompts of the same ids, which are encoded once and pooled each

    @classmethod
    def of(cls, *views: Sequence[Tokens]) -> TokenBatch:
        """A batch; the views of a prompt have the same ids and pool different tokens."""
        tokens = views[0]
        second = np.array([t.second for t in tokens], dtype=np.int64)
        return cls(
            sequences=Ragged.of_ids([t.ids for t in tokens]),
            start=np.array([[t.start for t in view] for view in views], dtype=np.int64).T,
            end=np.array([[t.end for t in view] for view in views], dtype=np.int64).T,
            truncated=np.array([t.truncated for t in tokens], dtype=bool),
            unknown=np.array([t.unknown for t in tokens], dtype=bool),
            refused=np.array([-1 if t.refused is None else REASONS.index(t.refused) for t in tokens], dtype=np.int64),
            second=second if (second != NEVER).any() else None,
        )

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt: (N,)."""
        return self.sequences.counts

    @property
    def reasons(self) -> list[Reason | None]:
        """The reason why each prompt is refused, or None: (N,)."""
        return [None if i < 0 else REASONS[i] for i in self.refused.tolist()]

    def take(self, rows: np.ndarray) -> TokenBatch:
        """The prompts of `rows`."""
        columns = {name: values[rows] for name, values in self.columns().items()}
        return TokenBatch(sequences=self.sequences.take(rows), **columns)

    @classmethod
    def concat(cls, first: TokenBatch, second: TokenBatch) -> TokenBatch:
        """The prompts of both, one after the other."""
        parts = first.columns(), second.columns()
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return cls(sequences=Ragged.concat([first.sequences, second.sequences]), **columns)

    def encoded_once(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Those of `rows` that are encoded, and which of them is each row's; None: its own."""
        if self.shared is None:
            return rows, None
        _, first, of_row = np.unique(self.shared[rows], return_index=True, return_inverse=True)
        return rows[first], of_row

    def refuse(self, rows: np.ndarray, reason: Reason) -> TokenBatch:
        """A batch in which the prompts of `rows`, (N,) bool, are refused; an earlier reason is not replaced."""
        return replace(self, refused=np.where(rows & (self.refused < 0), REASONS.index(reason), self.refused))

    def columns(self) -> dict[str, np.ndarray]:
        """All arrays with a row for each prompt."""
        return {name: values for name, values in vars(self).items() if name != "sequences" and values is not None}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """N tokenised pairs; each distinct text and pair is held once, in any number of prompts."""

    rows: np.ndarray  # (N,) index of each pair among the M distinct pairs
    conditions: list[str] | None  # the distinct ones
    sentence: np.ndarray  # (M,) index among the distinct sentences
    condition: np.ndarray
    of_pairs: list[TokenBatch]
    of_sentences: list[TokenBatch]
    of_conditions: list[TokenBatch]

    def prompts(self, pairs: Any = slice(None)) -> list[tuple[TokenBatch, Any]]:
        """The batches of prompts, each with the places in it of these distinct pairs, or of one."""
        places = zip(FIELDS, (pairs, self.sentence[pairs], self.condition[pairs]), strict=True)
        return [(batch, at) for field, at in places for batch in getattr(self, field)]

    @property
    def reasons(self) -> list[Reason | None]:
        """The reason why each distinct pair is refused, of its first refused prompt, or None: (M,)."""
        reason_M = np.full(len(self.condition), -1)
        for batch, places in self.prompts():
            reason_M = np.where(reason_M == -1, batch.refused[places], reason_M)
        return [None if i < 0 else REASONS[i] for i in reason_M.tolist()]

    @property
    def refused(self) -> list[Reason | None]:
        """The reason why each pair is refused, or None: (N,)."""
        reasons = self.reasons
        return [reasons[i] for i in self.rows.tolist()]

    @property
    def truncated(self) -> np.ndarray:
        """Whether each distinct pair lost tokens of its sentence: (M,) bool."""
        return np.any([batch.truncated[places] for batch, places in self.prompts()], axis=0)

    @property
    def unknown(self) -> np.ndarray:
        """Whether the encoder knows no token of a pair's sentence, or of one of two: (N,) bool."""
        return np.any([batch.unknown[places] for batch, places in self.prompts()], axis=0)[self.rows]

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
            of_pairs=[batch.take(pairs) for batch in self.of_pairs],
            of_sentences=[batch.take(sentences) for batch in self.of_sentences],
            of_conditions=[batch.take(conditions) for batch in self.of_conditions],
        )

    def to_bytes(self) -> bytes:
        """The pairs as bytes (safetensors), for transport; the opposite of `from_bytes`."""
        arrays = {"rows": self.rows, "sentence": self.sentence, "condition": self.condition}
        arrays["conditions"] = np.frombuffer(json.dumps(self.conditions).encode(), dtype=np.uint8)
        for field in FIELDS:
            for i, batch in enumerate(getattr(self, field)):
                columns = batch.columns() | vars(batch.sequences)
                arrays |= {f"{field}.{i}.{name}": np.ascontiguousarray(a) for name, a in columns.items()}
        return save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Prepared:
        """The opposite of `to_bytes`."""
        arrays = load(data)
        batches: dict[str, list[TokenBatch]] = {field: [] for field in FIELDS}
        for field, found in batches.items():
            while columns := {k.split(".")[2]: a for k, a in arrays.items() if k.startswith(f"{field}.{len(found)}.")}:
                sequences = Ragged(flat=columns.pop("flat"), offsets=columns.pop("offsets"))
                found.append(TokenBatch(sequences=sequences, **columns))
        conditions = json.loads(arrays["conditions"].tobytes())
        rows, sentence, condition = (arrays[name] for name in ("rows", "sentence", "condition"))
        return cls(rows=rows, conditions=conditions, sentence=sentence, condition=condition, **batches)


@dataclass(frozen=True, kw_only=True)
class Work:
    """Tokens of some prompts."""

    tokens: int = 0  # as if each were encoded alone
    processed: int = 0  # after sharing prefixes
    computed: int = 0  # padding included

    def __add__(self, other: Work) -> Work:
        return Work(**{name: count + getattr(other, name) for name, count in vars(self).items()})
