"""What replicas of the service get of a cluster, without Ray."""

import pytest

from raycase.distributed.resources import Capacity
from raycase.distributed.serve import replica_resources
from raycase.errors import RequestError
from raycase.serving.serve_job import ServeJob

HEAD, CPU, GPU = {"CPU": 0}, {"CPU": 8.0}, {"CPU": 6.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("flags", "nodes", "alone", "expected"),
    [
        ({}, [{"CPU": 2.0}], True, (2.0, 0.0)),
        ({"replicas": 3}, [{"CPU": 2.0}], True, (0.625, 0.0)),
        ({"replicas": 2}, [CPU], False, (4.0, 0.0)),
        ({}, [{"CPU": 4.0}], False, (3.0, 0.0)),  # room for shards
        ({"replicas": 4}, [HEAD, GPU, GPU], False, (1.0, 1.0)),
        ({"replicas": 8, "gpus_per_replica": 0.5}, [HEAD, GPU, GPU], False, (1.0, 0.5)),
        ({"gpus_per_replica": 4.0}, [GPU, GPU], False, None),
    ],
)
def test_replicas_fit_the_nodes_or_are_refused(flags, nodes, alone, expected):
    job, cluster = ServeJob(**flags), Capacity(nodes)
    if expected is None:
        with pytest.raises(
            RequestError, match=r"^--replicas: expected room for \d with .* got room for \d: the cluster has"
        ):
            replica_resources(job, cluster, alone=alone)
        assert replica_resources(job, Capacity(nodes, grows=True), alone=alone)
    else:
        assert replica_resources(job, cluster, alone=alone) == expected
