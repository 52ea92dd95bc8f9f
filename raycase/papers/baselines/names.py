"""The names that flags of this paper take their values from."""

from enum import StrEnum


class Compose(StrEnum):
    """How the vector of a sentence and that of a condition become one."""

    HADAMARD = "hadamard"  # elementwise product
    CONCAT = "concat"  # side by side
