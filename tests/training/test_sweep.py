"""A sweep in one process: it finds the planted best, resumes, keeps what failed, and refuses wrong requests."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from sweeps import trials_of

import raycase
from raycase.errors import RequestError, WorkError
from raycase.training import sweep
from raycase.training.local_runner import open_local_trials

tune = partial(sweep.tune, open_trials=open_local_trials)


def test_a_tiny_sweep_finds_the_planted_best_and_saves_it(make_sweep, tmp_path):
    job = make_sweep({"learning_rate": [1e-9, 1e-2], "dim": [8, 64]})
    result = tune(job)
    trials = trials_of(job)
    assert (result["trials"], result["cells"], result["failed"], len(trials)) == (8, 4, 0, 8)
    assert {t["seed"] for t in trials} == {0, 1} and {t["above_encoder"] for t in trials if t["dim"] == 64} == {True}
    assert trials[0]["learning_rate"] == 1e-2 and trials[-1]["learning_rate"] == 1e-9
    best = json.loads((job.folder / "best" / "metrics.json").read_text())
    assert best["recipe"]["learning_rate"] == 1e-2
    assert raycase.load(str(job.folder / "best")).dim == best["recipe"]["dim"]
    assert best["validation"]["spearman"] == pytest.approx(best["sweep"]["spearman"][0], abs=0.1)
    assert f"{result['best']['spearman_mean']:.2f} ± " in (job.folder / "summary.md").read_text()
    assert not list(tmp_path.rglob("*.pkl"))


def test_a_sweep_resumes_with_the_trials_its_table_lacks(make_sweep):
    job = make_sweep({"dropout": [0.0, 0.2]}, seeds=1)
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


def test_another_search_space_is_refused_and_nothing_touched(make_sweep):
    job = make_sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = (job.folder / "sweep.json").read_bytes()
    other = make_sweep({"dropout": [0.1]}, seeds=1, resume=True)
    with pytest.raises(RequestError, match="got another"):
        tune(other)
    assert (job.folder / "sweep.json").read_bytes() == before
    assert tune(replace(other, overwrite=True, resume=False))["trials"] == 1


def test_a_random_search_runs_its_samples_then_the_seeds_of_its_best(make_sweep):
    prompts = ("concat-sc", "concat-sc+concat-cs")
    job = make_sweep(search="random", samples=3, finalists=1, epochs=2, prompt=None, prompts=prompts)
    result = tune(job)
    trials = trials_of(job)
    phases = [t["phase"] for t in trials]
    assert (phases.count("search"), phases.count("finals"), result["best"]["seeds"]) == (3, 1, 2)
    assert len({t["dropout"] for t in trials}) == 3
    assert {t["prompt"]: t["input_dim"] for t in trials}.items() <= {"concat-sc": 32, "concat-sc+concat-cs": 64}.items()
    more = replace(job, samples=4, resume=True)
    tune(more)
    assert [t["phase"] for t in trials_of(more)].count("search") == 4


def test_a_sweep_reads_a_prompt_of_ones_own(make_sweep):
    own = {"prompt": None, "pooling": None, "template": "{sentence}: {condition}", "pool": "condition"}
    asked = own | {"base_template": "{condition}"}
    job = make_sweep({"prompt": ["concat-sc", "template+concat-sc"]}, seeds=1, epochs=2, **asked)
    tune(job)
    assert {t["prompt"]: t["input_dim"] for t in trials_of(job)} == {"concat-sc": 32, "template+concat-sc": 64}
    best = raycase.load(str(job.folder / "best")).config
    assert best.subtract and best.encoder.reads_own == (best.encoder.own is not None) == ("+" in best.encoder.prompt)
    with pytest.raises(RequestError, match="got another"):
        tune(replace(job, base_template="{condition}.", resume=True))
    search = {"search": "random", "samples": 1, "finalists": 1, "epochs": 1, "overwrite": True}
    alone = make_sweep(seeds=1, **search, **own)
    assert alone.search_space(alone.config())["prompt"] == ["template"]
    two = replace(alone, prompts=("concat-sc", "template"), base_template="{condition}")
    assert (two.config().encoder.prompt, two.config().subtract) == ("concat-sc", True)
    assert not replace(two, base_template=None).config().subtract  # all prompts of a search alike
    tune(two)
    for wrong, words in (
        (replace(two, template=None, pool=None, base_template=None), "--prompt: expected --template"),
        (replace(two, prompts=("concat-sc",)), "--template: expected template among the views"),
        (make_sweep({"prompt": ["template"]}, prompt="concat-sc", overwrite=True), "--prompt: expected --template"),
    ):
        with pytest.raises(RequestError, match=words):
            tune(wrong)


def test_a_sweep_trains_nested_dimensions_and_refuses_those_that_a_cell_cannot_have(make_sweep):
    job = make_sweep({"dim": [8, 16]}, seeds=1, epochs=2, nested=(4,))
    tune(job)
    assert raycase.load(str(job.folder / "best"), dim=4).dim == 4
    for grid, nested in (({"dim": [8, 16]}, (8,)), ({"dropout": [0.1]}, (32,))):
        with pytest.raises(RequestError, match="--nested: expected dimensions below"):
            tune(make_sweep(grid, nested=nested, output=f"{job.output}-2"))
    with pytest.raises(RequestError, match="--nested: expected dimensions below 50"):
        tune(make_sweep(search="random", samples=1, nested=(64,)))


def test_a_search_by_optuna_needs_ray(make_sweep):
    with pytest.raises(RequestError, match="--search: expected random or a grid in a single process, got tpe"):
        tune(make_sweep(samples=1))


@pytest.mark.parametrize(("search", "refused"), [("tpe", True), ("random", False)])
def test_optuna_and_matplotlib_are_optional(make_sweep, monkeypatch, search, refused):
    for name in ("matplotlib", "matplotlib.figure", "optuna"):
        monkeypatch.setitem(sys.modules, name, None)
    job = make_sweep(search=search, samples=2, finalists=1, epochs=1)
    if refused:
        with pytest.raises(RequestError, match="--search tpe: expected the package optuna"):
            tune(job)
        return
    tune(job)
    assert "The plots were left out" in (job.folder / "summary.md").read_text()
    assert not (job.folder / "choices.png").exists()


def test_a_failed_trial_is_kept_with_its_reason(make_sweep):
    job = make_sweep({"learning_rate": [1e-3, 1e37]}, seeds=1)
    assert tune(job)["failed"] == 1
    good, bad = trials_of(job)
    assert good["spearman"] is not None and bad["spearman"] is None
    assert "expected a finite loss" in bad["stopped"]
    assert "## Failed" in (job.folder / "summary.md").read_text()
    with pytest.raises(WorkError, match="1 that failed"):
        tune(replace(make_sweep({"learning_rate": [1e37]}, seeds=1), overwrite=True))


def test_views_side_by_side_are_what_the_saved_model_embeds(make_sweep, rated):
    job = make_sweep({"prompt": ["concat-sc+concat-cs"]}, seeds=1)
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
        ({"cpus_per_trial": 0}, "--cpus-per-trial"),
        ({"grid": "table8"}, "--grid"),
        ({"prompts": ("loud",), "prompt": None}, "--prompt"),
        ({"prompts": ("cond",)}, "--prompts"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_wrong_flags_are_refused(make_sweep, change, said):
    with pytest.raises(RequestError, match=said):
        tune(make_sweep(**change))


def test_a_refused_request_leaves_the_sweep_that_is_there(make_sweep):
    job = make_sweep({"dropout": [0.0]}, seeds=1)
    tune(job)
    before = {f: f.stat().st_mtime_ns for f in job.folder.rglob("*")}
    for wrong in ({"cpus_per_trial": 0}, {"train": job.validation}):
        with pytest.raises(RequestError):
            tune(replace(job, overwrite=True, **wrong))
    assert {f: f.stat().st_mtime_ns for f in job.folder.rglob("*")} == before
