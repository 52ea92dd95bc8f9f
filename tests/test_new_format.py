"""A format of input from outside: a class, and its ending in the table."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.feather as feather
from helpers import embed_here, read_output, read_rejected

from raycase.io.inputs import FORMATS
from raycase.io.reader import read_columns
from raycase.io.schema import check_columns
from raycase.io.source import InputFile, Source


class Feather(Source):
    @property
    def schema(self):
        with self.location.open() as handle:
            return pa.ipc.open_file(handle).schema

    def splits(self, columns, *, unit_rows, span_bytes, most_rows):
        check_columns(self.schema, columns, self.file.uri)
        with self.location.open() as handle:
            rows = len(feather.read_table(handle))
        yield self.span(0, rows, 0, rows, self.file.size)

    def read(self, names, span=None):
        with self.location.open() as handle:
            yield self.planned(feather.read_table(handle, columns=list(names)), span)


def test_it_is_embedded_from_and_read_whole(job, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, ".feather", Feather)
    path = str(tmp_path / "a.feather")
    feather.write_feather(pa.table({"text": ["a dog", "", "two cats"], "n": [1, 2, 3]}), path)
    job = replace(job, input=path, id_column=None, text_column="text", keep_columns=("text", "n"), max_rejected=1)
    assert embed_here(job)["rows_rejected"] == 1
    assert read_output(job.output)["n"].unique().to_pylist() == [1, 3]
    assert [row["reason"] for row in read_rejected(job.output)] == ["empty text"]
    assert read_columns(InputFile(uri=path, size=1, mark=""), ["n"], "--train") == {"n": [1, 2, 3]}
