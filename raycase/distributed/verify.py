"""`raycase verify` on a cluster: files are checked by tasks, pairs that stand twice found by a shuffle of hashes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.exceptions import RayError

from raycase.corpus.progress import progress_bar
from raycase.corpus.verify import FileCheck, repeated
from raycase.data.storage import locate
from raycase.distributed.cluster import cause
from raycase.distributed.resources import join_cluster

PARTITION_PAIRS = 2**24  # pairs whose hashes one task compares: 128 MB
MOST_PARTS = 50_000  # of hashes that the driver has references to


def on_ray(
    check: FileCheck, groups: Sequence[pa.Table], *, partition_pairs: int = PARTITION_PAIRS
) -> tuple[list[str], np.ndarray]:
    """An `Execute` on the cluster. A task whose worker dies runs again. Raises RequestError and WorkError."""
    join_cluster([("output", locate(check.uri))])
    pairs = sum(pc.sum(group["pairs"]).as_py() for group in groups)
    partitions = max(1, math.ceil(pairs / partition_pairs))
    at_once = math.ceil(len(groups) * partitions / MOST_PARTS)
    tasks = [pa.concat_tables(groups[start : start + at_once]) for start in range(0, len(groups), at_once)]
    options = {"num_cpus": 1, "num_returns": 2 + partitions}
    defects: list[str] = []
    try:
        returned = [_check.options(**options).remote(check, task, partitions) for task in tasks]
        waiting = [refs[0] for refs in returned]
        with progress_bar(total=sum(map(len, tasks)), unit=" files") as bar:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=None)
                bar.update(sum(ray.get(done)))
        for refs in returned:
            defects += ray.get(refs[1])
        parts = [[refs[2 + i] for refs in returned] for i in range(partitions)]
        hashes = ray.get([_repeated.remote(*part) for part in parts])
    except RayError as error:
        raise cause(error) from error
    return defects, np.concatenate(hashes)


@ray.remote
def _check(check: FileCheck, lines: pa.Table, partitions: int) -> tuple[Any, ...]:
    """The number of files, their defects, and the hashes of their pairs by partition."""
    defects, hashes = check(lines)
    place = hashes % np.uint64(partitions)
    order = np.argsort(place, kind="stable")
    parts = np.split(hashes[order], np.searchsorted(place[order], np.arange(1, partitions)))
    return len(lines), defects, *parts


@ray.remote(num_cpus=1)
def _repeated(*hashes: np.ndarray) -> np.ndarray:
    """The hashes of one partition that occur more than once."""
    return repeated(hashes)
