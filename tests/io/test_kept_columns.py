"""Kept columns of every type and name: what an index gives back is what went in, or embed refuses its name."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, read_output
from input_files import columns_of, read_from, spans_of, the_file, write
from storing import indexed

from raycase.commands.embed import EmbedFlags
from raycase.errors import RequestError
from raycase.index.index import Index
from raycase.io.reader import KEEP
from raycase.job.verify import verify
from raycase.papers.baselines.model import bi_encoder

NOON = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012)
DAY, TIME = datetime.date(2024, 2, 29), datetime.time(1, 2, 3, 4000)
STRUCT = pa.struct([("x", pa.int8()), ("y", pa.string())])

KEPT = {
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "decimal128": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(38, 10)),
    "timestamp": pa.array([NOON, None, NOON], pa.timestamp("us")),
    "timestamp with a zone": pa.array([NOON, None, NOON], pa.timestamp("us", "Europe/Zurich")),
    "date32": pa.array([DAY, None, datetime.date(1, 1, 1)], pa.date32()),
    "time64": pa.array([TIME, None, TIME], pa.time64("us")),
    "duration": pa.array([5, None, -7], pa.duration("us")),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}], STRUCT),
    "list": pa.array([["a", None], None, []], pa.list_(pa.string())),
    "list of structs": pa.array([[{"x": 1, "y": "a"}, None], None, []], pa.list_(STRUCT)),
    "large list": pa.array([["a", None], None, []], pa.large_list(pa.large_string())),
    "list of fixed size": pa.array([[1, None], None, [5, 6]], pa.list_(pa.float32(), 2)),
    "uint8": pa.array([0, None, 255], pa.uint8()),
    "uint32": pa.array([0, None, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "float16": pa.array([1.5, None, -2.25], pa.float16()),
    "bool": pa.array([True, None, False]),
    "null": pa.nulls(3),
    "string": pa.array(["", None, "é\0\n"]),
    "large string": pa.array(["a", None, "b"], pa.large_string()),
    "binary": pa.array([b"\xff", None, b""]),
    "large binary": pa.array([b"\xff", None, b""], pa.large_binary()),
    "binary of fixed size": pa.array([b"abc", None, b"def"], pa.binary(3)),
}


def test_what_comes_back_from_an_index_is_what_went_in(tmp_path, tiny_model):
    bi_encoder(str(tiny_model)).trainable().save(tmp_path / "bi")
    table = pa.table({"id": [1, 2, 3], "text": ["a red dog", "a blue cat", "a man"], "Year": [1, 2, 3]} | KEPT)
    names = [*KEPT, "Year", "year", 'a "b"', "a\nb", " "]
    for name in names[-4:]:
        table = table.append_column(name, pa.array([f"{name}{i}" for i in range(3)]))
    pq.write_table(table, tmp_path / "in.parquet")
    wanted = pq.read_table(tmp_path / "in.parquet").select(names).to_pylist()
    files = {"input": str(tmp_path / "in.parquet"), "output": str(tmp_path / "out"), "model": str(tmp_path / "bi")}
    job = EmbedFlags(**files, conditions=("color",), keep_columns=tuple(names), unit_rows=2)
    assert embed_here(job)["rows_out"] == 3
    assert read_output(job.output).select(names).to_pylist() == wanted
    verify(job.output)
    found = Index.open(indexed(tmp_path / "i.lance", job.output)).search("a red dog", "color", 3).sort_by("id")
    assert found.select(names).to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "a dot, a backtick or a NUL") for name in ("a`b", "", "a.b", ".", "a\0b")),
        *((name, "for themselves") for name in ("_rowid", "_rowaddr", "_rowoffset", "_distance", "_score")),
        *((name, "for themselves") for name in ("vector", "plain", "word_codes", "word_sketch", "weights")),
        *((name, "for themselves") for name in ("query", "asked", "pooled", "rank", "score")),
    ],
)
def test_a_name_that_an_index_cannot_have_is_refused(tmp_path, name, words):
    path = write(tmp_path / "x.parquet", pa.table({"text": ["a"], name: ["b"]}))
    with pytest.raises(RequestError, match=words) as error:
        columns_of(path, keep=["text", name])
    assert str(error.value).startswith("--keep-columns: ") and len(str(error.value)) < 600
    assert columns_of(path, keep=["text"]).keep == ("text",)


OFFSETS = pa.py_buffer(np.array([0, 1, 2, 3], np.int32))
BROKEN = pa.Array.from_buffers(pa.string(), 3, [None, OFFSETS, pa.py_buffer(b"a\xffb")])
LISTS = pa.array([0, 1, 2, 3], pa.int32())
ODD_TIMES = [(2**62, pa.timestamp("us")), (2**30, pa.date32()), (2**62, pa.duration("s"))]
ODD_TIMES += [(1, pa.timestamp("us", "Mars/Base"))]


@pytest.mark.parametrize(
    ("text", "column", "rejected"),
    [
        *(("", pa.array([value, 1, 2], kind), 1) for value, kind in ODD_TIMES),
        ("a", pa.ListArray.from_arrays(LISTS, pa.StructArray.from_arrays([BROKEN], ["s"])), 2),
        ("a", pa.ListArray.from_arrays(LISTS, pa.ListArray.from_arrays(LISTS, BROKEN)), 2),
    ],
)
def test_a_value_that_python_has_not_rejects_its_row_at_most(tmp_path, text, column, rejected):
    """One row is without text, or has no UTF-8; it is kept with its reason, and the others are read."""
    path = write(tmp_path / "x.parquet", pa.table({"id": [1, 2, 3], "text": [text, "b", "c"], "v": column}))
    columns = columns_of(path, keep=["v"])
    [span] = spans_of(the_file(path), columns)
    [(rows, rejections)] = read_from(the_file(path), span, columns, [(0, 3)])
    assert rows["id"].to_pylist() == [i for i in (1, 2, 3) if i != rejected]
    assert [r.id for r in rejections] == [str(rejected)]
    assert json.loads(rejections[0].content)["id"] == rejected
    others = [i for i in range(3) if i + 1 != rejected]
    assert rows[KEEP + "v"].combine_chunks().equals(column.take(pa.array(others)).cast(columns.types["v"]))
