"""A local path on several nodes: accepted where each sees what the driver writes there, else refused by name."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from clusters import HIDING, Head
from helpers import embed_here, flags_of, same_output, wait_for

pytestmark = pytest.mark.cluster


def embed(head, job):
    command = [sys.executable, "-m", "raycase", "embed", *flags_of(job)]
    return subprocess.run(command, env=head.environment, capture_output=True, text=True, timeout=240)


def test_an_output_on_a_path_that_all_nodes_mount(job, tmp_path):
    hidden = tmp_path / "own"
    hidden.mkdir()
    if subprocess.run([*HIDING, str(hidden), "true"], capture_output=True).returncode:
        pytest.skip("no mounts of its own for a process here")
    with Head() as head:
        head.add_node(cpus=1)
        head.add_node(cpus=1, hidden=str(hidden))
        wait_for(lambda: len(head.nodes()) == 2)
        done = embed(head, replace(job, output=str(hidden / "out")))
        assert done.returncode == 2 and "--output: expected object storage on a cluster of several" in done.stderr
        assert " the node " in done.stderr and "does not see what this node writes there" in done.stderr
        assert not any(path.is_file() for path in hidden.rglob("*")), "expected nothing written"
        done = embed(head, job)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["rows_out"] == 500
    here = replace(job, output=str(tmp_path / "here"))
    embed_here(here)
    same_output(job.output, here.output)
