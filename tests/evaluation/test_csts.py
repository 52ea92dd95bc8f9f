"""C-STS: figures against SciPy and on the real data, the report from its JSON alone, refusals."""

import csv
import json
import math
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from helpers import rated_rows, to_csv, vectors_of
from nested_models import save_condition_pooling

import raycase
from raycase.cli import main
from raycase.commands.evaluate import measure
from raycase.errors import RequestError
from raycase.evaluation.report import render_ranked
from raycase.io.storage import locate
from raycase.io.vectors import cosines


def pair_cosines(folder, rated_pairs):
    """The cosines of a model folder's vectors, by `raycase.load`."""
    system = raycase.load(str(folder), dtype=torch.float32)
    return cosines(
        system.embed(rated_pairs.sentences1, rated_pairs.conditions),
        system.embed(rated_pairs.sentences2, rated_pairs.conditions),
    )


def test_the_figures_are_those_of_scipy_and_of_the_loaded_folder(evaluation, models, rated_pairs):
    metrics = measure(evaluation(models[0]), vectors_of=vectors_of)
    [model] = metrics["systems"]
    assert "g(f - base)" in model["what"]
    scores, ratings = pair_cosines(models[0], rated_pairs), rated_pairs.ratings
    rated = ratings != -1
    for name, kept in (("", ratings >= -1), ("_rated", rated)):
        for kind, correlation in (("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)):
            found = model["figures"]["all"][kind + name]
            assert found["value"] == pytest.approx(100 * correlation(scores[kept], ratings[kept])[0], rel=1e-4)
            assert found["low"] < found["value"] < found["high"]
    assert f"To {(~rated).sum()} pairs the condition does not apply" in metrics["about"]


@pytest.mark.parametrize("system", ["condition-pooling", "a trained head", "csr", "tri-encoder"])
def test_other_systems_have_their_figures_trained_or_not(evaluation, encoder, rated_pairs, tmp_path, system):
    trained = system == "a trained head"
    model = save_condition_pooling(tmp_path / "pooling", encoder) if trained else f"{system}:{encoder}"
    [part] = measure(evaluation(model), vectors_of=vectors_of)["systems"]
    found = part["figures"]["all"]["spearman"]["value"]
    wanted = scipy.stats.spearmanr(pair_cosines(model, rated_pairs), rated_pairs.ratings)[0]
    assert found == pytest.approx(100 * wanted, abs=0.1)
    assert (system if ":" in model else "condition-pooling") in (tmp_path / "report" / "report.md").read_text()


def test_a_report_compares_models_with_the_first_and_is_made_from_its_json_alone(evaluation, models, tmp_path):
    measure(evaluation(*models), vectors_of=vectors_of)
    folder = tmp_path / "report"
    assert sorted(f.name for f in folder.iterdir()) == ["metrics.json", "report.md"]
    text = (folder / "metrics.json").read_text(encoding="utf-8")
    metrics = json.loads(text, parse_constant=pytest.fail)  # NaN and infinity, which other readers refuse
    first, second = metrics["systems"]
    assert metrics["compared"]["against"] == first["name"] == "first"
    values = [model["figures"]["all"]["spearman"]["value"] for model in (first, second)]
    line = second["against"]["all"]["spearman"]
    assert line["difference"] == pytest.approx(values[1] - values[0])
    assert line["low"] <= line["difference"] <= line["high"]
    assert render_ranked(metrics) == (folder / "report.md").read_text(encoding="utf-8")
    first["figures"]["all"]["spearman"]["value"] = 12.3456
    assert "12.35" in render_ranked(metrics)


def test_wrong_models_are_refused_and_the_earlier_report_stays(evaluation, models, tmp_path):
    measure(evaluation(models[0]), vectors_of=vectors_of)
    before = {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()}
    for names, words in {
        ("minilm-7b",): "expected one of minilm.*got 'minilm-7b'",
        (): "--model: expected one model or more",
    }.items():
        with pytest.raises(RequestError, match=words):
            measure(evaluation(*names), vectors_of=vectors_of)
    assert {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()} == before


def test_json_has_null_for_what_is_no_number(tmp_path, capsys):
    value = {"a": math.nan, "b": [math.inf, (np.float64("nan"), 1.5)], "c": {"d": -math.inf}}
    wanted = {"a": None, "b": [None, [None, 1.5]], "c": {"d": None}}
    file = locate(str(tmp_path / "x.json"))
    file.put_json(value)
    assert json.loads(file.read(), parse_constant=pytest.fail) == wanted
    main(["verify", "x"], work=lambda job: value)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == wanted


def test_an_evaluation_without_any_figure_says_why_and_ends_with_an_error(tiny_model, tmp_path, capsys):
    frame = rated_rows(20, 0)
    file = to_csv(frame.assign(sentence2=frame.sentence1), tmp_path / "same.csv")
    words = ["evaluate", "--model", str(tiny_model), "--prompt", "concat-sc", "--pooling", "mean", "--data", file]
    words += ["--output", str(tmp_path / "r"), "--resamples", "100", "--compute", "float32"]
    with pytest.raises(SystemExit) as stop:
        main(words, work=partial(measure, vectors_of=vectors_of))
    printed = capsys.readouterr()
    assert stop.value.code == 1 and "error: expected a system with a figure that is a number" in printed.err
    assert f"undefined for {tiny_model}: spearman" in printed.err
    assert f"- undefined for {tiny_model}: spearman" in (tmp_path / "r" / "report.md").read_text()


@pytest.mark.long
def test_zero_shot_spearman_on_csts(data):
    """MiniLM, `{s} {c}` pooled over c, minus f(c): 14.0 on the validation rows, and 4.9 without the subtraction."""
    with (data / "csts" / "validation.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    labels = [float(row["label"]) for row in rows]
    conditions = [row["condition"] for row in rows]
    for subtract, wanted in ((True, 14.0), (False, 4.9)):
        case = raycase.load("minilm", subtract=subtract, dtype=torch.float32)
        first, second = (case.embed([row[s] for row in rows], conditions) for s in ("sentence1", "sentence2"))
        assert np.isclose(100 * scipy.stats.spearmanr(cosines(first, second), labels)[0], wanted, atol=0.1)
