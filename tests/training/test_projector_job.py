"""Fitting a projector as a job, in one process: its model folder, what it does once only, what it refuses."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from helpers import bare_fit, projector_of, rated_rows, to_csv, train_here, worst

import raycase
from raycase.errors import RequestError
from raycase.evaluation.metrics import spearman
from raycase.io.rated_pairs import read_rated
from raycase.io.vectors import pair_cosines


def test_a_job_runs_once_and_another_is_refused(training, capsys):
    metrics = train_here(training)
    assert capsys.readouterr().out.count("epoch ") == 4
    *_, g = bare_fit(training)
    assert worst(projector_of(training), g.state_dict()) == 0
    assert train_here(training) == json.loads(json.dumps(metrics))
    with pytest.raises(RequestError, match="got another"):
        train_here(replace(training, seed=5))
    assert worst(projector_of(training), g.state_dict()) == 0
    with pytest.raises(RequestError, match="without projector"):
        train_here(replace(training, model=training.output, output=f"{training.output}-2"))


def test_a_nested_fit_reports_the_figures_that_its_cut_vectors_have(training):
    metrics = train_here(replace(training, dim=8, nested=(4, 2)))
    validation = read_rated(training.validation, "")
    for dim in (2, 4):
        system = raycase.load(training.output, dtype=torch.float32, dim=dim)
        scores = pair_cosines(system.embed(*zip(*validation.distinct, strict=True)), validation.pair_index)
        assert 100 * spearman(scores, validation.ratings) == pytest.approx(metrics["validation"][f"spearman_{dim}"])
        assert f"cut to {dim} dimensions (`dim={dim}`)" in (training.folder / "README.md").read_text()
    assert metrics["recipe"]["nested"] == (4, 2)
    with pytest.raises(RequestError, match="got another"):
        train_here(replace(training, dim=8))


def test_overwriting_replaces_the_model(training):
    training.folder.mkdir()
    (training.folder / "raycase.json").write_text("somebody's")
    job = replace(training, seed=3)
    with pytest.raises(RequestError, match=r"got raycase\.json without metrics\.json"):
        train_here(job)
    train_here(replace(job, overwrite=True))
    *_, g = bare_fit(job)
    assert worst(projector_of(job), g.state_dict()) == 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: f.drop(columns="condition"), "expected the column 'condition'"),
        (lambda f: f.assign(label=[7, *f.label[1:]]), "labels from 1 to 5"),
    ],
)
def test_bad_pairs_are_refused_before_anything_is_done(training, tmp_path, spoil, said):
    """What else is wrong with pairs: `test_rated_pairs.py`."""
    bad = replace(training, train=to_csv(spoil(rated_rows(10, 0)), tmp_path / "bad.csv"), cache=str(tmp_path / "cache"))
    with pytest.raises(RequestError, match=said):
        train_here(bad)
    assert not bad.folder.exists() and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": 0}, "--workers"),
        ({"output": "s3://corpus/case"}, "--output"),
        ({"train": "nowhere.csv"}, "--train"),
        ({"prompt": "loud"}, "--prompt"),
    ],
)
def test_wrong_flags_are_refused(training, change, said):
    with pytest.raises(RequestError, match=said):
        train_here(replace(training, **change))


def test_validation_pairs_are_not_trained_on(training, tmp_path):
    both = to_csv(pd.concat([rated_rows(20, 0), rated_rows(40, 1).iloc[[7]]]), tmp_path / "both.csv")
    with pytest.raises(
        RequestError, match=r"pairs that are not in --train, got 1 of 40 in .*both\.csv, the first in row 7"
    ):
        train_here(replace(training, train=both))


def test_labels_that_float32_cannot_hold_or_tell_apart_are_refused(tmp_path):
    for label, said in (
        ([1e308, *[1] * 9], "row 0: expected a number"),
        ([3 + n * 1e-9 for n in range(10)], "got only 3"),
    ):
        with pytest.raises(RequestError, match=said):
            read_rated(to_csv(rated_rows(10, 0).assign(label=label), tmp_path / "a.csv"), "--train")
