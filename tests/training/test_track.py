"""What a fit reports: its own record, a run for each fit; what is refused before work begins."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
from helpers import train_here
from tracked import mlflow_runs, scalars

from raycase.errors import RequestError, WorkError
from raycase.training.recipe import Recipe
from raycase.training.tracking import Tracker, check_track

RECIPE = Recipe(patience=1, seed=1)
KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Every service keeps what it gets in the test's folder."""
    of_mlflow = {"TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "EXPERIMENT_NAME": "raycase"}
    of_wandb = {"PROJECT": "raycase", "MODE": "offline", "DIR": str(tmp_path), "API_KEY": KEY}
    for service, given in {"MLFLOW": of_mlflow | {"HTTP_REQUEST_MAX_RETRIES": "0"}, "WANDB": of_wandb}.items():
        for name, value in given.items():
            monkeypatch.setenv(f"{service}_{name}", value)
    mlflow.set_tracking_uri(None)


def by_step(history):
    """What a service should hold of a fit's record."""
    return {name: [(line["epoch"], pytest.approx(line[name], rel=1e-6)) for line in history] for name in history[0]}


@pytest.mark.cluster
def test_each_service_gets_the_record_of_the_fit_and_no_secret(training, tmp_path):
    for to in ("tensorboard", "mlflow", "wandb"):
        job = replace(training, track=to, output=str(tmp_path / to))
        history = train_here(job)["history"]
        assert len(history) == 4
        if to == "tensorboard":
            assert scalars(job.folder / "tensorboard" / "fit-1") == by_step(history)
        elif to == "mlflow":
            [(run, metrics)] = mlflow_runs()
            assert (metrics, run.status) == (by_step(history), "FINISHED")
            given = {name: run[f"params.{name}"] for name in ("system", "seed", "learning_rate", "epochs")}
            assert given == {"system": "case", "seed": "0", "learning_rate": str(job.learning_rate), "epochs": "4"}
        else:
            [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
            assert all(repr(line["loss"]).encode() in file.read_bytes() for line in history)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    untracked = replace(training, output=str(tmp_path / "untracked"))
    assert train_here(untracked)["fingerprint"] == json.loads((job.folder / "metrics.json").read_text())["fingerprint"]


def test_runs_resume_whole_fail_and_replace_earlier_ones(tmp_path):
    line = {"loss": 0.5, "seconds": 1.0, "mib": 1, "spearman": float("nan")}
    history = [{"epoch": epoch, **line} for epoch in (1, 2, 3)]
    for fits in (2, 1):
        tracker = Tracker("tensorboard", tmp_path, {})
        for _ in range(fits):
            with tracker.open_run(RECIPE) as report:
                report(history[:2])  # of a fit that resumes after its second epoch
                report(history)
    [folder] = (tmp_path / "tensorboard").iterdir()
    found = scalars(folder)
    assert found["loss"] == [(1, 0.5), (2, 0.5), (3, 0.5)] and len(found["spearman"]) == 3
    with pytest.raises(WorkError, match="lower the rate"), Tracker("mlflow", tmp_path, {}).open_run(RECIPE) as report:
        report(history[:1])
        raise WorkError("lower the rate")
    [(run, metrics)] = mlflow_runs()
    assert (run.status, len(metrics["loss"])) == ("FAILED", 1)
    with mlflow.start_run(), Tracker("mlflow", tmp_path, {}).open_run(RECIPE) as report:
        report(history)
    assert len([*mlflow_runs()]) == 3
    refused = pytest.raises(WorkError, match="--track mlflow: expected it to take the figures, got MlflowException")
    with refused, Tracker("mlflow", tmp_path, {}).open_run(RECIPE) as report:
        report([{**history[0], "a?": 1.0}])


def test_what_lacks_is_named_before_work_begins(training, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for to, module in (("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(RequestError, match=rf"expected the package {module} for --track.*raycase\[track\]"):
                train_here(replace(training, track=to))
    with monkeypatch.context() as patch:
        patch.delenv("WANDB_API_KEY")
        patch.setenv("WANDB_MODE", "online")
        patch.setenv("HOME", str(tmp_path))
        with pytest.raises(RequestError, match="expected a key of W&B, got none; set WANDB_API_KEY"):
            train_here(replace(training, track="wandb"))
    mlflow.set_tracking_uri("http://user:secret@127.0.0.1:9")
    with pytest.raises(RequestError, match="--track mlflow: expected") as raised:
        check_track("mlflow")
    assert "secret" not in str(raised.value)
    assert not Path(training.output).exists()
