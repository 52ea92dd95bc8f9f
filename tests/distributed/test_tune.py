"""A sweep on Ray Tune: it finds the planted best, goes on where it was, and keeps what failed."""

import json
from dataclasses import replace
from functools import partial

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raycase
from raycase.data.rated import read_rated
from raycase.distributed.tune import TuneJob, tune
from raycase.distributed.vector_cache import vectors_of
from raycase.errors import RequestError, WorkError
from raycase.systems.pair_vectors import pair_vectors
from raycase.training.projector_fit import fit_projector

LONG = partial(pytest.param, marks=pytest.mark.long)


@pytest.fixture
def sweep(rated, tiny_model, tmp_path):
    def made(grid=None, **options):
        if grid is not None:
            (tmp_path / "grid.json").write_text(json.dumps(grid))
            options["grid"] = str(tmp_path / "grid.json")
        return TuneJob(
            **{
                "train": str(rated / "train.csv"),
                "validation": str(rated / "validation.csv"),
                "model": str(tiny_model),
                "prompt": "concat-sc",
                "pooling": "mean",
                "compute": "float32",
                "output": str(tmp_path / "sweep"),
                "cache": str(rated / "cache"),
                "epochs": 5,
                "batch_size": 20,
                "seeds": 2,
            }
            | options
        )

    return made


def trials_of(job):
    return pq.read_table(job.folder / "trials.parquet").to_pylist()


def test_a_tiny_sweep_finds_the_planted_best_and_saves_it(sweep, cluster, tmp_path):
    job = sweep({"learning_rate": [1e-9, 1e-2], "dim": [8, 64]})
    result = tune(job)
    trials = trials_of(job)
    assert (result["trials"], result["cells"], result["failed"], len(trials)) == (8, 4, 0, 8)
    assert {t["seed"] for t in trials} == {0, 1} and {t["above_encoder"] for t in trials if t["dim"] == 64} == {True}
    assert trials[0]["learning_rate"] == 1e-2 and trials[-1]["learning_rate"] == 1e-9
    assert result["overhead_per_trial"] < 1
    best = json.loads((job.folder / "best" / "metrics.json").read_text())
    assert best["recipe"]["learning_rate"] == 1e-2
    assert raycase.load(str(job.folder / "best")).dim == best["recipe"]["dim"]
    assert best["validation"]["spearman"] == pytest.approx(best["sweep"]["spearman"][0], abs=0.1)
    assert f"{result['best']['spearman_mean']:.2f} ± " in (job.folder / "summary.md").read_text()
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_trial_is_the_plain_fit(sweep, cluster):
    job = sweep({"dropout": [0.3]}, seeds=1, seed=4)
    tune(job)
    pairs = [read_rated(uri, "") for uri in (job.train, job.validation)]
    data = [pair_vectors(p, job.config(), vectors_of, cache=job.cache_location, compute="float32") for p in pairs]
    lines = [state.line for state in fit_projector(*data, replace(job.recipe, dropout=0.3), seed=4)]
    [trial] = trials_of(job)
    assert trial["spearman"] == pytest.approx(max(line["spearman"] for line in lines), abs=1e-3)
    assert trial["epochs"] == 5 and trial["stopped"] == "epochs"


@pytest.mark.cluster
def test_a_sweep_goes_on_with_what_its_table_lacks(sweep, cluster):
    job = sweep({"dropout": [0.0, 0.2]}, seeds=1)
    tune(job)
    with pytest.raises(RequestError, match="--resume"):
        tune(job)
    files = sorted((job.folder / "trials").iterdir())
    before = {f: f.stat().st_mtime_ns for f in files}
    files[0].unlink()
    more = replace(job, seeds=2, resume=True)
    assert tune(more)["trials"] == 4
    after = {f: f.stat().st_mtime_ns for f in (job.folder / "trials").iterdir()}
    assert len(after) == 4 and after[files[1]] == before[files[1]]
    assert tune(more)["trials"] == 4  # nothing is left to do


@pytest.mark.long
def test_another_search_space_is_refused_and_nothing_touched(sweep, cluster):
    job = sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = (job.folder / "sweep.json").read_bytes()
    other = sweep({"dropout": [0.1]}, seeds=1, resume=True)
    with pytest.raises(RequestError, match="got another one"):
        tune(other)
    assert (job.folder / "sweep.json").read_bytes() == before
    assert tune(replace(other, overwrite=True, resume=False))["trials"] == 1


@pytest.mark.parametrize(("search", "goes_on"), [("tpe", False), LONG("tpe", True), LONG("random", False)])
def test_a_search_runs_its_samples_then_the_seeds_of_its_best(sweep, cluster, search, goes_on):
    job = sweep(search=search, samples=3, finalists=1, prompt=None, prompts=("concat-sc", "concat-sc+concat-cs"))
    result = tune(job)
    trials = trials_of(job)
    phases = [t["phase"] for t in trials]
    assert (phases.count("search"), phases.count("finals"), result["best"]["seeds"]) == (3, 1, 2)
    assert len({t["dropout"] for t in trials}) == 3
    assert {t["prompt"]: t["input_dim"] for t in trials}.items() <= {"concat-sc": 32, "concat-sc+concat-cs": 64}.items()
    if goes_on:  # a random one goes on as a grid does
        more = replace(job, samples=4, resume=True)
        tune(more)
        assert [t["phase"] for t in trials_of(more)].count("search") == 4


@pytest.mark.long
def test_a_failed_trial_is_kept_with_its_reason(sweep, cluster):
    job = sweep({"learning_rate": [1e-3, 1e37]}, seeds=1)
    assert tune(job)["failed"] == 1
    good, bad = trials_of(job)
    assert good["spearman"] is not None and bad["spearman"] is None
    assert "expected a finite loss" in bad["stopped"]
    assert "## Failed" in (job.folder / "summary.md").read_text()
    with pytest.raises(WorkError, match="1 that failed"):
        tune(replace(sweep({"learning_rate": [1e37]}, seeds=1), overwrite=True))


def test_views_side_by_side_are_what_the_saved_model_embeds(sweep, cluster, rated):
    job = sweep({"prompt": ["concat-sc+concat-cs"]}, seeds=1)
    tune(job)
    loaded = raycase.load(str(job.folder / "best"), dtype=torch.float32)
    weights = load_file(job.folder / "best" / "projector.safetensors")
    assert weights["1.weight"].shape[1] == 64
    assert loaded.embed(["a red dress"], "color").shape == (1, loaded.dim)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 0}, "--samples"),
        ({"seeds": 0}, "--seeds"),
        ({"cpus_per_trial": 99}, "--cpus-per-trial"),
        ({"grid": "table8"}, "--grid"),
        ({"prompts": ("loud",), "prompt": None}, "--prompt"),
        ({"prompts": ("cond",)}, "--prompts"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_wrong_flags_are_refused(sweep, cluster, change, said):
    with pytest.raises(RequestError, match=said):
        tune(sweep(**change))


def test_a_refused_request_leaves_the_sweep_that_is_there(sweep, cluster):
    job = sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = {f: f.stat().st_mtime_ns for f in job.folder.rglob("*")}
    for wrong in ({"cpus_per_trial": 99}, {"train": job.validation}):
        with pytest.raises(RequestError):
            tune(replace(job, overwrite=True, **wrong))
    assert {f: f.stat().st_mtime_ns for f in job.folder.rglob("*")} == before


@pytest.mark.long
def test_asha_stops_what_falls_behind(sweep, cluster):
    rates = [1e-2, 1e-9, 2e-9, 3e-9, 4e-9, 5e-9]
    job = sweep({"learning_rate": rates}, seeds=1, asha=True, epochs=30, patience=30)
    tune(job)
    trials = {t["learning_rate"]: t for t in trials_of(job)}
    assert trials[1e-2]["epochs"] == 30
    assert any(t["stopped"] == "asha" and t["epochs"] < 30 for t in trials.values())
