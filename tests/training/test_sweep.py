"""A sweep in one process: it finds the planted best, resumes, keeps what failed, and refuses wrong requests."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sweeps import trials_of
from uncached import open_local_trials

import raycase
from raycase.errors import RequestError, WorkError
from raycase.training import sweep

tune = partial(sweep.tune, open_trials=open_local_trials)


def over(job, **flags):
    """The sweep over the training job with other flags."""
    return replace(job, training=replace(job.training, **flags))


def test_a_tiny_sweep_finds_the_planted_best_and_saves_it(make_sweep, tmp_path):
    job = make_sweep({"learning_rate": [1e-9, 1e-2], "dim": [8, 64]})
    result = tune(job)
    trials = trials_of(job)
    assert (result["trials"], result["cells"], result["failed"], len(trials)) == (8, 4, 0, 8)
    assert {t["seed"] for t in trials} == {0, 1} and {t["input_dim"] for t in trials} == {32}
    assert trials[0]["learning_rate"] == 1e-2 and trials[-1]["learning_rate"] == 1e-9
    folder = job.training.folder
    best = json.loads((folder / "best" / "metrics.json").read_text())
    assert best["recipe"]["learning_rate"] == 1e-2
    assert raycase.load(str(folder / "best")).dim == best["recipe"]["dim"]
    [first] = [t for t in trials if (t["key"], t["seed"]) == (result["best"]["key"], best["seed"])]
    assert best["validation"]["spearman"] == pytest.approx(first["spearman"], abs=0.1)
    assert f"{result['best']['spearman_mean']:.2f} ± " in (folder / "summary.md").read_text()
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_sweep_resumes_with_the_trials_its_table_lacks(make_sweep):
    job = make_sweep({"dropout": [0.0, 0.2]}, seeds=1)
    tune(job)
    files = sorted((job.training.folder / "trials").iterdir())
    before = {f: f.stat().st_mtime_ns for f in files}
    files[0].unlink()
    more = replace(job, seeds=2)
    assert tune(more)["trials"] == 4
    after = {f: f.stat().st_mtime_ns for f in (job.training.folder / "trials").iterdir()}
    assert len(after) == 4 and after[files[1]] == before[files[1]]
    assert tune(more)["trials"] == 4  # nothing is left to do


def test_another_search_space_is_refused_and_nothing_touched(make_sweep):
    job = make_sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = (job.training.folder / "sweep.json").read_bytes()
    other = make_sweep({"dropout": [0.1]}, seeds=1)
    with pytest.raises(RequestError, match="got another"):
        tune(other)
    assert (job.training.folder / "sweep.json").read_bytes() == before
    assert tune(over(other, overwrite=True))["trials"] == 1


def test_a_sweep_reads_prompts_of_ones_own(make_sweep, tmp_path):
    own = {"template": "{sentence}: {condition}", "base_template": "{condition}", "pool": "condition"}
    files = {name: str(tmp_path / f"{name}.json") for name in ("one", "two", "base")}
    for name, changed in {"one": {}, "two": {"views": ["template", "concat-sc"]}}.items():
        Path(files[name]).write_text(json.dumps(own | changed))
    job = make_sweep({"prompt": ["concat-sc", files["one"], files["two"]]}, seeds=1, epochs=2)
    tune(job)
    dims = {"concat-sc": 32, files["one"]: 32, files["two"]: 64}
    assert {t["prompt"]: t["input_dim"] for t in trials_of(job)} == dims
    best = raycase.load(str(job.training.folder / "best")).config
    assert best.subtract and best.encoder.reads_own == (best.encoder.own is not None)
    Path(files["two"]).write_text(json.dumps(own | {"base_template": "{condition}.", "views": ["template"]}))
    with pytest.raises(RequestError, match="got another"):
        tune(job)
    with pytest.raises(RequestError, match="--prompt: expected a file"):
        tune(make_sweep({"prompt": ["template"]}, prompt="concat-sc", overwrite=True))


def test_a_sweep_trains_nested_dimensions_and_refuses_those_that_a_cell_cannot_have(make_sweep):
    job = make_sweep({"dim": [8, 16]}, seeds=1, epochs=2, nested=(4,))
    tune(job)
    assert raycase.load(str(job.training.folder / "best"), dim=4).dim == 4
    for grid, nested in (({"dim": [8, 16]}, (8,)), ({"dropout": [0.1]}, (32,))):
        with pytest.raises(RequestError, match="--nested: expected dimensions below"):
            tune(make_sweep(grid, nested=nested, output=f"{job.training.output}-2"))
    with pytest.raises(RequestError, match="--nested: expected dimensions below 50"):
        tune(make_sweep(trials=1, nested=(64,)))


def test_a_search_needs_ray(make_sweep):
    with pytest.raises(RequestError, match="--grid: expected one in a single process, got a search"):
        tune(make_sweep(trials=1))


def test_optuna_and_matplotlib_are_optional(make_sweep, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "optuna"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RequestError, match="--trials: expected the package optuna"):
        tune(make_sweep(trials=2))
    job = make_sweep({"dropout": [0.1]}, seeds=1, epochs=1)
    tune(job)
    assert "The plots were left out" in (job.training.folder / "summary.md").read_text()
    assert not (job.training.folder / "choices.png").exists()


def test_a_failed_trial_is_kept_with_its_reason(make_sweep):
    job = make_sweep({"learning_rate": [1e-3, 1e37]}, seeds=1)
    assert tune(job)["failed"] == 1
    good, bad = trials_of(job)
    assert good["spearman"] is not None and bad["spearman"] is None
    assert "expected a finite loss" in bad["stopped"]
    assert "## Failed" in (job.training.folder / "summary.md").read_text()
    with pytest.raises(WorkError, match="1 that failed"):
        tune(make_sweep({"learning_rate": [1e37]}, seeds=1, overwrite=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trials": 0}, "--trials"),
        ({"seeds": 0}, "--seeds"),
        ({"cpus_per_trial": 0}, "--cpus-per-trial"),
        ({"grid": "table8"}, "--grid: expected table7, figure4, a file NAME.json, got table8"),
        ({"grid": "missing.json"}, "--grid: expected a JSON file"),
        ({"grid": "table7", "space": {"dropout": {"choice": [0.1]}}}, "--space: expected none beside --grid"),
        ({"prompt": "loud"}, "--prompt"),
        ({"seed": -1}, "--seed"),
        ({"workers": 2}, "--workers: expected 1"),
        ({"gpus_per_worker": 1.0}, "--gpus-per-worker: expected none in a sweep"),
    ],
)
def test_wrong_flags_are_refused(make_sweep, change, said):
    with pytest.raises(RequestError, match=said):
        tune(make_sweep(**change))


def test_a_refused_request_leaves_the_sweep_that_is_there(make_sweep):
    job = make_sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = {f: f.stat().st_mtime_ns for f in job.training.folder.rglob("*")}
    with pytest.raises(RequestError):
        tune(over(replace(job, cpus_per_trial=0), overwrite=True))
    with pytest.raises(RequestError):
        tune(over(job, overwrite=True, train=job.training.validation))
    assert {f: f.stat().st_mtime_ns for f in job.training.folder.rglob("*")} == before
