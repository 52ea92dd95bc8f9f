"""A finished output read back: all files in order, few of them ahead; what is not finished is refused."""

import pytest
from helpers import embedded, read_output, sentences, swap_rows

from raycase.errors import RequestError, WorkError
from raycase.job import finished_output
from raycase.job.finished_output import open_written


def test_files_come_in_order_and_few_are_read_ahead(tmp_path, tiny_model, monkeypatch):
    rows = [{"id": i, "text": t} for i, t in enumerate(sentences(200))]
    output = open_written(embedded(tmp_path, tiny_model, rows, conditions=("color",), unit_rows=10), "--embeddings")
    assert len(output.names) == 20
    begun = []
    read = finished_output.read_rows
    monkeypatch.setattr(finished_output, "read_rows", lambda *arguments: begun.append(1) or read(*arguments))
    ids = []
    for done, table in enumerate(output.tables(["id"])):
        assert len(begun) <= done + finished_output.AHEAD + 1
        ids += table["id"].to_pylist()
    assert ids == list(range(200)) and len(begun) == 20
    assert output.schema.equals(read_output(str(tmp_path / "out")).schema)


def test_what_is_not_finished_is_refused(tmp_path, tiny_model):
    with pytest.raises(
        RequestError, match=r"--vectors: expected a finished output of `raycase embed` at .*, got no job\.json"
    ):
        open_written(str(tmp_path), "--vectors")
    folder = embedded(tmp_path, tiny_model, [{"id": 1, "text": "a dog"}], conditions=("color",))
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(RequestError, match=r"expected a finished output .*, got no manifest\.json"):
        open_written(folder, "--embeddings")


def test_a_file_that_is_not_the_manifests_is_refused(tmp_path, tiny_model):
    rows = [{"id": i, "text": t} for i, t in enumerate(sentences(30))]
    folder = embedded(tmp_path, tiny_model, rows, conditions=("color",), unit_rows=10)
    name = swap_rows(folder)
    output = open_written(folder, "--embeddings")
    with pytest.raises(WorkError, match=f"{name} as in its manifest, got: .*checksum differs; remove the file"):
        list(output.tables())
    (output.output.units / name).remove()
    with pytest.raises(WorkError, match=f"{name} as in its manifest, got: .*missing; remove the file"):
        list(open_written(folder, "--embeddings").tables())
    output.output.manifest_files.put(b"PAR1")
    with pytest.raises(WorkError, match=r"manifest_files\.parquet: checksum differs"):
        open_written(folder, "--embeddings")
