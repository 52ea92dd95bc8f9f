"""Shards on several machines, of which one is lost: its shard moves to another, and the answers stay."""

import json
import subprocess
import sys
import textwrap

import fsspec
import pytest
import storing
from clusters import Head
from helpers import wait_for

from raycase.search.build import IndexJob, build

pytestmark = pytest.mark.cluster

SEARCH = """
    import json, sys
    import ray
    from raycase.distributed.shards import open_sharded
    from raycase.search.index import Index

    uri, asked = sys.argv[1], (["two people play", "a red dress"], "what they wear", 20)
    wanted = Index.open(uri).search(*asked)
    index = open_sharded(uri, wait=200)

    def search():
        equal = index.search(*asked).equals(wanted)
        where = [actor.__ray_call__.remote(node) for actor in index.actors.every.actors]
        print(json.dumps({"equal": equal, "nodes": ray.get(where)}), flush=True)

    def node(_):
        return ray.get_runtime_context().get_node_id()

    search()
    sys.stdin.readline()
    search()
"""


def test_a_shard_of_a_lost_machine_moves(s3_server, tmp_path):
    output = storing.stored(tmp_path, storing.model_folder(tmp_path), storing.texts(80))
    fsspec.filesystem("s3").put(output, "s3://corpus/shards-out", recursive=True)
    job = IndexJob(embeddings=("s3://corpus/shards-out",), output="s3://corpus/machines.lance", shards=2)
    assert build(job)["shards"] == 2
    with Head() as head:
        machines = [head.add_node(1), head.add_node(1)]
        wait_for(lambda: len(head.nodes() or ()) == 2, 240)
        words = [sys.executable, "-c", textwrap.dedent(SEARCH), job.output]
        driver = subprocess.Popen(
            words,
            env=head.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            first = driver.stdout.readline()
            assert first, driver.communicate(timeout=60)[1][-3000:]
            before = json.loads(first)
            machines[0].kill()
            said, errors = driver.communicate("\n", timeout=300)
        finally:
            driver.kill()
    assert driver.returncode == 0, errors[-3000:]
    after = json.loads(said.splitlines()[-1])
    assert before["equal"] and after["equal"]
    assert len(set(before["nodes"])) == 2 and set(after["nodes"]) < set(before["nodes"])
