"""DualCSE (Oda et al., 2025): a vector for what a sentence states and one for what it implies; entailment."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

MORE_DOCS = {  # flag -> what its help adds
    "data": "rte: premise, explicit_entailment, implied_entailment, neutral, contradiction.",
    "task": "rte: entailment by a threshold.",
}


@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """Flags of this task alone."""

    TASK: ClassVar = "rte"

    threshold_from: str | None = None
    """rte: a file like --data, with other premises, to tune the threshold on. Default: tuned on each half of --data for
    the other half."""


class DualCseForm(StrEnum):
    """Number of encoders (section 3.2)."""

    CROSS = "cross"  # one encoder: "[CLS] s [SEP] explicit" and "... implicit"
    BI = "bi"  # two encoders
