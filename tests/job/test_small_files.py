"""Small files share units: the same rows under the same ids, whatever the limit, the unit's size and later files."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import cosines, embed_here, read_output, read_rejected, sentences, stopped, vectors
from storing import indexed

from raycase.commands.embed import check_embed
from raycase.index.build import build
from raycase.index.index import Index
from raycase.job.output import Output, Sharing, read_job, write_job
from raycase.job.plan import find_job_file
from raycase.job.verify import verify


def write(file, texts):
    if file.suffix == ".parquet":
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), file, row_group_size=3)
    elif file.suffix == ".csv":
        file.write_text("text\n" + "".join(f'"{text or ""}"\n' for text in texts))
    else:
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def small(job, tmp_path):
    """Forty files of 0 to 9 rows, of all kinds, and a larger one between them; ids are `file:row`."""
    folder = tmp_path / "small"
    folder.mkdir()
    sizes = np.random.default_rng(0).integers(0, 10, 40)
    sizes[[0, 3, 17]] = 0, 0, 70
    texts = iter(sentences(int(sizes.sum())))
    for number, size in enumerate(sizes):
        name = f"{number:02d}.{('parquet', 'csv', 'jsonl')[number % 3]}"
        write(folder / name, [next(texts) for _ in range(int(size))])
    return replace(job, input=f"{folder}/**", unit_rows=50, max_rejected=1)


def apart(job):
    """The same job with units for each file; gives its output."""
    job = replace(job, output=job.output + "-apart")
    request = check_embed(job)
    opened, _ = find_job_file(request)
    write_job(request.output, replace(opened, sharing=Sharing(rows=0)))
    embed_here(job)
    return read_output(job.output)


def equal(job, wanted):
    order = [("id", "ascending"), ("condition", "ascending")]
    found, wanted = (table.sort_by(order) for table in (read_output(job.output), wanted))
    assert found.drop_columns(["embedding"]).equals(wanted.drop_columns(["embedding"]))
    assert cosines(vectors(found), vectors(wanted)).min() > 0.9999
    verify(job.output)


def test_a_limit_that_grows_and_other_units_lose_and_repeat_nothing(small):
    assert embed_here(replace(small, limit=120))["rows_in"] == 120
    stopped(replace(small, unit_rows=7, limit=150), 1)
    Output(small.output).spans.remove()  # the plan is made anew
    embed_here(replace(small, unit_rows=7))
    assert read_job(Output(small.output)).sharing.rows == 50, "expected the units of the first run"
    equal(small, apart(small))


def test_they_are_few_units_and_the_same_rows_and_later_files_join_the_last_unit(small, tmp_path):
    assert embed_here(small)["units_done"] < 12, "expected fewer units than files"
    equal(small, apart(small))
    shutil.rmtree(f"{small.output}-apart")
    before = set(Output(small.output).units.list())
    for name in ("x.csv", "y.jsonl"):
        write(tmp_path / "small" / name, [f"a dog {name}", f"a cat {name}"])
    result = embed_here(small)
    assert result["units_done"] == 1 and before < set(Output(small.output).units.list())
    equal(small, apart(small))


def test_rejected_rows_name_their_own_file_and_row(small, tmp_path):
    write(tmp_path / "small" / "01.csv", ["a dog", "", "a cat"])
    write(tmp_path / "small" / "02.jsonl", ["a dog", "dog " * 99, "a poison"])
    embed_here(replace(small, on_long="reject"))
    found = [(r["file"].rsplit("/")[-1], r["row"], r["reason"]) for r in read_rejected(small.output)]
    bad = [("02.jsonl", 1, "text too long"), ("02.jsonl", 2, "vector not finite")]
    assert found == [("01.csv", 1, "empty text"), *bad]
    assert "file" not in json.loads(read_rejected(small.output)[1]["content"])


def test_an_index_takes_the_files_of_another_output_that_share_a_unit(small, tmp_path):
    """Under the same first file stand other rows: what is covered is of one output alone."""
    folder = tmp_path / "two"
    folder.mkdir()
    write(folder / "a.csv", ["a dog"])
    write(folder / "b.csv", ["a cat"])
    first = replace(small, input=str(folder), output=str(tmp_path / "first"))
    embed_here(first)
    write(folder / "b.csv", ["two people"])
    second = replace(first, output=str(tmp_path / "second"))
    embed_here(second)
    uri = indexed(tmp_path / "index.lance", first.output)
    assert build(embeddings=(second.output,), output=uri, replace=True)["rows"] == 4
    assert Index.open(uri).search("two people", "color", 1)["text"].to_pylist() == ["two people"]
