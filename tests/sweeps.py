"""Sweeps: trials that were never run, and the table of those that were."""

import json

import pyarrow.parquet as pq
import small

from raycase.training.sweep_condition_head import TuneHeadJob
from raycase.training.sweep_trials import make_trial


def history(*scores):
    return [
        {"epoch": i, "loss": 0.1, "spearman": s, "spearman_rated": s + 1, "pearson": s - 1, "seconds": 2.0}
        for i, s in enumerate(scores, 1)
    ]


def trial(cell, score, seed=0, phase="grid", stopped="patience"):
    lines = history(score - 1, score, score - 2) if score is not None else []
    return make_trial(cell, seed=seed, phase=phase, input_dim=384, history=lines, stopped=stopped)


def trials_of(job):
    """The rows of the table, the best first."""
    return pq.read_table(job.folder / "trials.parquet").to_pylist()


def head_sweep(folder, rated, grid=None, **options):
    """A sweep of condition pooling's head over the shared pairs, on a tiny encoder of three layers."""
    if isinstance(grid, dict):
        (folder / "grid.json").write_text(json.dumps(grid))
        grid = str(folder / "grid.json")
    defaults = {"grid": grid, "search": "random"}
    defaults |= {"model": small.save_bert(folder / "encoder"), "output": str(folder / "sweep"), "compute": "float32"}
    defaults |= {"train": str(rated / "train.csv"), "validation": str(rated / "validation.csv")}
    defaults |= {"heads": 2, "head_dim": 8, "dim": 16, "epochs": 3, "batch_size": 20, "seeds": 2}
    return TuneHeadJob(**defaults | options)
