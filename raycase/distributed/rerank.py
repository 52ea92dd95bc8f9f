"""Re-ranking on the cluster: one scorer per actor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy

from raycase.corpus.tasks import Places
from raycase.data.storage import Location, locate
from raycase.distributed.ray_data import Opaque, run_tasks
from raycase.distributed.resources import Capacity, make_pool
from raycase.distributed.tasks import join_cluster
from raycase.search.rerank_job import RerankJob, RerankUnits, RunUnits, UnitValues


def open_units(job: RerankJob, places: Places) -> RunUnits:
    """Join or start Ray: an `OpenUnits`. Raises RequestError for a place that only one machine of several has."""
    return partial(_run, job, join_cluster(places))


def _run(
    job: RerankJob, cluster: Capacity, units: UnitValues, config: Any, sentences: Sequence[str], folder: Location
) -> None:
    """Re-rank the units on the actors."""
    pool = make_pool(job, len(units), cluster)
    run_tasks(
        units,
        _Actor,
        progress="re-ranked units:",
        patience=job.patience,
        fn_constructor_kwargs={
            "config": Opaque(config),
            "sentences": ray.put(list(sentences)),
            "text": job.text_column,
            "k": job.k,
            "folder": folder.uri,
            "threads": pool.threads,
        },
        compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most, initial_size=pool.most),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )


class _Actor:
    """An actor with one scorer."""

    def __init__(self, *, config: Any, sentences: Any, text: str, k: int, folder: str, threads: int | None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self.units = RerankUnits(config, ray.get(sentences), text, k, locate(folder))

    def __call__(self, task: pa.Table) -> pa.Table:
        self.units(**json.loads(task["task"][0].as_py()))
        return pa.table({"done": [True]})
