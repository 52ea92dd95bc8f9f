"""Commands of independent tasks on Ray and object storage write what they write in one process."""

from dataclasses import replace

import numpy as np
import pyarrow.dataset as ds
import pytest
import storing
from helpers import embed_here, embed_on_ray, same_output

from raycase.index.join import JoinJob, join
from raycase.io.storage import locate
from raycase.job.request import EmbedJob
from raycase.job.runner import Runner
from raycase.ray.runner import RayRunner

CONDITIONS = ("color", "what they wear")


@pytest.fixture
def pooled(tmp_path):
    """An output of 60 rows with stored tokens, and one of their vectors in three units, by this process."""
    words = storing.stored(tmp_path, storing.model_folder(tmp_path), storing.texts(60), unit_rows=20)
    here = EmbedJob(input=words, conditions=CONDITIONS, output=str(tmp_path / "pooled"), unit_rows=20)
    embed_here(here)
    return here


def neighbours(uri):
    folder = locate(uri) / "neighbours"
    table = ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()
    return table.sort_by([(name, "ascending") for name in ("id", "condition", "rank")])


def test_pooled_tokens_and_join(cluster, pooled, s3_server, tmp_path):
    there = replace(pooled, output="s3://corpus/tasks/pooled")
    assert embed_on_ray(there)["units_done"] == 3
    same_output(there.output, pooled.output)
    flags = {"query_vectors": pooled.output, "vectors": pooled.output, "k": 3, "exclude_same": "id"}
    uri, cut = "s3://corpus/tasks/near", {"group_rows": 40, "block_rows": 40}
    result = join(JoinJob(output=uri, **flags), RayRunner(), **cut)
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (120, 360, 0)
    join(JoinJob(output=str(tmp_path / "near"), **flags), Runner(), **cut)
    found, wanted = neighbours(uri), neighbours(str(tmp_path / "near"))
    assert found.drop_columns("score").equals(wanted.drop_columns("score"))
    np.testing.assert_allclose(found["score"], wanted["score"], atol=1e-6)
    assert len((locate(uri) / "neighbours").list()) > 1
