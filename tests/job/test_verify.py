"""An output is read back and checked against its manifest; each kind of damage is named."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, swap_rows

from raycase.errors import RequestError, WorkError
from raycase.job.output import Output
from raycase.job.verify import repeated, verify


def test_verify_reports_an_id_that_is_in_two_units(job, tmp_path):
    pq.write_table(pa.table({"id": ["same", "b", "same"], "text": ["a dog"] * 3}), tmp_path / "twice.parquet")
    job = replace(job, input=str(tmp_path / "twice.parquet"), unit_rows=1)
    assert embed_here(job)["rows_out"] == 3
    with pytest.raises(WorkError, match="id 'same' under 'color': 2 times"):
        verify(job.output)


def first(folder):
    return folder / min(folder.list())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: out.job_file.remove(), r"got no job\.json"),
        (lambda out: swap_rows(out.root.uri), "embeddings/.*: (checksum differs|.* bytes, the manifest says)"),
        (lambda out: first(out.units).remove(), "embeddings/.*: missing"),
        (lambda out: (out.embeddings / "x.parquet").put(b""), "embeddings/x.parquet: not in the manifest"),
        (
            lambda out: out.manifest.put_json(out.manifest.read_json() | {"pairs": 9}),
            "pairs is 9, its files add up to 6",
        ),
        (lambda out: first(out.rejected).put(b"PAR1"), "rejected/.*: checksum differs"),
        (lambda out: first(out.rejected).remove(), "rejected/.*: missing"),
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


def test_pairs_that_are_there_twice_are_found_in_parts(monkeypatch):
    monkeypatch.setattr("raycase.job.verify.PART_PAIRS", 100)
    hashes = np.random.default_rng(0).integers(0, 2**63, 2000, dtype=np.uint64)
    hashes[[5, 7]] = hashes[[1999, 100]]
    assert sorted(repeated(np.split(hashes, 10), 2000)) == sorted(hashes[[5, 7]])
    assert not len(repeated([], 0))
