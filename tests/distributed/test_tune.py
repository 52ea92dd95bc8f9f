"""A sweep on Ray Tune: its trials are those of a sweep in one process; Optuna's search, ASHA, resources."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from sweeps import head_sweep, sweep_of, trials_of
from uncached import LocalRunner, open_local_trials

from raycase.distributed.tune import cpus_of_a_trial, open_trials, tune
from raycase.errors import RequestError
from raycase.training import sweep

LONG = partial(pytest.param, marks=pytest.mark.long)


def elsewhere(job, folder):
    """The same sweep in another folder."""
    return replace(job, training=replace(job.training, output=str(folder)))


def tune_trials(job):
    """Trials on Ray, over vectors of this process."""

    def opened(**options):
        here = LocalRunner("cpu")
        run = open_trials(**options).run
        parts = {name: getattr(here, name) for name in ("vectors_of", "states_of", "fit", "on_gpu")}
        return SimpleNamespace(run=run, **parts)

    return sweep.tune(job, opened)


@pytest.mark.cluster
def test_trials_on_ray_are_those_of_one_process(make_sweep, cluster, tmp_path):
    grid = {"learning_rate": [1e-9, 1e-2, 1e37]}
    job = make_sweep(grid, seeds=1, seed=4, dropout=0.3, epochs=3, cpus_per_trial=3)  # one after the other
    result = tune(job)
    assert result["overhead_per_trial"] < 1, "expected the next trial in the process of the last"
    here = elsewhere(job, tmp_path / "here")
    wanted = sweep.tune(here, open_local_trials)
    assert [(r["trials"], r["failed"], r["best"]["key"]) for r in (result, wanted)] == [
        (3, 1, result["best"]["key"])
    ] * 2
    for on_ray, plain in zip(trials_of(job), trials_of(here), strict=True):
        for name in ("spearman", "spearman_rated", "pearson"):
            assert on_ray[name] == (plain[name] and pytest.approx(plain[name], abs=1e-3))
            del on_ray[name], plain[name]
        assert on_ray | {"seconds": 0} == plain | {"seconds": 0}
    assert not list(tmp_path.rglob("*.pkl"))


@pytest.mark.cluster
def test_heads_on_ray_are_those_of_one_process(rated, cluster, tmp_path):
    job = head_sweep(tmp_path, rated, {"layers": ["1", "0 2/3"], "gate": [False]}, seeds=1, epochs=2)
    here = elsewhere(job, tmp_path / "here")
    assert tune_trials(job)["best"]["key"] == sweep.tune(here, open_local_trials)["best"]["key"]
    for on_ray, plain in zip(trials_of(job), trials_of(here), strict=True):
        assert on_ray["spearman"] == pytest.approx(plain["spearman"], abs=0.05)
        assert [on_ray[name] for name in ("key", "layers", "epochs")] == [plain[n] for n in ("key", "layers", "epochs")]


@pytest.mark.cluster
def test_a_fine_tuned_encoder_on_ray_is_that_of_one_process(scored, tiny_model, cluster, tmp_path):
    files = {name: scored[name] for name in ("train", "validation")}
    settings = {"seeds": 1, "seed": 2, "epochs": 2, "compute": "float32", "cpus_per_trial": 1, "model": str(tiny_model)}
    grid = {"route": ["own"], "learning_rate": [1e-3, 1e30]}
    job = sweep_of("mixsp", tmp_path, grid, output=str(tmp_path / "ray"), **settings, **files)
    here = elsewhere(job, tmp_path / "here")
    found, wanted = tune(job), sweep.tune(here, open_local_trials)
    assert (found["failed"], found["best"]["key"]) == (1, wanted["best"]["key"])
    (on_ray, failed), (plain, _) = trials_of(job), trials_of(here)
    assert (on_ray["route"], on_ray["key"]) == ("own", plain["key"])
    assert on_ray["spearman"] == pytest.approx(plain["spearman"], abs=0.05)
    assert "expected a finite loss" in failed["stopped"]
    saved = [load_file(run.training.folder / "best" / "extra.safetensors") for run in (job, here)]
    assert all(torch.allclose(tensor, saved[1][name], atol=1e-5) for name, tensor in saved[0].items())


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus"),
    [
        ([{"CPU": 2.0}], 0, 2),
        ([{"CPU": 4.0}, {"CPU": 16.0}, {}], 0, 16),
        ([{"CPU": 16.0, "GPU": 1.0}], 1, 16),
        ([{"CPU": 64.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 30.0, "GPU": 4.0}], 1, 7),
        ([{"CPU": 8.0, "GPU": 1.0}], 0.25, 2),
        ([{"CPU": 4.0, "GPU": 8.0}], 1, 1),
        ([{"CPU": 4.0}], 1, 1),
    ],
)
def test_a_trial_takes_what_train_takes_and_each_gpu_has_one(nodes, gpus, cpus):
    assert cpus_of_a_trial(nodes, gpus) == cpus


@pytest.mark.cluster
def test_a_search_of_fine_tuned_encoders_by_optuna(scored, tiny_model, cluster, tmp_path):
    files = {name: scored[name] for name in ("train", "validation")}
    settings = {"trials": 3, "finalists": 1, "seeds": 1, "epochs": 1, "compute": "float32", "model": str(tiny_model)}
    job = sweep_of("mixsp", tmp_path, output=str(tmp_path / "sweep"), **settings, **files)
    assert tune(job)["failed"] == 0
    assert len({t["similarity_weight"] for t in trials_of(job)}) == 3


@pytest.mark.cluster
def test_a_search_of_heads_by_optuna(rated, cluster, tmp_path):
    job = head_sweep(tmp_path, rated, trials=3, finalists=1, epochs=1)
    assert tune_trials(job)["failed"] == 0
    assert sorted(t["phase"] for t in trials_of(job)) == ["finals", "search", "search", "search"]
    assert len({t["dropout"] for t in trials_of(job)}) == 3


@pytest.mark.cluster
@pytest.mark.parametrize("resumed", [False, LONG(True)])
def test_a_search_runs_its_trials_then_the_seeds_of_its_best(make_sweep, cluster, resumed):
    prompts = ["concat-sc", "concat-sc+concat-cs"]
    space = {"prompt": {"choice": prompts}, "dropout": {"uniform": [0.0, 0.5]}, "layers": {"randint": [1, 3]}}
    space |= {"dim": {"choice": [None, 8]}, "epochs": {"choice": [1, 2]}}
    job = make_sweep(trials=3, finalists=1, epochs=2, space=space)
    result = tune_trials(job)
    trials = trials_of(job)
    phases = [t["phase"] for t in trials]
    assert (phases.count("search"), phases.count("finals"), result["best"]["seeds"]) == (3, 1, 2)
    assert len({t["dropout"] for t in trials}) == 3 and {t["layers"] for t in trials} <= {1, 2}
    assert {t["prompt"]: t["input_dim"] for t in trials}.items() <= {"concat-sc": 32, "concat-sc+concat-cs": 64}.items()
    assert all(t["key"] == result["best"]["key"] for t in trials if t["phase"] == "finals")
    if resumed:  # by the values that the search drew, not by those in the table
        more = replace(job, trials=4)
        tune_trials(more)
        assert [t["phase"] for t in trials_of(more)].count("search") == 4


@pytest.mark.long
def test_asha_stops_what_falls_behind(make_sweep, cluster):
    rates = [1e-2, 1e-9, 2e-9, 3e-9, 4e-9, 5e-9]
    job = make_sweep({"learning_rate": rates}, seeds=1, asha=True, epochs=30, patience=30)
    tune_trials(job)
    trials = {t["learning_rate"]: t for t in trials_of(job)}
    assert trials[1e-2]["epochs"] == 30
    assert any(t["stopped"] == "asha" and t["epochs"] < 30 for t in trials.values())


def test_a_sweep_without_ray_is_refused(make_sweep):
    with pytest.raises(RequestError, match="--no-ray: expected Ray"):
        tune(make_sweep(ray=False))


def test_a_trial_that_fits_on_no_node_is_refused(make_sweep, cluster, tmp_path):
    job = make_sweep(cpus_per_trial=99, overwrite=True)
    job.training.folder.mkdir()
    (job.training.folder / "sweep.json").write_text("{}")
    with pytest.raises(RequestError, match="--cpus-per-trial"):
        tune(job)
    assert [f.name for f in job.training.folder.iterdir()] == ["sweep.json"]
