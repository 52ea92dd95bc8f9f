"""Actors, and replicas of the service, fit what the cluster has, or are refused in words that say both."""

from itertools import product

import pytest
from helpers import Later

from raycase.errors import RequestError
from raycase.io.storage import locate
from raycase.job.request import Actors
from raycase.ray.capacity import READ_CPUS, WRITE_CPUS, Capacity, make_pool
from raycase.ray.cluster import join_cluster
from raycase.serve.settings import ServeFlags

serve = Later("raycase.ray.serve")


@pytest.mark.parametrize(
    ("nodes", "grows", "actors", "wanted"),
    [
        ([{"CPU": 2}], False, Actors(), (1, 1, 1.625, 0, 2)),
        ([{"CPU": 2}], False, Actors(count=(1, 3)), (1, 3, 0.5, 0, 1)),
        ([{"CPU": 2}], True, Actors(count=(1, 8)), (1, 8, 0.8125, 0, 1)),  # a third has no room, so rows can be read
        ([{"CPU": 8, "GPU": 8}], False, Actors(), (8, 8, 0.9375, 1, None)),
        ([{"CPU": 4}, {"CPU": 16, "GPU": 4}], False, Actors(count=(1, 99)), (1, 4, 1.0, 1, None)),
        ([{"CPU": 0}], True, Actors(count=(2, 8), gpus=1), (2, 8, 1.0, 1, None)),
        ([{"CPU": 2}], False, Actors(count=(8, 8)), "expected 8 with at least 0.5 CPUs.* room for 3: .* 1 node with"),
        ([{"CPU": 0}], True, Actors(), "got room for 0: .*; .* pass --actors MIN:MAX on a cluster whose autoscaler"),
    ],
)
def test_actors_fit_the_cluster_or_are_refused(nodes, grows, actors, wanted):
    cluster = Capacity(nodes, grows)
    if isinstance(wanted, str):
        with pytest.raises(RequestError, match=wanted):
            make_pool(actors, units=100, cluster=cluster)
    else:
        pool = make_pool(actors, units=100, cluster=cluster)
        assert (pool.least, pool.most, pool.cpus, pool.gpus, pool.threads) == wanted


def test_all_stages_fit_a_node_when_their_cpus_are_taken_one_by_one():
    """As Ray Data reserves them; with 2 CPUs and tenths, writing was 4e-17 short, and long jobs stood still."""
    for cpus, gpus in product(range(1, 65), (0, 1, 4)):
        node = {"CPU": cpus, "GPU": gpus}
        pool = make_pool(Actors(), units=1000, cluster=Capacity([node]))
        left = node["CPU"]
        for share in [READ_CPUS, *[pool.cpus] * pool.most, WRITE_CPUS]:
            assert left >= share
            left -= share


def test_local_output_on_several_nodes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("raycase.ray.cluster.start_ray", lambda **_: None)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {}}] * 3)
    monkeypatch.setattr("raycase.ray.cluster._blind_nodes", lambda place: ["the node a (10.0.0.2)"])
    with pytest.raises(RequestError, match=r"^--output: expected object storage on a cluster of several nodes"):
        join_cluster([("--output", locate(str(tmp_path)))])
    assert len(join_cluster([("--output", locate("s3://corpus/out"))]).alive) == 3
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {}}])
    assert join_cluster([("--output", locate(str(tmp_path)))])


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
    job, cluster = ServeFlags(**flags), Capacity(nodes)
    if expected is None:
        with pytest.raises(RequestError, match=r"^--replicas: expected room for \d with .* got room for \d: "):
            serve.replica_resources(job, cluster, alone=alone)
        assert serve.replica_resources(job, Capacity(nodes, grows=True), alone=alone)
    else:
        assert serve.replica_resources(job, cluster, alone=alone) == expected
