"""One Ray for the whole run, one S3 server and one tiny model for each of pytest's workers; everything listens on
127.0.0.1 only."""

import gc
import os
import re
import sys
from functools import cache
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
import pytest
from helpers import ROOT, rated_rows, save_tiny_model, small_job
from xdist.scheduler.loadscope import LoadScopeScheduling

from raycase.io import storage


class OneRay(LoadScopeScheduling):
    """One of pytest's workers runs every file that needs Ray, one compiles UMAP and one imports MTEB and
    sentence-transformers; the tests of any other file stay together."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0]
        if needs_ray(file):
            return "ray"
        if maps(file):
            return "umap"
        return "mteb" if re.search(r"mteb|published\.py|sentence_transformer|elsewhere", file) else file


@cache
def needs_ray(file):
    """Whether a test or a fixture of the file takes the fixture `cluster`, starts clusters of its own, or imports
    Ray Serve."""
    taken = r"^def \w+\([^)]*\bcluster\b|^from clusters import|raycase.ray.serve"
    return re.search(taken, (ROOT / file).read_text(), re.MULTILINE) is not None


def maps(file):
    """Whether a file has tests of maps: UMAP is compiled in each process, and a browser started."""
    return "explore" in file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneRay(config, log)


def pytest_ignore_collect(collection_path, config):
    """A file whose tests are all left out is not even imported."""
    if collection_path.match("test_*.py") and "not cluster" in config.option.markexpr:
        return True if re.search(r"^pytestmark = pytest.mark.cluster$", collection_path.read_text(), re.M) else None
    return None


def pytest_collection_modifyitems(items):
    """Ray's tests begin: they take longest; then those that compile UMAP and start a browser."""
    for item in items:
        assert "cluster" not in item.fixturenames or needs_ray(item.location[0]), f"{item.nodeid}: a Ray of its own"
    items.sort(key=lambda item: (not needs_ray(item.location[0]), not maps(item.location[0])))


def pytest_collection():
    """While all is imported nothing becomes garbage: a quarter of that time."""
    gc.disable()


def pytest_collection_finish():
    """What is imported stays: no collection of garbage looks at it again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item):
    """A test that computed with more threads leaves them to none after it: two of them wait for each other tenfold."""
    torch = sys.modules.get("torch")
    if torch and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def pytest_runtest_protocol(item):
    """Beside the worker that has Ray, the other one takes what Ray's processes leave of the cores."""
    if "PYTEST_XDIST_WORKER" in os.environ and not needs_ray(item.location[0]) and os.nice(0) == 0:
        os.nice(10)


DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def data():
    """The folder of real data sets."""
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}; set RAYCASE_DATA")
    return DATA


@pytest.fixture(scope="session")
def s3_server():
    """A real HTTP S3 server with the bucket `corpus`; gives its URL."""
    import s3_proxy

    with s3_proxy.serving() as url:
        yield url


@pytest.fixture
def through(monkeypatch, s3_server):
    """Sends what this process asks of S3 to another URL, where a request is waited for a second."""
    from raycase.io.s3 import S3

    def send(url):
        S3.clear_instance_cache()
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)

    monkeypatch.setattr(storage, "TIMEOUT", 1.0)
    yield send
    S3.clear_instance_cache()


@pytest.fixture(scope="session")
def cluster(s3_server, request):
    """The run's Ray: four logical CPUs; for tests marked `cluster` a job server, too, whose processes take long
    to start. Gives the context of `ray.init`. Its folder names its address: otherwise a submitted job would join any
    other Ray of this machine."""
    import tempfile

    import ray

    with tempfile.TemporaryDirectory(prefix="rc", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        jobs = any(item.get_closest_marker("cluster") for item in request.session.items)
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        place = {"dashboard_host": "127.0.0.1", "_temp_dir": folder}
        context = ray.init(num_cpus=4, include_dashboard=jobs, **place, **quiet)
        Path(folder, "ray_current_cluster").write_text(context.address_info["gcs_address"])
        yield context
        ray.shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random two-layer BERT of 32 dimensions with its word-piece tokenizer, in the Hugging Face layout."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder's name of a random three-layer BERT whose every token changes every other one."""
    import small

    return small.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory):
    """The folder's name of a random causal encoder, which reads its last token."""
    import tiny

    return str(tiny.save_encoder(tmp_path_factory.mktemp("qwen"), "qwen3-embedding-0.6b"))


@pytest.fixture(scope="session")
def rated(tmp_path_factory):
    """A folder with train.csv (101 pairs), validation.csv and a cache that the tests share."""
    folder = tmp_path_factory.mktemp("rated")
    rated_rows(101, 0).to_csv(folder / "train.csv", index=False)
    rated_rows(40, 1).to_csv(folder / "validation.csv", index=False)
    return folder


@pytest.fixture
def evaluation(tmp_path):
    """Makes a job that evaluates models."""
    from raycase.commands.evaluate import EvaluateFlags

    def job(*models, **options):
        defaults = {"output": str(tmp_path / "report"), "compute": "float32", "resamples": 100}
        return EvaluateFlags(**defaults | {"model": tuple(map(str, models))} | options)

    return job


@pytest.fixture
def job(tiny_model, tmp_path):
    """A job over 500 rows in 5 units, with the tiny model in fp32."""
    return small_job(tmp_path, tiny_model)


@pytest.fixture
def scored(tmp_path):
    """Planted: the score counts the word that the second sentence shares with the first."""
    import pandas as pd

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


@pytest.fixture
def projector(rated, tiny_model):
    """Settings of a projector's fit over the shared pairs."""
    files = {"train": str(rated / "train.csv"), "validation": str(rated / "validation.csv"), "model": str(tiny_model)}
    encoder = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "cache": str(rated / "cache")}
    return files | encoder | {"batch_size": 20}


@pytest.fixture
def training(projector, tmp_path):
    """A projector's fit of four epochs over the shared pairs."""
    from raycase.commands.train import ProjectorFlags

    return ProjectorFlags(output=str(tmp_path / "case"), epochs=4, **projector)
