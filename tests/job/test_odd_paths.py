"""Paths with signs that URIs, globs and shells know, of every input and output."""

import uuid
from dataclasses import replace

import pytest
from helpers import embed_here, read_output

from raycase.io.storage import locate
from raycase.job.verify import verify

ODD = "50% %41 é#x?*[1]::{a}+b&c=d~"


@pytest.fixture(params=["disk", "s3"])
def root(request, tmp_path):
    if request.param == "disk":
        return str(tmp_path / "root")
    request.getfixturevalue("s3_server")
    return f"s3://corpus/odd/{uuid.uuid4().hex}"


def test_a_job_reads_and_writes_where_it_is_told(job, root):
    folder = locate(f"{root}/{ODD}/ü")
    (folder / "in" / f"a {ODD}.csv").put(b"text\na dog\n")
    (folder / "in" / "b.csv").put(b"text\na cat\n")
    (folder / f"conditions {ODD}.txt").put(b"color\n")
    sources = {f"in/a {ODD}.csv": ["a dog"], "in": ["a cat", "a dog"]}
    for source, texts in sources.items():
        output = f"{folder.uri}/out {source} {ODD}"
        asked = replace(job, input=f"{folder.uri}/{source}", output=output, keep_columns=("text",))
        asked = replace(asked, conditions=(f"{folder.uri}/conditions {ODD}.txt",))
        assert [bool(embed_here(asked)["units_resumed"]) for _ in range(2)] == [False, True]
        assert sorted(read_output(output)["text"].to_pylist()) == texts
        verify(output)
    above = locate(root)
    assert [entry.rsplit("/", 1)[-1] for entry in above.fs.ls(above.path, detail=False)] == [ODD]
    folder.remove()
    assert not folder.exists()
