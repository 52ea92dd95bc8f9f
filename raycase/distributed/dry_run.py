"""The rate of one of a cluster's encoders, for the dry run."""

from __future__ import annotations

import pyarrow as pa
import ray
from ray.exceptions import RayError

from raycase.corpus.dry_run import MEASURED_ROWS, MeasuredRate, encode_sample, step_of
from raycase.corpus.request import Request
from raycase.distributed.cluster import cause
from raycase.distributed.ray_data import Opaque
from raycase.distributed.resources import ActorPool, Capacity, fits_a_node, join_cluster, make_pool
from raycase.errors import note


def measure_on_ray(request: Request, rows: pa.Table, units: int) -> MeasuredRate:
    """What one of the job's encoders on this cluster does. Raises RequestError and WorkError."""
    cluster = join_cluster(())
    return measure_in(request, rows, make_pool(request.job, units, cluster), cluster)


def measure_in(request: Request, rows: pa.Table, pool: ActorPool, cluster: Capacity) -> MeasuredRate:
    """Encode rows on a worker with the resources of the pool's encoders, where a live node has them; else here, and
    `where` says so. Raises WorkError."""
    step = step_of(request) | {"threads": pool.threads}
    here = not pool.gpus and len(cluster.alive) == 1
    if here or not fits_a_node(pool, cluster):
        where = "this machine" if here else f"this machine alone: no live node has {pool.each}"
        rate, size = encode_sample(rows, MEASURED_ROWS, **step)
    else:
        where = f"a worker with {pool.each}"
        task = ray.remote(encode_sample).options(num_cpus=pool.cpus, num_gpus=pool.gpus)
        note(f"measuring on {where}, once one is free")
        try:
            rate, size = ray.get(
                task.remote(rows, len(rows) if pool.gpus else MEASURED_ROWS, **step | {"config": Opaque(request.model)})
            )
        except RayError as error:
            raise cause(error) from error
    return MeasuredRate(encoders=pool.most, tokens_per_second=rate, bytes_per_pair=size, where=where)
