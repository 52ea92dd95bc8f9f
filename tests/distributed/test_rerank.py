"""A file of queries is re-ranked: on Ray and here as by the function, resumed."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from indexed import index_of_thirty, searched

import raycase
from raycase.corpus.tasks import open_here
from raycase.distributed.tasks import open_tasks
from raycase.errors import RequestError
from raycase.search.rerank_job import RerankJob
from raycase.search.rerank_job import rerank_all as rerank_by
from raycase.search.rescore import rerank
from raycase.systems.mixsp import mixsp

rerank_all = partial(rerank_by, open_tasks=open_here)


@pytest.mark.cluster
def test_a_file_of_queries_is_reranked_and_one_begun_on_ray_resumes_here(tiny_model, tmp_path, cluster):
    files = searched(tmp_path, index_of_thirty(tmp_path, tiny_model)[0])
    torch.manual_seed(0)
    mixsp(str(tiny_model)).trainable().save(tmp_path / "scorer")
    job = RerankJob(**files, model=str(tmp_path / "scorer"), output=str(tmp_path / "again"), k=3)
    none = tmp_path / "none.parquet"
    pa.parquet.write_table(pa.parquet.read_table(files["answers"])[:0], none)
    done = rerank_all(replace(job, answers=str(none)))
    assert (done["answers_in"], done["answers_out"], done["units_done"]) == (0, 0, 0)

    with pytest.raises(RequestError, match=r"or this very job in .*, got another; .* --overwrite"):
        rerank_all(job, unit_rows=50)
    folder = tmp_path / "again" / "answers"
    folder.mkdir(exist_ok=True)
    (folder / "000001.parquet").write_bytes(b"of the other job")
    done = rerank_all(
        replace(job, overwrite=True), open_tasks=partial(open_tasks, stall_timeout=30, actors=job), unit_rows=50
    )
    assert (done["answers_in"], done["answers_out"], done["units_done"]) == (216, 81, 4)
    found = pa.concat_tables([pa.parquet.read_table(file) for file in sorted(folder.iterdir())])
    sentences = pa.parquet.read_table(files["queries"])["text"].to_pylist()
    scorer = raycase.load(str(tmp_path / "scorer"))
    wanted = rerank(pa.parquet.read_table(files["answers"]), sentences, scorer, text="text", k=3)
    assert found.drop_columns("score") == wanted.drop_columns("score")
    np.testing.assert_allclose(found["score"], wanted["score"], atol=1e-4)

    kept = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    lost = sorted(kept)[1]
    (folder / lost).unlink()
    again = rerank_all(job, unit_rows=50)
    assert (again["units_done"], again["units_resumed"], again["answers_out"]) == (1, 3, 81)
    assert all((folder / name).stat().st_mtime_ns == mark for name, mark in kept.items() if name != lost)
    with pytest.raises(RequestError, match=r"or this very job in .*, got another; .* --overwrite"):
        rerank_all(replace(job, k=2), unit_rows=50)
    assert (folder / lost).exists()
