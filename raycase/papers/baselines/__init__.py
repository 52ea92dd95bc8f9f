"""What the papers compare with: the three encoders of C-STS (Deshpande et al., 2023) and low-rank adapters."""

from enum import StrEnum


class Compose(StrEnum):
    """How the vector of a sentence and that of a condition become one."""

    HADAMARD = "hadamard"  # elementwise product
    CONCAT = "concat"  # side by side
