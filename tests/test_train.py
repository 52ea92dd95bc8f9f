"""Training on Ray Train: as without Ray, with one worker or two, stopped or not; and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, cosines, rated_rows, read_output, run_job, vectors
from safetensors.torch import load_file

import raycase
from raycase.embed import embed
from raycase.projection import best_projector, fit_projector
from raycase.rated import read_rated
from raycase.request import EmbedJob
from raycase.schema import RequestError, WorkError
from raycase.train import TrainJob, train
from raycase.vectors import pair_vectors

EPOCHS = 300  # enough to be killed in the middle


@pytest.fixture
def training(rated, tiny_model, tmp_path):
    return TrainJob(
        system="case",
        train=str(rated / "train.csv"),
        validation=str(rated / "validation.csv"),
        model=str(tiny_model),
        prompt="concat-sc",
        pooling="mean",
        compute="float32",
        output=str(tmp_path / "case"),
        cache=str(rated / "cache"),
        epochs=4,
        batch_size=20,
    )


def weights(job):
    return load_file(job.folder / "projector.safetensors")


def worst(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_training_is_the_plain_fit_and_its_model_gives_the_same_vectors_everywhere(training, cluster, tmp_path, capsys):
    metrics = train(training)
    assert capsys.readouterr().out.count("epoch ") == 4
    pairs = [read_rated(uri, "") for uri in (training.train, training.validation)]
    data = [pair_vectors(p, training.config(), cache=training.cache_place, compute="float32") for p in pairs]
    *_, state = fit_projector(*data, training.recipe)
    g = best_projector(state, training.recipe.projector(data[0].dim))
    assert worst(weights(training), g.state_dict()) < 1e-5
    assert metrics["validation"]["spearman"] == pytest.approx(max(line["spearman"] for line in state.history), abs=1e-3)
    with torch.inference_mode():
        wanted = g(torch.from_numpy(np.array(data[1].vectors))).numpy()
    sentences, conditions = zip(*pairs[1].distinct, strict=True)
    loaded = raycase.load(str(training.folder), dtype=torch.float32)
    assert cosines(loaded.embed(sentences, conditions), wanted).min() > 0.9999
    pd.DataFrame({"text": sentences, "condition": conditions}).to_parquet(tmp_path / "pairs.parquet")
    job = EmbedJob(
        input=str(tmp_path / "pairs.parquet"),
        output=str(tmp_path / "out"),
        condition_column="condition",
        model=str(training.folder),
        dtype="float32",
        compute="float32",
    )
    embed(job)
    assert cosines(vectors(read_output(job.output)), wanted).min() > 0.9999


def test_two_workers_give_what_one_gives(training, cluster, tmp_path):
    one = replace(training, dropout=0.0, average=0.9, batch_size=33)  # 100 pairs: shards of 17 and 16, at last 1 and 0
    two = replace(one, workers=2, output=str(tmp_path / "two"))
    found = [train(job)["validation"] for job in (one, two)]
    assert worst(weights(one), weights(two)) < 1e-5
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_a_second_run_embeds_nothing_and_the_same_run_does_nothing(training, cluster, rated):
    def cached():
        return {f: f.stat().st_mtime_ns for f in (rated / "cache").glob("*/vectors/embeddings/*")}

    first = train(training)
    before = cached()
    assert before
    again = replace(training, output=f"{training.output}-again", seed=1)
    assert train(again)["seed"] == 1
    assert cached() == before
    assert train(training) == json.loads(json.dumps(first))


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(training, cluster, tmp_path):
    training = replace(training, epochs=EPOCHS, patience=EPOCHS, average=0.9)
    train(training)
    killed = replace(training, output=str(tmp_path / "killed"), cache=str(tmp_path / "cache"))
    flags = [
        "--train",
        killed.train,
        "--validation",
        killed.validation,
        "--model",
        killed.model,
        "--prompt",
        "concat-sc",
    ]
    flags += ["--pooling", "mean", "--compute", "float32", "--output", killed.output, "--cache", killed.cache]
    flags += ["--epochs", str(EPOCHS), "--patience", str(EPOCHS), "--batch-size", "20", "--average", "0.9"]
    environment = os.environ | {"RAY_ADDRESS": cluster.address_info["gcs_address"], "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), "case", *flags]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        for line in run.stdout:
            if line.startswith("epoch   5"):
                run.send_signal(signal.SIGKILL)
                break
    assert not (killed.folder / "raycase.json").exists()
    states = list((tmp_path / "cache" / "fits").glob("*/state.safetensors"))
    assert len(states) == 1, "wanted the state of an epoch"
    metrics = train(killed)
    assert [line["epoch"] for line in metrics["history"]] == list(range(1, EPOCHS + 1))
    assert worst(weights(training), weights(killed)) == 0
    assert not list((tmp_path / "cache" / "fits").iterdir()), "wanted no state left of a finished run"


def rows(frame, path):
    frame.to_csv(path, index=False)
    return str(path)


BAD = {
    "a label that is no number": (lambda f: f.assign(label=["high", *f.label[1:]]), "row 0: wanted a number as label"),
    "a missing column": (lambda f: f.drop(columns="condition"), "wanted the column 'condition'"),
    "a file without rows": (lambda f: f.head(0), "found no rows"),
    "one label alone": (lambda f: f.assign(label=3), "at least two distinct labels"),
    "-1 and one label": (lambda f: f.assign(label=[-1, *[3] * (len(f) - 1)]), "besides -1"),
    "a label above the scale": (lambda f: f.assign(label=[7, *f.label[1:]]), "labels from 1 to 5"),
    "an empty sentence": (lambda f: f.assign(sentence2=[" ", *f.sentence2[1:]]), "row 0: wanted words in 'sentence2'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pairs_are_refused_before_anything_is_done(training, tmp_path, name):
    spoil, said = BAD[name]
    bad = replace(training, train=rows(spoil(rated_rows(10, 0)), tmp_path / "bad.csv"), cache=str(tmp_path / "cache"))
    with pytest.raises(RequestError, match=said):
        train(bad)
    assert not bad.folder.exists() and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": 0}, "--workers"),
        ({"dropout": 1.0}, "--dropout"),
        ({"batch_size": 0}, "--batch-size"),
        ({"output": "s3://corpus/case"}, "--output"),
        ({"train": "nowhere.csv"}, "--train"),
        ({"prompt": "loud"}, "--prompt"),
    ],
)
def test_wrong_flags_are_refused(training, change, said):
    with pytest.raises(RequestError, match=said):
        train(replace(training, **change))


def test_a_loss_that_is_not_finite_is_said(training, cluster):
    with pytest.raises(WorkError, match="epoch 1: wanted a finite loss"):
        train(replace(training, learning_rate=1e30))


def test_validation_pairs_are_not_trained_on(training, tmp_path):
    both = rows(pd.concat([rated_rows(20, 0), rated_rows(40, 1).iloc[[7]]]), tmp_path / "both.csv")
    with pytest.raises(
        RequestError, match=r"no pair that is trained on, found 1 of 40 in .*both\.csv, the first in row 7"
    ):
        train(replace(training, train=both))


def test_relative_paths_are_refused_in_a_submitted_job(training, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(RequestError, match="--output: wanted an absolute path"):
        train(replace(training, output="runs/case"))


def test_a_pair_without_a_vector_is_named(training, cluster, tmp_path):
    frame = rated_rows(10, 5)
    frame.loc[3, "sentence1"] = "poison dog"
    with pytest.raises(RequestError, match="1 without; the first: vector not finite: 'poison dog' under 'color"):
        train(replace(training, train=rows(frame, tmp_path / "bad.csv"), cache=str(tmp_path / "cache")))


def test_a_cache_may_be_moved(training, cluster, rated, tmp_path):
    train(training)
    shutil.copytree(rated / "cache", tmp_path / "elsewhere", copy_function=shutil.copy)
    assert train(replace(training, output=str(tmp_path / "moved"), cache=str(tmp_path / "elsewhere")))["epochs"] == 4


def test_more_workers_than_fit_are_refused(training, cluster):
    with pytest.raises(RequestError, match="--workers: wanted 9 with 1 CPU"):
        train(replace(training, workers=9))


def test_another_model_is_not_overwritten(training, cluster):
    train(training)
    before = weights(training)
    other = replace(training, seed=5)
    with pytest.raises(RequestError, match="found another one"):
        train(other)
    assert worst(before, weights(training)) == 0
    train(replace(other, overwrite=True))
    assert worst(before, weights(training)) > 0
    with pytest.raises(RequestError, match="without projector"):
        train(replace(training, model=training.output, output=f"{training.output}-2"))


def test_the_script_says_a_wrong_request_in_one_line(training, tmp_path):
    file = rows(rated_rows(10, 0).assign(label="high"), tmp_path / "bad.csv")
    done = run_job("case", "--train", file, "--validation", file, "--output", tmp_path / "out", script="train.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "row 0: wanted a number as label, found 'high'" in done.stderr
