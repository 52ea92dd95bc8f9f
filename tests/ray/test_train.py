"""Training on Ray Train equals training in one process: with one worker or two, killed or not; what it refuses."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import (
    ROOT,
    bare_fit,
    cosines,
    embed_here,
    projector_of,
    rated_rows,
    read_output,
    to_csv,
    train_here,
    vectors,
    worst,
)

import raycase
from raycase.commands.embed import EmbedFlags
from raycase.commands.train import train_model
from raycase.errors import RequestError
from raycase.io.rated_pairs import read_rated
from raycase.job.runner import Runner
from raycase.papers.csr.train import CsrFlags
from raycase.ray.capacity import Capacity
from raycase.ray.train import make_scaling, ray_trainer
from raycase.training.vector_cache import VectorCache

HERE = VectorCache(Runner())


def train(flags):
    """Train on Ray."""
    return train_model(flags, lambda flags: ray_trainer(flags.workers, flags.gpus_per_worker, flags.cache_location))


def fill_cache(job, uri):
    """Embed a data set's pairs into the job's cache, in this process."""
    HERE.pair_vectors(read_rated(uri, ""), job.config(), cache=job.cache_location, compute="float32")


@pytest.mark.cluster
def test_training_is_the_bare_fit_and_its_model_gives_the_same_vectors_everywhere(training, cluster, tmp_path, capsys):
    training = replace(training, workers=2, dropout=0.0)  # each process drops its own numbers
    fill_cache(training, training.validation)  # on Ray, the other vectors
    capsys.readouterr()
    metrics = train(training)
    assert capsys.readouterr().out.count("epoch ") == 4
    validation, data, state, g = bare_fit(training)
    assert worst(projector_of(training), g.state_dict()) < 1e-5
    assert metrics["validation"]["spearman"] == pytest.approx(max(line["spearman"] for line in state.history), abs=1e-3)
    with torch.inference_mode():
        wanted = g(torch.from_numpy(np.array(data.vectors))).numpy()
    sentences, conditions = zip(*validation.distinct, strict=True)
    loaded = raycase.load(str(training.folder), dtype=torch.float32)
    assert cosines(loaded.embed(sentences, conditions), wanted).min() > 0.9999
    pd.DataFrame({"text": sentences, "condition": conditions}).to_parquet(tmp_path / "pairs.parquet")
    places = {"input": str(tmp_path / "pairs.parquet"), "output": str(tmp_path / "out"), "model": str(training.folder)}
    job = EmbedFlags(condition_column="condition", dtype="float32", compute="float32", **places)
    embed_here(job)
    assert cosines(vectors(read_output(job.output)), wanted).min() > 0.9999


@pytest.mark.cluster
def test_an_encoder_whose_training_is_killed_goes_on_at_its_last_epoch(rated, tiny_model, cluster, tmp_path):
    files = {"train": str(rated / "train.csv"), "validation": str(rated / "validation.csv"), "model": str(tiny_model)}
    settings = files | {"compute": "float32", "cache": str(tmp_path / "cache"), "batch_size": 20, "epochs": 8}
    job = CsrFlags(output=str(tmp_path / "killed"), **settings)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (settings | {"output": job.output}).items()]
    environment = os.environ | {"RAY_ADDRESS": cluster.address_info["gcs_address"], "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), "csr", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as run:
        for line in run.stdout:
            if line.startswith("epoch   2"):
                run.send_signal(signal.SIGKILL)
                break
    assert not (job.folder / "raycase.json").exists()
    metrics = train(job)
    assert [line["epoch"] for line in metrics["history"]] == list(range(1, len(metrics["history"]) + 1))
    wanted = train_here(replace(job, output=str(tmp_path / "one")))
    for found, line in zip(metrics["history"], wanted["history"], strict=True):
        assert found["loss"] == pytest.approx(line["loss"], abs=1e-4)
    assert not list((Path(job.cache) / "fits").iterdir()), "expected no checkpoint left of a finished run"


def test_a_pair_without_a_vector_is_named(training, tmp_path):
    frame = rated_rows(10, 5)
    frame.loc[3, "sentence1"] = "poison dog"
    training = replace(training, train=to_csv(frame, tmp_path / "bad.csv"), cache=str(tmp_path / "cache"))
    with pytest.raises(RequestError, match="1 without; the first: vector not finite: 'poison dog' under 'color"):
        train_model(training, lambda _: SimpleNamespace(on_gpu=False, vectors=HERE))


@pytest.mark.parametrize(
    ("nodes", "workers", "gpus", "wanted"),
    [
        ([{"CPU": 8}, {"CPU": 4}], 3, None, {"CPU": 4}),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8}], 2, 1, {"CPU": 4, "GPU": 1}),  # both workers on the one node with GPUs
        ([{"CPU": 8, "GPU": 2}], 2, None, {"CPU": 4, "GPU": 1.0}),
        ([{"CPU": 8}], 1, 1, "got room for 0: the cluster has 1 node with 8 CPUs and 0 GPUs"),
    ],
)
def test_workers_share_the_cluster_or_are_refused(nodes, workers, gpus, wanted):
    cluster = Capacity(nodes)
    if isinstance(wanted, str):
        with pytest.raises(RequestError, match=wanted):
            make_scaling(workers, gpus, cluster)
    else:
        assert make_scaling(workers, gpus, cluster).resources_per_worker == wanted
