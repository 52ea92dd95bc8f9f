"""A sweep of condition pooling's head in one process: the ablation, a search, a grid of a file, what is refused."""

import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sweeps import head_sweep, trial, trials_of

import raycase
from raycase.cli import main, parse
from raycase.data.rated import read_rated
from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.training import sweep
from raycase.training.condition_head_job import ConditionPoolingJob, train_condition_head
from raycase.training.condition_recipe import HeadRecipe
from raycase.training.local_runner import LocalTrials, open_local_runner, open_local_trials
from raycase.training.losses import Loss
from raycase.training.nested import correlations
from raycase.training.sweep_cells import CORRELATIONS, random_cells
from raycase.training.sweep_condition_head import ABLATION, HeadCell, TuneHeadJob, ablation
from raycase.training.sweep_projector import TuneJob

tune = partial(sweep.tune, open_trials=open_local_trials)
BASE = HeadCell(recipe=HeadRecipe())


@pytest.fixture
def make_job(tmp_path, rated):
    return partial(head_sweep, tmp_path, rated)


def test_the_ablation_differs_from_the_base_in_one_choice_at_a_time():
    base = HeadRecipe(
        heads=8,
        head_dim=64,
        layers=(2 / 3, 1.0),
        dropout=0.3,
        gate=True,
        loss=Loss.SQUARED,
        epochs=5,
        batch_size=256,
    )
    assert base == HeadRecipe()
    cells = ablation(BASE)
    assert [cell.recipe for cell in cells] == [
        base,
        replace(base, heads=4, head_dim=128),
        replace(base, heads=1),
        replace(base, gate=False),
        replace(base, layers=(1.0,)),
        replace(base, layers=(0.0, 1 / 3, 2 / 3, 1.0)),
        replace(base, loss=Loss.PEARSON),
        replace(base, head_dim=16, dim=128),
        replace(base, head_dim=32, dim=256),
        replace(base, heads=16),
    ]
    assert len({cell.key for cell in cells}) == 10
    assert [cell.read for cell in cells[3:7]] == ["2/3 1", "1", "0 1/3 2/3 1", "2/3 1"]


def test_the_ablation_runs_resumes_and_reports_every_cell(make_job):
    job = make_job("ablation", epochs=1)
    assert tune(job)["trials"] == 20
    trials = trials_of(job)
    assert {t["layers"]: t["input_dim"] for t in trials} == {"1": 32, "2/3 1": 64, "0 1/3 2/3 1": 128}
    text = (job.folder / "summary.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.endswith("| 2 |")]
    assert [row[0].removeprefix("| ") for row in rows] == list(ABLATION)
    assert all(" ± " in row[1] for row in rows)

    files = sorted((job.folder / "trials").iterdir())
    before = {file: file.stat().st_mtime_ns for file in files}
    files[3].unlink()
    assert tune(replace(job, resume=True))["trials"] == 20
    assert {file for file in files if file.stat().st_mtime_ns != before[file]} == {files[3]}
    with pytest.raises(RequestError, match="got another"):
        tune(replace(job, resume=True, dropout=0.1))


def test_a_trial_is_what_train_trains_with_its_flags_and_seed(make_job, tmp_path):
    job = make_job({"gate": [False], "layers": ["1"]}, seeds=1, seed=4, dropout=0.2)
    tune(job)
    [trial] = trials_of(job)
    kept = {f.name for f in fields(ConditionPoolingJob)} & {f.name for f in fields(job)}
    flags = {name: getattr(job, name) for name in kept} | {"gate": False, "layers": (1.0,)}
    trained = ConditionPoolingJob(**flags | {"output": str(tmp_path / "trained"), "plain_share": 0.0})
    best = train_condition_head(trained, open_local_runner)
    line = best["history"][best["best_epoch"] - 1]
    assert [trial[name] for name in CORRELATIONS] == [line[name] for name in CORRELATIONS]
    heads = [load_file(folder / "head.safetensors") for folder in (job.folder / "best", trained.folder)]
    assert all(torch.equal(tensor, heads[1][name]) for name, tensor in heads[0].items())


def test_the_best_model_gives_the_reported_figures(make_job):
    job = make_job({"layers": [[1 / 3, 1.0], "0 1"], "learning_rate": [1e-9, 1e-2], "gate": [False]}, dropout=0.1)
    result = tune(job)
    assert (result["trials"], result["cells"], result["failed"]) == (8, 4, 0)
    metrics = json.loads((job.folder / "best" / "metrics.json").read_text())
    assert metrics["recipe"]["learning_rate"] == 1e-2 and metrics["recipe"]["dropout"] == 0.1
    assert metrics["validation"]["spearman"] == pytest.approx(metrics["sweep"]["spearman"][0], abs=0.5)
    assert metrics["recipe"]["layers"] in ([1 / 3, 1.0], [0.0, 1.0])
    assert result["best"]["layers"] == {1 / 3: "1/3 1", 0.0: "0 1"}[metrics["recipe"]["layers"][0]]
    loaded = raycase.load(str(job.folder / "best"), dtype=torch.float32, device="cpu")
    rated = read_rated(job.validation, "")
    found = loaded.embed([*rated.sentences1, *rated.sentences2], [*rated.conditions] * 2)
    cosines = pair_cosines(found, np.arange(len(found)).reshape(2, -1).T)
    assert correlations(cosines, rated.ratings)["spearman"] == pytest.approx(metrics["validation"]["spearman"], abs=0.5)


def test_a_search_embeds_each_choice_of_layers_once(make_job):
    embedded = []

    class Counted(LocalTrials):
        def states_of(self, texts, config, **options):
            embedded.append((config.layers, options["name"]))
            return super().states_of(texts, config, **options)

    job = make_job(samples=4, finalists=1, epochs=1)
    result = sweep.tune(job, lambda **_: Counted("cpu"))
    phases = [t["phase"] for t in trials_of(job)]
    assert (phases.count("search"), phases.count("finals"), result["best"]["seeds"]) == (4, 1, 2)
    assert len({t["dropout"] for t in trials_of(job)}) == 4
    assert len(embedded) == len(set(embedded)) == 4 * len(HeadCell.space["layers"])
    assert (job.folder / "choices.png").read_bytes().startswith(b"\x89PNG")


def test_a_search_varies_every_choice_and_its_trials_give_the_cells_back():
    base = HeadCell(recipe=HeadRecipe(epochs=9, nested=(16,)))
    cells = random_cells(base, HeadCell.space, 60, seed=0)
    for name, choices in HeadCell.space.items():
        found = {cell.values[name] for cell in cells}
        assert found == set(choices) if isinstance(choices, list) else len(found) == len(cells)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        assert trial(cell, 1.0).cell(base) == cell
    changes = {"nested": (8,), "warmup": 0.2, "average": 0.5, "patience": 2, "temperature": 3.0}
    assert len({BASE.key, *(HeadCell(recipe=HeadRecipe(**{k: v})).key for k, v in changes.items())}) == 6


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"layers": [[1.5]]}, "--layers: expected fractions"),
        ({"layers": ["1 0.99"]}, "--layers: expected different ones of 3 layers"),
        ({"layers": ["deep"]}, "--grid: expected values of a recipe"),
        ({"layers": ["1/0"]}, "--grid: expected values of a recipe"),
        ({"layers": [1.0]}, "--grid: expected values of a recipe"),
        ({"gate": [1]}, "true or false as gate"),
        ({"heads": [True]}, "a whole number as heads"),
        ({"heads": [0]}, "--heads"),
        ({"dim": ["8"]}, "a whole number as dim"),
        ({"temperature": [0.0]}, "--temperature"),
        ({"unfreeze": [True]}, "got 'unfreeze'"),
        ({"nested": [[8]]}, "got 'nested'"),
        ({"prompt": ["cond"]}, "got 'prompt'"),
    ],
)
def test_a_grid_that_is_none_is_refused_before_anything_is_embedded(make_job, grid, said):
    job = make_job(grid)
    with pytest.raises(RequestError, match=said):
        sweep.tune(job, lambda **_: pytest.fail("expected no runner"))
    assert not job.folder.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": "table7"}, "--grid: expected ablation or a JSON file, got table7"),
        ({"layers": (2.0,)}, "--layers"),
        ({"dropout": 1.0}, "--dropout"),
        ({"nested": (128,), "dim": 512}, "--nested: expected dimensions below 128"),
        ({"nested": (128,), "dim": 512, "grid": "ablation"}, "--nested: expected dimensions below 128"),
        ({"seeds": 0}, "--seeds"),
    ],
)
def test_wrong_flags_are_refused(make_job, change, said):
    with pytest.raises(RequestError, match=said):
        tune(make_job(**change))


# ------------------------------------------------------------------------------------------------------- command line

FILES = ["--train", "a", "--validation", "b", "--output", "c"]


@pytest.mark.parametrize(("words", "kind"), [([], TuneJob), (["case"], TuneJob), (["condition-pooling"], TuneHeadJob)])
def test_the_command_names_the_system_or_means_case(words, kind):
    job = parse(["tune", *words, *FILES, "--layers", "1"])
    assert type(job) is kind and job.samples == 60
    assert job.recipe.layers == ((1.0,) if kind is TuneHeadJob else 1)


@pytest.mark.parametrize("flag", ["--unfreeze", "--teachers"])
def test_teachers_and_a_trained_encoder_are_not_swept(capsys, flag):
    with pytest.raises(SystemExit) as stop:
        main(["tune", "condition-pooling", *FILES, flag])
    assert stop.value.code == 2 and f"Unrecognized options: {flag}" in capsys.readouterr().err
    job = parse(["tune", "condition-pooling", *FILES])
    assert job.recipe == HeadRecipe() and not hasattr(job, "unfrozen_epochs")
