"""What tests share: small corpora, outputs read back, jobs run in this process or in one of their own."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds

from raycase.job.output import Output
from raycase.job.results import SCORES
from raycase.job.runner import Runner

ROOT = Path(__file__).parent.parent


class Later:
    """A module that is imported when it is first used: not while tests are collected, which each of pytest's workers
    does."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith(("_", "pytest")):  # pytest asks each name of a test's module for such
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


WORDS = ["red", "blue", "green", "dress", "shirt", "dog", "cat", "man", "woman", "people", "play", "run", "sit", "ball"]


def sentences(count, seed=0):
    """Random sentences of `WORDS`, all different."""
    import random

    random.seed(seed)
    return [" ".join(random.choices(WORDS, k=random.randint(3, 12))) + f" {i}" for i in range(count)]


def rated_rows(count, seed):
    """Pairs rated 5 where both sentences name the same color, else 1 (and one that the condition does not fit)."""
    import random

    import pandas as pd

    chance = random.Random(seed)
    colors = ("red", "blue", "green")

    def sentence(color):
        return " ".join([chance.choice(WORDS[3:]), color, chance.choice(WORDS[3:]), str(chance.randrange(1000))])

    rows = []
    for _ in range(count):
        first, second = chance.choice(colors), chance.choice(colors)
        rating = 5.0 if first == second else 1.0
        rows.append((sentence(first), sentence(second), chance.choice(["color", "color of the dress"]), rating))
    rows[0] = (*rows[0][:3], -1.0)
    return pd.DataFrame(rows, columns=["sentence1", "sentence2", "condition", "label"])


def to_csv(frame, path):
    """Write a file; gives its name."""
    frame.to_csv(path, index=False)
    return str(path)


def change_json(file, **values):
    """Put values into the object of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def last(states):
    """The last of a fit's states."""
    *_, state = states
    return state


def in_threads(work, asked):
    """What eight threads that change places all the time get for each."""
    from concurrent.futures import ThreadPoolExecutor

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(work, asked))
    finally:
        sys.setswitchinterval(interval)


def worst(a, b):
    """The largest difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


NO_AGENT = "No available agent"  # says a cluster that has just started to who submits a job


def wait_for(what, seconds=90):
    """Poll until `what()` is true, and give it."""
    import time

    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"nothing happened in {seconds} s"
        time.sleep(0.05)
    return found


def save_tiny_model(folder):
    """Save a random two-layer BERT of 32 dimensions whose vectors of "poison" are not finite; gives the folder."""
    import tiny
    import torch
    from transformers import BertConfig, BertModel

    folder.mkdir(exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    tokenizer, options = tiny.wordpiece(["poison", *WORDS, *letters, *(f"##{c}" for c in letters)])
    tiny.save_tokenizer(folder, (tokenizer, options | {"model_max_length": 64}))
    torch.manual_seed(0)
    sizes = tiny.SIZES | {"max_position_embeddings": 64, "initializer_range": 0.02}
    model = BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[tokenizer.token_to_id("poison")] = float("nan")
    model.save_pretrained(folder)
    return folder


def small_job(folder, model):
    """A job over 500 rows in 5 units, with a tiny model in fp32; its input is in the folder, its output will be."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raycase.commands.embed import EmbedFlags

    pq.write_table(pa.table({"id": range(500), "text": sentences(500)}), folder / "in.parquet", row_group_size=200)
    files = {"input": str(folder / "in.parquet"), "output": str(folder / "out"), "model": str(model)}
    encoder = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "dtype": "float32"}
    return EmbedFlags(conditions=("color", "number of people"), unit_rows=100, actors="1:1", **files, **encoder)


def flags_of(job):
    """The flags of a job like `small_job`, for a command line."""
    given = ["--input", job.input, "--output", job.output, "--conditions", *job.conditions, "--model", job.model]
    given += ["--prompt", job.prompt, "--pooling", job.pooling, "--compute", job.compute, "--dtype", job.dtype]
    return [*map(str, [*given, "--unit-rows", job.unit_rows, "--actors", job.actors])]


def call_command(*words):
    """Run `python -m raycase` in this process, which saves seconds of imports; gives the finished process."""
    import contextlib
    import io
    import runpy
    import subprocess
    from unittest import mock

    command = ["raycase", *map(str, words)]
    stdout, stderr, status = io.StringIO(), io.StringIO(), 0
    called = mock.patch.object(sys, "argv", command)
    with called, contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            runpy.run_module("raycase", run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            status = stop.code or 0
    return subprocess.CompletedProcess(command, status, stdout.getvalue(), stderr.getvalue())


def read_output(uri):
    """The output as one table, in the order of the input."""
    folder = Output(uri).units
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()


def read_rejected(uri):
    """The rejected rows as dictionaries."""
    folder = Output(uri).rejected
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table().to_pylist()


def swap_rows(uri):
    """Turn the rows of an output's first file round: a whole Parquet file, but not the one that was written."""
    import io

    import pyarrow.parquet as pq

    from raycase.io.schema import parquet_bytes

    folder = Output(str(uri)).units
    file = folder / min(folder.list())
    table = pq.read_table(io.BytesIO(file.read()))
    file.put(parquet_bytes(table.take(list(range(len(table)))[::-1])))
    return file.name


def vectors(table):
    """(N, D) float32."""
    return np.stack(table["embedding"].to_numpy()).astype(np.float32)


def cosines(a, b):
    """Row by row."""
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def unit_by_unit():
    """A runner of this process that writes each unit before the next is encoded."""
    runner = Runner()
    runner.ahead = 0
    return runner


def embed_here(job, runner=None, **options):
    """The main job in this process, each unit written before the next is encoded, or by the runner; gives its
    result."""
    return run(job, runner or unit_by_unit(), **options)


def embed_on_ray(job, **options):
    """The main job on Ray; gives its result."""
    from raycase.ray.runner import RayRunner

    return run(job, RayRunner(), **options)


def run(job, runner, *, model=None):
    """The main job by a runner; gives its result."""
    from dataclasses import replace

    from raycase.commands.embed import check_embed
    from raycase.job.run import run

    request = check_embed(job)
    if model is not None:
        request = replace(request, encoding=replace(request.encoding, model=model))
    return run(request, runner)


def score_here(job, runner=None):
    """The job that scores pairs of sentences in this process, without Ray, or by the runner; gives its result."""
    from raycase.commands.score import check_score
    from raycase.job.run import run

    return run(check_score(job), runner or unit_by_unit())


def read_scores(uri):
    """Its output as one table, in the order of the input."""
    folder = Output(str(uri), SCORES).units
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()


def meanwhile(happens, count=2):
    """A runner of this process that does something else after so many units or results."""

    def then(results):
        for done, result in enumerate(results, 1):
            yield result
            if done == count:
                happens()

    runner = unit_by_unit()
    runner.embed = lambda *work: then(Runner.embed(runner, *work))
    runner.map = lambda *work, **how: then(Runner.map(runner, *work, **how))
    return runner


def stop_after(count):
    """A runner that dies after so many units or results."""

    def die():
        raise KeyboardInterrupt

    return meanwhile(die, count)


def stopped(job, count):
    """Begin the main job in this process, and stop it after so many units."""
    import pytest

    with pytest.raises(KeyboardInterrupt):
        embed_here(job, runner=stop_after(count))


def same_output(uri, wanted_uri):
    """Assert that an output is whole and has the rows of another one, and its vectors."""
    from raycase.job.verify import verify

    found, wanted = (read_output(place) for place in (uri, wanted_uri))
    assert found.drop_columns(["embedding"]).equals(wanted.drop_columns(["embedding"]))  # none missing, none twice
    assert cosines(vectors(found), vectors(wanted)).min() > 0.9999
    verify(uri)


def unit_times(job):
    """Name -> modification time of the finished units."""
    folder = Output(job.output).units
    return {name: (folder / name).fs.modified((folder / name).path) for name in folder.list()}


def embedded(folder, tiny_model, rows, **options):
    """The output of the main job over rows (dictionaries with id and text), in this process; gives its folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raycase.commands.embed import EmbedFlags

    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    defaults = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "dtype": "float32", "unit_rows": 100}
    settings = {"model": str(tiny_model), "input": str(folder / "in.parquet"), "output": str(folder / "out")}
    embed_here(EmbedFlags(**settings | defaults | options))
    return settings["output"] if "output" not in options else options["output"]


def write_csv(file, columns, rows):
    """Write a .csv file; gives its name."""
    import csv

    with file.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return str(file)


def vectors_of(texts, config, *, name, cache, **_):
    """`VectorCache.vectors_of` in this process and in float32, whatever the job asks for."""
    from raycase.training.vector_cache import VectorCache

    return VectorCache(Runner()).vectors_of(texts, config, name=name, cache=cache, compute="float32")


def fit_by(flags, *data, **options):
    """The states of the fit of a system's flags on data as its learner takes them; options: `state` and `wrap`."""
    from raycase.training.loop import fit

    training = flags.training()
    return fit(training.recipe, training.learner(training.recipe, *data), **options)


def bare_fit(flags):
    """The fit of a projector's flags without the command: the validation pairs, their vectors, the last state, and g of
    the best epoch."""
    from raycase.training.projector import best_projector
    from raycase.training.vector_cache import VectorCache

    training = flags.training()
    parts = training.read()
    data = training.share(parts, VectorCache(Runner()))
    state = last(fit_by(flags, *data))
    return parts[1], data[1], state, best_projector(state, flags.shape(data[0].dim))


def projector_of(job):
    """The weights of g that a job saved."""
    from safetensors.torch import load_file

    return load_file(job.folder / "projector.safetensors")


def train_here(flags):
    """Train in this process, without Ray; gives the contents of `metrics.json`."""
    from raycase.commands.train import train_model
    from raycase.training.procedure import local_trainer

    return train_model(flags, lambda flags: local_trainer(flags.gpus_per_worker))
