"""An output is read back and checked against its manifest; each kind of damage is named."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, swap_rows
from indexed import refuse

from raycase.errors import RequestError, WorkError
from raycase.job.output import Output
from raycase.job.run import UnfitError
from raycase.job.verify import repeated, verify


@pytest.mark.parametrize("unit_rows", [1, 2, 9])
def test_an_id_of_two_rows_ends_the_job_whatever_its_units_and_nothing_takes_it(job, tmp_path, unit_rows):
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
    manifest = Output(job.output).manifest
    for values in ({}, {"repeated_ids": None}):  # None: of a job that did not look for them
        kept = {name: value for name, value in (manifest.read_json() | values).items() if value is not None}
        manifest.put_json(kept)
        refuse({"embeddings": (job.output,), "output": str(tmp_path / "i")}, "^--embeddings: .* 'same', 'b'; mend")
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("unit_rows", [1, 9])
def test_an_id_may_have_a_row_for_each_condition(job, tmp_path, unit_rows):
    rows = [{"id": i // 2, "text": "a dog", "under": ["color", "number"][i % 2]} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    job = replace(job, input=str(tmp_path / "rows.parquet"), conditions=(), condition_column="under")
    assert embed_here(replace(job, unit_rows=unit_rows))["rows_out"] == 4
    assert verify(job.output)["pairs"] == 4


def first(folder):
    return folder / min(folder.list())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda out: out.job_file.remove(), r"got no job\.json"),
        (lambda out: swap_rows(out.root.uri), "embeddings/.*: (checksum differs|.* bytes, the manifest has)"),
        (lambda out: first(out.units).remove(), "embeddings/.*: missing"),
        (lambda out: (out.units / "x.parquet").put(b""), "embeddings/x.parquet: not in the manifest"),
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
