"""Sweeps over training jobs of tiny encoders, trials that were never run, and the table of those that were."""

import json

import pyarrow.parquet as pq
import small

from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.sweep_job import Sweep
from raycase.training.sweep_trials import make_trial

SWEEPS = ("trials", "space", "grid", "seeds", "finalists", "asha", "cpus_per_trial", "gpus_per_trial")


def sweep_of(system, folder, grid=None, space=None, **options):
    """A sweep of a system; a grid or a space that is no name stands in a file of the folder."""
    for name, values in (("grid", grid), ("space", space)):
        if values is not None and not isinstance(values, str):
            (folder / f"{name}.json").write_text(json.dumps(values))
            values = str(folder / f"{name}.json")
        options[name] = values
    flags = {name: options.pop(name) for name in SWEEPS if name in options}
    return Sweep(**flags, training=TRAIN_JOBS[system](**options))


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
    return pq.read_table(job.training.folder / "trials.parquet").to_pylist()


def head_sweep(folder, rated, grid=None, **options):
    """A sweep of condition pooling's head over the shared pairs, on a tiny encoder of three layers."""
    defaults = {"model": small.save_bert(folder / "encoder"), "output": str(folder / "sweep"), "compute": "float32"}
    defaults |= {"train": str(rated / "train.csv"), "validation": str(rated / "validation.csv")}
    defaults |= {"heads": 2, "head_dim": 8, "dim": 16, "epochs": 3, "batch_size": 20, "seeds": 2}
    return sweep_of("condition-pooling", folder, grid, **defaults | options)
