"""The read step: every bad row is kept with its reason; a row may have conditions of its own."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, read_output, read_rejected

from raycase.errors import RequestError, WorkError
from raycase.job import read_step
from raycase.job.verify import verify

SMILE = "\U0001f642"  # the tiny model does not know it


def test_condition_column_keeps_rows_and_pairs_apart(job, tmp_path):
    rows = [
        {"text": "a red dress", "aspects": ["color", "number"], "year": 1},
        {"text": "a blue dog", "aspects": "color", "year": 2},
        {"text": "a red dress", "aspects": ["color"], "year": 3},
        {"text": "two cats", "aspects": []},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"conditions": (), "condition_column": "aspects", "keep_columns": ("year", "aspects")}
    job = replace(job, input=str(path), max_rejected=1, **options)
    result = embed_here(job)
    counts = {"rows_in": 4, "rows_out": 3, "rows_rejected": 1, "pairs": 4, "distinct_pairs": 3}
    assert counts.items() <= result.items()
    table = read_output(job.output)
    assert table["condition"].to_pylist() == ["color", "number", "color", "color"]
    assert table["year"].to_pylist() == [1, 1, 2, 3]
    assert [r["reason"] for r in read_rejected(job.output)] == ["empty condition"]  # more of them: `test_operators.py`
    assert table["embedding"][0].equals(table["embedding"][3])


def test_every_bad_row_is_kept_with_its_reason_and_place(job, tmp_path):
    texts = [b"a red dress", None, b"", b" \t ", b"a \xff dog", b"poison dog", b"a blue dog", b"cat " * 99, b"man"]
    ids = ["a", "b", "c", "d", "e", "f", "g", "h", None]
    pq.write_table(pa.table({"id": ids, "text": pa.array(texts).view(pa.string())}), tmp_path / "bad.parquet")
    job = replace(job, input=str(tmp_path / "bad.parquet"), max_rejected=1, on_long="reject")
    result = embed_here(job)
    wanted = ["null text", "empty text", "empty text", "invalid UTF-8"]
    wanted += ["vector not finite", None, "text too long", "null id"]
    reasons = {row: reason for row, reason in enumerate(wanted, 1) if reason}
    assert {r["row"]: r["reason"] for r in read_rejected(job.output)} == reasons
    assert read_output(job.output)["text"].to_pylist() == ["a red dress"] * 2 + ["a blue dog"] * 2
    assert all(r["file"] == job.input for r in read_rejected(job.output))
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (9, 2, 7)
    verify(job.output)


def test_texts_without_a_known_token_are_rejected_unless_told(job, tmp_path):
    texts = ["a red dress", SMILE, "a " + SMILE, f"{SMILE} {SMILE}{SMILE}", "red"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "odd.parquet")
    job = replace(job, input=str(tmp_path / "odd.parquet"), max_rejected=1)
    result = embed_here(job)
    wanted = [(row, "text without a token that the encoder knows") for row in (1, 3)]
    assert [(r["row"], r["reason"]) for r in read_rejected(job.output)] == wanted
    assert (result["rows_out"], result["rows_rejected"]) == (3, 2)
    verify(job.output)
    told = replace(job, on_unknown="embed")
    with pytest.raises(RequestError, match=r"got another \(on_unknown: reject there, embed requested\)"):
        embed_here(told)
    assert embed_here(replace(told, overwrite=True))["rows_out"] == 5
    with pytest.raises(RequestError, match=r"got another \(on_unknown: embed there, reject requested\)"):
        embed_here(job)  # as a job that an earlier version began


def test_a_document_is_rejected_where_no_chunk_has_a_known_token(job, tmp_path):
    pytest.importorskip("semantic_text_splitter")
    smiles = f"{SMILE} " * 9
    texts = [smiles, f"a red dog.\n\n{smiles}", f"{smiles}\n\na red dog."]
    pq.write_table(pa.table({"text": texts}), tmp_path / "long.parquet")
    job = replace(job, input=str(tmp_path / "long.parquet"), max_rejected=1, chunk=5)
    assert embed_here(job)["rows_out"] == 2
    assert [r["row"] for r in read_rejected(job.output)] == [0]
    verify(job.output)


def test_a_step_that_loses_a_row_is_found_out(job, monkeypatch):
    read_span = read_step.read_span
    lossy = lambda *a: ((rows.slice(1), rejected) for rows, rejected in read_span(*a))  # noqa: E731
    monkeypatch.setattr(read_step, "read_span", lossy)
    with pytest.raises(WorkError, match="from row 0: 100 rows in, 99 out and rejected"):
        embed_here(job)
