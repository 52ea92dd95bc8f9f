"""Where a command runs: which reasons send it to Ray, and that Ray is not even imported without one."""

import importlib
import json
import sys

import pytest
import torch
from helpers import read_output

from raycase.cli import main
from raycase.commands import place as placement
from raycase.commands.place import several_encoders, why_ray
from raycase.errors import RequestError
from raycase.job.request import Actors


@pytest.fixture
def alone(monkeypatch):
    """A machine of 16 processors without GPU, where nothing names a cluster."""
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(placement.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    placement.note_once.cache_clear()


@pytest.mark.parametrize(
    ("ray", "environment", "several", "why"),
    [
        (None, {}, "", ""),
        (None, {}, "--workers 2", "--workers 2"),
        (None, {"RAY_ADDRESS": "auto"}, "", "RAY_ADDRESS"),
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
    said = f"Running on Ray: {why}" if why else "Running in this process." + placement.USE_RAY * (ray is not False)
    assert capsys.readouterr().err.splitlines() == [said], "expected one line, once"


def test_several_encoders(alone, monkeypatch):
    some = Actors()
    assert several_encoders(some, 15) == "", "expected 16 units at least, four for each of four encoders"
    assert several_encoders(some, 16) == "4 encoders for 16 units"
    assert several_encoders(Actors(count=(1, 1)), 1000) == ""
    assert several_encoders(Actors(count=(1, 3)), 1) == "--actors 1:3"
    with pytest.raises(RequestError, match="--no-ray: expected one process, got --actors 1:3"):
        why_ray(False, "--actors 1:3")
    assert several_encoders(Actors(gpus=0.5), 1) == "--gpus-per-actor 0.5"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert several_encoders(some, 1000) == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert several_encoders(some, 1) == "2 GPUs"


def test_without_a_reason_ray_is_not_imported(job, tmp_path, monkeypatch, capsys):
    """From the flags to the last line: embed, verify, join, index and a dry run, where Ray cannot be imported."""
    for name in [name for name in sys.modules if name.startswith(("ray.", "raycase.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    placement.note_once.cache_clear()
    with pytest.raises(ImportError):
        importlib.import_module("raycase.ray.runner")
    flags = ["--input", job.input, "--conditions", *job.conditions, "--model", job.model, "--prompt", "concat-sc"]
    flags += ["--pooling", "mean", "--compute", "float32", "--no-ray"]
    output = str(tmp_path / "out")
    for words in (
        ["embed", *flags, "--output", output, "--dry-run"],
        ["embed", *flags, "--output", output],
        ["verify", output, "--no-ray"],
        ["join", "--query-vectors", output, "--vectors", output, "--output", f"{output}-near", "--no-ray"],
        ["index", "--embeddings", output, "--output", f"{output}.lance"],
    ):
        main(words)
    said = capsys.readouterr()
    estimate, result, checked, joined, indexed = [json.loads(line) for line in said.out.splitlines() if line[:1] == "{"]
    assert estimate["rows"] == result["rows_out"] == checked["rows_in"] == 500
    assert (joined["neighbours"], indexed["rows"]) == (10000, 1000)
    assert len(read_output(output)) == 1000
    assert said.err.splitlines().count("Running in this process.") == 1
