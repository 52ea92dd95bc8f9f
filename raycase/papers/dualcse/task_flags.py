"""What `raycase evaluate` shows of this paper's task, and its flags. Imports nothing slow."""

from dataclasses import dataclass
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
