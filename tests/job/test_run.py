"""A job notices what happens to its output: another job in it, a folder that is gone, units that are damaged."""

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from helpers import embed_here, meanwhile, read_output, same_output, stopped
from s3_proxy import Proxy

from raycase.encoder.token_batch import Work
from raycase.errors import WorkError
from raycase.io.storage import Location, locate
from raycase.job.output import Output
from raycase.job.run import Progress
from raycase.job.runner import Runner, progress_bar
from raycase.job.units import UnitLine, WrittenUnit
from raycase.job.verify import verify


def test_a_job_whose_folder_another_took_ends_and_leaves_it_alone(job):
    other = replace(job, conditions=("people",), overwrite=True)
    with pytest.raises(WorkError, match="the folder was removed or a job with --overwrite took it over"):
        embed_here(job, runner=meanwhile(lambda: embed_here(other)))
    embed_here(replace(other, overwrite=False))  # removes what the late writer put there
    assert verify(job.output)["pairs"] == 500
    assert set(read_output(job.output)["condition"].to_pylist()) == {"people"}


def test_two_drivers_of_one_job_are_harmless(job):
    result = embed_here(job, runner=meanwhile(lambda: embed_here(job)))
    assert result["rows_out"] == 500
    assert verify(job.output)["pairs"] == 1000


def test_a_unit_that_is_removed_is_missed_and_done_by_the_next_run(job):
    folder = Output(job.output).units
    with pytest.raises(WorkError, match=r"100 rows are missing; run the same command again$"):
        embed_here(job, runner=meanwhile(lambda: (folder / min(folder.list())).remove()))
    assert embed_here(job)["units_done"] == 1


def test_a_unit_that_was_cut_short_ends_the_job_by_its_name(job):
    """As by a store that lost the end of a file."""
    stopped(job, 3)
    folder = Output(job.output).units
    file = folder / min(folder.list())
    file.put(file.read()[:-9])
    with pytest.raises(WorkError, match=f"{file.name}: expected the rows of a unit, got"):
        embed_here(job)


def test_a_full_disk_ends_the_job_in_one_line_and_the_next_run_resumes(job, monkeypatch):
    put, written = Location.put, []

    def fails(place, data):
        if "embeddings" in place.uri and len(written) == 2:
            raise OSError(28, "No space left on device")
        written.extend([place] * ("embeddings" in place.uri))
        put(place, data)

    monkeypatch.setattr(Location, "put", fails)
    with pytest.raises(WorkError, match=r"^writing input file 0, from row 200.*No space left on device.*resume$"):
        embed_here(job, Runner())
    monkeypatch.undo()
    result = embed_here(job, Runner())
    assert (result["rows_out"], result["units_done"]) == (500, 3)
    verify(job.output)


def test_a_job_that_overwrites_another_is_whole_where_a_store_shows_names_late(job, through, s3_server):
    fsspec.filesystem("s3").put(job.input, "corpus/late/in.parquet")
    there = replace(job, input="s3://corpus/late/in.parquet", output="s3://corpus/late/out", unit_rows=250)
    embed_here(there)
    other = replace(there, conditions=("color",), overwrite=True)
    with Proxy(s3_server, late=0.08) as proxy:
        through(proxy.url)
        embed_here(other)
        assert proxy.going
    through(s3_server)
    embed_here(replace(other, input=job.input, output=job.output))
    same_output(other.output, job.output)


# -------------------------------------------------------------------------------------------------------- progress


def finished(name, began, ended):
    line = UnitLine(**dict.fromkeys(UnitLine.__annotations__, 0) | {"name": name, "rows_out": 5, "reasons": {}})
    work = Work(tokens=600, processed=200, computed=250)
    return WrittenUnit(line=line, work=work, began=began, ended=ended)


def test_a_run_adds_its_units_up(capsys):
    run = Progress(progress_bar(total=20, unit=" rows"), 4)
    assert run.rates()["tokens_per_second"] == 0
    for unit in (finished("a", 10, 12), finished("b", 10, 14), finished("c", 12, 14)):
        assert run.add(unit) == unit.line
    assert run.work == Work(tokens=1800, processed=600, computed=750)
    found = run.rates()
    assert (found["tokens_per_second"], found["sharing"], found["padding"]) == (450.0, 3.0, 0.2)
    assert run.bar.start_t == 10  # when the first unit began: what is left is not counted from the start of Ray
    assert run.bar.postfix == "450 tokens/s (3.0 times shared), unit 3 of 4"


# ------------------------------------------------------------------------------------------------------------ odd paths


ODD = "50% %41 é#x?*[1]::{a}+b&c=d~"


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_a_job_reads_and_writes_where_it_is_told(job, tmp_path, s3_server, store):
    root = str(tmp_path / "root") if store == "disk" else f"s3://corpus/odd/{uuid.uuid4().hex}"
    folder = locate(f"{root}/{ODD}/ü")
    (folder / "in" / f"a {ODD}.csv").put(b"text\na dog\n")
    (folder / "in" / "b.csv").put(b"text\na cat\n")
    (folder / f"conditions {ODD}.txt").put(b"color\n")
    sources = {f"in/a {ODD}.csv": ["a dog"], "in": ["a cat", "a dog"]}
    for source, texts in sources.items():
        output = f"{folder.uri}/out {source} {ODD}"
        asked = replace(job, input=f"{folder.uri}/{source}", output=output, keep_columns=("text",))
        asked = replace(asked, conditions=(f"{folder.uri}/conditions {ODD}.txt",))
        assert [bool(embed_here(asked)["units_resumed"]) for _ in range(2)] == [False, True]
        assert sorted(read_output(output)["text"].to_pylist()) == texts
        verify(output)
    above = locate(root)
    assert [entry.rsplit("/", 1)[-1] for entry in above.fs.ls(above.path, detail=False)] == [ODD]
    folder.remove()
    assert not folder.exists()


@pytest.mark.parametrize("what", ["", "job.json"])
def test_a_folder_that_is_removed_ends_the_job(job, what):
    place = Path(job.output) / what
    with pytest.raises(WorkError, match="the folder was removed or a job with --overwrite took it over"):
        embed_here(job, runner=meanwhile(lambda: shutil.rmtree(place) if place.is_dir() else place.unlink()))
    assert embed_here(replace(job, overwrite=True))["rows_out"] == 500
    verify(job.output)
