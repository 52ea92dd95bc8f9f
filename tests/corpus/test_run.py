"""A job notices what happens to its output: another job in it, a folder that is gone, units that are damaged."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import embed_here, meanwhile, read_output, stop_after, swap_rows, unit_times

from raycase.corpus.output import output_at
from raycase.corpus.verify import verify
from raycase.errors import RequestError, WorkError


def test_a_job_whose_folder_another_took_ends_and_leaves_it_alone(job):
    other = replace(job, conditions=("people",), overwrite=True)
    with pytest.raises(WorkError, match="the folder was removed or a job with --overwrite took it over"):
        embed_here(job, execute=meanwhile(lambda: embed_here(other)))
    embed_here(replace(other, overwrite=False))  # removes what the late writer put there
    assert verify(job.output)["pairs"] == 500
    assert set(read_output(job.output)["condition"].to_pylist()) == {"people"}


def test_an_unfinished_job_keeps_its_units_from_one_that_it_replaced(job):
    """The earlier driver comes to its end while the later one is in the middle."""
    other = replace(job, conditions=("people",), overwrite=True)

    def begin_other():
        with pytest.raises(KeyboardInterrupt):
            embed_here(other, execute=stop_after(3))

    with pytest.raises(WorkError, match="took it over"):
        embed_here(job, execute=meanwhile(begin_other))
    assert embed_here(replace(other, overwrite=False))["units_resumed"] == 3


def test_two_drivers_of_one_job_are_harmless(job):
    result = embed_here(job, execute=meanwhile(lambda: embed_here(job)))
    assert result["rows_out"] == 500
    assert verify(job.output)["pairs"] == 1000


@pytest.mark.parametrize("what", ["", "job.json"])
def test_a_folder_that_is_removed_ends_the_job(job, what):
    place = Path(job.output) / what
    with pytest.raises(WorkError, match="the folder was removed or a job with --overwrite took it over"):
        embed_here(job, execute=meanwhile(lambda: shutil.rmtree(place) if place.is_dir() else place.unlink()))
    assert embed_here(replace(job, overwrite=True))["rows_out"] == 500
    verify(job.output)


def test_a_unit_that_is_removed_is_done_again(job):
    def remove():
        folder = output_at(job.output).embeddings
        (folder / min(folder.list())).remove()

    assert embed_here(job, execute=meanwhile(remove))["rows_out"] == 500
    verify(job.output)


def test_overwrite_removes_nothing_before_the_new_job_can_be_written_down(job, tmp_path):
    embed_here(job)
    before = unit_times(job)
    folder = tmp_path / "more"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.csv")).write_text("id,text\n1,a dog\n")
    with pytest.raises(RequestError, match=r"expected names in UTF-8, got .*caf"):
        embed_here(replace(job, input=str(folder), overwrite=True))
    assert unit_times(job) == before
    verify(job.output)


def cut(folder):
    """Cut a unit short, as a store that lost the end of a file would."""
    file = folder / min(folder.list())
    file.put(file.read()[:-9])
    return file.name


@pytest.mark.parametrize(
    ("damage", "saved"), [("cut", True), ("cut", False), ("flipped", True), ("flipped", False), ("swapped", True)]
)
def test_a_damaged_unit_that_a_resumed_job_meets_is_done_again(job, monkeypatch, capsys, damage, saved):
    """With its checksum saved, or not yet: then it must be readable, and each page has a checksum of its own."""
    monkeypatch.setattr("raycase.corpus.manifest.LINES_AT_ONCE", 1 if saved else 4096)
    with pytest.raises(KeyboardInterrupt):
        embed_here(job, execute=stop_after(3))
    folder = output_at(job.output).embeddings
    before = {name: (folder / name).read() for name in folder.list()}
    if damage == "cut":
        name = cut(folder)
    elif damage == "swapped":
        name = swap_rows(job.output)
    else:
        name = min(folder.list())
        data = bytearray(before[name])
        data[len(data) // 2] ^= 16
        (folder / name).put(bytes(data))
    result = embed_here(job)
    assert (result["rows_out"], result["units_done"], result["units_resumed"]) == (500, 3, 2)
    assert (folder / name).read() == before[name]
    assert name in (said := capsys.readouterr().err) and said.count("done again") == 1
    verify(job.output)


def test_a_damaged_list_of_checksums_is_made_again(job, monkeypatch):
    monkeypatch.setattr("raycase.corpus.manifest.LINES_AT_ONCE", 1)
    with pytest.raises(KeyboardInterrupt):
        embed_here(job, execute=stop_after(3))
    cut(output_at(job.output).lines)
    assert embed_here(job)["units_resumed"] == 3
    verify(job.output)
