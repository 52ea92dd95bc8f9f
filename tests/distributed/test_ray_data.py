"""Lists of tasks on Ray: one that cannot start ends its job in words, after the minutes that were asked for."""

import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from raycase.distributed import ray_data
from raycase.distributed.ray_data import data_context, drop_execution, run_tasks
from raycase.errors import WorkError


def test_tasks_that_never_start_end_the_job_in_one_line(cluster):
    nowhere = {"ray_remote_args": {"resources": {"nowhere": 1}}}
    with pytest.raises(
        WorkError, match=r"no task was finished for 0\.05 minutes: the cluster has 1 node.*--stall-timeout"
    ):
        run_tasks([{"number": 1}], lambda task: task, progress="done", stall_timeout=0.05, **nowhere["ray_remote_args"])


def test_the_stall_timeout_is_what_ray_waits(cluster):
    from ray.data import DataContext

    for minutes, seconds in ((90, 5400), (None, -1)):
        with data_context(minutes):
            assert DataContext.get_current().execution_no_progress_timeout_s == seconds


def test_an_error_lets_go_of_what_its_frames_and_those_of_its_causes_hold(monkeypatch):
    monkeypatch.setattr(ray_data.time, "sleep", lambda _: pytest.fail("expected no frame that is waited for"))

    class Held:
        pass

    def fails():
        held = Held()
        references.append(weakref.ref(held))
        raise ValueError

    def fails_again():
        held = Held()
        references.append(weakref.ref(held))
        try:
            fails()
        except ValueError as error:
            raise TypeError from error

    references = []
    with pytest.raises(TypeError) as raised:
        fails_again()
    assert all(reference() is not None for reference in references)
    raised.value.__cause__.__cause__ = raised.value  # a circle ends too
    drop_execution(raised.value)
    assert [reference() for reference in references] == [None, None]


def test_an_error_lets_go_also_of_a_frame_that_another_thread_is_about_to_end():
    class Held:
        pass

    def fails():
        held = Held()
        references.append(weakref.ref(held))
        try:
            raise ValueError
        except ValueError as error:
            errors.append(error)
            raised.set()
            kept.wait(30)

    references, errors, raised, kept = [], [], threading.Event(), threading.Event()
    thread = threading.Thread(target=fails)
    thread.start()
    raised.wait(30)
    threading.Timer(0.2, kept.set).start()
    drop_execution(errors[0])
    assert references[0]() is None
    thread.join()


def test_ray_does_not_start_unasked():
    """As it would for a thread that outlives the cluster from which it read."""
    program = """
        import ray
        from raycase.distributed.ray_internals import never_start_unasked
        never_start_unasked()
        try:
            ray.put(1)
        except Exception:
            print(ray.is_initialized())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "False\n"
