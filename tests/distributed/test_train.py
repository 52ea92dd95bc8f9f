"""Training on Ray Train: as without Ray, with one worker or two, stopped or not; and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import ROOT, cosines, rated_rows, read_output, run_job, vectors
from safetensors.torch import load_file

import raycase
from raycase.corpus.request import EmbedJob
from raycase.data.rated import read_rated
from raycase.distributed.embed import embed
from raycase.distributed.fit import make_scaling
from raycase.distributed.train import train
from raycase.distributed.vector_cache import vectors_of
from raycase.errors import RequestError, WorkError
from raycase.systems.pair_vectors import pair_vectors
from raycase.training.loop import FitState
from raycase.training.projector_fit import best_projector, fit_projector
from raycase.training.projector_job import TrainJob

EPOCHS = 300  # enough to be killed in the middle


@pytest.fixture
def training(rated, tiny_model, tmp_path):
    return TrainJob(
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


def plain_fit(job):
    """The same fit without Ray: validation vectors, and g of the last and of the best epoch."""
    pairs = [read_rated(uri, "") for uri in (job.train, job.validation)]
    data = [pair_vectors(p, job.config(), vectors_of, cache=job.cache_location, compute="float32") for p in pairs]
    *_, state = fit_projector(*data, job.recipe, seed=job.seed)
    return pairs[1], data[1], state, best_projector(state, job.recipe.projector(data[0].dim))


def test_training_is_the_plain_fit_and_its_model_gives_the_same_vectors_everywhere(training, cluster, tmp_path, capsys):
    metrics = train(training)
    assert capsys.readouterr().out.count("epoch ") == 4
    validation, data, state, g = plain_fit(training)
    assert worst(weights(training), g.state_dict()) < 1e-5
    assert metrics["validation"]["spearman"] == pytest.approx(max(line["spearman"] for line in state.history), abs=1e-3)
    with torch.inference_mode():
        wanted = g(torch.from_numpy(np.array(data.vectors))).numpy()
    sentences, conditions = zip(*validation.distinct, strict=True)
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
    # The same run does nothing; another one is refused, and nothing touched; so is a model as the frozen encoder.
    assert train(training) == json.loads(json.dumps(metrics))
    with pytest.raises(RequestError, match="got another one"):
        train(replace(training, seed=5))
    assert worst(weights(training), g.state_dict()) < 1e-5
    with pytest.raises(RequestError, match="without projector"):
        train(replace(training, model=training.output, output=f"{training.output}-2"))


def test_two_workers_give_what_one_gives(training, cluster):
    # 100 pairs: shards of 17 and 16 rows, of 1 and 0 in the end
    job = replace(training, dropout=0.0, average=0.9, batch_size=33, workers=2)
    plain_fit(job)  # fills the cache
    metrics = train(job)
    _, _, state, g = plain_fit(job)
    assert worst(weights(job), g.state_dict()) < 1e-5
    for found, wanted in zip(metrics["history"], state.history, strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        assert found["spearman"] == pytest.approx(wanted["spearman"], abs=1e-3)


@pytest.mark.long
def test_a_moved_cache_serves_and_overwriting_begins_anew(training, cluster, rated, tmp_path):
    plain_fit(training)  # fills the cache
    shutil.copytree(rated / "cache", tmp_path / "moved", copy_function=shutil.copy)
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "moved").glob("*/vectors/embeddings/*")}
    training.folder.mkdir()
    (training.folder / "raycase.json").write_text("somebody's")
    job = replace(training, cache=str(tmp_path / "moved"), seed=3)
    with pytest.raises(RequestError, match="got another one"):
        train(job)
    train(replace(job, overwrite=True))
    assert {f: f.stat().st_mtime_ns for f in before} == before
    assert worst(weights(job), plain_fit(job)[3].state_dict()) < 1e-5


@pytest.mark.cluster
def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(training, cluster, tmp_path):
    job = replace(training, epochs=EPOCHS, patience=EPOCHS, average=0.9)
    plain_fit(job)  # fills the cache
    flags = ["--train", job.train, "--validation", job.validation, "--model", job.model, "--prompt", "concat-sc"]
    flags += ["--pooling", "mean", "--compute", "float32", "--output", job.output, "--cache", job.cache]
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
    assert not (job.folder / "raycase.json").exists()
    [file] = (job.cache_location / "fits").fs.glob(f"{job.cache}/fits/*/state.safetensors")
    done = len(FitState.from_bytes(Path(file).read_bytes()).history)
    assert 5 <= done < EPOCHS, "expected a run that is killed in the middle"
    metrics = train(job)
    assert [line["epoch"] for line in metrics["history"]] == list(range(1, EPOCHS + 1))
    _, _, state, g = plain_fit(job)
    assert worst(weights(job), g.state_dict()) < 1e-6
    assert metrics["best_epoch"] == state.best_epoch
    assert not list((Path(job.cache) / "fits").iterdir()), "expected no state left of a finished run"


def rows(frame, path):
    frame.to_csv(path, index=False)
    return str(path)


BAD = {
    "a label that is no number": (
        lambda f: f.assign(label=["high", *f.label[1:]]),
        "row 0: expected a number as label",
    ),
    "a missing column": (lambda f: f.drop(columns="condition"), "expected the column 'condition'"),
    "a file without rows": (lambda f: f.head(0), "got no rows"),
    "one label alone": (lambda f: f.assign(label=3), "at least two distinct labels"),
    "-1 and one label": (lambda f: f.assign(label=[-1, *[3] * (len(f) - 1)]), "besides -1"),
    "a label above the scale": (lambda f: f.assign(label=[7, *f.label[1:]]), "labels from 1 to 5"),
    "an empty sentence": (
        lambda f: f.assign(sentence2=[" ", *f.sentence2[1:]]),
        "row 0: expected words in 'sentence2'",
    ),
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


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_said(training, cluster):
    with pytest.raises(WorkError, match=r"epoch \d: expected a finite loss"):
        train(replace(training, learning_rate=1e37))


def test_validation_pairs_are_not_trained_on(training, tmp_path):
    both = rows(pd.concat([rated_rows(20, 0), rated_rows(40, 1).iloc[[7]]]), tmp_path / "both.csv")
    with pytest.raises(
        RequestError, match=r"no pair that is trained on, got 1 of 40 in .*both\.csv, the first in row 7"
    ):
        train(replace(training, train=both))


def test_relative_paths_are_refused_in_a_submitted_job(training, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(RequestError, match="--output: expected an absolute path"):
        train(replace(training, output="runs/case"))


def test_a_pair_without_a_vector_is_named(training, cluster, tmp_path):
    frame = rated_rows(10, 5)
    frame.loc[3, "sentence1"] = "poison dog"
    with pytest.raises(RequestError, match="1 without; the first: vector not finite: 'poison dog' under 'color"):
        train(replace(training, train=rows(frame, tmp_path / "bad.csv"), cache=str(tmp_path / "cache")))


@pytest.mark.parametrize(
    ("nodes", "workers", "gpus", "wanted"),
    [
        ([{"CPU": 2}], 1, None, {"CPU": 2}),
        ([{"CPU": 8}, {"CPU": 4}], 3, None, {"CPU": 4}),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8}], 2, 1, {"CPU": 4, "GPU": 1}),  # both workers on the one node with GPUs
        ([{"CPU": 8, "GPU": 2}], 2, None, {"CPU": 4, "GPU": 1.0}),
        ([{"CPU": 8}], 1, 1, "got nodes with 8 CPUs and 0 GPUs"),
    ],
)
def test_workers_share_the_cluster_or_are_refused(monkeypatch, nodes, workers, gpus, wanted):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": n} for n in nodes])
    if isinstance(wanted, str):
        with pytest.raises(RequestError, match=wanted):
            make_scaling(workers, gpus)
    else:
        assert make_scaling(workers, gpus).resources_per_worker == wanted


def test_more_workers_than_fit_are_refused(training, cluster):
    with pytest.raises(RequestError, match="--workers: expected 9 with 1 CPU"):
        train(replace(training, workers=9))


def test_the_script_says_a_wrong_request_in_one_line(training, tmp_path):
    file = rows(rated_rows(10, 0).assign(label="high"), tmp_path / "bad.csv")
    done = run_job("case", "--train", file, "--validation", file, "--output", tmp_path / "out", script="train.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "row 0: expected a number as label, got 'high'" in done.stderr
