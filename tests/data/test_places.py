"""Outputs never go over inputs, other outputs, indexes or outputs of jobs, however these are named."""

import os
import re
from collections.abc import Mapping
from dataclasses import fields, replace

import pyarrow as pa
import pytest
from input_files import write

from raycase.commands import COMMANDS
from raycase.corpus.materialize import MaterializeJob, check_materialize
from raycase.corpus.output import output_folder
from raycase.corpus.request import EmbedJob, check_embed
from raycase.corpus.score_request import ScoreJob, check_score
from raycase.data.places import HTML, INDEX, PARQUET, File, Folder, check_paths
from raycase.data.storage import locate
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.explore.explore_job import ExploreJob, explore
from raycase.placement import join
from raycase.search.build import IndexJob, build
from raycase.search.facets_job import FacetsJob, facets
from raycase.search.join import JoinJob
from raycase.search.search_job import SearchJob, search
from raycase.training.projector_job import ProjectorJob
from raycase.training.sweep_job import Sweep

WRITTEN = re.compile("output|html|assign|cache|golden|save|write|report|picture|file|log|export|dest")
OVER, INSIDE, AS_INPUT = "expected another", "expected a place outside of indexes", "would be read as input"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files, an index and the output of a job, which is the current one."""
    files = ("q.csv", "a.parquet", "data/a.csv", "idx/data/x.lance", "idx/_versions/1.manifest", "model/config.json")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\na dog\n")
    for name in ("out", "other"):
        (tmp_path / name / "embeddings").mkdir(parents=True)
        (tmp_path / name / "job.json").write_text('{"config": {}, "files": []}')
    (tmp_path / "link").symlink_to(tmp_path / "q.csv")
    (tmp_path / "linked").symlink_to(tmp_path / "idx")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    """Every file with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse(words, work, job):
    with pytest.raises(RequestError, match=words):
        work(job)


def names_of(path):
    """The same place in other words."""
    return [path, f"./{path}", f"nowhere/../{path}", os.path.abspath(path), f"file://{os.path.abspath(path)}"]


@pytest.mark.parametrize("queries", ["q.csv", "link", "q*.csv", "."])
def test_answers_do_not_go_over_what_is_searched(here, queries):
    before = contents(here)
    for output in [*names_of("q.csv"), "link"]:
        for endings in (PARQUET, (".csv",)):
            with pytest.raises(RequestError, match=r"^--output: expected a"):
                check_paths(reads={"--queries": queries}, writes={"--output": File(output, endings)})
    assert contents(here) == before


def test_a_search_and_facets_refuse_before_they_open_anything(here):
    before = contents(here)
    (here / "q").write_text("x")
    asked, grouped = SearchJob(index="i", query=("x",)), FacetsJob(index="i", condition="c")
    for output in names_of("q"):
        job = replace(asked, query=(), queries="q", output=output)
        refuse(f"^--output: {OVER} file than --queries", search, job)
        refuse(f"^--html: {OVER} file than --output", search, replace(asked, output="q", html=output))
        job = replace(grouped, output="q", assignments=output)
        refuse(f"^--assignments: {OVER} file than --output", facets, job)
    (here / "q").unlink()
    (here / "idx" / "data" / "away").symlink_to(here / "elsewhere")  # a link is written where it is
    places = ("idx/data/x.parquet", "idx/x", "idx/data/away", "linked/x", "linked/data/new/x", "out/x")
    for output in (*places, "other/embeddings/x.parquet"):
        refuse(f"^--output: {INSIDE}.*got {output} in", search, replace(asked, output=output))
        refuse(f"^--html: {INSIDE}", search, replace(asked, html=output.replace("parquet", "html")))
        refuse(f"^--assignments: {INSIDE}", facets, replace(grouped, assignments=output))
    refuse(f"^--output: {OVER} file than --index", search, replace(asked, output="./i"))
    for output in ("idx/a.html", "out/a.html"):
        refuse(f"^--output: {INSIDE}", explore, ExploreJob(index="i", output=output))
    assert contents(here) == before


@pytest.mark.parametrize("name", ["answers.csv", "answers.json", "a.html", "a.parquet.gz", "a.jsonl"])
def test_a_file_has_the_ending_of_its_format(here, name):
    ending = "expected a file that ends with .parquet, got"
    refuse(f"^--output: {ending}", search, SearchJob(index="i", query=("x",), output=name))
    refuse(f"^--assignments: {ending}", facets, FacetsJob(index="i", condition="c", assignments=f"s3://b/{name}"))
    if not name.endswith("html"):
        refuse("^--html: expected a file that ends with .html", search, SearchJob(index="i", query=("x",), html=name))
        refuse("^--output: expected a file that ends with .html", explore, ExploreJob(index="i", output=name))
    for name in ("answers", "answers.2024", "answers_2024.11.25", "answers.v2", "a."):  # no endings
        check_paths(writes={"--output": File(name, PARQUET)})


@pytest.mark.parametrize("name", ["data", "data/", "new/", "pipe"])
def test_a_file_is_not_a_folder(here, name):
    for writes in ({"--output": File(name, PARQUET)}, {"--html": File(name, HTML)}):
        with pytest.raises(RequestError, match="expected a file, got"):
            check_paths(writes=writes)


def test_files_that_are_read_by_links_or_signs_of_globs_are_not_written_over(here):
    for folder in ("away", "links", "[2024]"):
        (here / folder).mkdir()
    write(here / "away" / "answers.parquet", pa.table({"text": ["a"]}))
    (here / "links" / "q.parquet").symlink_to(here / "away" / "answers.parquet")
    (here / "links" / "folder").symlink_to(here / "away")
    write(here / "[2024]" / "q.parquet", pa.table({"text": ["a"]}))
    for reads, output in (
        *((reads, "away/answers.parquet") for reads in ("links", "links/*.parquet", "links/**")),
        *((reads, "[2024]/q.parquet") for reads in ("[2024]/*.parquet", "[2024]/q.parquet")),
    ):
        for paths in (reads, str(here / reads)):
            with pytest.raises(RequestError, match=r"^--output: expected another file than --queries"):
                check_paths(reads={"--queries": paths}, writes={"--output": File(output, PARQUET)})
    with pytest.raises(RequestError, match=r"^--output: expected another folder than --input"):
        check_paths(reads={"--input": "links"}, writes={"--output": Folder("away", ("answers.parquet",))})
    check_paths(reads={"--queries": "links"}, writes={"--output": File("away/other.parquet", PARQUET)})


def test_a_file_of_the_name_of_a_record_is_no_output(here):
    for folder, name, content in (("project", "job.json", '{"mine": 1}'), ("list", "job.json", "[1]")):
        (here / folder).mkdir()
        (here / folder / name).write_text(content)
        check_paths(writes={"--output": Folder(f"{folder}/out", ("x",)), "--html": File(f"{folder}/a.html", HTML)})
    (here / "versions" / "_versions").mkdir(parents=True)
    check_paths(writes={"--output": Folder("versions/out", ("x",))})


@pytest.mark.parametrize(
    ("reads", "opens", "output", "more"),
    [
        ("q.csv", {}, File("a.parquet", PARQUET), {}),
        ("*.csv", {}, File("a.PARQUET", PARQUET), {"--html": File("a", HTML)}),
        ("data", {}, File("data2", PARQUET), {}),
        (["q.csv", "q.csv"], {}, output_folder("new"), {}),
        ("q.csv", {}, output_folder("out"), {}),
        (".", {}, output_folder("new"), {}),
        ("data", {}, output_folder("data"), {}),
        (None, {"--embeddings": ["out", "out"]}, Folder("idx", ("data", INDEX), INDEX), {}),
        (None, {"--queries": "out", "--vectors": "out"}, Folder(".", ("neighbours",)), {}),
        (None, {"--model": "model"}, Folder("model/trained", ("raycase.json",)), {}),
        ("q.csv", {}, Folder(".", ("a.json",)), {"--cache": Folder(".")}),
        ("q*", {}, Folder("m", ("x",)), {"--cache": Folder("m/cache")}),
        ("data", {}, Folder("data/_m", ("encoder",)), {}),
        ("data", {}, Folder("data/m", ("encoder", "a.json"), left_out=True), {}),  # a model beside its data
        ("*.csv", {}, Folder("res", ("answers",)), {}),
        ("data", {}, Folder("data/report", ("metrics.json", "report.md")), {}),
    ],
)
def test_what_is_right_stays_allowed(here, reads, opens, output, more):
    check_paths(reads={"--input": reads} if reads else {}, opens=opens, writes={"--output": output, **more})


@pytest.mark.parametrize(
    "words, reads, opens, writes",
    [
        (OVER, {}, {"--model": "m"}, {"--output": Folder("./m/", ("raycase.json",))}),
        (OVER, {}, {"--model": "m/encoder"}, {"--output": Folder("m", ("encoder",))}),
        (OVER, {}, {"--queries": "j/pooled/a"}, {"--output": Folder("j", ("pooled",))}),
        (OVER, {"--train": "t/trials.csv"}, {}, {"--output": Folder("t", ("trials.csv",))}),
        (OVER, {"--input": "new/embeddings"}, {}, {"--output": output_folder("new")}),
        (OVER, {"--input": "new/embeddings/*.parquet"}, {}, {"--output": output_folder("new")}),
        (OVER, {}, {}, {"--output": Folder("m", ("encoder",)), "--cache": Folder("m/encoder/c")}),
        (AS_INPUT, {"--answers": "data"}, {}, {"--output": Folder("data/r", ("answers",))}),
        (AS_INPUT, {"--answers": "data/**"}, {}, {"--output": Folder("data/r", ("answers",))}),
        (AS_INPUT, {"--answers": "d*/*/*/*.parquet"}, {}, {"--output": Folder("data/r", ("answers",))}),
        (AS_INPUT, {"--queries": "d*/*"}, {}, {"--output": File("data/r.parquet", PARQUET)}),
        (AS_INPUT, {"--train": "data"}, {}, {"--cache": Folder("data/cache")}),
        (AS_INPUT, {"--train": "data"}, {}, {"--cache": Folder("data")}),
        (INSIDE, {}, {}, {"--cache": Folder("out")}),
        (INSIDE, {}, {}, {"--cache": Folder("idx/cache")}),
        (INSIDE, {}, {}, {"--output": output_folder("idx")}),
        (INSIDE, {}, {}, {"--output": output_folder("linked/sub")}),
        (INSIDE, {}, {}, {"--output": output_folder("out/embeddings/new")}),
        (INSIDE, {}, {}, {"--output": Folder("out", ("data", INDEX), INDEX)}),
        (INSIDE, {}, {}, {"--output": Folder("idx/data/new", ("data", INDEX), INDEX)}),
        ("expected a folder, got the file", {}, {}, {"--output": Folder("q.csv")}),
        ("expected a folder on this machine", {}, {}, {"--output": Folder("s3://b/x", here=True)}),
    ],
)
def test_folders_that_go_over_something_are_refused(here, words, reads, opens, writes):
    with pytest.raises(RequestError, match=words):
        check_paths(reads=reads, opens=opens, writes=writes)


def test_places_in_object_stores_are_compared(here, s3_server):
    locate("s3://corpus/places/idx/_versions/1.manifest").put(b"x")
    locate("s3://corpus/places/idx/data/1.lance").put(b"x")
    locate("s3://corpus/places/done/job.json").put(b'{"config": {}, "files": []}')
    for uri in ("s3://corpus/places/q.parquet", "s3a://corpus/places/q.parquet"):
        refuse(OVER, search, SearchJob(index="i", queries="s3://corpus/places/q.parquet", output=uri))
    for uri in ("s3://corpus/places/idx/data/x.parquet", "s3a://corpus/places/done/x.parquet"):
        refuse(INSIDE, search, SearchJob(index="i", query=("x",), output=uri))
    refuse("got the folder", search, SearchJob(index="i", query=("x",), output="s3://corpus/places/idx"))
    for name in ("a", "a.v2"):
        writes = {"--output": File(f"s3://corpus/places/{name}", PARQUET)}
        check_paths(opens={"--index": "s3://corpus/places/idx"}, writes=writes)


def test_every_job_compares_its_places(here):
    before = contents(here)
    embed = EmbedJob(input="q.csv", output="idx", unconditional=True)
    refuse(INSIDE, check_embed, embed)
    refuse(INSIDE, check_embed, replace(embed, output="out/new"))
    refuse("got the file", check_embed, replace(embed, output="q.csv"))
    refuse(OVER, check_embed, replace(embed, model="model", output="model"))
    refuse(INSIDE, check_score, ScoreJob(input="q.csv", output="idx/scores"))
    refuse(
        f"{OVER} folder than --words",
        check_materialize,
        MaterializeJob(words="out", conditions=("c",), output="./out/"),
    )
    refuse(INSIDE, check_materialize, MaterializeJob(words="out", conditions=("c",), output="other/x"))
    refuse(INSIDE, build, IndexJob(embeddings=("out",), output="other/i.lance"))
    refuse(f"{OVER} folder than --embeddings", build, IndexJob(embeddings=("out",), output="out"))
    refuse(INSIDE, join, JoinJob(query_vectors="out", vectors="other", output="out/near"))
    refuse(OVER, join, JoinJob(query_vectors="near/pooled/a", vectors="other", output="near"))
    refuse(OVER, join, JoinJob(query_vectors="out", vectors="other", output="other", conditions=("c",)))
    data = {"train": "q.csv", "validation": "data/a.csv", "output": "new"}
    for check in (ProjectorJob.check_source, lambda job: Sweep(grid="table7", training=job).check()):
        job = ProjectorJob(**data)
        check(job)
        for words, change in {
            INSIDE: {"output": "out/model"},
            OVER: {"model": "model", "output": "model"},
            AS_INPUT: {"train": "data", "cache": "data/cache"},
            "got the file": {"cache": "q.csv"},
        }.items():
            refuse(words, check, replace(job, **change))
    assert contents(here) == before
    (here / "new" / "best").mkdir(parents=True)
    (here / "new" / "best" / "raycase.json").write_text("{}")
    refuse(OVER, check, ProjectorJob(**data | {"model": "new/best"}))
    (here / "new" / "best" / "grid.json").write_text("{}")
    refuse(OVER, Sweep.check, Sweep(grid="new/best/grid.json", training=job))
    before = contents(here)
    evaluate = EvaluateJob(model=("minilm",), data="data/a.csv", output="report")
    check_request(evaluate)
    check_request(replace(evaluate, task="csfcube", data="data", output="data/report"))
    refuse(INSIDE, check_request, replace(evaluate, output="idx"))
    refuse(AS_INPUT, check_request, replace(evaluate, data="data", cache="data/cache"))
    assert contents(here) == before


def test_no_command_has_another_flag_that_is_written():
    """A new one needs its place in `check_paths`, and in the tests above."""
    flags = {}
    for name, command in COMMANDS.items():
        loaded = command.load()
        for kind in loaded.values() if isinstance(loaded, Mapping) else [loaded]:
            places = {f.name for f in fields(kind) if WRITTEN.search(f.name) and f.name != "overwrite"}
            flags[name] = flags.get(name, set()) | places
    output, trains = {"output"}, {"output", "cache"}
    expected = dict.fromkeys(("embed", "verify", "materialize", "index", "join", "score", "explore"), output)
    expected |= dict.fromkeys(("train", "evaluate"), trains)
    expected |= {
        "demo": set(),
        "explain": set(),
        "tune": set(),
        "push": set(),
        "serve": {"token_file"},  # read
        "search": {"output", "html"},
        "facets": {"output", "assignments"},
    }
    assert flags == expected
