"""Names of finished units, and what a listing of them covers."""

from dataclasses import replace

import pytest
from helpers import embed_here, stopped

from raycase.errors import WorkError
from raycase.job.output import Output, UnitFile, finished
from raycase.job.verify import verify


@pytest.mark.parametrize("unit", [UnitFile(3, 4096, 4000, 96), UnitFile(123456, 10**13, 0, 7)])
def test_a_units_name_says_all_of_it(unit):
    name = unit.name("0123abcd")
    assert UnitFile.parse(name) == unit
    others = [UnitFile(2, 0, 1, 1), UnitFile(0, 10_000, 5, 5), UnitFile(0, 2000, 5, 5), UnitFile(10, 0, 1, 0), unit]
    assert sorted(u.name("0" * 8) for u in others) == [u.name("0" * 8) for u in sorted(others)]


@pytest.mark.parametrize(
    "name",
    [
        "0123abcd-00000-000000000000-1-0.parquet.tmp",
        "0123ABCD-00000-000000000000-1-0.parquet",
        "0123abcd-00000-9999999999999999999-1-0.parquet",  # beyond 64 bits
        "0123abcd-000001-000000000000-1-0.parquet",  # not as a unit is named
        "0123abcd-00000-00000000000\u0663-1-0.parquet",  # a digit, but not of ASCII
    ],
)
def test_any_other_name_is_no_unit(name):
    assert finished([name], "0123abcd")[1] == [name]


def test_late_writers_are_not_mistaken_for_ours(job):
    """A unit of a job that was overwritten, one that a shorter limit had cut, and rejected rows without their unit."""
    embed_here(job)
    folder = Output(job.output).units
    name = sorted(folder.list())[1]
    strays = [folder / f"{'0' * 8}{name[8:]}", folder / f"{name[:27]}-50-0.parquet"]
    strays.append(Output(job.output).rejected / f"{name[:27]}-49-1.parquet")
    assert name[9:27] == "00000-000000000100"
    for stray in strays:
        stray.put((folder / name).read())
    assert embed_here(job)["rows_in"] == 500
    assert not any(stray.exists() for stray in strays)
    verify(job.output)
    (folder / "notes.txt").put(b"")
    with pytest.raises(WorkError, match=r"notes\.txt: not in the manifest; remove the file"):
        embed_here(job)
    old = (folder / name).read()  # of a job over other content, which is overwritten by the same configuration
    stopped(replace(job, overwrite=True), 1)
    (folder / name).put(old)
    (folder / "notes.txt").remove()
    assert embed_here(job)["units_done"] == 4
    assert name not in folder.list()
    verify(job.output)
