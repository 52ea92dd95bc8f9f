"""What is left to do, and what of it is remembered from run to run."""

import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sentences

from raycase.commands.embed import check_embed
from raycase.io.inputs import source_of
from raycase.io.source import InputFile, Span
from raycase.job import plan as plan_module
from raycase.job.output import UnitFile, finished, write_job
from raycase.job.plan import Plan, find_job_file, make_plan


def planned(job):
    """The job's plan, as `embed` makes and remembers it."""
    request = check_embed(job)
    opened, done = find_job_file(request)
    plan = make_plan(request, opened, done)
    write_job(request.output, opened)
    plan.save_spans(request.output.spans)
    return plan


@pytest.fixture
def corpus(job, tmp_path):
    """A job over a Parquet, a CSV and a JSONL file of 300 rows each."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = sentences(300)
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet", row_group_size=70)
    (folder / "b.csv").write_text("text\n" + "\n".join(texts))
    (folder / "c.jsonl").write_text("\n".join(f'{{"text": "{t}"}}' for t in texts))
    return replace(job, input=f"{folder}/**", unit_rows=50)


@pytest.fixture
def seen(monkeypatch):
    """Which files a plan looks at."""
    seen = []

    def counted(file, number):
        seen.append(file.uri.rsplit("/")[-1])
        return source_of(file, number)

    monkeypatch.setattr(plan_module, "source_of", counted)
    return seen


def test_a_resume_does_not_look_at_the_input_again(corpus, seen, tmp_path):
    first = planned(corpus)
    assert sorted(seen) == ["a.parquet", "b.csv", "c.jsonl"] and first.rows == [300, 300, 300]
    seen.clear()
    again = planned(corpus)
    assert seen == [] and not again.learned
    assert list(again.spans_left()) == list(first.spans_left()) and np.array_equal(again.spans, first.spans)
    pq.write_table(pa.table({"text": sentences(10)}), tmp_path / "corpus" / "d.parquet")
    assert planned(corpus).rows == [300, 300, 300, 10] and seen == ["d.parquet"]
    seen.clear()
    assert planned(replace(corpus, unit_rows=60)).learned and len(seen) == 4, "expected other units cut anew"


def test_damaged_spans_are_cut_anew(corpus):
    first = planned(corpus)
    file = check_embed(corpus).output.spans
    data = file.read()
    for at in range(4, len(data), 97):
        file.put(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert np.array_equal(planned(corpus).spans, first.spans)


def test_what_a_limit_cut_short_is_looked_at_again(corpus, seen):
    short = planned(replace(corpus, limit=100))
    assert short.rows[0] == sum(short.rows) == len(short) == 100
    assert [span.units for span in short.spans_left()] == [((0, 70),), ((70, 100),)]
    seen.clear()
    assert planned(corpus).rows == [300, 300, 300] and "a.parquet" in seen
    seen.clear()
    assert planned(replace(corpus, limit=320)).rows == [300, 20, 0] and seen == []


def test_many_spans_are_not_many_objects(job, monkeypatch):
    """A plan, saved and read again, holds 56 bytes a span, and for a moment three times as many."""

    class Wide(SimpleNamespace):
        def splits(self, *_, **__):
            return (Span(file=self.number, start=i, rows=1, at=i, length=1, bytes=1) for i in range(200))

    wide = lambda file, number: Wide(number=number, reading=nullcontext)  # noqa: E731 one line
    monkeypatch.setattr(plan_module, "source_of", wide)
    request = check_embed(replace(job, unit_rows=1))
    opened, done = find_job_file(request)
    opened = replace(opened, files=[InputFile(uri=f"/{i}.parquet", size=1, mark="1") for i in range(100)])
    tracemalloc.start()
    for _ in range(2):
        plan = make_plan(request, opened, done)
        plan.save_spans(request.output.spans)
        assert next(plan.spans_left()).span.rows == 1 and plan.units == len(plan) == 20_000
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 250 * len(plan), "expected arrays"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_is_what_a_set_of_rows_says(seed):
    random = np.random.default_rng(seed)
    spans, rows = [], [int(n) for n in random.integers(1, 200, 4)]
    for file, count in enumerate(rows):
        edges = sorted({0, count, *random.integers(0, count + 1, 3).tolist()})
        for start, end in pairwise(edges):
            spans.append([file, start, end - start, start, 1, 1, len(spans)])
    drawn = (random.integers(low, high, 12).tolist() for low, high in ((0, 5), (0, 150), (1, 40)))
    names = {UnitFile(f, a, n, 0).name("0" * 8) for f, a, n in zip(*drawn, strict=True)}
    done, strays = finished(names, "0" * 8)
    limits = [n if random.random() < 0.5 else int(random.integers(0, n + 1)) for n in rows]
    opened, table = SimpleNamespace(files=[None] * 4), np.array(spans)
    plan = Plan(job_file=opened, spans=table, done=done, unit_rows=17, rows=limits, learned=[])
    covered = [(u.file, row) for u in done for row in range(u.start, u.end)]
    assert covered == sorted({*covered}) and {*strays} == names - {*done.names}
    wanted = {(f, row) for f, n in enumerate(limits) for row in range(n)} - {*covered}
    left = list(plan.spans_left())
    assert [(p.span.file, row) for p in left for a, b in p.units for row in range(a, b)] == sorted(wanted)
    assert (len(plan), plan.units) == (len(wanted), sum(len(p.units) for p in left))
    assert len(plan) == done.missing(limits)
