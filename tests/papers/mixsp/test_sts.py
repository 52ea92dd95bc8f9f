"""Pairs of sentences without a condition: figures against SciPy, data that is refused."""

import pandas as pd
import pytest
import torch
from helpers import cosines, vectors_of
from scipy.stats import spearmanr

import raycase
from raycase.errors import RequestError
from raycase.evaluation.procedure import evaluate
from raycase.models.contracts import sentence_encoder
from raycase.papers.mixsp.model import mixsp


def test_the_figures_are_those_of_scipy(evaluation, scored, tiny_model, tmp_path):
    """Of a model that scores pairs and of one that embeds sentences."""
    mixsp(str(tiny_model)).trainable().save(tmp_path / "mixsp")
    sentence_encoder(str(tiny_model)).trainable().save(tmp_path / "encoder")
    models = (str(tmp_path / "mixsp"), str(tmp_path / "encoder"))
    job = evaluation(*models, data=scored["validation"], task="sts")
    metrics = evaluate(job, vectors_of=vectors_of)
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


def test_files_are_refused_that_do_not_fit_the_task(evaluation, scored):
    frame = pd.read_csv(scored["validation"]).rename(columns={"score": "label"})
    frame.to_csv(scored["validation"], index=False)
    with pytest.raises(RequestError, match="expected the column 'score'"):
        evaluate(evaluation("minilm", data=scored["validation"], task="sts"), vectors_of=vectors_of)
