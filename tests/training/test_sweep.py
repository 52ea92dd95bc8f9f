"""Sweeps before and after their trials: the papers' grids, grids and spaces of files, what is refused, the results."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from raycase.commands.train import TRAIN_FLAGS
from raycase.commands.tune import TuneFlags, changed
from raycase.errors import RequestError
from raycase.io.storage import locate
from raycase.training.sweep import SweepResults, by_cell, text_of

OTHER_GRIDS = [("condition-pooling", "ablation", 10), ("dualcse", "table7", 9), ("simcse", "table7", 9)]


def sweep(system="case", folder=None, grid=None, space=None, **options):
    """A sweep; a grid or a space that is no name stands in a file of the folder."""
    named = {}
    for name, values in (("grid", grid), ("space", space)):
        if values is not None and not isinstance(values, str):
            (folder / f"{name}.json").write_text(json.dumps(values))
            values = str(folder / f"{name}.json")
        named[name] = values
    files = {"train": "a.csv", "validation": "b.csv", "output": str(folder or "out")}
    return TuneFlags(**named, **options, training=TRAIN_FLAGS[system](**files))


def test_the_grids_of_the_papers_and_our_own():
    job = sweep(grid="table7")
    trained = [changed(job.training, cell) for cell in job.cells()]
    assert len(trained) == 2 + 2 * 4 * 2
    assert {(t.layers, t.dropout) for t in trained} == {(0, 0.2), (0, 0), (1, 0.15), (1, 0), (2, 0.15), (2, 0)}
    dims = [changed(job.training, cell).dim for cell in sweep(grid="figure4").cells()]
    assert dims == [50, *range(100, 1001, 100)]
    for system, grid, cells in OTHER_GRIDS:
        assert len(sweep(system, grid=grid).cells()) == cells


@pytest.mark.parametrize("system", TRAIN_FLAGS)
def test_every_system_has_a_space_and_what_it_offers_can_be(system):
    assert "learning_rate" in sweep(system).search_space() or system == "case"


def test_a_grid_is_the_product_of_its_lists_and_a_list_of_them_has_the_cells_of_each(tmp_path):
    job = sweep("condition-pooling", tmp_path, [{}, {"layers": ["1", "0 2/3"], "gate": [False, False]}])
    trained = [changed(job.training, cell) for cell in job.cells()]
    assert [(t.layers, t.gate) for t in trained] == [((2 / 3, 1), True), ((1,), False), ((0, 2 / 3), False)]
    assert [text_of(cell) for cell in job.cells()][1:] == ["layers 1, gate False", "layers 0 2/3, gate False"]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("table8", "expected table7, figure4, a file NAME.json, got table8"),
        ([], "got: 0 cells"),
        ({"dropout": 0.1}, "expected lists of values by flag"),
        ({"dropout": [2]}, r"--dropout: expected a share in \[0, 1\), got 2"),
        ({"dropout": ["high"]}, "got: dropout: expected a valid number, got 'high'"),
        ({"nested": [[2]]}, "got: 'nested', which is none of"),
        ({"dim": [10**30]}, "--dim"),
        ({"dropout": [0.1] * 101, "dim": [8] * 100}, "10,100 cells; a grid has 1 to 10,000"),
    ],
)
def test_a_grid_that_is_none_is_refused(tmp_path, grid, said):
    with pytest.raises(RequestError, match=f"--grid.*{said}"):
        sweep(folder=tmp_path, grid=grid).cells()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({}, "got none"),
        ({"dropout": [0.1]}, "got: "),
        ({"dropout": {"normal": [0, 1]}}, "got: normal, which is none of choice, uniform"),
        ({"dropout": {"uniform": [0, 2]}}, "--dropout: expected a share"),
        ({"layers": {"randint": [1, 4]}}, "got: layers: expected 0, 1 or 2, got 3"),
        ({"nested": {"choice": [1]}}, "'nested', which is none of"),
    ],
)
def test_a_space_that_is_none_is_refused(tmp_path, space, said):
    with pytest.raises(RequestError, match=f"--space.*{said}"):
        sweep(folder=tmp_path, space=space).search_space()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": 0}, "--seeds: expected at least 1"),
        ({"space": "a.json", "grid": "table7"}, "--space: expected none beside --grid"),
        ({"training": {"workers": 2}}, "--workers: expected 1"),
        ({"training": {"dropout": 1.0}}, "--dropout"),
    ],
)
def test_wrong_flags_are_refused(tmp_path, change, said):
    job = sweep(folder=tmp_path / "out")
    change = {n: replace(job.training, **v) if n == "training" else v for n, v in change.items()}
    with pytest.raises(RequestError, match=said):
        replace(job, **change).check()


def trial(score, seed=0, **choices):
    figures = {"metric": "spearman", "spearman": score, "epochs": 3} if score is not None else {"error": "it diverged"}
    return {"choices": choices, "seed": seed, "phase": "grid", "error": "", "score": score} | figures


def test_cells_are_ranked_by_their_mean_among_those_with_the_most_seeds(tmp_path):
    trials = [trial(50, 0, dim=1), trial(52, 1, dim=1), trial(60, dim=2), trial(51, 0, dim=3), trial(53, 1, dim=3)]
    trials += [trial(None, dim=4), trial(70, 0, dim=5), trial(None, 1, dim=5)]
    ranked = by_cell(trials)
    assert [of[0]["choices"]["dim"] for _, of in ranked] == [3, 1, 5, 2, 4]
    assert [scores for scores, _ in ranked][:2] == [[51, 53], [50, 52]]
    results = SweepResults(locate(str(tmp_path)))
    for each in trials:
        results.put_trial(each)
    assert sorted(map(repr, results.read_trials())) == sorted(map(repr, trials))
    results.write_tables(results.read_trials())
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert table["config/dim"].tolist() == [3, 3, 1, 1, 5, 5, 2, 4]
    assert table["error"].tolist()[-1] == "it diverged"
    rows = [line for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("|")]
    assert rows[2] == "| 52.00 ± 1.41 | 2 | 0 | dim 3 |" and rows[-1] == "|  | 0 | 1 | dim 4 |"
