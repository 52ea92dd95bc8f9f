"""Shape of the head of condition pooling, its plain part included."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from raycase.systems.top import MOST_WIDTH, Activation, TopConfig

MOST_NUMBER = 2**40  # of a temperature or a bound: its products fit into float32


@dataclass(frozen=True, kw_only=True)
class HeadConfig(TopConfig):
    """Shape of a trained head."""

    WIDTHS: ClassVar[tuple[str, ...]] = ("states_dim", "heads", "head_dim", "output_dim")

    states_dim: int
    heads: int = 8
    head_dim: int = 64
    activation: Activation = Activation.GELU
    dropout: float = 0.3
    gate: bool = True
    temperature: float = 20.0  # tau_k at the start
    plain_dim: int | None = None  # of a layer's states, where the vectors have a share of the plain one
    plain_share: float = 0.5
    plain_from: float = 1.4  # how unlike a sentence is where the share begins, 1 for a usual one
    plain_to: float = 2.0  # and where it is whole
    plain_vector_dim: int | None = None  # of f(s), if it is what is shared
    plain_alone_from: float = 3.2  # how unlike a sentence is where the share rises again
    plain_alone_to: float = 4.0  # and where the vector is the plain one alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads * self.head_dim > MOST_WIDTH:
            raise ValueError(
                f"head_dim: expected at most {MOST_WIDTH:,} of all heads, got {self.heads * self.head_dim}"
            )
        if not 0 < self.temperature <= MOST_NUMBER:
            raise ValueError(f"temperature: expected a number above 0, at most 2^40, got {self.temperature}")
        if not 0 <= self.plain_share < 1:
            raise ValueError(f"plain_share: expected a share in [0, 1), got {self.plain_share}")
        for low, high in (("plain_from", "plain_to"), ("plain_alone_from", "plain_alone_to")):
            first, last = getattr(self, low), getattr(self, high)
            if not 0 <= first < last <= MOST_NUMBER:
                raise ValueError(f"{low}: expected a number below {high}, at most 2^40, got {first} and {last}")
        if self.plain_dim is not None and (self.plain_dim < 1 or self.states_dim % self.plain_dim):
            raise ValueError(f"plain_dim: expected a part of {self.states_dim}, got {self.plain_dim}")
        if self.plain_vector_dim is not None and (
            self.plain_dim is None or not 1 <= self.plain_vector_dim <= MOST_WIDTH
        ):
            raise ValueError(
                f"plain_vector_dim: expected 1 to {MOST_WIDTH:,} beside plain_dim, got {self.plain_vector_dim}"
            )

    def as_described(self) -> dict[str, Any]:
        """The fields that determine vectors; those of later versions only where they do."""
        values = asdict(self)
        if self.plain_dim is None:
            return {name: value for name, value in values.items() if not name.startswith("plain_")}
        if self.plain_vector_dim is None:
            return {name: value for name, value in values.items() if not name.startswith(("plain_v", "plain_a"))}
        return values
