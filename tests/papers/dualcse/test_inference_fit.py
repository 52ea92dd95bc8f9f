"""DualCSE: equation 2 and its parts by hand, two vectors by one encoder or two, training, and both measures."""

import math

import numpy as np
import pandas as pd
import pytest
import small
import torch

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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.drop(columns="neutral"), "expected the column 'neutral'"),
        (lambda f: f.assign(premise=""), "row 0: expected words in 'premise'"),
        (lambda f: f[:1], "expected at least two premises"),
    ],
)
def test_wrong_files_are_refused(inferences, change, said):
    frame = pd.read_csv(inferences["train"])
    change(frame).to_csv(inferences["train"], index=False)
    with pytest.raises(RequestError, match=said):
        read_inferences(inferences["train"], "--train")
