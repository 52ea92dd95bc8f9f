"""What replicas of the service get of a cluster, without Ray."""

import pytest

from raycase.distributed.resources import Capacity
from raycase.distributed.serve import raised_in, replica_resources
from raycase.errors import RequestError, WorkError
from raycase.serving.serve_job import ServeJob

HEAD, CPU, GPU = {"CPU": 0}, {"CPU": 8.0}, {"CPU": 6.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("flags", "nodes", "alone", "expected"),
    [
        ({}, [{"CPU": 2.0}], True, (2.0, 0.0)),
        ({"replicas": 3}, [{"CPU": 2.0}], True, (0.625, 0.0)),
        ({"replicas": 3}, [CPU], False, None),
        ({"replicas": 2}, [CPU], False, (4.0, 0.0)),
        ({}, [{"CPU": 4.0}], False, (3.0, 0.0)),  # room for shards
        ({"replicas": 4}, [HEAD, GPU, GPU], False, (1.0, 1.0)),
        ({"replicas": 5}, [HEAD, GPU, GPU], False, None),
        ({"replicas": 8, "gpus_per_replica": 0.5}, [HEAD, GPU, GPU], False, (1.0, 0.5)),
        ({"gpus_per_replica": 0.0}, [GPU], True, (6.0, 0.0)),
        ({"gpus_per_replica": 1.0}, [{"CPU": 2.0}], True, None),
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


TRACEBACK = """The deployment failed to start 3 times in a row. Error:
ray::ServeReplica.initialize_and_get_metadata() (pid=1)
ValueError: an earlier one
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "serve.py", line 1, in __init__
{}"""


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (
            TRACEBACK.format("raycase.errors.RequestError: --model: expected weights"),
            RequestError,
            "--model: expected weights",
        ),
        (TRACEBACK.format("torch.OutOfMemoryError: CUDA"), WorkError, "got torch.OutOfMemoryError: CUDA"),
        ("The replica died.", type(None), "None"),
    ],
)
def test_what_a_replica_raised_is_the_error_of_the_command(message, kind, said):
    found = raised_in(message)
    assert type(found) is kind and said in str(found)
