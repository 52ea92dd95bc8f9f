"""Pairs of sentences are scored: as the loaded model does, as `evaluate` measures; bad rows, stops, wrong requests."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import small
import torch
from altered import alter, with_column
from helpers import cosines, read_rejected, read_scores, score_here, vectors_of
from scipy.stats import spearmanr

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.commands.score import ScoreFlags
from raycase.errors import RequestError, WorkError
from raycase.job.verify import open_written, verify
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.mixsp.model import mixsp

SYSTEMS = {"bi": bi_encoder, "cross": cross_encoder, "mixsp": mixsp}
CHOICES = {"prompt": "concat-sc", "pooling": "mean"}


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model):
    """Folders of tiny systems, and the encoder that zero-shot CASE takes."""
    folder = tmp_path_factory.mktemp("models")
    for name, make in SYSTEMS.items():
        small.disturb(make(str(tiny_model)).trainable(dropout=0.0), scale=0.1).save(folder / name)
    return {name: str(folder / name) for name in SYSTEMS} | {"case": str(tiny_model)}


@pytest.fixture
def job(models, rated, tmp_path):
    """Forty rated pairs in four units, scored by a bi-encoder."""
    files = {"input": str(rated / "validation.csv"), "output": str(tmp_path / "scored"), "model": models["bi"]}
    return ScoreFlags(compute="float32", unit_rows=10, **files)


def loaded(name, models):
    """In 32 bits."""
    return raycase.load(models[name], dtype=torch.float32, **(CHOICES if name == "case" else {}))


def evaluated(job, **flags):
    """The correlation that `evaluate` finds on the same data."""
    report = EvaluateFlags(model=(job.model,), data=job.input, output=f"{job.output}-report", compute="float32")
    [system] = measure(replace(report, resamples=100, **flags), vectors_of=vectors_of)["systems"]
    return pytest.approx(system["figures"]["all"]["spearman"]["value"], abs=0.02)


@pytest.mark.parametrize("name", ["bi", "case", "cross"])
def test_scores_under_conditions_are_the_models_own_and_have_evaluates_spearman(name, job, models):
    choices = CHOICES if name == "case" else {}
    job = replace(job, model=models[name], **choices)
    result = score_here(job)
    frame = pd.read_csv(job.input)
    table = read_scores(job.output)
    assert table.column_names == ["id", "condition", "sentence1", "sentence2", "label", "score"]
    assert (result["rows_out"], result["units_done"], len(table)) == (40, 4, 40)
    for column in ("sentence1", "sentence2", "condition"):
        assert table[column].to_pylist() == frame[column].to_list()
    assert table["id"].to_pylist() == [f"0:{row}" for row in range(40)]
    model, sides = loaded(name, models), (list(frame.sentence1), list(frame.sentence2))
    if name == "cross":
        wanted = model.score(*sides, list(frame.condition))
    else:
        wanted = cosines(*(model.embed(side, list(frame.condition)) for side in sides))
    np.testing.assert_allclose(table["score"], wanted, atol=1e-5)
    assert 100 * spearmanr(table["score"].to_numpy(), frame.label)[0] == evaluated(job, **choices)
    assert verify(job.output)["pairs"] == 40


@torch.no_grad()
@pytest.mark.parametrize(("name", "flags"), [("mixsp", {}), ("bi", {"unconditional": True})])
def test_scores_without_conditions_have_evaluates_spearman(name, flags, job, models, scored):
    job = replace(job, model=models[name], input=scored["validation"], score_column="similarity", **flags)
    score_here(job)
    table, frame = read_scores(job.output), pd.read_csv(job.input)
    assert 100 * spearmanr(table["similarity"].to_numpy(), frame.score)[0] == evaluated(job, task="sts")
    assert table["score"].to_pylist() == [str(value) for value in frame.score]  # the users' own column
    columns = ["similarity", "similarity_range", "similarity_probability"]
    assert table.column_names[4:] == (columns if name == "mixsp" else columns[:1])
    if name == "mixsp":  # the range is the likeliest of both sentences
        model = loaded("mixsp", models).eval()
        outputs = model(model.config.tokenize_pairs(table["sentence1"].to_pylist(), table["sentence2"].to_pylist()))
        first, second = outputs[:, 1:].chunk(2, dim=1)
        probability, place = ((first.softmax(1) + second.softmax(1)) / 2).max(1)
        np.testing.assert_allclose(table["similarity"], outputs[:, 0].sigmoid(), atol=1e-5)
        np.testing.assert_allclose(table["similarity_probability"], probability, atol=1e-5)
        assert table["similarity_range"].to_pylist() == [(0.0, 4.0)[i] for i in place]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_column("score", lambda table: pa.array(np.full(len(table), np.nan))), "a score is null or not finite"),
        (lambda table: table.drop_columns("score"), "no scores in a column 'score'"),
    ],
)
def test_altered_scores_are_named(change, expected, job):
    score_here(job)
    alter(job.output, change)
    with pytest.raises(WorkError, match=expected):
        verify(job.output)


def test_the_folder_of_another_job_is_refused(job, models):
    score_here(job)
    for change in ({"score_column": "cosine"}, {"model": models["cross"]}, {"unconditional": True}):
        with pytest.raises(RequestError, match=r"--output: .*, got another .* pass --overwrite"):
            score_here(replace(job, **change))
    with pytest.raises(RequestError, match="--embeddings: expected an output with vectors, got the scores of pairs"):
        open_written(job.output, "--embeddings")
    assert score_here(replace(job, score_column="cosine", overwrite=True))["rows_out"] == 40
    assert "cosine" in read_scores(job.output).column_names


ROWS = [
    {"sentence1": "a red dress", "sentence2": "a blue dress", "condition": "color", "n": 1},
    {"sentence1": None, "sentence2": "a cat", "condition": "color", "n": 2},
    {"sentence1": "a dog", "sentence2": "  ", "condition": "color", "n": 3},
    {"sentence1": "a dog", "sentence2": "a cat", "condition": None, "n": 4},
    {"sentence1": "a dog", "sentence2": "a poison cat", "condition": "number", "n": 5},
    {"sentence1": "a dog", "sentence2": "a cat " * 40, "condition": "number", "n": 6},
    {"sentence1": " a red dress", "sentence2": "a blue dress ", "condition": " color ", "n": 7},
    {"sentence1": "a dog", "sentence2": "\U0001f642", "condition": "color", "n": 8},
]


@pytest.mark.parametrize("name", ["case", "cross"])
def test_bad_rows_are_kept_with_their_reason_and_place(name, job, tiny_model, tmp_path):
    path, model = tmp_path / "rows.jsonl", tiny_model
    rows = [json.dumps(row | {"id": row["n"] // 4}) for row in ROWS]  # ids that repeat
    path.write_text("\n".join([*rows, "{cut off"]))
    if name == "cross":
        model = tmp_path / "cross"
        cross_encoder(str(tiny_model)).trainable().save(model)
    choices = CHOICES if name == "case" else {}
    job = replace(job, input=str(path), model=str(model), on_long="reject", max_rejected=1, **choices)
    result = score_here(job)
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (9, 2, 7)
    wanted = [
        (1, "null text", "column sentence1"),
        (2, "empty text", "column sentence2"),
        (3, "null condition", ""),
        (4, "score not finite", ""),
        (5, "text too long", ""),
        (7, "text without a token that the encoder knows", ""),
        (8, "line does not parse", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ]
    rejected = read_rejected(job.output)
    assert [(r["row"], r["reason"], r["detail"]) for r in rejected] == wanted
    assert json.loads(rejected[1]["content"])["sentence1"] == "a dog" and rejected[1]["file"] == str(path)
    scores = read_scores(job.output)
    assert [str(n) for n in scores["n"].to_pylist()] == ["1", "7"]
    assert scores["sentence1"].to_pylist() == ["a red dress", " a red dress"]  # as they were
    assert scores["score"][0].as_py() == pytest.approx(scores["score"][1].as_py(), abs=1e-6)
    assert result["distinct_pairs"] == 4  # the first pair is there twice, but for blanks
    verify(job.output)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"condition_column": "label", "unconditional": True},
            "--condition-column: expected scores under conditions, got --un",
        ),
        ({"score_column": "label"}, "--score-column: expected a name that no other column has, got 'label'"),
        ({"model": "cross", "unconditional": True}, "--unconditional: expected a model that gives vectors"),
        ({"model": "mixsp", "condition_column": "condition"}, "--condition-column: expected scores under cond"),
    ],
)
def test_wrong_requests_are_refused(change, said, job, models):
    change = change | ({"model": models.get(change["model"], change["model"])} if "model" in change else {})
    with pytest.raises(RequestError, match=said):
        score_here(replace(job, **change))
    assert not Path(job.output).exists()
