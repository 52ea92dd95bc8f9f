"""A sweep of condition pooling's head in one process: the ablation, a grid of a file, what is refused."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sweeps import head_sweep, trials_of
from uncached import LocalTrials, open_local_runner, open_local_trials

import raycase
from raycase.data.rated import read_rated
from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.training import job as jobs
from raycase.training import sweep
from raycase.training.job import CORRELATIONS
from raycase.training.nested import correlations

tune = partial(sweep.tune, open_trials=open_local_trials)


@pytest.fixture
def make_job(tmp_path, rated):
    return partial(head_sweep, tmp_path, rated)


def test_states_are_embedded_once_for_each_choice_of_layers(make_job):
    embedded = []

    class Counted(LocalTrials):
        def states_of(self, texts, config, **options):
            embedded.append((config.layers, options["name"]))
            return super().states_of(texts, config, **options)

    job = make_job({"layers": ["1", "2/3 1"], "gate": [True, False]}, epochs=1, seeds=1)
    assert sweep.tune(job, lambda **_: Counted("cpu"))["trials"] == 4
    assert len(set(embedded)) == 2 * 4 and len(embedded) == 3 * 4, "and those of the best again"
    assert {t["layers"]: t["input_dim"] for t in trials_of(job)} == {"1": 32, "2/3 1": 64}
    files = {file: file.stat().st_mtime_ns for file in sorted((job.training.folder / "trials").iterdir())}
    lost = next(iter(files))
    lost.unlink()
    assert tune(job)["trials"] == 4
    assert [file for file, time in files.items() if file.stat().st_mtime_ns != time] == [lost]


def test_a_trial_is_what_train_trains_with_its_flags_and_seed(make_job, tmp_path):
    job = make_job({"gate": [False], "layers": ["1"]}, seeds=1, seed=4, dropout=0.2)
    tune(job)
    [trial] = trials_of(job)
    flags = {"gate": False, "layers": (1.0,), "output": str(tmp_path / "trained")}
    trained = replace(job.training, **flags)
    best = jobs.train(trained, open_local_runner)
    line = best["history"][best["best_epoch"] - 1]
    assert [trial[name] for name in CORRELATIONS] == [line[name] for name in CORRELATIONS]
    heads = [load_file(folder / "head.safetensors") for folder in (job.training.folder / "best", trained.folder)]
    assert all(torch.equal(tensor, heads[1][name]) for name, tensor in heads[0].items())


def test_the_best_model_gives_the_reported_figures(make_job):
    grid = {"layers": [[1 / 3, 1.0], "0 1"], "learning_rate": [1e-9, 1e-2], "gate": [False]}
    job = make_job(grid, dropout=0.1, plain_share=0.0)
    result = tune(job)
    assert (result["trials"], result["cells"], result["failed"]) == (8, 4, 0)
    folder = job.training.folder / "best"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["recipe"]["learning_rate"] == 1e-2 and metrics["recipe"]["dropout"] == 0.1
    [trial] = [t for t in trials_of(job) if (t["key"], t["seed"]) == (result["best"]["key"], metrics["seed"])]
    assert metrics["validation"]["spearman"] == pytest.approx(trial["spearman"], abs=0.5)
    assert metrics["recipe"]["layers"] in ([1 / 3, 1.0], [0.0, 1.0])
    assert result["best"]["layers"] == {1 / 3: "1/3 1", 0.0: "0 1"}[metrics["recipe"]["layers"][0]]
    loaded = raycase.load(str(folder), dtype=torch.float32, device="cpu")
    rated = read_rated(job.training.validation, "")
    found = loaded.embed([*rated.sentences1, *rated.sentences2], [*rated.conditions] * 2)
    cosines = pair_cosines(found, np.arange(len(found)).reshape(2, -1).T)
    assert correlations(cosines, rated.ratings)["spearman"] == pytest.approx(metrics["validation"]["spearman"], abs=0.5)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"layers": [[1.5]]}, "--layers: expected fractions"),
        ({"layers": ["1 0.99"]}, "--layers: expected different ones of 3 layers"),
        ({"layers": ["deep"]}, "--grid: expected values of a recipe"),
        ({"layers": ["1/0"]}, "--grid: expected values of a recipe"),
        ({"gate": [1]}, "true or false as gate"),
        ({"heads": [0]}, "--heads"),
        ({"temperature": [0.0]}, "--temperature"),
        ({"unfreeze": [True]}, "got 'unfreeze'"),
        ("table7", "--grid: expected ablation, a file NAME.json, got table7"),
    ],
)
def test_a_grid_that_is_none_is_refused_before_anything_is_embedded(make_job, grid, said):
    job = make_job(grid)
    with pytest.raises(RequestError, match=said):
        sweep.tune(job, lambda **_: pytest.fail("expected no runner"))
    assert not job.training.folder.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nested": (128,), "dim": 512}, "--nested: expected dimensions below 128"),
        ({"nested": (128,), "dim": 512, "grid": "ablation"}, "--nested: expected dimensions below 128"),
    ],
)
def test_wrong_flags_are_refused(make_job, change, said):
    with pytest.raises(RequestError, match=said):
        tune(make_job(**change))
