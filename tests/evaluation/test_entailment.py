"""Entailment and implicitness: the figures of models with two vectors a sentence and with one."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from helpers import vectors_of

import raycase
from raycase.data.inferences import read_inferences
from raycase.evaluation.entailment_metrics import entailment_correct, entailment_scores, implicitness, more_implicit
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.systems.dualcse import dualcse
from raycase.systems.sentence_encoder import sentence_encoder


def test_the_figures_are_those_of_the_loaded_folders(inferences, tiny_model, tmp_path):
    for make, name in ((dualcse, "dualcse"), (sentence_encoder, "simcse")):
        small.disturb(make(str(tiny_model)).trainable()).save(tmp_path / name)
    models = (str(tmp_path / "dualcse"), str(tmp_path / "simcse"))
    job = EvaluateJob(
        model=models,
        data=inferences["validation"],
        output=str(tmp_path / "report"),
        task="rte",
        compute="float32",
        resamples=100,
    )
    metrics = evaluate(job, vectors_of=vectors_of)
    data = read_inferences(inferences["validation"], "")
    assert [group["queries"] for group in metrics["groups"]] == [len(data)] * 5
    for system, folder in zip(metrics["systems"], models, strict=True):
        figures = {name: figure["accuracy"]["value"] for name, figure in system["figures"].items()}
        model = raycase.load(folder, dtype=torch.float32)
        conditions = ("explicit", "implicit") if "dualcse" in folder else (None, None)
        r, u = (model.embed(data.distinct, condition) for condition in conditions)
        expected = 100 * entailment_correct(entailment_scores(r, u, data.text_index)).mean(0)
        assert [figures[k] for k in ("explicit", "implied", "neutral", "contradiction")] == pytest.approx(expected)
        assert figures["all"] == pytest.approx(expected.mean())
    metrics = evaluate(replace(job, model=models[:1], task="eis"), vectors_of=vectors_of)
    dual, length = (s["figures"]["all"]["accuracy"]["value"] for s in metrics["systems"])
    lengths = np.array([len(text) for text in data.distinct])
    assert length == pytest.approx(100 * more_implicit(lengths, data.text_index).mean())
    model = raycase.load(models[0], dtype=torch.float32)
    r, u = (model.embed(data.distinct, name) for name in ("explicit", "implicit"))
    assert dual == pytest.approx(100 * more_implicit(implicitness(r, u), data.text_index).mean())
