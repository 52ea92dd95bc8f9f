"""Rates, worked by hand."""

from raycase.encoder.token_batch import Work
from raycase.job.progress import Run
from raycase.job.records import EncodeStats, WrittenUnit
from raycase.job.unit_files import UnitLine


def finished(name, began, ended, seconds):
    line = UnitLine(**dict.fromkeys(UnitLine.__annotations__, 0) | {"name": name, "rows_out": 5, "reasons": {}})
    work = Work(tokens=600, processed=200, computed=250)
    stats = EncodeStats(work=work, began=began, seconds=seconds)
    return WrittenUnit(line=line, stats=stats, ended=ended)


def test_a_run_adds_its_units_up(capsys):
    run = Run(rows=20, rows_before=0, units=4)
    assert run.rates()["tokens_per_second"] == 0
    for unit in (finished("a", 10, 12, 1), finished("b", 10, 14, 2), finished("c", 12, 14, 1)):
        assert run.add(unit) == unit.line
    assert run.work == Work(tokens=1800, processed=600, computed=750)
    found = run.rates()
    assert (found["tokens_per_second"], found["sharing"], found["padding"]) == (450.0, 3.0, 0.2)
    assert run.bar.start_t == 10  # when the first unit began: what is left is not counted from the start of Ray
    assert run.bar.postfix == "450 tokens/s (3.0 times shared), unit 3 of 4"
