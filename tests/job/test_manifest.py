"""The manifest of a finished output: its counts, and the lines of units that earlier runs wrote."""

from dataclasses import replace

import duckdb
import numpy as np
import pandas as pd
import pytest
from helpers import embed_here, swap_rows

from raycase.errors import RequestError, WorkError
from raycase.job.output import Output
from raycase.job.run import UnfitError
from raycase.job.verify import verify


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


def test_a_unit_that_was_replaced_is_found_after_another_was_made_again(job):
    embed_here(job)
    swap_rows(job.output)
    folder = Output(job.output).units
    (folder / max(folder.list())).remove()
    with pytest.raises(WorkError, match="embeddings/"):
        embed_here(job)
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
