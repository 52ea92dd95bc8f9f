"""An output is read back, all or in part, and checked against its manifest; each damage is named."""

import re
from dataclasses import replace

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, embedded, read_output, sentences, swap_rows
from indexed import refuse

from raycase.errors import RequestError, WorkError
from raycase.job.output import Output
from raycase.job.run import UnfitError
from raycase.job.verify import AHEAD, open_written, read_rows, verify


@pytest.mark.parametrize("unit_rows", [1, 9])
def test_an_id_of_two_rows_ends_the_job_whatever_its_units_and_nothing_takes_it(job, tmp_path, monkeypatch, unit_rows):
    monkeypatch.setattr("raycase.job.verify.PART_PAIRS", unit_rows)  # they are looked for in parts
    (tmp_path / "twice").mkdir()
    for name, ids in (("a", ["same", "b", "b"]), ("b", ["c", "same", None])):
        pq.write_table(pa.table({"id": ids, "text": ["a dog"] * 3}), tmp_path / "twice" / f"{name}.parquet")
    job = replace(job, input=str(tmp_path / "twice"), unit_rows=unit_rows, max_rejected=1)
    for _ in range(2):
        with pytest.raises(UnfitError, match="got several rows with 'same', 'b'; mend") as error:
            embed_here(job)
        assert (error.value.result["rows_out"], error.value.result["rows_rejected"]) == (5, 1)
    with pytest.raises(WorkError, match=r"several rows with the id 'same'; several rows with the id 'b'$"):
        verify(job.output)
    refuse({"embeddings": (job.output,), "output": str(tmp_path / "i")}, "^--embeddings: .* 'same', 'b'; mend")
    assert not (tmp_path / "i").exists()


def test_an_id_may_have_a_row_for_each_condition(job, tmp_path):
    rows = [{"id": i // 2, "text": "a dog", "under": ["color", "number"][i % 2], "year": i} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    job = replace(job, input=str(tmp_path / "rows.parquet"), conditions=(), condition_column="under")
    result = embed_here(replace(job, unit_rows=2, keep_columns=("year",)))
    table = read_output(job.output)
    assert (result["rows_out"], result["distinct_pairs"]) == (4, 4)
    assert table["condition"].to_pylist() == ["color", "number"] * 2 and table["year"].to_pylist() == [0, 1, 2, 3]
    assert table["embedding"][0].equals(table["embedding"][2])
    assert verify(job.output)["pairs"] == 4


def first(folder):
    return folder / min(folder.list())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: swap_rows(out.root.uri), "embeddings/.*: (checksum differs|.* bytes, the manifest has)"),
        (lambda out: first(out.units).remove(), "embeddings/.*: missing"),
        (lambda out: (out.units / "x.parquet").put(b""), "embeddings/x.parquet: not in the manifest"),
        (
            lambda out: out.manifest.put_json(out.manifest.read_json() | {"pairs": 9}),
            "pairs is 9, its files add up to 6",
        ),
        (lambda out: first(out.rejected).remove(), "embeddings/(.*): its rejected/\\1: missing"),
        (lambda out: (out.rejected / "x.parquet").put(b""), "rejected/x.parquet: not in the manifest"),
        (lambda out: out.manifest_files.remove(), "manifest_files.parquet: missing"),
        (lambda out: out.manifest.remove(), "expected manifest.json, got none"),
    ],
)
def test_verify_names_each_defect(job, tmp_path, damage, words):
    texts = ["a red dress", None, "a dog", "two men"]
    job = replace(job, input=str(tmp_path / "four.parquet"), unit_rows=3, max_rejected=1)
    pq.write_table(pa.table({"text": texts}), tmp_path / "four.parquet", row_group_size=3)
    embed_here(job)
    verify(job.output)
    damage(Output(job.output))
    with pytest.raises((RequestError, WorkError), match=words):
        verify(job.output)


LINES = ("manifest.json", "manifest_files.parquet")


@pytest.mark.parametrize(
    ("gone", "damaged", "advice"),
    [
        (["rejected"], [], r"embeddings/(.*): its rejected/\1: missing; remove the file and run"),
        (["rejected", *LINES], [], r"expected .*embeddings/(.*) and its rejected rows, got: .*; remove it and run"),
        ([*LINES], ["rejected"], r"expected .*embeddings/(.*) and its rejected rows, got: .*; remove it and run"),
        (LINES[1:], [], r"missing; remove (manifest.json) and (manifest_files.parquet) and run"),
        ([], LINES[1:], r"checksum differs; remove (manifest.json) and (manifest_files.parquet) and run"),
    ],
)
def test_who_does_what_an_error_of_a_resumed_job_advises_is_done(job, tmp_path, gone, damaged, advice):
    job = replace(job, input=str(tmp_path / "two.parquet"), max_rejected=1)
    pq.write_table(pa.table({"text": ["a red dress", None]}), tmp_path / "two.parquet")
    embed_here(job)
    output = Output(job.output)
    [unit] = output.units.list()
    places = {"rejected": output.rejected / unit, unit: output.units / unit}
    for name in gone:
        places.get(name, output.root / name).remove()
    for name in damaged:
        places.get(name, output.root / name).put(b"PAR1")
    with pytest.raises(WorkError, match=advice) as error:
        embed_here(job)
    for name in re.search(advice, str(error.value)).groups():
        places.get(name, output.root / name).remove()
    assert embed_here(job)["rows_rejected"] == 1
    verify(job.output)


# ------------------------------------------------------------------------------------------------------------ read back


def test_files_come_in_order_and_few_are_read_ahead(tmp_path, tiny_model, monkeypatch):
    rows = [{"id": i, "text": t} for i, t in enumerate(sentences(200))]
    output = open_written(embedded(tmp_path, tiny_model, rows, conditions=("color",), unit_rows=10), "--embeddings")
    assert len(output.names) == 20
    begun = []
    read = lambda *arguments: begun.append(1) or read_rows(*arguments)  # noqa: E731 one line
    monkeypatch.setattr("raycase.job.verify.read_rows", read)
    ids = []
    for done, table in enumerate(output.tables(["id"])):
        assert len(begun) <= done + AHEAD + 1
        ids += table["id"].to_pylist()
    assert ids == list(range(200)) and len(begun) == 20
    assert output.schema.equals(read_output(str(tmp_path / "out")).schema)


def test_a_file_that_is_not_the_manifests_is_refused(tmp_path, tiny_model):
    rows = [{"id": i, "text": t} for i, t in enumerate(sentences(30))]
    folder = embedded(tmp_path, tiny_model, rows, conditions=("color",), unit_rows=10)
    name = swap_rows(folder)
    output = open_written(folder, "--embeddings")
    with pytest.raises(WorkError, match=f"{name} as in its manifest, got: .*checksum differs; remove the file"):
        list(output.tables())
    output.output.manifest_files.put(b"PAR1")
    with pytest.raises(WorkError, match=r"manifest_files\.parquet: checksum differs"):
        open_written(folder, "--embeddings")
    output.output.manifest.remove()
    with pytest.raises(RequestError, match=r"expected a finished output .*, got no manifest\.json"):
        open_written(folder, "--embeddings")


# --------------------------------------------------------------------------------------------------------- the manifest


def test_read_back_as_plain_columns(job):
    embed_here(replace(job, dtype="float16"))
    frame = pd.read_parquet(job.output + "/embeddings")
    assert list(frame.columns) == ["id", "condition", "text", "embedding"]
    assert frame.embedding[0].dtype == np.float16 and frame.embedding[0].shape == (32,)
    columns, files = "id, condition, text, embedding::float[]", job.output + "/embeddings/*.parquet"
    rows = duckdb.sql(f"select {columns} from '{files}' order by id, condition").fetchall()
    assert len(rows) == 1000 and len(rows[0][3]) == 32
    first = frame[(frame.id == rows[0][0]) & (frame.condition == rows[0][1])].embedding.iloc[0]
    assert np.allclose(first, rows[0][3])


def test_too_many_rejected_is_an_error_and_the_output_is_complete(job, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a dog"}\nnot json\n{"text": "a cat"}\n')
    job = replace(job, input=str(tmp_path / "in.jsonl"))
    with pytest.raises(UnfitError, match="line does not parse") as error:
        embed_here(job)
    assert error.value.result["rows_rejected"] == 1
    assert verify(job.output)["rows_out"] == 2


def test_a_limit_below_what_is_there_with_a_gap_is_refused(job):
    embed_here(job)
    folder = Output(job.output).units
    (folder / sorted(folder.list())[2]).remove()
    with pytest.raises(WorkError, match=r"rows 200 to 300 of .* are missing; raise --limit"):
        embed_here(replace(job, limit=100))
    assert embed_here(job)["units_done"] == 1
    verify(job.output)


def test_damaged_lines_of_a_manifest_are_named(job):
    embed_here(job)
    output = Output(job.output)
    (output.units / max(output.units.list())).remove()
    data = output.manifest_files.read()
    output.manifest_files.put(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(RequestError, match=r"manifest_files\.parquet: expected lines of a manifest, .*; remove it"):
        embed_here(job)
    output.manifest_files.remove()
    embed_here(job)
    verify(job.output)


def test_a_unit_that_was_replaced_is_found_after_another_was_made_again(job):
    embed_here(job)
    swap_rows(job.output)
    folder = Output(job.output).units
    (folder / max(folder.list())).remove()
    with pytest.raises(WorkError, match="embeddings/"):
        embed_here(job)
        verify(job.output)
