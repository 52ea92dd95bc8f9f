"""One Ray, one S3 server and one tiny model for the whole run; everything listens on 127.0.0.1 only."""

import os
import sys
from pathlib import Path

# Before Ray: its processes inherit these. The keys are for the test's own server.
os.environ |= {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # the job server starts `python`
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
    "RAY_metrics_report_interval_ms": "1000",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "OMP_NUM_THREADS": "1",  # tiny models: more threads wait for each other
}

import numpy as np
import pyarrow.dataset as ds
import pytest

from raycase.output import output_at

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))
WORDS = ["red", "blue", "green", "dress", "shirt", "dog", "cat", "man", "woman", "people", "play", "run", "sit", "ball"]


@pytest.fixture(scope="session")
def data():
    """The folder of real data sets."""
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}; set RAYCASE_DATA")
    return DATA


@pytest.fixture(scope="session")
def s3_server():
    """A real HTTP S3 server with the bucket `corpus`; gives its URL."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    os.environ["AWS_ENDPOINT_URL"] = url
    boto3.client("s3").create_bucket(Bucket="corpus")
    yield url
    server.stop()


@pytest.fixture(scope="session")
def cluster(s3_server):
    """The run's Ray: four logical CPUs, a job server; gives the context of `ray.init`."""
    import ray

    context = ray.init(
        num_cpus=4, include_dashboard=True, dashboard_host="127.0.0.1", log_to_driver=False, logging_level="ERROR"
    )
    yield context
    ray.shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random two-layer BERT of 32 dimensions with its word-piece tokenizer, in the Hugging Face layout."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "poison",
        *WORDS,
        *letters,
        *(f"##{c}" for c in letters),
    ]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = BertModel(config)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[vocabulary.index("poison")] = float("nan")
    model.save_pretrained(folder)
    return folder


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


@pytest.fixture(scope="session")
def rated(tmp_path_factory):
    """A folder with train.csv (101 pairs), validation.csv and a cache that the tests share."""
    folder = tmp_path_factory.mktemp("rated")
    rated_rows(101, 0).to_csv(folder / "train.csv", index=False)
    rated_rows(40, 1).to_csv(folder / "validation.csv", index=False)
    return folder


def wait_for(what, seconds=90):
    """Poll until `what()` is true, and give it."""
    import time

    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"nothing happened in {seconds} s"
        time.sleep(0.05)
    return found


def run_job(*arguments, script="embed.py", **options):
    """Run a job's script as a process of its own; gives the finished process."""
    import subprocess

    command = [sys.executable, str(ROOT / "jobs" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def read_output(uri):
    """The output as one table, in the order of the input."""
    folder = output_at(uri).embeddings
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()


def read_rejected(uri):
    """The rejected rows as dictionaries."""
    folder = output_at(uri).rejected
    return ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table().to_pylist()


def vectors(table):
    """(N, D) float32."""
    return np.stack(table["embedding"].to_numpy()).astype(np.float32)


def cosines(a, b):
    """Row by row."""
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def in_process(request, opened, plan):
    """Run a plan's units here, one after the other: the same steps as on Ray, without Ray."""
    import pyarrow as pa

    from raycase.units import EncodeUnits, read_units, task_row, write_units

    encode = EncodeUnits(
        request.model,
        request.encode_settings,
        weights=opened.config["model"]["weights"],
        compute=request.job.compute,
    )
    for pieces in plan.tasks():
        task = pa.Table.from_pylist([task_row(opened.files, pieces)])
        for unit in read_units(task, config=request.model, settings=request.encode_settings):
            written = write_units(encode(unit), output=request.output.root.uri, print8=opened.print8)
            yield from written.to_pylist()


def embedded(folder, tiny_model, rows, **options):
    """The output of the main job over rows (dictionaries with id and text), in this process; gives its folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raycase.embed import embed
    from raycase.request import EmbedJob

    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    defaults = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "dtype": "float32", "unit_rows": 100}
    settings = {"model": str(tiny_model), "input": str(folder / "in.parquet"), "output": str(folder / "out")}
    embed(EmbedJob(**settings | defaults | options), execute=in_process)
    return settings["output"] if "output" not in options else options["output"]


@pytest.fixture
def job(tiny_model, tmp_path):
    """A job over 500 rows in 5 units, with the tiny model in fp32."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raycase.request import EmbedJob

    pq.write_table(pa.table({"id": range(500), "text": sentences(500)}), tmp_path / "in.parquet", row_group_size=200)
    return EmbedJob(
        input=str(tmp_path / "in.parquet"),
        output=str(tmp_path / "out"),
        conditions=("color", "number of people"),
        model=str(tiny_model),
        prompt="concat-sc",
        pooling="mean",
        compute="float32",
        dtype="float32",
        unit_rows=100,
        actors="1:1",
    )
