"""The runner on Ray: a worker that dies, an error of the function, a call that does not end; the plan goes to Ray bit
by bit, and the same actors work through all of it."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import ray
from helpers import wait_for

from raycase.errors import RequestError, WorkError
from raycase.io.source import InputFile, Span
from raycase.job.units import PlannedSpan
from raycase.ray import runner
from raycase.ray.in_flight import InFlight, feed_spans
from raycase.ray.runner import RayRunner


def test_the_call_of_a_worker_that_died_is_made_again(cluster, tmp_path, monkeypatch):
    def dies_once(number):
        began = Path(tmp_path, str(number))
        if number == 3 and not began.exists():
            began.touch()
            os._exit(1)
        return number

    monkeypatch.setattr(runner, "CALLS_AT_ONCE", 2)
    assert sorted(RayRunner().map(dies_once, range(6), unit="numbers", stall_timeout=10)) == list(range(6))


def test_an_error_is_the_functions_and_what_does_not_end_is_given_up(cluster, tmp_path):
    over = tmp_path / "over"  # else they would keep the CPUs from other tests

    def refuses(number):
        if number == 2:
            raise RequestError("expected another number than 2")
        while number > 2 and not over.exists():
            time.sleep(0.1)

    with pytest.raises(RequestError, match=r"^expected another number than 2$"):
        list(RayRunner().map(refuses, [0, 2, 60], unit="numbers"))
    with pytest.raises(WorkError, match=r"no task was finished for 0\.02 minutes: the cluster has .*--stall-timeout"):
        list(RayRunner().map(refuses, [60], unit="numbers", stall_timeout=0.02))
    over.touch()


def planned(count, units):
    """A plan of so many tasks of Ray with so many units each."""
    span = Span(file=0, start=0, rows=units, at=0, length=1, bytes=1)
    files = (InputFile(uri="/in.parquet", size=1, mark="1"),)
    spans = [PlannedSpan(files=files, span=span, units=tuple((i, i + 1) for i in range(units)))]
    return SimpleNamespace(spans_together=lambda: iter([spans] * count))


def test_no_more_is_fed_than_may_be_ahead_of_what_is_written(cluster):
    in_flight = InFlight.remote(10)
    fed = []
    stream = feed_spans(pa.table({}), plan=ray.put(planned(9, 4)), in_flight=in_flight)
    thread = threading.Thread(target=lambda: [fed.append(task) for task in stream])
    thread.start()
    wait_for(lambda: len(fed) == 3)  # 12 units: the third task began when 8 were given
    assert not ray.wait([in_flight.wait_for_room.remote(12)], timeout=0.5)[0], "expected the fourth to wait"
    ray.get(in_flight.add_written.remote(3))
    wait_for(lambda: len(fed) == 4)
    ray.get(in_flight.add_written.remote(33))
    thread.join(30)
    assert len(fed) == 9 and not thread.is_alive()
    ray.kill(in_flight)


def test_a_unit_is_rejected_after_three_deaths_and_the_others_count_on(cluster):
    in_flight = InFlight.remote(10)
    row = pa.table({"file": [0], "start": [8], "rows_in": [1]})
    assert [ray.get(in_flight.begin.remote((0, 8))) for _ in range(5)] == [True] * 3 + [False] * 2
    for _ in range(2):  # again after its node was lost
        ray.get(in_flight.reject.remote((0, 8), row))
    ray.get([in_flight.begin.remote((0, 4)), in_flight.end.remote((0, 4))])
    assert ray.get(in_flight.begin.remote((0, 4))), "expected the count to begin anew for a unit that was encoded"
    [rejected] = ray.get(in_flight.take_rejected.remote())
    assert rejected.equals(row)
    assert ray.get(in_flight.wait_for_room.remote(10)) is None, "expected its room to be free"
    ray.kill(in_flight)
