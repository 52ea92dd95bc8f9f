"""Actors fit what the cluster has and its autoscaler offers, or are refused in words that say both."""

from itertools import product

import pytest

from raycase.corpus.request import EmbedJob
from raycase.data.storage import locate
from raycase.distributed.resources import READ_CPUS, WRITE_CPUS, Capacity, _left, check_nodes, fits_a_node, make_pool
from raycase.errors import RequestError

GPU_NODE = {"CPU": 2, "GPU": 1}


@pytest.mark.parametrize(
    ("nodes", "offered", "flags", "wanted"),
    [
        ([{"CPU": 2}], [], {}, (1, 1, 1.625, 0, 2)),
        ([{"CPU": 2}], [], {"actors": "1:3"}, (1, 3, 0.5, 0, 1)),
        ([{"CPU": 8}] * 3, [], {}, (6, 6, 3.8125, 0, 4)),
        ([{"CPU": 8, "GPU": 8}], [], {}, (8, 8, 0.9375, 1, None)),
        ([{"CPU": 4}, {"CPU": 16, "GPU": 4}], [], {"actors": "1:99"}, (1, 4, 1.0, 1, None)),
        ([{"CPU": 8, "GPU": 1}] * 2, [], {"gpus_per_actor": 0.5}, (4, 4, 1.0, 0.5, None)),
        ([{"CPU": 16, "GPU": 4}], [], {}, (4, 4, 1.0, 1, None)),
        ([{"CPU": 0}], [{"CPU": 8}] * 2 + [GPU_NODE] * 4, {}, (1, 4, 1.0, 1, None)),
        ([{"CPU": 0}], [GPU_NODE] * 4, {"actors": "2:3"}, (2, 3, 1.0, 1, None)),
        ([{"CPU": 8}], [GPU_NODE] * 4, {"gpus_per_actor": 0}, (1, 6, 0.8125, 0, 1)),
        ([{"CPU": 0}], None, {"actors": "2:8", "gpus_per_actor": 1}, (2, 8, 1.0, 1, None)),
        ([{"CPU": 2}], [], {"actors": "8:8"}, "expected 8 with at least 0.5 CPUs.* room for 3: .* 1 node with 2 CPUs"),
        (
            [{"CPU": 0}],
            [{"CPU": 4}] * 3,
            {"gpus_per_actor": 1},
            "expected 1 with 1 GPU .* room for 0: .* offers 3 nodes",
        ),
        ([{"CPU": 8, "GPU": 1}] * 2, [], {"gpus_per_actor": 2}, "expected 1 with 2 GPU"),
        ([{"CPU": 0}], [GPU_NODE] * 4, {"actors": "5:9"}, "expected 5 .* got room for 4"),
        ([{"CPU": 0}], None, {}, "an autoscaler that does not say what it offers"),
    ],
)
def test_actors_fit_the_cluster_or_are_refused(nodes, offered, flags, wanted):
    cluster = Capacity(nodes, offered)
    if isinstance(wanted, str):
        with pytest.raises(RequestError, match=wanted):
            make_pool(EmbedJob(**flags), units=100, cluster=cluster)
    else:
        pool = make_pool(EmbedJob(**flags), units=100, cluster=cluster)
        assert (pool.least, pool.most, pool.cpus, pool.gpus, pool.threads) == wanted


@pytest.mark.parametrize(
    ("alive", "offered", "wanted"),
    [
        ([GPU_NODE], [], True),
        ([{"CPU": 8}], [GPU_NODE], False),
        ([{"CPU": 0.1, "GPU": 4}, {"CPU": 4}], [GPU_NODE], False),
    ],
)
def test_a_dry_run_starts_no_node(alive, offered, wanted):
    """It measures on a live node like those of the job, or says that it did not."""
    cluster = Capacity(alive, offered)
    assert fits_a_node(make_pool(EmbedJob(gpus_per_actor=1), units=100, cluster=cluster), cluster) == wanted


def test_all_stages_fit_a_node_when_their_cpus_are_taken_one_by_one():
    """As Ray Data reserves them; with 2 CPUs and tenths, writing was 4e-17 short, and long jobs stood still."""
    for cpus, gpus in product(range(1, 65), (0, 1, 4)):
        node = {"CPU": cpus, "GPU": gpus}
        pool = make_pool(EmbedJob(), units=1000, cluster=Capacity([node], []))
        left = node["CPU"]
        for share in [READ_CPUS, *[pool.cpus] * pool.most, WRITE_CPUS]:
            assert left >= share
            left -= share


@pytest.mark.parametrize("several", [Capacity([{}] * 3, []), Capacity([{}], [GPU_NODE]), Capacity([{}], None)])
def test_local_output_on_several_nodes_is_refused(tmp_path, several):
    with pytest.raises(RequestError, match="expected object storage on a cluster of several nodes"):
        check_nodes(locate(str(tmp_path)), several)
    check_nodes(locate("s3://corpus/out"), several)
    check_nodes(locate(str(tmp_path)), Capacity([{}], []))


def test_what_is_there_already_is_not_offered_again(monkeypatch):
    head = {"node:__internal_head__": 1.0, "CPU": 0}
    monkeypatch.setattr("raycase.distributed.resources.nodes", lambda: [head, GPU_NODE, GPU_NODE, {"CPU": 8}])
    types = [(GPU_NODE, 5), ({"CPU": 8}, 1), ({"CPU": 32}, 1)]
    assert _left(types, 100) == [GPU_NODE] * 3 + [{"CPU": 32}]
    assert _left(types, 5) == [GPU_NODE] * 2, "expected the cluster's own limit kept"
    assert _left(types[::-1], 5) == [GPU_NODE] * 2, "expected GPUs first"
