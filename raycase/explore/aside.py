"""Maps are computed aside: in a process with less right to the processor, which ends with the one that asks.

A thread would not do: compiled code that moves points holds the interpreter for a tenth of a second at a time.
Both sides write messages: eight bytes, the length, and arrays as NumPy keeps them in an .npz.
"""

from __future__ import annotations

import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import IO, Any

import numpy as np

from raycase.errors import WorkError, named
from raycase.explore.grouping import Groups, MapSettings, arrange, group

Arrays = dict[str, np.ndarray]
LENGTH = struct.Struct("<Q")
NICE = 10


class Aside:
    """The process, which starts with the first work and again where it ended. For one thread at a time."""

    def __init__(self, seconds: float, nice: int = NICE) -> None:
        """seconds: that some work may take; nice: 19 for the least right to the processor, 0 for an equal one."""
        self.seconds, self.nice = seconds, nice
        self.process: subprocess.Popen[bytes] | None = None

    def do(self, work: str, **arrays: Any) -> Arrays:
        """What a function of `WORKS` makes of arrays and numbers. Raises WorkError where it fails, takes too long, or
        its process ends."""
        process = self._running()
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(self.seconds, end)
        clock.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            _write(process.stdin, {"work": np.array(work)} | {name: np.asarray(each) for name, each in arrays.items()})
            answer = _read(process.stdout)
        except (OSError, EOFError) as error:
            self.close()
            got = f"none within {self.seconds:g} s" if late.is_set() else "the end of its process"
            raise WorkError(f"expected a map, got {got}; show fewer rows, or see this machine's memory") from error
        finally:
            clock.cancel()
        if "error" in answer:
            raise WorkError(f"expected a map, got {answer['error']}")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raycase.explore.aside", str(self.nice)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the process that asks
            )
        return self.process

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what it did not read
                    pipe and pipe.close()

    def __del__(self) -> None:
        self.close()


def _write(file: IO[bytes], arrays: Arrays) -> None:
    data = BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    file.write(LENGTH.pack(data.tell()))
    file.write(data.getbuffer())
    file.flush()


def _read(file: IO[bytes]) -> Arrays:
    """The next message. Raises EOFError where there is none."""
    data = file.read(LENGTH.size)
    if len(data) == LENGTH.size:
        data = file.read(size := LENGTH.unpack(data)[0])
        if len(data) == size:
            with np.load(BytesIO(data), allow_pickle=False) as arrays:
                return dict(arrays)
    raise EOFError


# -------------------------------------------------------------------------------------------------------- the process


def _group(*, vectors: np.ndarray, neighbours: np.ndarray, clusters: np.ndarray, seed: np.ndarray) -> Arrays:
    return vars(group(vectors, MapSettings(neighbours=int(neighbours), clusters=int(clusters), seed=int(seed))))


def _arrange(
    *, vectors: np.ndarray, seed: np.ndarray, before: np.ndarray | None = None, **groups: np.ndarray
) -> Arrays:
    return {"positions": arrange(vectors, Groups(**groups), before, int(seed))}


WORKS: dict[str, Callable[..., Arrays]] = {"group": _group, "arrange": _arrange}


def main() -> None:
    """Do what is read from standard input until it ends."""
    os.nice(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    asked: queue.SimpleQueue[Arrays] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while True:
        arrays = asked.get()
        work = str(arrays.pop("work"))
        try:
            answer = WORKS[work](**arrays)
        except Exception as error:
            answer = {"error": np.array(named(error))}
        _write(answers, answer)


def _listen(asked: queue.SimpleQueue[Arrays]) -> None:
    """Ends the process, whatever it does, when nobody asks any more."""
    with suppress(EOFError):
        while True:
            asked.put(_read(sys.stdin.buffer))
    os._exit(0)


if __name__ == "__main__":
    main()
