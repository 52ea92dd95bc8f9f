"""Where a command runs: which reasons send it to Ray, and that Ray is not even imported without one."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from helpers import read_output

from raycase import placement
from raycase.errors import RequestError
from raycase.placement import several_encoders, why_ray


@pytest.fixture
def alone(monkeypatch):
    """A machine of 16 processors without GPU, where nothing names a cluster."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(placement.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    placement._say.cache_clear()


@pytest.mark.parametrize(
    ("ray", "environment", "several", "why"),
    [
        (None, {}, "", ""),
        (None, {}, "--workers 2", "--workers 2"),
        (None, {"RAY_ADDRESS": "auto"}, "", "RAY_ADDRESS"),
        (None, {"RAY_ADDRESS": ""}, "", ""),
        (None, {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RAY_ADDRESS": "auto"}, "", "a Ray job"),
        (True, {}, "", "--ray"),
        (False, {"RAY_ADDRESS": "auto"}, "", ""),
        (False, {}, "4 encoders for 100 units", ""),
    ],
)
def test_reasons_for_ray(alone, monkeypatch, capsys, ray, environment, several, why):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert why_ray(ray, several) == why_ray(ray, several) == why
    said = f"on Ray: {why}" if why else "in this process" + ("" if ray is False else "; --ray: on Ray")
    assert capsys.readouterr().err.splitlines() == [said], "expected one line, once"


def test_flags_that_contradict_are_refused(alone):
    with pytest.raises(RequestError, match="--no-ray: expected one process, got --actors 2:4"):
        why_ray(False, "--actors 2:4")


def test_several_encoders(alone, monkeypatch, job):
    job = replace(job, actors=None)
    assert several_encoders(job, 15) == "", "expected 16 units at least, four for each of four encoders"
    assert several_encoders(job, 16) == "4 encoders for 16 units"
    assert several_encoders(replace(job, actors="1:1"), 1000) == ""
    assert several_encoders(replace(job, actors="1:3"), 1) == "--actors 1:3"
    assert several_encoders(replace(job, gpus_per_actor=0.5), 1) == "--gpus-per-actor 0.5"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert several_encoders(job, 1000) == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert several_encoders(job, 1) == "2 GPUs"


def test_without_a_reason_ray_is_not_imported(job, tmp_path):
    """From the flags to the last line: embed, verify, join, index and a dry run."""
    flags = ["--input", job.input, "--conditions", *job.conditions, "--model", job.model, "--prompt", "concat-sc"]
    flags += ["--pooling", "mean", "--compute", "float32", "--no-ray"]
    program = """
        import json, sys
        from raycase.cli import main
        output, *flags = sys.argv[1:]
        main(["embed", *flags, "--output", output, "--dry-run"])
        main(["embed", *flags, "--output", output])
        main(["verify", output, "--no-ray"])
        main(["join", "--query-vectors", output, "--vectors", output, "--output", output + "-near", "--no-ray"])
        main(["index", "--embeddings", output, "--output", output + ".lance", "--no-ray"])
        print(json.dumps([name for name in sys.modules if name.split(".")[0] == "ray"]))
    """
    command = [sys.executable, "-c", "\n".join(line.strip() for line in program.splitlines()), str(tmp_path / "out")]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=True)
    *_, estimate, result, checked, joined, indexed, imported = [
        line for line in done.stdout.splitlines() if line[0] in "[{"
    ]
    assert json.loads(estimate)["rows"] == json.loads(result)["rows_out"] == json.loads(checked)["rows_in"] == 500
    assert json.loads(imported) == [] and json.loads(joined)["neighbours"] == 10000
    assert json.loads(indexed)["rows"] == 1000
    assert len(read_output(str(tmp_path / "out"))) == 1000
    assert done.stderr.splitlines().count("in this process") == 1
