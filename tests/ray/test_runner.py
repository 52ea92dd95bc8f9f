"""`Runner.map` on Ray: a worker that dies, an error of the function, a call that does not end."""

import os
import time
from pathlib import Path

import pytest

from raycase.errors import RequestError, WorkError
from raycase.ray import runner
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


def test_an_error_is_the_functions_and_what_does_not_end_is_given_up(cluster):
    def refuses(number):
        if number == 2:
            raise RequestError("expected another number than 2")
        time.sleep(number)

    with pytest.raises(RequestError, match=r"^expected another number than 2$"):
        list(RayRunner().map(refuses, [0, 2, 60], unit="numbers"))
    with pytest.raises(WorkError, match=r"no task was finished for 0\.02 minutes: the cluster has .*--stall-timeout"):
        list(RayRunner().map(refuses, [60], unit="numbers", stall_timeout=0.02))
