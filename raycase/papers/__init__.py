"""The papers: a folder and a line of this table each. Without both, nothing is left of a paper. CASE itself is in the
rooms.

The rooms find by the table what a paper adds, and import it when it is asked for (`raycase.models.registry`).
"""

PAPERS: dict[str, tuple[str, str, str]] = {
    # folder: names in SYSTEMS of model.py, in FLAGS of train.py, in TASKS of task.py
    "baselines": ("bi-encoder tri-encoder cross-encoder lora", "bi-encoder tri-encoder cross-encoder lora", ""),
    "csr": ("csr", "csr", ""),
    "dualcse": ("dualcse", "dualcse simcse", "rte"),
    "mixsp": ("mixsp", "mixsp sentence-encoder", "sts"),
}
