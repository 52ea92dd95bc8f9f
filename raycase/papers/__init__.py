"""The papers: a folder and a line of this table each. Without both, nothing is left of a paper. CASE itself is in the
rooms.

The rooms find by the table what a paper adds, and import it when it is asked for (`raycase.models.registry`).
"""

from typing import NamedTuple


class Adds(NamedTuple):
    """Names that a paper adds, apart by blanks: in SYSTEMS of model.py, in FLAGS of train.py, in TASKS of task.py."""

    systems: str
    flags: str
    tasks: str = ""


PAPERS = {
    "baselines": Adds("bi-encoder tri-encoder cross-encoder lora", "bi-encoder tri-encoder cross-encoder lora"),
    "csr": Adds("csr", "csr"),
    "dualcse": Adds("dualcse", "dualcse simcse", "rte"),
    "mixsp": Adds("mixsp", "mixsp sentence-encoder", "sts"),
}
