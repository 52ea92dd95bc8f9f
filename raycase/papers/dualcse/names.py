"""The names that flags of this paper take their values from."""

from enum import StrEnum


class DualCseForm(StrEnum):
    """Number of encoders (section 3.2)."""

    CROSS = "cross"  # one encoder: "[CLS] s [SEP] explicit" and "... implicit"
    BI = "bi"  # two encoders
