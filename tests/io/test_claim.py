"""An output folder belongs to one job: free, this job's, or another's."""

import re

import pytest

from raycase.errors import RequestError
from raycase.io.places import claim
from raycase.io.storage import locate

JOB = {"job": "this very join", "results": ("neighbours", "table.parquet")}


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    root = locate(f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "out"))
    yield root
    root.remove()


def refused(folder, words, *arguments, **options):
    with pytest.raises(RequestError, match=re.escape(words)):
        claim(folder, "join.json", *arguments, **JOB | options)


def test_a_folder_without_results_is_free_and_one_with_them_and_no_record_is_refused(folder):
    assert claim(folder, "join.json", "one", **JOB) is None
    assert not folder.exists()
    (folder / "notes.txt").put(b"other")
    assert claim(folder, "join.json", "one", **JOB) is None
    for name in ("neighbours/0.parquet", "table.parquet"):
        (folder / name).put(b"")
        top = name.split("/")[0]
        refused(folder, f"got {top} without join.json; choose another folder or pass --overwrite", "one")
        assert claim(folder, "join.json", "one", overwrite=True, **JOB) is None
        (folder / top).remove()


def test_the_record_of_this_job_is_returned(folder):
    record = {"fingerprint": "one", "ranges": [[1]]}
    (folder / "join.json").put_json(record)
    (folder / "neighbours" / "0.parquet").put(b"")
    assert claim(folder, "join.json", "one", **JOB) == record
    assert claim(folder, "join.json", "one", overwrite=True, **JOB) is None


@pytest.mark.parametrize("record", [b'{"fingerprint": "two"}', b"", b"{}", b"[]", b"[1"])
def test_another_job_is_refused(folder, record):
    (folder / "join.json").put(record)
    words = "--output: expected an empty folder or this very join in {}, got another{}; "
    refused(folder, words.format(folder.uri, ""), "one")
    refused(folder, words.format(folder.uri, " (k: 5 there, 10 asked)"), "one", difference="k: 5 there, 10 asked")
    assert claim(folder, "join.json", "one", overwrite=True, **JOB) is None
    assert (folder / "join.json").read() == record
