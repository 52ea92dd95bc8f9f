"""MixSP: equations 1 to 5 by hand in float64, the pooled parts of a pair, training; the figures of its task."""

import math

import numpy as np
import pandas as pd
import pytest
import small
import tiny
import torch
from helpers import cosines, vectors_of
from scipy.stats import spearmanr

import raycase
from raycase.commands.evaluate import measure
from raycase.models.configs import sentence_encoder
from raycase.papers.mixsp.model import Heads, mixsp
from raycase.papers.mixsp.train import mixsp_loss


@pytest.fixture
def heads():
    torch.manual_seed(0)
    made = Heads(4).double()
    with torch.no_grad():
        made.router.weight *= 6  # so that sentences go either way
    return made


def states(seed=1, rows=6):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 4, dtype=torch.float64, generator=random) for _ in range(3)]


def projected(module, h):
    """Two layers with ReLU, the sum over hidden units written out."""
    (w1, b1), (w2, b2) = ((layer.weight, layer.bias) for layer in (module[0], module[2]))
    hidden = [max(0.0, float(w1[k] @ h + b1[k])) for k in range(len(b1))]
    return torch.stack([sum(w2[d, k] * hidden[k] for k in range(len(hidden))) + b2[d] for d in range(len(b2))])


@torch.no_grad()
def test_equations_1_3_and_4(heads):
    cls, first, second = states(rows=9)
    found = heads(torch.cat([cls, first, second], dim=1))
    taken = set()
    for row in range(len(cls)):
        parts, routes = [], []
        for h in (first[row], second[row]):
            logits = heads.router.weight @ (cls[row] + h) + heads.router.bias
            shares = [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits]  # eq. 1
            likeliest = shares.index(max(shares))
            parts.append(projected(heads.projectors[likeliest], h) * shares[likeliest])  # eq. 3
            taken.add(likeliest)
            routes += [float(x) for x in logits]
        logit = heads.g2.weight[0] @ torch.cat(parts) + heads.g2.bias[0]  # eq. 4
        assert found[row].tolist() == pytest.approx([float(logit), *routes], rel=1e-9)
    assert len(taken) > 1


def test_equations_2_4_and_5():
    # similarity; lower and upper range by the first sentence, by the second
    outputs = torch.tensor([[0.3, 0.2, 1.2, 1.0, -1.0], [-1.2, 0.1, 0.2, 0.0, 0.4]], dtype=torch.float64)
    ratings = torch.tensor([4.0, 3.9], dtype=torch.float64)

    def bce(y, p):
        return -(y * math.log(p) + (1 - y) * math.log(1 - p))

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    similarity = (bce(0.8, sigmoid(0.3)) + bce(0.78, sigmoid(-1.2))) / 2
    ranges = 0.5 * (bce(1, sigmoid(1.0)) + bce(0, sigmoid(0.1))) / 2
    ranges += 0.5 * (bce(1, sigmoid(-2.0)) + bce(0, sigmoid(0.4))) / 2
    found = mixsp_loss(outputs, ratings)
    assert found.item() == pytest.approx(7e-4 * similarity + 1e-4 * ranges, rel=1e-12)


FIRST, SECOND = small.SENTENCES, small.SENTENCES[::-1]


@torch.no_grad()
def parts_of(folder, first, second):
    """The library's [CLS] of its own pair of sentences, and the means over each sentence's own tokens."""
    pair = small.pair(folder, first, second)
    states = small.stock(folder)(**pair).last_hidden_state[0]
    texts = np.array([-1 if text is None else text for text in pair.sequence_ids(0)])
    return torch.stack([states[0], *(states[texts == text].mean(0) for text in (0, 1))]).numpy()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_what_is_pooled(bert, kind, tmp_path):
    folder = bert if kind == "bert" else str(tiny.save_encoder(tmp_path, "simcse-roberta-large"))
    system = small.system(mixsp(folder))
    found = system.encoder.encode(system.config.tokenize_pairs(FIRST, SECOND))[0].reshape(len(FIRST), 3, -1)
    small.close(found, np.stack([parts_of(folder, a, b) for a, b in zip(FIRST, SECOND, strict=True)]))


@torch.no_grad()
def test_the_range_of_a_pair_is_that_of_both_sentences(bert):
    """Of the mean of the router's probabilities for both."""
    torch.manual_seed(0)
    system = small.system(mixsp(bert))
    pairs = [(a, b) for a in small.SENTENCES for b in small.SENTENCES]
    pooled = torch.tensor(np.stack([parts_of(bert, *pair) for pair in pairs]))
    logits = [system.head.router(pooled[:, 0] + pooled[:, k]) for k in (1, 2)]
    router = system.head.router
    router.bias -= torch.cat(logits).mean(0)  # so that pairs go to both ranges
    shares = [router(pooled[:, 0] + pooled[:, k]).softmax(1) for k in (1, 2)]
    lowest = system.figures(system.config.tokenize_pairs(*map(list, zip(*pairs, strict=True))))[0][:, 1]
    assert lowest.tolist() == (4.0 * (shares[0] + shares[1]).argmax(1)).tolist()
    assert set(lowest.tolist()) == {0.0, 4.0}


def test_the_figures_are_those_of_scipy(evaluation, scored, tiny_model, tmp_path):
    """Of a model that scores pairs and of one that embeds sentences."""
    mixsp(str(tiny_model)).trainable().save(tmp_path / "mixsp")
    sentence_encoder(str(tiny_model)).trainable().save(tmp_path / "encoder")
    models = (str(tmp_path / "mixsp"), str(tmp_path / "encoder"))
    job = evaluation(*models, data=scored["validation"], task="sts")
    metrics = measure(job, vectors_of=vectors_of)
    frame = pd.read_csv(scored["validation"])
    scorer, encoder = (raycase.load(model, dtype=torch.float32) for model in models)
    a, b = (encoder.embed(list(frame[c]), None) for c in ("sentence1", "sentence2"))
    expected = (scorer.score(frame.sentence1, frame.sentence2), cosines(a, b))
    for system, scores in zip(metrics["systems"], expected, strict=True):
        figures = {name: figure["value"] for name, figure in system["figures"]["all"].items()}
        for name, rows in (("spearman", frame.score >= 0), ("upper", frame.score >= 4), ("lower", frame.score < 4)):
            assert figures[name] == pytest.approx(100 * spearmanr(scores[rows], frame.score[rows])[0], abs=1e-2)
    report = (tmp_path / "report" / "report.md").read_text()
    assert "Minus mixsp" in report
