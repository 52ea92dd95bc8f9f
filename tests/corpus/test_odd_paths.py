"""Paths with signs that URIs, globs and shells know, of every input and output."""

import os
import uuid
from dataclasses import replace

import pytest
from helpers import embed_here, read_output

from raycase.corpus.verify import verify
from raycase.data.conditions import read_conditions
from raycase.data.graph import read_graph
from raycase.data.rated import read_candidates, read_inferences, read_rated, read_scored
from raycase.data.storage import locate
from raycase.search.search_job import read_queries
from raycase.training.projector import ProjectorJob
from raycase.training.sweep import Sweep

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
        conditions = (f"{folder.uri}/conditions {ODD}.txt",)
        asked = replace(
            job, input=f"{folder.uri}/{source}", conditions=conditions, output=output, keep_columns=("text",)
        )
        assert [bool(embed_here(asked)["units_resumed"]) for _ in range(2)] == [False, True]
        assert sorted(read_output(output)["text"].to_pylist()) == texts
        verify(output)
    above = locate(root)
    assert [entry.rsplit("/", 1)[-1] for entry in above.fs.ls(above.path, detail=False)] == [ODD]
    folder.remove()
    assert not folder.exists()


PAIRS = "sentence1,sentence2,condition,label,score\na dog,a cat,color,1,1\na dog,a cow,color,2,2\n"
PREMISES = "premise,explicit_entailment,implied_entailment,neutral,contradiction\n" + "a,b,c,d,e\n" * 2
CANDIDATES = '{"query": "a", "positive": ["b"], "negative": ["c"]}'
JOB = ProjectorJob(train="", validation="", output="")
READERS = {  # name of the file -> content, and who reads it
    "rated.csv": (PAIRS, lambda path: read_rated(path, "--train")),
    "scored.csv": (PAIRS, lambda path: read_scored(path, "--test")),
    "inferences.csv": (PREMISES, lambda path: read_inferences(path, "--train")),
    "candidates.jsonl": (CANDIDATES, lambda path: read_candidates(path, "--data")),
    "queries.jsonl": ('{"text": "a"}', read_queries),
    "conditions.txt": ("color\n", lambda path: read_conditions([path])),
    "conditions.csv": ("condition\ncolor\n", lambda path: read_conditions([path])),
    "grid.json": ('{"dropout": [0.1]}', lambda path: Sweep(grid=path, training=JOB).cells()),
    "job.json": ("{}", lambda path: locate(path).read_json()),
    "relations.tsv": ("id\ttext\nr\tis\n", lambda path: read_graph(os.path.dirname(path), "--data")),
}


@pytest.mark.parametrize("name", READERS)
def test_every_input_is_read_by_whatever_name(tmp_path, name):
    content, read = READERS[name]
    folder = tmp_path / ODD / "ü"
    folder.mkdir(parents=True)
    (folder / "entities.tsv").write_text("id\tname\tdefinition\ne\ta\tb\n")
    (folder / "qrels_dev.csv").write_text("query_id,facet,candidate_id,relevance\n1,method,1,1\n")
    odd = name if name in ("relations.tsv", "corpus.jsonl") else f"{ODD} {name}"  # found by their names in a folder
    (folder / odd).write_text(content)
    assert read(str(folder / odd)) is not None
