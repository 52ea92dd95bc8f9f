"""What an index records about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

READY = "ready"  # the tag of the version that is searched
CUT = "cut"  # in `EmbedderConfig.describe()`: the dimension to which conditional vectors were cut
EXACT_BELOW = 100_000
MOST_SHARDS = 1024
Kind = Literal["auto", "exact", "ivf-rq"]
# kind -> how Lance makes it: RaBitQ codes, a bit a dimension
APPROXIMATE: dict[str, dict[str, Any]] = {"ivf-rq": {"index_type": "IVF_RQ", "num_bits": 1}}


@dataclass(kw_only=True)
class IndexMetadata:
    """The metadata of an index, stored as JSON in its schema; the names of the fields are part of the format."""

    model: dict[str, Any]  # `EmbedderConfig.describe()`; equal means equal vectors
    name: str  # the model's name when its vectors were written
    dtype: str
    conditions: dict[str, int] = field(default_factory=dict)  # rows under each condition
    chunk: list[int] = field(default_factory=list)  # how texts were cut: tokens of a chunk, of its overlap; 1: late
    plain: int = 0  # rows without condition
    words: int = 0  # those of them that have stored tokens
    kept: list[str] = field(default_factory=list)  # conditions whose vectors were pooled from these
    sketches: dict[str, str] = field(default_factory=dict)  # hash of a basis -> of the centroids that sketched its rows
    covered: dict[str, list[list[int]]] = field(default_factory=dict)  # input file of a job -> row intervals indexed
    kind: Kind = "auto"
    exact_below: int = EXACT_BELOW  # auto searches conditions with fewer rows exactly
    shards: int = 1  # parts that are searched by a process each, on a cluster

    @property
    def encoder_choices(self) -> dict[str, Any]:
        """The cut for `resolve`; prompt, pooling and subtraction too, but for systems whose folder fixes them."""
        cut = {"dim": self.model.get(CUT)}
        if self.model["system"] != "case":
            return cut
        encoder = self.model["encoder"]
        views, own = encoder["prompt"], encoder.get("own")
        return cut | {
            "prompt": views if own is None else own | {"views": views.split("+")},
            "pooling": encoder["pooling"][0],
            "subtract": self.model.get("subtract"),
        }

    @property
    def rows(self) -> int:
        return sum(self.conditions.values()) + self.plain

    def is_pooled(self, condition: str | None) -> bool:
        """Whether vectors under a condition are pooled from stored tokens, for the index does not have them."""
        return condition is not None and condition not in self.conditions

    def rows_under(self, condition: str | None) -> int:
        """Rows under a condition, with stored tokens for one that is pooled; None: without condition."""
        if condition is None:
            return self.plain
        return self.conditions.get(condition, self.words)

    def is_approximate(self, rows: int) -> bool:
        """Whether a condition with so many rows is searched approximately: by codes, or pooled in two stages."""
        return self.kind in APPROXIMATE or (self.kind == "auto" and rows >= self.exact_below)

    @property
    def approximate_kind(self) -> str:
        """The kind of conditions that are searched approximately; auto has the first."""
        return self.kind if self.kind in APPROXIMATE else next(iter(APPROXIMATE))
