"""An output is read back and checked against its manifest; each kind of damage is named."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here

from raycase.errors import RequestError, WorkError
from raycase.job.output import output_at
from raycase.job.verify import verify


def test_verify_finds_what_is_wrong(job):
    with pytest.raises(RequestError, match=r"got no job\.json"):
        verify(job.output)
    embed_here(job)
    folder = output_at(job.output).embeddings
    name = sorted(folder.list())[1]
    good = (folder / name).read()
    (folder / name).put(good[:-9] + b"123456789")
    with pytest.raises(WorkError, match="checksum differs"):
        verify(job.output)
    (folder / name).remove()
    with pytest.raises(WorkError, match="missing"):
        verify(job.output)
    (folder / name).put(good)
    verify(job.output)


def test_verify_reports_an_id_that_is_in_two_units(job, tmp_path):
    pq.write_table(pa.table({"id": ["same", "b", "same"], "text": ["a dog"] * 3}), tmp_path / "twice.parquet")
    job = replace(job, input=str(tmp_path / "twice.parquet"), unit_rows=1)
    assert embed_here(job)["rows_out"] == 3
    with pytest.raises(WorkError, match="id 'same' under 'color': 2 times"):
        verify(job.output)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: (out.embeddings / "x.parquet").put(b""), "embeddings/x.parquet: not in the manifest"),
        (
            lambda out: out.manifest.put_json(out.manifest.read_json() | {"pairs": 9}),
            "pairs is 9, its files add up to 6",
        ),
        (lambda out: (out.rejected / next(iter(out.rejected.list()))).put(b"PAR1"), "rejected/.*: checksum differs"),
        (lambda out: (out.rejected / next(iter(out.rejected.list()))).remove(), "rejected/.*: missing"),
        (lambda out: out.manifest_files.remove(), "manifest_files.parquet: missing"),
        (lambda out: out.manifest.remove(), "expected manifest.json, got none"),
    ],
)
def test_verify_names_each_defect(job, tmp_path, damage, words):
    texts = ["a red dress", None, "a dog", "two men"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "four.parquet")
    job = replace(job, input=str(tmp_path / "four.parquet"), unit_rows=3, max_rejected=1)
    pq.write_table(pa.table({"text": texts}), tmp_path / "four.parquet", row_group_size=3)
    embed_here(job)
    verify(job.output)
    damage(output_at(job.output))
    with pytest.raises(WorkError, match=words):
        verify(job.output)
