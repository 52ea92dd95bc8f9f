"""Entailment: the figures of models with two vectors a sentence and with one, a threshold of another file, scores."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import small
import torch
from helpers import cosines, read_scores, score_here, vectors_of, write_csv

import raycase
from raycase.commands.evaluate import measure
from raycase.commands.score import ScoreFlags
from raycase.errors import RequestError
from raycase.models.configs import sentence_encoder
from raycase.papers.dualcse.model import dualcse, implicitness
from raycase.papers.dualcse.task import COLUMNS, entailment_scores, half_thresholds, is_correct, read_inferences


def test_the_figures_are_those_of_the_loaded_folders(evaluation, inferences, tiny_model, tmp_path):
    for make, name in ((dualcse, "dualcse"), (sentence_encoder, "simcse")):
        small.disturb(make(str(tiny_model)).trainable()).save(tmp_path / name)
    models = (str(tmp_path / "dualcse"), str(tmp_path / "simcse"))
    job = evaluation(*models, data=inferences["validation"], task="rte")
    metrics = measure(job, vectors_of=vectors_of)
    data = read_inferences(inferences["validation"], "")
    assert [group["queries"] for group in metrics["groups"]] == [len(data)] * 5
    for system, folder in zip(metrics["systems"], models, strict=True):
        figures = {name: figure["accuracy"]["value"] for name, figure in system["figures"].items()}
        model = raycase.load(folder, dtype=torch.float32)
        conditions = ("explicit", "implicit") if "dualcse" in folder else (None, None)
        r, u = (model.embed(data.texts.values, condition) for condition in conditions)
        scores = entailment_scores(r, u, data.text_index)
        expected = 100 * is_correct(scores, half_thresholds(scores)).mean(0)
        assert [figures[k] for k in ("explicit", "implied", "neutral", "contradiction")] == pytest.approx(expected)
        assert figures["all"] == pytest.approx(expected.mean())


@pytest.fixture
def asked(evaluation, tiny_model, tmp_path):
    """Makes a job about the folder of a random DualCSE, with data of these rows."""
    dualcse(str(tiny_model)).trainable().save(tmp_path / "dualcse")

    def job(rows, **options):
        data = write_csv(tmp_path / "data.csv", COLUMNS, rows)
        return evaluation(tmp_path / "dualcse", data=data, task="rte", **options)

    return job


def planted(texts, config, **_):
    """Unit vectors in the plane: a text ends in the degrees of its explicit and of its implicit vector."""
    degrees = [int(text.split()[-1 if condition == "implicit" else -2]) for text, condition in texts]
    return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])


def figures(system):
    return {name: figure["accuracy"]["value"] for name, figure in system["figures"].items()}


def test_a_threshold_of_another_file_by_hand(asked, tmp_path):
    """The other file's entailments are 20 degrees from their premise, everything else 40 or more, so that the threshold
    is between these cosines: of the tested pairs those at 25 and 30 degrees are above it, that at 35 is below."""
    tuned = [(f"a{n} 0 90", "b 20 0", "c 70 0", "d 40 0", "e 200 0") for n in range(2)]
    tested = [(f"p{n} 0 90", "q 25 0", "r 55 0", "s 30 0", "t 200 0") for n in range(3)]
    job = asked(tested, threshold_from=write_csv(tmp_path / "dev.csv", COLUMNS, tuned))
    metrics = measure(job, vectors_of=planted)
    threshold = (math.cos(math.radians(20)) + math.cos(math.radians(40))) / 2
    assert metrics["thresholds"] == {"dualcse": [pytest.approx(threshold)]}
    wanted = {"explicit": 100, "implied": 0, "neutral": 0, "contradiction": 100}
    assert figures(metrics["systems"][0]) == {"all": 50, **wanted}
    assert metrics["data"]["threshold_from"]["premises"] == 2
    report = (tmp_path / "report" / "report.md").read_text()
    assert "tuned on the 2 premises of dev.csv" in report and f"entailed above {threshold:.4f}" in report
    halves = measure(replace(job, threshold_from=None), vectors_of=planted)
    lowest = (math.cos(math.radians(110)) + math.cos(math.radians(35))) / 2  # of two with three of four right
    assert halves["thresholds"] == {"dualcse": [pytest.approx(lowest)]}
    assert figures(halves["systems"][0]) == wanted | {"all": 75, "implied": 100}


def test_a_threshold_file_that_has_a_premise_of_the_data_is_refused(asked, tmp_path):
    rows = [(f"p{n} 0 90", "q 25 0", "r 55 0", "s 30 0", "t 200 0") for n in range(3)]
    job = asked(rows, threshold_from=write_csv(tmp_path / "dev.csv", COLUMNS, rows[1:]))
    with pytest.raises(RequestError, match="--threshold-from: expected no premise of --data, got 2, one of them 'p1 0"):
        measure(job, vectors_of=planted)
    with pytest.raises(RequestError, match="--threshold-from: expected none but for --task rte"):
        measure(replace(job, task="sts"), vectors_of=planted)


def test_a_score_is_the_entailment_and_how_implicit_each_sentence_is(evaluation, inferences, tiny_model, tmp_path):
    """A file of premises and hypotheses, whose accuracy is that of `evaluate --task rte`."""
    small.disturb(dualcse(str(tiny_model)).trainable(dropout=0.0), scale=0.1).save(tmp_path / "dualcse")
    pairs = pd.read_csv(inferences["validation"]).melt(id_vars="premise", var_name="kind", value_name="hypothesis")
    pairs.to_json(path := f"{tmp_path}/pairs.jsonl", orient="records", lines=True)
    places = {"input": path, "output": str(tmp_path / "scored"), "model": str(tmp_path / "dualcse")}
    columns = {"sentence1_column": "premise", "sentence2_column": "hypothesis"}
    score_here(ScoreFlags(compute="float32", **places, **columns))
    table, model = read_scores(places["output"]), raycase.load(places["model"], dtype=torch.float32)
    r1, u1, r2, u2 = (
        model.embed(list(pairs[s]), c) for s in ("premise", "hypothesis") for c in ("explicit", "implicit")
    )
    np.testing.assert_allclose(table["score"], np.maximum(cosines(r1, r2), cosines(u1, r2)), atol=1e-5)
    np.testing.assert_allclose(table["score_implicitness1"], implicitness(r1, u1), atol=1e-5)
    np.testing.assert_allclose(table["score_implicitness2"], implicitness(r2, u2), atol=1e-5)
    job = evaluation(places["model"], data=inferences["validation"], task="rte")
    value = figures(measure(job, vectors_of=vectors_of)["systems"][0])["all"]
    scores = table["score"].to_numpy().reshape(4, -1).T
    wanted = 100 * is_correct(scores, half_thresholds(scores)).mean()
    assert value == pytest.approx(wanted, abs=1.1)  # a pair on the other side of a threshold
