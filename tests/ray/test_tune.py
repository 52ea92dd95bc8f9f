"""A sweep on Ray Tune: its trials are fits of one process; Optuna's search, ASHA, what a stopped sweep keeps."""

import json
import os
from dataclasses import replace

import pandas as pd
import pytest
from helpers import train_here
from tracked import mlflow_runs, scalars

from raycase.commands.train import TRAIN_FLAGS
from raycase.commands.tune import TuneFlags, changed, tune
from raycase.errors import RequestError, WorkError
from raycase.job.runner import Runner
from raycase.ray.tune import Trials, resources, trackers
from raycase.training.vector_cache import VectorCache


@pytest.fixture
def make(projector, tmp_path):
    """Makes a sweep of a system, of a projector by default, over the shared pairs."""

    def made(values, name="grid", system="case", **options):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
        flags = {flag: options.pop(flag) for flag in ("trials", "seeds") if flag in options}
        training = TRAIN_FLAGS[system](**{"output": str(tmp_path / "sweep"), "epochs": 2} | projector | options)
        return TuneFlags(**{name: str(tmp_path / f"{name}.json")}, **flags, training=training)

    return made


def fill_cache(training):
    """Embed what the trials share in this process."""
    sharing = training.training()
    sharing.share(sharing.read(), VectorCache(Runner()))


def results(job):
    return pd.read_parquet(job.training.folder / "results.parquet")


def assert_tracked(job, history):
    """MLflow and Tune's events have the epochs of the trial with a score, and MLflow those of the best cell's fit."""
    runs = [({"rate": run["params.trial/choices/learning_rate"]}, metrics) for run, metrics in mlflow_runs()]
    by_rate = {run["rate"]: metrics for run, metrics in runs}
    events = [scalars(folder) for folder in (job.training.folder / "tune").iterdir() if folder.is_dir()]
    [scored] = [found for found in events if "ray/tune/loss" in found]
    for name in ("loss", "spearman"):
        wanted = [(line["epoch"], pytest.approx(line[name], rel=1e-3)) for line in history]
        for found in (by_rate["0.01"][name], scored[f"ray/tune/{name}"], runs[-1][1][name]):
            assert found == wanted
    assert set(by_rate) >= {"0.01", "3e+38"} and len(runs) == 3


def test_the_key_of_wandb_is_no_variable_of_rays_actors(monkeypatch):
    """Ray writes these variables into its logs."""
    given = {}

    def start(callback, trial, exclude, **options):
        given.update(options, variable=os.environ.get("WANDB_API_KEY"))

    monkeypatch.setattr("ray.air.integrations.wandb.WandbLoggerCallback._start_logging_actor", start)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_PROJECT", "raycase")
    [callback] = trackers("wandb", "sweep")
    callback._start_logging_actor(None, [])
    assert given["variable"] is None
    assert given["settings"].api_key == os.environ["WANDB_API_KEY"] == "0123456789" * 4


@pytest.mark.cluster
def test_trials_are_fits_of_one_process_and_the_best_is_a_model(
    make, cluster, tiny_model, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tiny_model.parent)  # a trial may run elsewhere
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "raycase")
    flags = {"model": tiny_model.name, "dropout": 0.3, "track": "mlflow"}
    job = make({"learning_rate": [1e-2, 3e38]}, seeds=1, seed=4, **flags)
    fill_cache(job.training)
    found = tune(job)
    assert (found["trials"], found["failed"], found["best"]["cell"]) == (2, 1, "learning rate 0.01")
    table = results(job).set_index(["config/learning_rate", "seed"])
    cell = replace(changed(job.training, {"learning_rate": 1e-2}), track=None, output=str(tmp_path / "cell"), seed=4)
    wanted, row = train_here(cell), table.loc[1e-2, 4]
    assert row["score"] == row["spearman"] == pytest.approx(wanted["validation"]["spearman"], abs=1e-2)
    assert row["epochs"] == 2
    assert "expected a finite loss" in table.loc[3e38, 4]["error"]
    best = json.loads((job.training.folder / "best" / "metrics.json").read_text())
    assert best["validation"]["spearman"] == pytest.approx(table.loc[1e-2, 4]["score"], abs=1e-2)
    assert_tracked(job, best["history"])
    assert not list(job.training.folder.rglob("*.pkl"))

    lost = next(f for f in (job.training.folder / "trials").iterdir() if json.loads(f.read_text())["score"])
    lost.unlink()
    before = {f: f.stat().st_mtime_ns for f in (job.training.folder / "best").iterdir()}
    capsys.readouterr()
    assert tune(job)["best"] == found["best"]
    assert capsys.readouterr().err.count("grid: ") == 1 + 1, "the lost trial, and that which failed"
    assert {f: f.stat().st_mtime_ns for f in before} == before
    with pytest.raises(RequestError, match="got another"):
        tune(replace(job, training=replace(job.training, dropout=0.4)))

    def all_fail(trials, cells, phase):
        for cell, seed in cells:
            trials.results.put_trial(
                {"choices": cell, "seed": seed, "phase": phase, "error": "not finite", "score": None}
            )

    monkeypatch.setattr(Trials, "run", all_fail)
    with pytest.raises(WorkError, match=r"2 that failed; the first: not finite"):
        tune(make({"learning_rate": [3e38]}, seeds=2, output=str(tmp_path / "only")))


@pytest.mark.cluster
def test_a_search_runs_its_trials_then_the_seeds_of_its_best_and_goes_on(make, cluster):
    space = {"prompt": {"choice": ["concat-sc", "concat-sc+concat-cs"]}, "dropout": {"uniform": [0.0, 0.5]}}
    space |= {"layers": {"randint": [1, 3]}, "dim": {"choice": [None, 8]}, "epochs": {"choice": [1, 2]}}
    job = make(space, "space", trials=2, seeds=2)
    for prompt in space["prompt"]["choice"]:
        fill_cache(replace(job.training, prompt=prompt))
    assert tune(job)["best"]["seeds"] == 2
    table = results(job)
    assert table["phase"].value_counts().to_dict() == {"search": 2, "finals": 2}
    assert table["config/dropout"].nunique() == 2
    tune(replace(job, trials=3))
    assert results(job)["phase"].value_counts()["search"] == 3


@pytest.mark.parametrize(
    ("nodes", "gpus", "wanted"),
    [
        ([{"CPU": 4.0}, {"CPU": 16.0}, {}], None, (16, 0)),
        ([{"CPU": 64.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 30.0, "GPU": 4.0}], None, (7, 1)),
        ([{"CPU": 8.0, "GPU": 1.0}], 0.25, (2, 0.25)),
        ([{"CPU": 4.0, "GPU": 8.0}], None, (1, 1)),
    ],
)
def test_a_trial_takes_what_train_takes_and_each_gpu_has_one(monkeypatch, nodes, gpus, wanted):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": n} for n in nodes])
    assert resources(gpus, frozen=False) == wanted
    assert resources(gpus, frozen=True) == (1, 0)


def test_a_sweep_without_ray_is_refused(make):
    with pytest.raises(RequestError, match="--no-ray: expected Ray"):
        tune(make({}, ray=False))
