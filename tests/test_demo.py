"""`make demo` where Ray does not do its part; that it does is seen by running it."""

import importlib.util
import os
import subprocess

import pytest
from helpers import ROOT


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """jobs/demo.py with its log in a folder of its own, and in place of Ray a script that prints and ends with 3."""
    spec = importlib.util.spec_from_file_location("demo_job", ROOT / "jobs" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    script = tmp_path / "ray"
    script.write_text(
        "#!/bin/sh\necho statistics $RAY_USAGE_STATS_ENABLED, $(readlink /proc/self/fd/0)\necho why\nexit 3\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(module, "RAY", str(script))
    monkeypatch.setattr(module, "LOG", tmp_path / "home" / "ray.log")
    return module


@pytest.mark.parametrize("asked", [None, "1"])
def test_a_head_that_does_not_start_is_one_line_and_nobody_is_asked(demo, asked, capsys, monkeypatch):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    if asked:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", asked)
    assert demo.main() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("error: expected Ray's head to start, got status 3: why; `") and "raycase demo` shows" in line
    )
    assert line.endswith(f"what Ray printed is in {demo.LOG}")
    assert demo.LOG.read_text().startswith(f"statistics {asked or 0}, /dev/null\n")


@pytest.mark.parametrize("goal", ["demo", "test"])
@pytest.mark.parametrize("torch", ["", "cpu"])
def test_a_bare_clone_is_told_what_comes_and_how_large_it_is(tmp_path, goal, torch):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    words = ["make", "-n", goal, *([f"TORCH={torch}"] if torch else [])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # `make test` sets
    options = {"env": environment, "capture_output": True, "text": True, "check": True, "timeout": 20}
    lines = subprocess.run(words, cwd=tmp_path, **options).stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if "-m venv" in line)
    assert f"GB without CUDA (make {goal} TORCH=cpu)" in lines[0]
    assert "GB with PyTorch for CUDA" in "".join(lines[:first])
    [install] = [line for line in lines if "--editable" in line]
    assert ("--torch-backend cpu" in install) == bool(torch) and "--quiet" not in install
