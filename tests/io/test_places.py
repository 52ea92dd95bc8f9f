"""Outputs never go over inputs or other outputs, however these are named."""

import os
import re
from dataclasses import replace

import pytest

from raycase.commands.embed import EmbedFlags, check_embed
from raycase.commands.evaluate import EvaluateFlags, check_places
from raycase.commands.facets import FacetsFlags, facets
from raycase.commands.index import IndexFlags, index
from raycase.commands.join import JoinFlags, join
from raycase.commands.score import ScoreFlags, check_score
from raycase.commands.search import SearchFlags, search
from raycase.commands.train import ProjectorFlags
from raycase.commands.train import check_request as check_training
from raycase.commands.tune import TuneFlags
from raycase.errors import RequestError
from raycase.io.places import HTML, OF_INDEX, PARQUET, File, Folder, check_paths, claim
from raycase.io.storage import locate
from raycase.job.output import output_folder

OVER, AS_INPUT = "expected another place than", "would be read as input"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files, which is the current one."""
    for name in ("q.csv", "a.parquet", "data/a.csv", "model/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\na dog\n")
    (tmp_path / "link").symlink_to(tmp_path / "a.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    """Every file with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse(words, work, job):
    with pytest.raises(RequestError, match=words):
        work(job)


def test_one_place_has_many_names(here):
    path = os.path.abspath("a.parquet")
    for queries in ("a.parquet", "./a.parquet", "nowhere/../a.parquet", path, f"file://{path}", "link"):
        asked = SearchFlags(index="i", queries=queries, output="a.parquet")
        refuse(f"^--output: {OVER} --queries", search, asked)
    grouped = FacetsFlags(index="i", condition="c", output="q", assignments="./q")
    refuse(f"^--assignments: {OVER} --output", facets, grouped)


@pytest.mark.parametrize("name", ["answers.csv", "a.html", "a.parquet.gz", "data", "new/"])
def test_a_file_is_no_folder_and_has_the_ending_of_its_format(here, name):
    refuse("^--output: expected a file", search, SearchFlags(index="i", query=("x",), output=name))
    for name in ("answers", "answers.2024", "answers.v2"):
        check_paths(writes={"--output": File(name, PARQUET)})


@pytest.mark.parametrize(
    ("reads", "opens", "output", "more"),
    [
        ("*.csv", {}, File("a.PARQUET", PARQUET), {"--html": File("a", HTML)}),
        ("data", {}, File("data2", PARQUET), {}),
        (None, {"--model": "model"}, Folder("model/trained", ("raycase.json",)), {}),
        ("q*", {}, Folder("m", ("x",)), {"--cache": Folder("m/cache")}),
    ],
)
def test_what_is_right_stays_allowed(here, reads, opens, output, more):
    check_paths(reads={"--input": reads} if reads else {}, opens=opens, writes={"--output": output, **more})


@pytest.mark.parametrize(
    "words, reads, opens, writes",
    [
        (OVER, {"--train": "t/trials.csv"}, {}, {"--output": Folder("t", ("trials.csv",))}),
        (OVER, {"--input": "new/embeddings/*.parquet"}, {}, {"--output": output_folder("new")}),
        (AS_INPUT, {"--answers": "d*/*/*/*.parquet"}, {}, {"--output": Folder("data/r", ("answers",))}),
        (OVER, {}, {}, {"--output": output_folder("new"), "--index": Folder("new/embeddings/i", OF_INDEX)}),
        ("expected a folder, got the file", {}, {}, {"--output": Folder("q.csv")}),
        ("expected a folder on this machine", {}, {}, {"--output": Folder("s3://b/x", here=True)}),
    ],
)
def test_folders_that_go_over_something_are_refused(here, words, reads, opens, writes):
    with pytest.raises(RequestError, match=words):
        check_paths(reads=reads, opens=opens, writes=writes)


def test_places_in_object_stores_are_compared(here, s3_server):
    for uri in ("s3://corpus/places/q.parquet", "s3a://corpus/places/q.parquet"):
        refuse(OVER, search, SearchFlags(index="i", queries="s3://corpus/places/q.parquet", output=uri))
    writes = {"--output": File("s3://corpus/places/a", PARQUET)}
    check_paths(opens={"--index": "s3://corpus/places/idx"}, writes=writes)
    for name in OF_INDEX:
        locate(f"s3://corpus/places/idx/{name}/file").put(b"")
    inside = SearchFlags(index="s3://corpus/places/idx", query=("x",), output="s3://corpus/places/idx/a.parquet")
    refuse("a place outside the index of --index", search, inside)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(here / "data"))  # as on a read-only disk
    embed = EmbedFlags(input="q.csv", model="model", output="new", unconditional=True, index="data/new/i")
    refuse("^--index: expected a place that can be written, got .*/data/new/i", check_embed, embed)
    below = SearchFlags(index="i.lance", query=("x",), output="q.csv/x.parquet")
    refuse("^--output: expected a place in a folder, got q.csv/x.parquet below the file .*/q.csv", search, below)
    check_paths(writes={"--output": File("model/x.parquet", PARQUET)})


def test_every_job_compares_its_places(here):
    before = contents(here)
    for name in OF_INDEX:
        (here / "i.lance" / name).mkdir(parents=True)
    embed = EmbedFlags(input="q.csv", model="model", output="model", unconditional=True)
    for output in ("i.lance", "i.lance/out"):
        refuse("a place outside the index .*i.lance, got", check_embed, replace(embed, output=output))
    for work, job in (
        (search, SearchFlags(index="i.lance", query=("x",), output="i.lance/x.parquet")),
        (facets, FacetsFlags(index="x", condition="c", assignments="i.lance/new/x.parquet")),
        (index, IndexFlags(embeddings=("out",), output="i.lance/data/i")),
        (check_places, EvaluateFlags(model=("minilm",), data="data/a.csv", output="i.lance/report")),
        (check_places, EvaluateFlags(model=("minilm",), data="data/a.csv", output="r", cache="i.lance/cache")),
    ):
        refuse("expected a place outside the index .*i.lance, got", work, job)
    check_paths(opens={"--embeddings": "out"}, writes={"--output": Folder("i.lance", OF_INDEX)})  # a build's own
    refuse(OVER, check_embed, embed)
    refuse(AS_INPUT, check_score, ScoreFlags(input="data", output="data/scores"))
    refuse(OVER, index, IndexFlags(embeddings=("out",), output="out"))
    refuse(OVER, join, JoinFlags(query_vectors="out", vectors="other", output="out"))
    data = {"train": "q.csv", "validation": "data/a.csv", "output": "new"}
    for check in (lambda job: check_training(job, {}, ()), lambda job: TuneFlags(grid="table7", training=job).check()):
        job = ProjectorFlags(**data)
        check(job)
        refuse(OVER, check, replace(job, model="model", output="model"))
    evaluate = EvaluateFlags(model=("minilm",), data="data/a.csv", output="report")
    check_places(evaluate)
    refuse(AS_INPUT, check_places, replace(evaluate, data="data", cache="data/cache"))
    assert contents(here) == before


# --------------------------------------------------------------------------------------------------------------- claims


JOB = {"job": "this very join", "results": ("neighbours", "table.parquet")}


def refused(folder, words, **options):
    with pytest.raises(RequestError, match=re.escape(words)):
        claim(folder, "join.json", "one", **JOB | options)


def test_a_folder_without_results_is_free_and_one_with_them_is_of_the_job_in_its_record(tmp_path):
    folder = locate(str(tmp_path / "out"))
    (folder / "notes.txt").put(b"other")
    assert claim(folder, "join.json", "one", **JOB) is None
    for name in ("neighbours/0.parquet", "table.parquet"):
        (folder / name).put(b"")
        top = name.split("/")[0]
        refused(folder, f"got {top} without join.json; choose another folder or pass --overwrite")
        assert claim(folder, "join.json", "one", overwrite=True, **JOB) is None
        (folder / "join.json").put_json({"fingerprint": "one", "ranges": [[1]]})
        assert claim(folder, "join.json", "one", **JOB) == {"fingerprint": "one", "ranges": [[1]]}
        for each in ("join.json", top):
            (folder / each).remove()


@pytest.mark.parametrize("record", [b'{"fingerprint": "two"}', b"[1"])
def test_another_job_is_refused(tmp_path, record):
    folder = locate(str(tmp_path))
    (folder / "join.json").put(record)
    words = "--output: expected an empty folder or this very join in {}, got another{}; "
    refused(folder, words.format(folder.uri, ""))
    refused(folder, words.format(folder.uri, " (k: 5 there, 10 asked)"), difference="k: 5 there, 10 asked")
    assert claim(folder, "join.json", "one", overwrite=True, **JOB) is None
    assert (folder / "join.json").read() == record
