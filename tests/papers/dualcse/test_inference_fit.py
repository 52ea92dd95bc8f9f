"""DualCSE: equation 2 and its parts by hand, two vectors by one encoder or two, training, the figures of entailment."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import small
import torch
from helpers import cosines, read_scores, score_here, write_csv

import raycase
from raycase.commands.evaluate import measure
from raycase.commands.score import ScoreFlags
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.models.configs import sentence_encoder
from raycase.papers.dualcse import DualCseForm
from raycase.papers.dualcse.model import dualcse, implicitness
from raycase.papers.dualcse.task import (
    COLUMNS,
    HYPOTHESES,
    accuracies,
    dual_loss,
    entailment_scores,
    more_implicit,
    read_inferences,
)
from raycase.papers.dualcse.train import DualCseFlags, SimCseFlags


def angles(*degrees):
    """Unit vectors in the plane, float64: cosines are those of differences of angles."""
    radians = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([radians.cos(), radians.sin()], dim=-1)


R = [[0, 90], [10, 75], [40, 100], [170, 250]]  # premise, explicit, implied, contradiction; a batch of two
U = [[50, 120], [15, 70], [42, 110], [160, 255]]


def by_hand(u, temperature):
    """Equation 2, sum by sum; without u SimCSE's loss, of both positives."""

    def v(a, b):
        return math.exp(math.cos((a - b) * math.pi / 180) / temperature)

    total = 0.0
    for i in range(2):
        implied = R[0][i] if u is None else u[0][i]
        first, second = 0.0, 0.0
        for j in range(2):
            first += v(R[0][i], R[1][j]) + v(R[0][i], R[3][j])
            second += v(implied, R[2][j]) + v(implied, R[3][j])
            if u is not None:
                first += v(R[0][i], u[0][j])
                second += v(u[0][i], R[0][j])
        total -= math.log(v(R[0][i], R[1][i]) / first) + math.log(v(implied, R[2][i]) / second)
        if u is not None:
            for kind in (1, 2, 3):
                total -= math.log(v(R[kind][i], u[kind][i]) / sum(v(R[kind][i], u[kind][j]) for j in range(2)))
    return total / 2


@pytest.mark.parametrize(("u", "temperature"), [(U, 0.05), (U, 0.7), (None, 0.05)])
def test_the_loss_is_equation_2(u, temperature):
    vectors = [torch.stack([3 * angles(*row) for row in rows]) for rows in (R, u) if rows]  # lengths do not matter
    assert dual_loss(*vectors, temperature=temperature).item() == pytest.approx(by_hand(u, temperature), rel=1e-12)


@pytest.mark.parametrize("form", DualCseForm)
@pytest.mark.parametrize("pooling", [Pooling.CLS, Pooling.MEAN])
def test_vectors_are_those_of_the_formula(form, pooling, bert):
    system = small.system(dualcse(bert, form=form, pooling=pooling))
    found = system.embed(small.SENTENCES * 2, ["explicit"] * 5 + ["implicit"] * 5)
    words = [name if form is DualCseForm.CROSS else "" for name in ("explicit", "implicit")]
    wanted = [pooled(bert, s, word, pooling) for word in words for s in small.SENTENCES]
    small.close(found, wanted)
    if form is DualCseForm.CROSS:
        assert np.abs(found[:5] - found[5:]).max() > 0.01
        separators = system.config.prepare(["a [SEP] b"], ["explicit"]).of_pairs[0].sequences.flat == 3
        assert separators.sum() == 2, "words of the sentence are no separators"


@torch.no_grad()
def pooled(folder, sentence, word, pooling):
    """The library's [CLS] or mean of its own pair of sentence and word, or of the sentence alone."""
    tokens = small.pair(folder, sentence, word) if word else {"input_ids": small.ids(folder, sentence)}
    states = small.stock(folder)(**tokens).last_hidden_state[0]
    return (states[0] if pooling is Pooling.CLS else states.mean(0)).numpy()


@pytest.mark.parametrize("make", [dualcse, lambda model: dualcse(model, form=DualCseForm.BI), sentence_encoder])
def test_other_conditions_are_refused(make, bert):
    config = make(bert)
    known = config.known_conditions
    system = small.system(config)
    given, said = (None, "expected explicit or implicit") if known else (["explicit"], "expected none")
    with pytest.raises(RequestError, match=said):
        system.embed(["a dog"], given)
    with pytest.raises(ValueError, match="condition unknown to the model: 'a dog' under 'color'" if known else "none"):
        system.embed(["a dog"], ["color"])
    if known:
        found = system.encode_prepared(config.prepare(["a dog", "a dog", ""], ["color", "explicit", "implicit"]))
        assert [str(r) for r in found.refused] == ["condition unknown to the model", "None", "empty text"]


def test_scores_and_implicitness_by_hand():
    r, u = angles(0, 60, 10).numpy(), angles(70, 60, 40).numpy()
    places = np.array([[0, 1, 2, 0, 1]])
    cos = lambda degrees: math.cos(degrees * math.pi / 180)  # noqa: E731
    assert entailment_scores(r, u, places)[0] == pytest.approx([cos(10), cos(10), 1, cos(10)])
    values = implicitness(r, u)
    assert values == pytest.approx([1 - cos(70), 0, 1 - cos(30)], abs=1e-12)
    assert more_implicit(values, places).tolist() == [[1.0, 1.0, 0.5, 1.0]]
    metrics = accuracies([r], places.repeat(2, 0))
    assert metrics.keys() == {"rte", "threshold", *(f"rte_{k}" for k in HYPOTHESES.values())}


JOBS = {"cross": (DualCseFlags, {}), "bi": (DualCseFlags, {"form": DualCseForm.BI}), "simcse": (SimCseFlags, {})}


def job_of(name, bert, **flags):
    kind, choices = JOBS[name]
    return small.job(kind, bert, dropout=0.0, **choices, **flags)


@pytest.mark.parametrize("name", JOBS)
def test_a_batch_loss_is_that_of_its_vectors(name, inferences, bert):
    job, train = job_of(name, bert), read_inferences(inferences["train"], "")
    training = job.training()
    config = training.config
    texts, _ = training.data([train, train])
    module = small.disturb(config.trainable(0.0)).eval()
    batch = np.array([3, 0, 11])
    found = training.batch_loss(texts, module, batch)
    kinds = [[train.columns[COLUMNS[k]][row] for row in batch] for k in (0, 1, 2, 4)]
    names = config.known_conditions or (None,)
    vectors = ([torch.from_numpy(module.embed(k, name)) for k in kinds] for name in names)
    wanted = dual_loss(*map(torch.stack, vectors))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize(
    "name", [name if name == "bi" else pytest.param(name, marks=pytest.mark.cluster) for name in JOBS]
)
def test_it_learns(name, inferences, bert):
    job = job_of(name, bert, epochs=12, batch_size=12, learning_rate=2e-3)
    *_, state = small.fit(job, [read_inferences(uri, "") for uri in inferences.values()])
    assert state.history[-1]["loss"] < 0.8 * state.history[0]["loss"]
    best = state.history[state.best_epoch - 1]
    assert best["rte"] == max(line["rte"] for line in state.history)
    assert best["rte"] == pytest.approx(np.mean([best[f"rte_{k}"] for k in HYPOTHESES.values()]))
    assert ("eis" in best) == (name != "simcse")


def test_wrong_files_are_refused(inferences):
    frame = pd.read_csv(inferences["train"])
    for wrong, said in (
        (frame.drop(columns="neutral"), "expected the column 'neutral'"),
        (frame.assign(premise=""), "row 0: expected words in 'premise'"),
        (frame[:1], "expected at least two premises"),
    ):
        wrong.to_csv(inferences["train"], index=False)
        with pytest.raises(RequestError, match=said):
            read_inferences(inferences["train"], "--train")


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


def test_a_score_is_the_entailment_and_how_implicit_each_sentence_is(inferences, tiny_model, tmp_path):
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
