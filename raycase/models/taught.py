"""A taught condition: the mean state that it has after some labelled texts, its answers, and the file of one.

The file is safetensors with the rest as JSON in its metadata. Imports no torch.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from raycase.errors import RequestError, check_problems, expecting, is_words, names_arguments, normal_words
from raycase.io.json_values import from_json, loads
from raycase.io.source import readable
from raycase.io.storage import fingerprint, locate

TAUGHT = ".taught"  # ending of the file
STATE, RECORD = "state", "raycase"
CUT = "cut"  # in `EmbedderConfig.describe()`; a state has all numbers whatever the vectors are cut to


class Figures(NamedTuple):
    """What answers show of vectors, in cross-validation. share: of the nearest answers, those with the same label, in
    percent; f1: macro F1 of the label with the nearest mean vector, times 100."""

    share: float
    f1: float


class Compared(NamedTuple):
    """The figures of unconditional vectors, under the condition as it is named, and as it was taught."""

    unconditional: Figures
    named: Figures
    taught: Figures


@dataclass(frozen=True, kw_only=True)
class Taught:
    """condition: its normal form; state: float32, little-endian; model: hash of the model that it was taught to, and
    name: what that is called; answers: how many there were; gained: False where the state is that of the name."""

    condition: str
    state: bytes
    model: str
    name: str
    answers: int
    gained: bool
    figures: Compared

    @property
    def numbers(self) -> np.ndarray:
        """The state: (W,) float32."""
        return np.frombuffer(self.state, "<f4")

    def check(self, name: str, identity: str, width: int) -> None:
        """Raise RequestError for another model, of this name and `model_hash`, with so many numbers of a state."""
        if self.model != identity or len(self.numbers) != width:
            raise RequestError(
                f"{self.condition!r}: expected the model that this condition was taught to, {self.name} "
                f"({self.model[:8]}), got {name} ({identity[:8]}); load that one, or teach it again"
            )

    def to_bytes(self) -> bytes:
        """The content of its file."""
        record = {name: value for name, value in asdict(self).items() if name != STATE}
        return save({STATE: self.numbers}, metadata={RECORD: json.dumps(record)})

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Taught:
        """Read what `to_bytes` wrote. Raises RequestError."""
        wanted = f"{source}: expected a condition that `raycase teach` wrote"
        with expecting(wanted, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
            state_W, header = load(data)[STATE], loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            taught = from_json(cls, loads(header["__metadata__"][RECORD]) | {STATE: ""})
        words = is_words(taught.condition) and normal_words(taught.condition) == taught.condition
        fits = state_W.dtype == np.float32 and state_W.ndim == 1 and state_W.size and np.isfinite(state_W).all()
        check_problems({f"{wanted}, got others in it; teach it again": not (words and fits)})
        return replace(taught, state=state_W.astype("<f4").tobytes())

    def to_text(self) -> str:
        """As JSON holds it."""
        return b64encode(self.to_bytes()).decode()

    @classmethod
    def from_texts(cls, texts: Mapping[str, str], source: str) -> tuple[Taught, ...]:
        """Read what `to_text` gave of some."""
        with expecting(f"{source}: expected taught conditions", ValueError):
            return tuple(cls.from_bytes(b64decode(text, validate=True), source) for text in texts.values())

    @names_arguments
    def save(self, path: str | PathLike[str]) -> None:
        """Write it into one file of a few KB, such as `reason.taught`, local or on object storage."""
        locate(fspath(path)).put(self.to_bytes())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Taught:
        """Read what `save` wrote. Raises ValueError for another file."""
        with readable(locate(fspath(path)), "a condition that `raycase teach` wrote") as file:
            data = file.read()
        return cls.from_bytes(data, file.uri)


def model_hash(description: Mapping[str, Any]) -> str:
    """Of a model by its description: equal where a condition has the same states, whatever its vectors are cut to."""
    return fingerprint({name: value for name, value in description.items() if name != CUT})
