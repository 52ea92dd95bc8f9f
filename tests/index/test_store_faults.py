"""Indexes on object storage that fails: Lance has its own client. The same answers, or one line in bounded time."""

import time
from contextlib import contextmanager

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import storing
from s3_proxy import FAULTS, Proxy

from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError, WorkError
from raycase.io import storage


@pytest.fixture
def through(through, monkeypatch):
    """Half a second: Lance asks again and again."""
    monkeypatch.setattr(storage, "TIMEOUT", 0.5)
    return through


@pytest.fixture(scope="module")
def home(s3_server, tmp_path_factory):
    """`words` and `out` here and on S3, an index of both on S3, and its answers when nothing fails."""
    home = tmp_path_factory.mktemp("faults")
    model = storing.model_folder(home)
    rows = storing.texts(120)
    storing.stored(home / "a", model, rows, output=str(home / "words"), unit_rows=40)
    storing.stored_under(home / "b", model, rows, "color", output=str(home / "out"), unit_rows=40)
    for name in ("words", "out"):
        fsspec.filesystem("s3").put(str(home / name), f"corpus/faults/{name}", recursive=True)
    storing.indexed("s3://corpus/faults/good", str(home / "words"), str(home / "out"))
    answers(home, "s3://corpus/faults/good").rename(home / "wanted.parquet")
    return home


def answers(home, index):
    """The file of answers under a condition that was embedded and one that was not."""
    file = home / "answers.parquet"
    conditions = ("color", "number of people")
    search(SearchFlags(index=index, query=("a red dress",), condition=conditions, k=5, output=str(file)))
    return file


def same(home, index):
    found, wanted = pq.read_table(answers(home, index)), pq.read_table(home / "wanted.parquet")
    assert found.drop_columns(["score"]).equals(wanted.drop_columns(["score"]))
    assert np.allclose(found["score"], wanted["score"], atol=1e-5)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_search_meets_each_fault_and_gives_the_same_or_one_line(home, fault, through, s3_server):
    with Proxy(s3_server, failing=0.1, faults=(fault,), seed=4) as proxy:
        through(proxy.url)
        with one_line():
            same(home, "s3://corpus/faults/good")
    assert proxy.failed[fault]


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_build_meets_each_fault_and_gives_the_same_at_last(home, number, through, s3_server):
    index, fault = f"s3://corpus/faults/index-{number}", FAULTS[number]
    with Proxy(s3_server, failing=0.1, faults=(fault,), seed=5) as proxy:
        through(proxy.url)
        with one_line():
            storing.indexed(index, str(home / "words"), str(home / "out"))
    assert proxy.failed[fault]
    through(s3_server)
    storing.indexed(index, str(home / "words"), str(home / "out"))
    same(home, index)


@contextmanager
def one_line():
    """Takes the error that a user sees in one line, and only that."""
    began = time.monotonic()
    try:
        yield
    except (RequestError, WorkError) as error:
        assert "\n" not in str(error) and ".rs:" not in str(error)
    assert time.monotonic() - began < 30
