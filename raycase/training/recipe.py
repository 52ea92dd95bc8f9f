"""What the recipes of all systems share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

from raycase.errors import at_least, check_ranges
from raycase.training.fit_state import FitConfig

Ranges = dict[str, tuple[bool, str]]  # as `check_ranges` takes them
SHARE = "a share in [0, 1)"


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """Everything that determines the weights besides the data, the system and the seed."""

    learning_rate: float
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    batch_size: int
    epochs: int
    patience: int
    """Stop after this many epochs without a better one."""

    # Flags of earlier versions at the only value that is left: the fingerprints by which begun and finished fits and
    # sweeps are known have them in.
    FORMER: ClassVar[dict[str, Any]] = {"average": 0.0}

    @classmethod
    def of(cls, flags: Any) -> Self:
        """The recipe among the flags of a job."""
        return cls(**{f.name: getattr(flags, f.name) for f in fields(cls)})

    @property
    def record(self) -> dict[str, Any]:
        """The recipe by name, as fingerprints and `metrics.json` have it."""
        return asdict(self) | self.FORMER

    @property
    def expected(self) -> Ranges:
        """Whether each field is in its range, and what is expected."""
        return {
            "learning_rate": (0 < self.learning_rate < float("inf"), "a number above 0"),
            "weight_decay": (0 <= self.weight_decay < float("inf"), "a number of at least 0"),
            **at_least(1, self, "batch_size", "epochs", "patience"),
        }

    def check(self) -> None:
        """Raise RequestError for a value out of its range."""
        check_ranges(self, self.expected)

    def fit_config(self, seed: int, select: str = "spearman", **more: Any) -> FitConfig:
        """The settings of the loop; `select` names the metric of early stopping."""
        names = ("epochs", "patience", "learning_rate", "weight_decay")
        return FitConfig(**{name: getattr(self, name) for name in names}, seed=seed, select=select, **more)
