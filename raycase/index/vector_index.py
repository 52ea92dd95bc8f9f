"""The types of an index of vectors: a new one is its name and Lance's arguments. Nothing slow is imported here."""

from typing import Any, Literal

VectorIndexType = Literal["auto", "exact", "ivf-rq"]
# how Lance makes an approximate one; auto takes the first. RaBitQ: codes of a bit a dimension
APPROXIMATE: dict[str, dict[str, Any]] = {"ivf-rq": {"index_type": "IVF_RQ", "num_bits": 1}}
