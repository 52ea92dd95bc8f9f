"""What models are worth on premises with hypotheses, through the real job, and on pairs without a condition."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import gaussian_kde, norm, spearmanr

import raycase
from raycase.data.inferences import read_inferences
from raycase.distributed.evaluate import evaluate
from raycase.distributed.train import train as fine_tune
from raycase.errors import RequestError
from raycase.evaluation.entailment_metrics import entailment_correct, entailment_scores, implicitness, more_implicit
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import auc
from raycase.evaluation.models import find_models
from raycase.evaluation.tasks import sts
from raycase.systems.cross_encoder import cross_encoder
from raycase.systems.dualcse import Form, dualcse
from raycase.systems.mixsp import Select, mixsp
from raycase.systems.sentence_encoder import sentence_encoder
from raycase.training.inference_jobs import DualCseJob, SimCseJob
from raycase.training.scored_jobs import MixSpJob


@pytest.fixture
def tuning(inferences, tiny_model, tmp_path):
    def job(kind, system, **options):
        settings = inferences | {"model": str(tiny_model), "compute": "float32", "output": str(tmp_path / system)}
        return kind(**settings | {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3} | options)

    return job


def embedded(texts, config, **_):
    """What the main job gives, in this process."""
    pairs = [(t, None) if isinstance(t, str) else t for t in texts]
    sentences, conditions = zip(*pairs, strict=True)
    return config.load(dtype=torch.float32).embed(sentences, None if conditions[0] is None else conditions)


def test_two_vectors_are_trained_and_judged_through_ray(tuning, inferences, cluster, tmp_path):
    job = tuning(DualCseJob, "dualcse", form=Form.BI)
    trained = fine_tune(job)["validation"]
    assert trained == json.loads(json.dumps(fine_tune(job)))["validation"], "the same command does nothing"
    with pytest.raises(RequestError, match="got another one"):
        fine_tune(replace(job, intra=False))
    sentence_encoder(job.model).trainable().system.save(tmp_path / "simcse")
    models = (job.output, str(tmp_path / "simcse"))
    asked = EvaluateJob(
        model=models,
        data=inferences["validation"],
        output=str(tmp_path / "report"),
        task="rte",
        compute="float32",
        resamples=100,
    )
    metrics = evaluate(asked)
    data = read_inferences(inferences["validation"], "")
    assert metrics["systems"][0]["figures"]["all"]["accuracy"]["value"] == pytest.approx(trained["rte"], abs=1e-6)
    for system, folder in zip(metrics["systems"], models, strict=True):
        figures = {name: found["accuracy"]["value"] for name, found in system["figures"].items()}
        model = raycase.load(folder, dtype=torch.float32)
        r, u = (model.embed(data.distinct, name) for name in (model.config.CONDITIONS or (None, None)))
        wanted = 100 * entailment_correct(entailment_scores(r, u, data.text_index)).mean(0)
        assert [figures[k] for k in ("explicit", "implied", "neutral", "contradiction")] == pytest.approx(wanted)
    metrics = evaluate(replace(asked, model=models[:1], task="eis"))
    dual, length = ({n: f["accuracy"]["value"] for n, f in s["figures"].items()} for s in metrics["systems"])
    assert dual["all"] == pytest.approx(trained["eis"], abs=1e-6)
    lengths = np.array([len(text) for text in data.distinct])
    assert length["all"] == pytest.approx(100 * more_implicit(lengths, data.text_index).mean())
    with pytest.raises(RequestError, match=r"two vectors a sentence \(dualcse\) for --task eis, got .*simcse"):
        evaluate(replace(asked, model=models[1:], task="eis"))
    model = raycase.load(job.output, dtype=torch.float32)
    r, u = (model.embed(data.distinct, name) for name in ("explicit", "implicit"))
    assert dual["all"] == pytest.approx(100 * more_implicit(implicitness(r, u), data.text_index).mean())


@pytest.mark.parametrize(
    ("make", "task", "said"),
    [
        (dualcse, "csts", "expected models that take any condition for --task csts, got .*: dualcse form cross"),
        (dualcse, "sts", "expected models that need no condition"),
        (sentence_encoder, "csfcube", "expected models that take any condition"),
        (sentence_encoder, "eis", r"expected models with two vectors a sentence \(dualcse\)"),
        (mixsp, "csts", "expected models that take any condition"),
        (mixsp, "rte", "expected models that give vectors"),
        (cross_encoder, "pairs", "expected models that need no condition"),
    ],
)
def test_models_are_refused_where_they_do_not_fit(make, task, said, tiny_model, tmp_path):
    make(str(tiny_model)).trainable().system.save(tmp_path / "model")
    asked = EvaluateJob(model=(str(tmp_path / "model"),), data=str(tmp_path), output=str(tmp_path / "r"), task=task)
    with pytest.raises(RequestError, match=said):
        find_models(asked)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (DualCseJob, {"temperature": 0.0}, "--temperature: expected a number above 0"),
        (DualCseJob, {"train": "nowhere.csv"}, "--train"),
        (SimCseJob, {"epochs": 0}, "--epochs"),
    ],
)
def test_wrong_requests_are_refused(tuning, kind, options, said):
    with pytest.raises(RequestError, match=said):
        fine_tune(tuning(kind, "x", **options))


def test_a_premise_that_is_trained_on_is_no_validation(tuning, inferences):
    both = pd.concat([pd.read_csv(inferences[name]) for name in ("validation", "train")])
    both.to_csv(inferences["validation"], index=False)
    with pytest.raises(RequestError, match="no premise that is trained on, got 24"):
        fine_tune(tuning(DualCseJob, "dualcse"))


# ------------------------------------------------------------------------------------------- pairs without a condition


@pytest.fixture
def scored(tmp_path):
    def write(name, seed, column="score"):
        random = np.random.default_rng(seed)
        rows = []
        for n in range(40):
            words = random.permutation(["dog"] * (n % 6) + ["red"] * (5 - n % 6))
            rows.append((f"{name} {n} dog dog", " ".join(words), n % 6 if column == "score" else int(n % 6 > 2)))
        path = tmp_path / f"{name}.csv"
        pd.DataFrame(rows, columns=["sentence1", "sentence2", column]).to_csv(path, index=False)
        return str(path)

    return {"train": write("train", 0), "validation": write("validation", 1), "pairs": write("pairs", 2, "label")}


def test_scored_pairs_are_trained_on_and_judged(scored, tiny_model, tmp_path, cluster):
    settings = {"train": scored["train"], "validation": scored["validation"], "model": str(tiny_model)}
    settings |= {"compute": "float32", "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
    trained = fine_tune(MixSpJob(output=str(tmp_path / "mixsp"), **settings))["validation"]
    sentence_encoder(str(tiny_model)).trainable().system.save(tmp_path / "encoder")
    models = (str(tmp_path / "mixsp"), str(tmp_path / "encoder"))
    asked = EvaluateJob(
        model=models, data=scored["validation"], output=str(tmp_path / "report"), task="sts", compute="float32"
    )
    metrics = sts.evaluate(replace(asked, resamples=100), vectors_of=embedded)
    frame = pd.read_csv(scored["validation"])
    mix, encoder = (raycase.load(model, dtype=torch.float32) for model in models)
    a, b = (encoder.embed(list(frame[c]), None) for c in ("sentence1", "sentence2"))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert metrics["systems"][0]["figures"]["spearman"]["value"] == pytest.approx(trained["spearman"], abs=1e-2)
    for system, own in zip(metrics["systems"], (mix.score(frame.sentence1, frame.sentence2), cosines), strict=True):
        figures = {name: found["value"] for name, found in system["figures"].items()}
        for name, chosen in (("spearman", frame.score >= 0), ("upper", frame.score >= 4), ("lower", frame.score < 4)):
            assert figures[name] == pytest.approx(100 * spearmanr(own[chosen], frame.score[chosen])[0], abs=1e-2)
    assert (tmp_path / "report" / "ranges.png").read_bytes()[:4] == b"\x89PNG"
    assert "Minus mixsp" in (tmp_path / "report" / "report.md").read_text()
    metrics = sts.evaluate(
        replace(asked, task="pairs", data=scored["pairs"], output=str(tmp_path / "auc"), resamples=100),
        vectors_of=embedded,
    )
    frame = pd.read_csv(scored["pairs"])
    wanted = 100 * auc(mix.score(frame.sentence1, frame.sentence2), frame.label.to_numpy())
    assert metrics["systems"][0]["figures"]["auc"]["value"] == pytest.approx(wanted, abs=1e-3)


def test_pairs_that_are_all_validation_pairs_are_refused(scored, tiny_model, tmp_path):
    both = {"train": scored["train"], "validation": scored["train"], "model": str(tiny_model)}
    with pytest.raises(RequestError, match="--train: expected pairs that are not in --validation, got none"):
        fine_tune(MixSpJob(output=str(tmp_path / "x"), **both))
    heavy = MixSpJob(output=str(tmp_path / "x"), range_weight=-0.1, **both)
    with pytest.raises(RequestError, match="--range-weight: expected a number of at least 0, got"):
        fine_tune(replace(heavy, validation=scored["validation"]))
    assert replace(heavy, range_weight=None).terms["range_weight"] == 1e-4
    assert replace(heavy, range_weight=None, select=Select.SOFT).terms["range_weight"] == 0


def test_figures_that_are_none_are_none(scored, tiny_model, tmp_path):
    sentence_encoder(str(tiny_model)).trainable().system.save(tmp_path / "ft")
    frame = pd.read_csv(scored["validation"])
    frame.assign(score=frame.score.clip(upper=4)).to_csv(scored["validation"], index=False)
    asked = EvaluateJob(
        model=(str(tmp_path / "ft"),), data=scored["validation"], output=str(tmp_path / "r"), task="sts", resamples=100
    )
    figures = sts.evaluate(asked, vectors_of=embedded)["systems"][0]["figures"]
    assert figures["upper"] is None and figures["lower"] is not None
    assert "NaN" not in (tmp_path / "r" / "metrics.json").read_text()


def test_the_overlap_is_the_area_that_both_densities_share():
    random = np.random.default_rng(0)
    ratings = np.repeat([1.0, 5.0], 4000)
    for apart in (0.0, 1.0, 3.0, 9.0):
        scores = random.normal(size=8000) + apart * (ratings == 5)
        assert sts.overlap(*sts.densities(scores, ratings)) == pytest.approx(2 * norm.cdf(-apart / 2), abs=0.05)
    grid, lower, upper = sts.densities(scores, ratings)
    assert lower == pytest.approx(gaussian_kde(scores[:4000])(grid))
    assert np.trapezoid(upper, grid) == pytest.approx(1, abs=1e-3)
    assert sts.densities(np.zeros(8000), ratings) is None


def test_auc_by_hand():
    scores, labels = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([0, 0, 1, 1, 1])
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels == 1] for n in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(scores, np.ones(5)))


@pytest.mark.parametrize(
    ("task", "file", "said"),
    [
        ("pairs", "train", "expected the column 'label'"),
        ("sts", "pairs", "expected the column 'score'"),
    ],
)
def test_files_are_refused_that_do_not_fit_the_task(scored, tmp_path, task, file, said):
    asked = EvaluateJob(model=("minilm",), data=scored[file], output=str(tmp_path / "report"), task=task)
    with pytest.raises(RequestError, match=said):
        evaluate(asked)
    frame = pd.read_csv(scored["pairs"]).assign(score=lambda f: f.label, other=2)
    frame.to_csv(scored["pairs"], index=False)
    with pytest.raises(RequestError, match="expected scores below 4 and from there on, got 0 to 1"):
        evaluate(replace(asked, task="sts", data=scored["pairs"]))
    frame.assign(label=frame.other + frame.label).to_csv(scored["pairs"], index=False)
    with pytest.raises(RequestError, match="expected the labels 0 and 1, got 2, 3"):
        evaluate(replace(asked, task="pairs", data=scored["pairs"]))
