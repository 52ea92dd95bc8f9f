"""A finished output read back: all files in order, few of them ahead; what is not finished is refused."""

import pytest
from helpers import embedded, read_output, sentences

from raycase.corpus import written
from raycase.corpus.written import Written, open_written
from raycase.errors import RequestError


def test_files_come_in_order_and_few_are_read_ahead(tmp_path, tiny_model, monkeypatch):
    rows = [{"id": i, "text": t} for i, t in enumerate(sentences(200))]
    output = open_written(embedded(tmp_path, tiny_model, rows, conditions=("color",), unit_rows=10), "--embeddings")
    assert len(output.names) == 20
    begun = []
    read = Written._read
    monkeypatch.setattr(Written, "_read", lambda *arguments: begun.append(1) or read(*arguments))
    ids = []
    for done, table in enumerate(output.tables(["id"])):
        assert len(begun) <= done + written.AHEAD + 1
        ids += table["id"].to_pylist()
    assert ids == list(range(200)) and len(begun) == 20
    assert output.schema().equals(read_output(str(tmp_path / "out")).schema)


def test_what_is_not_finished_is_refused(tmp_path, tiny_model):
    with pytest.raises(RequestError, match="--vectors: expected an output of `raycase embed`"):
        open_written(str(tmp_path), "--vectors")
    folder = embedded(tmp_path, tiny_model, [{"id": 1, "text": "a dog"}], conditions=("color",))
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(RequestError, match="expected a finished output"):
        open_written(folder, "--embeddings")
