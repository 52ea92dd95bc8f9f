"""A projection without labels as a job, in one process: data without labels, the model folder, what it refuses."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import rated_rows, sentences, to_csv

import raycase
from raycase import commands
from raycase.data.rated import read_rated, read_unrated
from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.evaluation.metrics import spearman
from raycase.systems import case
from raycase.systems.registry import resolve
from raycase.training import catalogue
from raycase.training.local_runner import LocalRunner, open_local_runner
from raycase.training.projection_fit import Method
from raycase.training.projection_job import ProjectionJob

train = partial(catalogue.train, open_runner=open_local_runner)
SENTENCES, CONDITIONS = ["a red dress", "two people play"], ["color", "number of people"]


@pytest.fixture
def projecting(rated, tiny_model, tmp_path):
    """PCA of the shared training pairs to 8 dimensions."""
    return ProjectionJob(
        train=str(rated / "train.csv"),
        model=str(tiny_model),
        prompt="concat-sc",
        pooling="mean",
        compute="float32",
        output=str(tmp_path / "projected"),
        cache=str(rated / "cache"),
        dim=8,
        nested=(4, 2),
    )


def before_g(job, sentences, conditions):
    """The vectors of the encoder itself."""
    zero_shot = case.resolve(job.model, prompt="concat-sc", pooling="mean").load(dtype=torch.float32, device="cpu")
    return zero_shot.embed(sentences, conditions).astype(np.float64)


def card(job):
    return (job.folder / "README.md").read_text()


@pytest.mark.parametrize("method", Method)
def test_the_folder_embeds_as_worked_out_by_hand(projecting, method):
    job = replace(projecting, method=method)
    train(job)
    vectors = before_g(job, *zip(*read_rated(job.train, "").distinct, strict=True))
    axes = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)[2][:8]
    asked = before_g(job, SENTENCES, CONDITIONS)
    spread = ((vectors - vectors.mean(0)) @ axes.T).std(0) if method is Method.WHITENING else 1
    wanted = {
        Method.PCA: (asked - vectors.mean(0)) @ axes.T,
        Method.WHITENING: (asked - vectors.mean(0)) @ axes.T / spread,
        Method.RANDOM: asked @ np.random.default_rng(0).standard_normal((8, 32)).T / np.sqrt(8),
        Method.TRUNCATION: asked[:, :8],
    }[method]
    system = raycase.load(job.output, dtype=torch.float32)
    found = system.embed(SENTENCES, CONDITIONS)
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
    cut = raycase.load(job.output, dtype=torch.float32, dim=4).embed(SENTENCES, CONDITIONS)
    np.testing.assert_allclose(cut, found[:, :4], rtol=1e-5, atol=1e-6)
    assert resolve(job.output).formula == "g(f - base)" and resolve(job.output).nested == (2, 4)
    np.testing.assert_allclose(system.embed(SENTENCES, None), before_g(job, SENTENCES, None), rtol=1e-6)


def test_no_label_is_read_and_the_vectors_are_those_that_train_case_has_cached(projecting, tmp_path):
    frame = rated_rows(101, 0).drop(columns="label")
    job = replace(projecting, train=to_csv(frame, tmp_path / "texts.csv"))
    assert job.read() == projecting.read() == read_rated(projecting.train, "").distinct
    assert train(job)["data"]["train"]["sha256"] == read_rated(projecting.train, "").sha256
    metrics = json.loads((job.folder / "metrics.json").read_text())
    assert "validation" not in metrics and "Not measured" in card(job)


def test_figures_are_those_of_the_saved_vectors(projecting, rated):
    job = replace(projecting, validation=str(rated / "validation.csv"))
    metrics = train(job)
    validation = read_rated(job.validation, "")
    for dim, name in ((None, "spearman"), (4, "spearman_4"), (2, "spearman_2")):
        system = raycase.load(job.output, dtype=torch.float32, dim=dim)
        scores = pair_cosines(system.embed(*zip(*validation.distinct, strict=True)), validation.pair_index)
        assert 100 * spearman(scores, validation.ratings) == pytest.approx(metrics["validation"][name])
    scores = pair_cosines(before_g(job, *zip(*validation.distinct, strict=True)), validation.pair_index)
    assert 100 * spearman(scores, validation.ratings) == pytest.approx(metrics["zero_shot"]["spearman"])
    said = card(job)
    assert "saw no labels: the principal components" in said and "cut to 4 dimensions" in said
    assert f"{metrics['validation']['spearman']:.2f}" in said and f"{metrics['variance']['4']:.1f} % in 4" in said


def test_it_runs_once_and_another_is_refused(projecting, capsys):
    metrics = train(projecting)
    assert catalogue.train(projecting, lambda **_: pytest.fail("expected no runner")) == json.loads(json.dumps(metrics))
    assert "nothing to do" in capsys.readouterr().err
    for change in ({"method": Method.WHITENING}, {"dim": 7}, {"nested": ()}, {"conditions": ("color",)}, {"seed": 1}):
        with pytest.raises(RequestError, match="got another"):
            train(replace(projecting, **change))
    assert train(replace(projecting, dim=7, overwrite=True))["projection"]["dim"] == 7
    assert resolve(projecting.output).dim == 7


def test_the_command_says_where_the_model_is_and_what_share_of_the_variance_it_has(projecting, monkeypatch, capsys):
    monkeypatch.setattr("raycase.distributed.train.train", train)
    result = commands.train(projecting)
    assert capsys.readouterr().out == f"the model is in {projecting.folder}\n"
    assert result.keys() == {"variance", "seconds", "embed_seconds", "fingerprint", "output"}
    shares = [result["variance"][dim] for dim in ("2", "4", "8")]
    assert 0 < shares[0] < shares[1] < shares[2] < 100


def test_sentences_are_embedded_under_every_condition(projecting, tmp_path):
    import pandas as pd

    texts = sentences(20)
    file = to_csv(pd.DataFrame({"text": [*texts, texts[0]]}), tmp_path / "texts.csv")
    job = replace(projecting, train=file, text_columns=("text",), conditions=("color", "number of people"))
    assert sorted(job.read()) == sorted((text, condition) for text in texts for condition in job.conditions)
    assert train(job)["data"]["train"]["rows"] == 40
    assert raycase.load(job.output).embed(texts, "color").shape == (20, 8)


def test_a_column_of_conditions_goes_with_its_rows(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"text": ["a", "b", "a", "a"], "condition": ["x", "y", "y", "x"]})
    for name in ("texts.csv", "texts.parquet", "texts.jsonl"):
        file = tmp_path / name
        {"csv": frame.to_csv, "parquet": frame.to_parquet}.get(
            file.suffix[1:], partial(frame.to_json, orient="records", lines=True)
        )(file)
        assert read_unrated(str(file), "--train", ["text"]) == [("a", "x"), ("b", "y"), ("a", "y")]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": "nowhere.csv"}, "--train"),
        ({"validation": "nowhere.csv"}, "--validation"),
        ({"validation": ""}, "--validation: expected a path"),
        ({"text_columns": ("text",)}, "--train: .*expected the column 'text'"),
        ({"text_columns": ()}, "--text-columns: expected at least one column"),
        ({"conditions": ("color", "color")}, "--conditions: expected each condition once"),
        ({"dim": 33}, "--dim: expected at most 32, the dimension of the vectors, got 33"),
        ({"dim": None, "nested": (32,)}, "--nested: expected dimensions below 32"),
        ({"output": "s3://corpus/case"}, "--output"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_embedded(projecting, change, said):
    with pytest.raises(RequestError, match=said):
        catalogue.train(replace(projecting, **change), lambda **_: pytest.fail("expected no runner"))
    assert not projecting.folder.exists()


def test_too_few_sentences_are_refused_before_anything_is_embedded(projecting, tmp_path):
    job = replace(projecting, train=to_csv(rated_rows(4, 0), tmp_path / "few.csv"))
    with pytest.raises(RequestError, match="--dim: expected fewer dimensions than the 8 vectors that pca is fitted to"):
        catalogue.train(job, lambda **_: pytest.fail("expected no runner"))


def test_an_empty_file_and_an_empty_sentence_are_refused(projecting, tmp_path):
    frame = rated_rows(10, 0)
    for spoiled, said in (
        (frame.head(0), "expected sentences in"),
        (frame.assign(sentence2=" "), "row 0: expected words"),
    ):
        with pytest.raises(RequestError, match=said):
            train(replace(projecting, train=to_csv(spoiled, tmp_path / "bad.csv")))


def test_a_stopped_job_is_fitted_anew_by_the_same_command(projecting):
    class StoppedRunner(LocalRunner):
        def vectors_of(self, *_, **__):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.train(projecting, lambda **_: StoppedRunner("cpu"))
    assert not (projecting.folder / "raycase.json").exists()
    train(projecting)
    assert resolve(projecting.output).dim == 8
