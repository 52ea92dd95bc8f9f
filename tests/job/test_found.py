"""The input of a job: what is left out of it, what changes beside it, and when a file counts as changed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import embed_here, read_output, write_csv

from raycase.errors import RequestError
from raycase.job.output import output_at
from raycase.job.verify import verify


@pytest.fixture
def folder(job, tmp_path):
    """The job over a folder of one file, and the folder."""
    place = tmp_path / "in"
    place.mkdir()
    write(place / "a.csv", ["a dog", "a red dress"])
    return replace(job, input=str(place), text_column="text", id_column=None, keep_columns=("text",), max_rejected=1.0)


def write(path, texts):
    write_csv(path, ["text"], [[text] for text in texts])


def texts_of(job):
    return sorted(set(read_output(job.output)["text"].to_pylist()))


def test_links_and_names_in_capitals_that_come_later_are_read_and_finished_units_stay(folder):
    embed_here(folder)
    before = output_at(folder.output).units.list()
    place = Path(folder.input)
    write(place / "A.CSV", ["a cat"])
    write(place.parent / "elsewhere.csv", ["two people"])
    (place / "0.csv").symlink_to("../elsewhere.csv")
    result = embed_here(folder)
    assert (result["rows_in"], result["units_resumed"]) == (4, 1)
    assert before.items() <= output_at(folder.output).units.list().items()
    assert texts_of(folder) == ["a cat", "a dog", "a red dress", "two people"]
    assert embed_here(folder)["units_done"] == 0
    verify(folder.output)


def test_a_file_has_changed_where_its_size_or_time_has(folder):
    """Its content is not read for that."""
    file = Path(folder.input) / "a.csv"
    embed_here(folder)
    stat = file.stat()
    file.write_bytes(file.read_bytes().replace(b"dog", b"cat"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert embed_here(folder)["units_done"] == 0
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**9))
    with pytest.raises(RequestError, match="but it has changed"):
        embed_here(folder)
