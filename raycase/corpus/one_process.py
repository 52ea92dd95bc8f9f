"""A plan's units in this process: rows are read ahead and files written behind, in threads, while the encoder works."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.job_record import Job
from raycase.corpus.plan import Plan
from raycase.corpus.read_step import read_units
from raycase.corpus.records import ReadTask, ReadUnit, WrittenUnit, write_encoded
from raycase.corpus.request import Request

AHEAD = 2

Item = TypeVar("Item")


def execute_here(request: Request, opened: Job, plan: Plan, *, ahead: int = AHEAD) -> Iterator[WrittenUnit]:
    """Read, encode and write the plan's units, by the steps that run on Ray; yields each when its file is written.

    `ahead`: units that may wait for the encoder, and for their file; 0: a unit is written before the next is encoded.
    A row that kills its encoder ends this process: only on Ray is its unit rejected. Raises RequestError and
    WorkError.
    """
    encode = EncodeUnits(**request.step, units=plan.units)
    output = request.output
    write = partial(write_encoded, output=output.root.uri, results=output.results, print8=opened.print8)
    writing: deque[Future[WrittenUnit]] = deque()
    with ThreadPoolExecutor(1) as writer:
        for unit in read_ahead(_read(request, opened, plan), max(1, ahead)):
            writing.append(writer.submit(write, encode(unit)))
            while len(writing) > ahead or (writing and writing[0].done()):
                yield writing.popleft().result()
        while writing:
            yield writing.popleft().result()


def _read(request: Request, opened: Job, plan: Plan) -> Iterator[ReadUnit]:
    for pieces in plan.tasks():
        yield from read_units(ReadTask.of(opened.files, pieces), config=request.model, kind=request.kind)


def read_ahead(items: Iterator[Item], most: int) -> Iterator[Item]:
    """The items, of which a thread draws up to `most` before they are asked for. Raises what `items` raises."""
    end = object()
    reader = ThreadPoolExecutor(1)
    try:
        ahead = deque(reader.submit(next, items, end) for _ in range(most))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(reader.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        reader.shutdown(cancel_futures=True)  # what is under way ends first: it reads from files that others close
