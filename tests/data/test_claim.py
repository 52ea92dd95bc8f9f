"""An output folder belongs to one job: free, this job's, or another's."""

import re

import pytest

from raycase.data.claim import begin, check_held, claim, clear
from raycase.data.storage import locate
from raycase.errors import RequestError, WorkError

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
    refused(folder, "got notes.txt without join.json", "one", exclusive=True)
    for name in ("neighbours/0.parquet", "table.parquet"):
        (folder / name).put(b"")
        top = name.split("/")[0]
        refused(folder, f"got {top} without join.json; choose another folder or pass --overwrite", "one")
        refused(folder, f"got {top} without join.json", "one", overwrite=True, exclusive=True)
        (folder / top).remove()
    (folder / "join.json").put(b"{}")
    assert claim(folder, "join.json", "one", overwrite=True, exclusive=True, **JOB) is None


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


def test_clear_removes_what_the_job_wrote_alone(folder):
    for name in ("neighbours/0.parquet", "table.parquet", "join.json", "notes.txt"):
        (folder / name).put(b"")
    clear(folder, "join.json", JOB["results"])
    assert folder.list() == {"notes.txt": 0}
    assert claim(folder, "join.json", "one", **JOB) is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_that_begins_puts_its_record_and_clears_results_only_to_overwrite(folder, overwrite):
    (folder / "join.json").put(b"{}")
    (folder / "neighbours" / "0.parquet").put(b"")
    begin(folder, "join.json", {"fingerprint": "one"}, JOB["results"], overwrite=overwrite)
    assert claim(folder, "join.json", "one", **JOB) == {"fingerprint": "one"}
    assert (folder / "neighbours" / "0.parquet").exists() is not overwrite


@pytest.mark.parametrize("record", [None, b'{"fingerprint": "two"}', b"["])
def test_a_job_whose_record_was_replaced_or_removed_notices(folder, record):
    begin(folder, "join.json", {"fingerprint": "one"}, JOB["results"], overwrite=False)
    check_held(folder, "join.json", "one")
    (folder / "join.json").remove()
    if record is not None:
        (folder / "join.json").put(record)
    with pytest.raises(WorkError, match=r"expected the join\.json that this job wrote, got none or another"):
        check_held(folder, "join.json", "one")
