"""What Ray may rename: where it is missing, one line says so and the job continues."""

import builtins
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from helpers import wait_for
from ray.data import DataContext

from raycase.distributed import ray_internals
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import capacity


@pytest.fixture
def renamed(monkeypatch):
    """A Ray without any of the private names that raycase uses; Ray itself has them."""
    imported = builtins.__import__

    def without_private(name, globals=None, *rest):
        if (
            globals
            and globals.get("__name__") == ray_internals.__name__
            and any(part in name for part in ("._internal", "._raylet"))
        ):
            raise ImportError(f"no module {name}")
        return imported(name, globals, *rest)

    ray_internals._warn.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without_private)
    public = SimpleNamespace(__version__="99", get_runtime_context=ray.get_runtime_context)
    monkeypatch.setattr(ray_internals, "ray", public)
    monkeypatch.setattr(ray_internals, "Path", lambda _: Path("/no/such/folder"))
    yield
    ray_internals._warn.cache_clear()


def test_a_job_finishes_on_a_ray_that_has_renamed_everything_private(cluster, renamed, caplog, capsys):
    assert capacity().offered == [], "expected the only node taken for this machine's own Ray"
    for _ in range(2):
        run_tasks([{"number": 1}], lambda task: task, progress="done", num_cpus=1)
    assert "done 1 of 1" in capsys.readouterr().err
    lines = Counter(record.getMessage() for record in caplog.records if record.name == ray_internals.__name__)
    assert set(lines.values()) == {1}, "expected each line once, however often a job asks"
    what = ["callbacks of an execution", "whether this process started Ray", "the cluster's configuration", "in /proc"]
    assert len(lines) == len(what) and all(any(w in line for line in lines) for w in what), lines


def test_a_ray_that_cannot_be_asked_whether_it_answers_is_joined_unasked(renamed, caplog):
    assert ray_internals.why_unreachable("127.0.0.1:1", 1) is None
    [line] = caplog.messages
    assert "whether a cluster answers" in line and "waited for" in line


@pytest.mark.parametrize("executor", [SimpleNamespace(), SimpleNamespace(_topology={SimpleNamespace: None})])
def test_statistics_that_ray_keeps_elsewhere_end_no_execution(executor, caplog):
    context = DataContext.get_current().copy()
    ray_internals.forget_block_statistics(context)
    callback = context.custom_execution_callback_classes[-1]()
    ray_internals._warn.cache_clear()
    callback.on_execution_step(executor)
    callback.on_execution_step(executor)
    [line] = caplog.messages
    assert line.startswith(f"Ray {ray.__version__}: expected statistics of an execution's blocks")
    assert line.endswith("a long job's driver needs about 7 KB of memory for each unit")


def test_statistics_of_blocks_are_dropped():
    context = DataContext.get_current().copy()
    ray_internals.forget_block_statistics(context)
    operator = SimpleNamespace(_output_blocks_stats=[1, 2])
    callback = context.custom_execution_callback_classes[-1]()
    callback.on_execution_step(SimpleNamespace(_topology=[SimpleNamespace(), operator]))
    assert operator._output_blocks_stats == []


def test_the_autoscaler_beside_the_driver_is_found(tmp_path):
    script = tmp_path / "autoscaler" / "monitor.py"
    script.parent.mkdir()
    script.write_text("input()")
    command = [sys.executable, str(script), "--gcs-address=127.0.0.1:54321", "--autoscaling-config=~/x.yaml"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    processes = Path("/proc")
    try:
        found = wait_for(lambda: ray_internals.find_monitor(processes, port="54321"), 10)
        assert "--autoscaling-config=~/x.yaml" in found
        assert all(ray_internals.find_monitor(processes, port=port) is None for port in ("5432", "4321"))
    finally:
        process.communicate(b"\n")
        assert process.returncode == 0 and os.path.exists(script)
