"""Index and search: against brute force over the written vectors, what grows, what is killed, what is refused."""

import json
import subprocess
import sys
from dataclasses import replace

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embedded, in_process, read_output, run_job, sentences, vectors

import raycase
from raycase.corpus.request import EmbedJob
from raycase.data.storage import locate
from raycase.distributed.embed import embed
from raycase.errors import RequestError, WorkError
from raycase.search import build as index_module
from raycase.search import lance_files as lancefiles
from raycase.search.build import IndexJob, build
from raycase.search.combined import conditional_rows, mean_nearest
from raycase.search.index import Index, Limits, Options
from raycase.search.metadata import METADATA_KEY, IndexMetadata
from raycase.search.queries import SearchJob
from raycase.search.queries import search as answer
from raycase.search.topk import l2_normalize
from raycase.systems import case
from raycase.systems.projector import Projector, ProjectorConfig
from raycase.systems.registry import resolve

CONDITIONS = ("color", "number of people")
QUERIES = ["a red dress", "two people play"]


def rows(count, seed=0, first=0):
    return [{"id": first + i, "text": t, "year": 2000 + i % 20} for i, t in enumerate(sentences(count, seed))]


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """Outputs of one model: `out` under two conditions, `plain` without, `later` of other rows, `other` of a model."""
    home = tmp_path_factory.mktemp("written")
    kept = {"keep_columns": ("text", "year")}
    embedded(home / "a", tiny_model, rows(300), output=str(home / "out"), conditions=CONDITIONS, **kept)
    embedded(home / "b", tiny_model, rows(300), output=str(home / "plain"), unconditional=True, **kept)
    embedded(home / "c", tiny_model, rows(80, 1, 1000), output=str(home / "later"), conditions=CONDITIONS, **kept)
    embedded(
        home / "d", tiny_model, rows(20), output=str(home / "other"), conditions=CONDITIONS, subtract=False, **kept
    )
    return home


@pytest.fixture(scope="module")
def index(home):
    build(IndexJob(embeddings=(str(home / "out"), str(home / "plain")), output=str(home / "i.lance")))
    return Index.open(str(home / "i.lance"))


@pytest.fixture(scope="module")
def model(tiny_model):
    return raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean")


def brute(output, model, sentence, condition, k, keep=lambda row: True):
    """ids and cosines of the k nearest, from the files that the job wrote."""
    table = read_output(str(output))
    table = table.filter(pa.array([r["condition"] == condition and keep(r) for r in table.to_pylist()]))
    cosines = l2_normalize(vectors(table)) @ l2_normalize(model.embed([sentence], condition))[0]
    order = np.argsort(-cosines, kind="stable")[:k]
    return table["id"].to_numpy()[order].tolist(), cosines[order]


def same(found, wanted):
    ids, cosines = wanted
    assert found["id"].to_pylist() == ids
    assert np.allclose(found["score"].to_numpy(), cosines, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_search_gives_what_brute_force_over_the_files_gives(index, home, model, condition):
    found = index.search(QUERIES, condition, 7)
    assert found["rank"].to_pylist() == [*range(1, 8)] * 2
    for i, sentence in enumerate(QUERIES):
        same(found.filter(pa.compute.equal(found["query"], i)), brute(home / "out", model, sentence, condition, 7))
    texts = {r["id"]: r["text"] for r in rows(300)}
    assert [texts[i] for i in found["id"].to_pylist()] == found["text"].to_pylist()


def test_queries_of_several_conditions_keep_their_order(index):
    asked = ["number of people", "color", "number of people"]
    found = index.search(["a", "a red dress", "b"], asked, 2)
    assert found["query"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert found["condition"].to_pylist() == [c for c in asked for _ in range(2)]
    alone = index.search(["a red dress"], "color", 2)
    assert found["id"].to_pylist()[2:4] == alone["id"].to_pylist()


def test_plain_vectors_are_beside_the_conditions(index, home, model):
    found = index.search(QUERIES[:1], None, 5, unconditional=True)
    same(found, brute(home / "plain", model, QUERIES[0], None, 5))
    assert found["condition"].to_pylist() == [None] * 5


def test_a_filter_is_applied_before_the_search(index, home, model):
    found = index.search(QUERIES[:1], "color", 5, "year >= 2018")
    same(found, brute(home / "out", model, QUERIES[0], "color", 5, keep=lambda row: row["year"] >= 2018))
    assert len(index.search(QUERIES, "color", 5, "year > 3000")) == 0
    assert len(index.search(QUERIES, None, 5, "year > 3000")) == 0
    few = index.search(QUERIES, "color", 5, "id IN (3, 4)")
    assert sorted(few["id"].to_pylist()) == [3, 3, 4, 4]


def test_without_a_condition_the_mean_over_all_counts(index, home, model):
    table = read_output(str(home / "out"))
    unit_vectors, ids, under = l2_normalize(vectors(table)), table["id"].to_numpy(), table["condition"].to_pylist()
    sums = np.zeros(300)
    for condition in CONDITIONS:
        own = np.array([c == condition for c in under])
        sums[ids[own]] += unit_vectors[own] @ l2_normalize(model.embed([QUERIES[0]], condition))[0]
    order = np.argsort(-sums)[:5]
    same(index.search(QUERIES[:1], None, 5), (order.tolist(), sums[order] / 2))


def test_an_unknown_condition_is_answered_by_the_nearest_and_named(index):
    found = index.search(["a red dress"], "the color", 3)
    assert found["asked"].to_pylist() == ["the color"] * 3
    assert found["condition"].to_pylist() == ["color"] * 3
    assert found["id"].to_pylist() == index.search(["a red dress"], "color", 3)["id"].to_pylist()
    with pytest.raises(RequestError, match="expected one of the index's"):
        index.search(["a red dress"], "the color", 3, exact_condition=True)


def test_vectors_that_do_not_fit_into_memory_are_read_again_batch_by_batch(home, index):
    other = Index.open(str(home / "i.lance"), limits=Limits(memory_bytes=1))
    for where in (None, "year > 2010"):
        ours, theirs = other.search(QUERIES, "color", 4, where), index.search(QUERIES, "color", 4, where)
        assert ours.drop_columns(["score"]) == theirs.drop_columns(["score"])
    assert not other.vectors.cached and index.vectors.cached


@pytest.mark.parametrize("kind", ["ivf-pq", "hnsw"])
def test_an_approximate_index_finds_nearly_all(home, index, kind, tmp_path):
    uri = str(tmp_path / "i.lance")
    result = build(IndexJob(embeddings=(str(home / "out"), str(home / "plain")), output=uri, kind=kind))
    assert result["kind"] == kind
    approximate = Index.open(uri)
    for condition, where in (("color", None), ("color", "year > 2010")):
        exact = index.search(QUERIES, condition, 10, where)
        assert approximate.search(QUERIES, condition, 10, where, options=Options(exact=True)).equals(exact)
        found = approximate.search(QUERIES, condition, 10, where, options=Options(nprobes=50, refine=20))
        assert len(set(found["id"].to_pylist()) & set(exact["id"].to_pylist())) >= 0.9 * len(
            set(exact["id"].to_pylist())
        )
        assert found["condition"].unique().to_pylist() == ["color"]
    assert len(approximate.search(QUERIES[:1], None, 5, unconditional=True)) == 5
    assert build(IndexJob(output=uri, kind="exact", reindex=True))["kind"] == "exact"
    assert approximate.search(QUERIES, "color", 5).num_rows == 10  # who has it open is not disturbed
    assert Index.open(uri).search(QUERIES, "color", 5) == index.search(QUERIES, "color", 5)


def test_where_too_few_vectors_are_there_to_train_scores_are_cosines_all_the_same(home, model, tmp_path):
    """20 rows under each condition, and no index of their vectors."""
    uri = str(tmp_path / "i.lance")
    build(IndexJob(embeddings=(str(home / "other"),), output=uri, kind="hnsw"))
    system = raycase.load(str(model.config.model), prompt="concat-sc", pooling="mean", subtract=False)
    same(Index.open(uri).search(QUERIES[:1], "color", 5), brute(home / "other", system, QUERIES[0], "color", 5))


def test_a_filter_finds_what_is_far_off_in_an_approximate_index(home, tmp_path):
    uri = str(tmp_path / "i.lance")
    build(IndexJob(embeddings=(str(home / "out"),), output=uri, kind="ivf-pq", partitions=20))
    found = Index.open(uri).search(QUERIES, "color", 10, "id < 10", options=Options(nprobes=1))
    assert [sorted(found["id"].to_pylist()[i : i + 10]) for i in (0, 10)] == [list(range(10))] * 2


def test_the_mean_over_conditions_is_exact_where_each_is(tmp_path):
    """Ten ids that are best under one of two conditions, and one that is second under both."""
    index = Index.open(
        str(by_hand(tmp_path, [[[1, 0], [0, 1]]] * 10 + [[[0, 1], [1, 0]]] * 10 + [[[0.9, 0.4], [0.9, 0.4]]]))
    )
    queries = {name: np.array([[1, 0]], np.float32) for name in "ab"}
    scores, offsets = mean_nearest(queries, conditional_rows(index.dataset), index.vectors.blocks, 1)
    assert index.dataset.take(offsets[0], columns=["id"])["id"].to_pylist() == [20]
    assert scores[0, 0] == pytest.approx(0.9 / np.hypot(0.9, 0.4))


def by_hand(folder, vectors):
    """An index of vectors (ids, two conditions a and b) that no model made."""
    model = {"encoder": {"prompt": "cond", "pooling": ["mean"]}, "subtract": True}
    values = np.array(vectors, np.float32)
    values /= np.linalg.norm(values, axis=2, keepdims=True)
    count = len(values)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 2)
    table = pa.table({"id": np.repeat(np.arange(count), 2), "condition": ["a", "b"] * count, "vector": column})
    dataset = lance.write_dataset(table.replace_schema_metadata({METADATA_KEY: ""}), folder / "hand.lance")
    lancefiles.publish(
        dataset, IndexMetadata(model=model, name="none", dtype="float32", conditions={"a": count, "b": count})
    )
    return folder / "hand.lance"


def test_ids_are_strings_and_conditions_a_column(tmp_path, tiny_model, model):
    texts = sentences(60, 3)
    rows = [{"id": f"it's \\{i}", "text": t, "about": ["color", "it's"][: 1 + i % 2]} for i, t in enumerate(texts)]
    output = embedded(tmp_path, tiny_model, rows, condition_column="about")
    job = IndexJob(embeddings=(output,), output=str(tmp_path / "i.lance"))
    assert build(job)["rows"] == 90
    assert build(job)["rows_added"] == 0
    index = Index.open(job.output)
    assert index.metadata.conditions == {"color": 60, "it's": 30}
    same(index.search(QUERIES[:1], "it's", 30), brute(output, model, QUERIES[0], "it's", 30))
    assert len(index.search(QUERIES[:1], None, 60)) == 60  # an id under one condition has its own cosine alone
    with pytest.raises(RequestError, match="in both"):
        build(
            IndexJob(
                embeddings=(embedded(tmp_path / "2", tiny_model, rows[:1], conditions=("color",)),), output=job.output
            )
        )


def test_a_projectors_vectors_have_other_dimensions_than_plain_ones_and_its_folder_may_move(tmp_path, tiny_model):
    config, shape = (
        resolve(str(tiny_model), prompt="concat-sc", pooling="mean"),
        ProjectorConfig(input_dim=32, output_dim=8),
    )
    folder = tmp_path / "model"
    case.save(folder, replace(config, projector=shape), Projector(shape).eval())
    trained = {"prompt": None, "pooling": None}
    out = embedded(tmp_path / "o", folder, rows(30), conditions=("color",), **trained)
    plain = embedded(tmp_path / "p", folder, rows(30), unconditional=True, **trained)
    uri = str(tmp_path / "i.lance")
    assert build(IndexJob(embeddings=(plain,), output=uri))["unconditional_rows"] == 30
    assert build(IndexJob(embeddings=(out,), output=uri))["rows"] == 60
    folder.rename(tmp_path / "moved")
    with pytest.raises(RequestError, match="--model: expected the index's model"):
        Index.open(uri).search(QUERIES[:1], "color", 3)
    index, system = Index.open(uri, model=str(tmp_path / "moved")), raycase.load(str(tmp_path / "moved"))
    same(index.search(QUERIES[:1], "color", 5), brute(out, system, QUERIES[0], "color", 5))
    same(index.search(QUERIES[:1], None, 5, unconditional=True), brute(plain, system, QUERIES[0], None, 5))
    assert [index.dataset.schema.field(name).type.list_size for name in ("vector", "plain")] == [8, 32]


def test_more_queries_than_are_answered_at_a_time(home, index):
    sentences_ = [f"a red dress {i}" for i in range(7)]
    few = Index.open(str(home / "i.lance"), limits=Limits(queries=3))
    for conditions in ("color", None):
        whole = index.search(sentences_, conditions, 3)
        assert few.search(sentences_, conditions, 3).drop_columns(["score"]) == whole.drop_columns(["score"])


# ----------------------------------------------------------------------------------------------------------- growing


def test_a_later_output_is_added_and_nothing_twice(home, tmp_path, model):
    job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "i.lance"))
    assert build(job)["rows_added"] == 600
    assert build(job)["rows_added"] == 0
    both = replace(job, embeddings=(str(home / "out"), str(home / "later")))
    assert build(both)["rows_added"] == 160
    found = Index.open(job.output).search(QUERIES[:1], "color", 380)
    assert sorted(found["id"].to_pylist()) == [*range(300), *range(1000, 1080)]


def test_tomorrows_units_of_the_same_output_are_added(tmp_path, tiny_model):
    options = {"conditions": CONDITIONS, "output": str(tmp_path / "out")}
    job = IndexJob(
        embeddings=(embedded(tmp_path, tiny_model, rows(250), limit=130, **options),), output=str(tmp_path / "i")
    )
    assert build(job)["rows"] == 260
    whole = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "dtype": "float32", "unit_rows": 100}
    embed(EmbedJob(input=str(tmp_path / "in.parquet"), model=str(tiny_model), **options, **whole), execute=in_process)
    assert build(job)["rows_added"] == 240
    assert Index.open(job.output).metadata.conditions == {"color": 250, "number of people": 250}


def test_an_approximate_index_takes_in_what_is_added(home, tmp_path):
    job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "i.lance"), exact_below=100)
    assert build(job)["kind"] == "hnsw"
    assert build(replace(job, embeddings=(str(home / "later"),)))["kind"] == "hnsw"
    index = Index.open(job.output)
    found = index.search(QUERIES, "color", 10, "id >= 1000", options=Options(nprobes=50, refine=20))
    exact = index.search(QUERIES, "color", 10, "id >= 1000", options=Options(exact=True))
    assert len(found) == 20 and min(found["id"].to_pylist()) >= 1000
    assert len(set(found["id"].to_pylist()) & set(exact["id"].to_pylist())) >= 9
    assert build(IndexJob(output=job.output, reindex=True))["rows"] == 760


def test_what_was_replaced_is_kept_for_those_who_read_it_until_the_next_time(home, tmp_path):
    job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "i.lance"))
    build(job)
    reader = Index.open(job.output)
    build(replace(job, overwrite=True))
    assert len(reader.search(QUERIES, "color", 3)) == 6
    size = sum(f.stat().st_size for f in (tmp_path / "i.lance" / "data").iterdir())
    build(replace(job, overwrite=True))
    build(replace(job, overwrite=True))
    assert sum(f.stat().st_size for f in (tmp_path / "i.lance" / "data").iterdir()) == size


def test_two_builds_at_once_do_not_publish_what_was_not_counted(home, tmp_path, monkeypatch):
    first = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "i.lance"))
    build(first)
    publish = lancefiles.publish

    def later(dataset, meta):
        monkeypatch.setattr(index_module, "publish", publish)
        lance.write_dataset(dataset.to_table(limit=5), dataset.uri, mode="append")
        publish(dataset, meta)

    monkeypatch.setattr(index_module, "publish", later)
    with pytest.raises(WorkError, match="another build is at work"):
        build(replace(first, embeddings=(str(home / "later"),)))
    assert Index.open(first.output).metadata.rows == 600
    assert build(replace(first, embeddings=(str(home / "later"),)))["rows"] == 760


def test_rows_that_are_there_already_from_another_job_are_refused(home, tmp_path, tiny_model):
    uri = str(tmp_path / "i.lance")
    build(IndexJob(embeddings=(str(home / "out"),), output=uri))
    kept = {"keep_columns": ("text", "year")}
    again = embedded(tmp_path / "again", tiny_model, rows(3, 5, 299), conditions=("color",), **kept)
    with pytest.raises(RequestError, match="got id 299 under 'color' in both"):
        build(IndexJob(embeddings=(again,), output=uri))
    new = embedded(tmp_path / "new", tiny_model, rows(3, 5, 299), conditions=("kind of dog",), **kept)
    assert build(IndexJob(embeddings=(new,), output=uri))["rows_added"] == 3


def test_an_index_on_object_storage_is_that_on_disk(home, index, s3_server):
    uri = "s3://corpus/indices/i.lance"
    job = IndexJob(embeddings=(str(home / "out"), str(home / "plain")), output=uri)
    build(job)
    assert build(job)["rows_added"] == 0
    for condition in ("color", None):
        options = {"unconditional": condition is None}
        assert Index.open(uri).search(QUERIES, condition, 5, **options) == index.search(
            QUERIES, condition, 5, **options
        )
    answer(SearchJob(index=uri, query=("a red dress",), condition=("color",), output="s3://corpus/answers.parquet"))
    assert len(pq.read_table(pa.BufferReader(locate("s3://corpus/answers.parquet").read()))) == 10
    with pytest.raises(RequestError, match="specified bucket does not exist"):
        Index.open("s3://nobody/i.lance")


# ------------------------------------------------------------------------------------------------------------ killed

KILLED = """
import os, signal, sys
from raycase.search import build as build_module
from raycase.search import index_rows
from raycase.search.build import IndexJob, build
where = sys.argv[3]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "rows":
    batches = index_rows._batches
    def first_batch(*arguments):
        yield from list(batches(*arguments))[:1]
        die()
    index_rows._batches = first_batch
elif where == "indices":
    build_module.update_indices = die
else:
    build_module.publish = die
build(IndexJob(embeddings=(sys.argv[1],), output=sys.argv[2]))
"""


@pytest.mark.cluster
@pytest.mark.parametrize("where", ["rows", "indices", "publish"])
def test_a_killed_build_leaves_the_former_index_or_none(home, tmp_path, where):
    uri = str(tmp_path / "i.lance")

    def killed(output):
        done = subprocess.run([sys.executable, "-c", KILLED, str(home / output), uri, where], capture_output=True)
        assert done.returncode == -9, done.stderr

    killed("out")
    with pytest.raises(RequestError, match="got none that is finished"):
        Index.open(uri)
    assert build(IndexJob(embeddings=(str(home / "out"),), output=uri))["rows"] == 600
    killed("later")
    before = Index.open(uri)
    assert before.metadata.rows == 600 == before.dataset.count_rows()
    assert build(IndexJob(embeddings=(str(home / "later"),), output=uri))["rows"] == 760
    assert Index.open(uri).dataset.count_rows() == 760
    assert before.search(QUERIES, "color", 3).num_rows == 6


# ----------------------------------------------------------------------------------------------------------- refused


def refuse(job, words, work=build):
    with pytest.raises(RequestError, match=words) as error:
        work(job)
    assert "\n" not in str(error.value) and ".rs:" not in str(error.value)


def test_wrong_builds_are_refused(home, index, tmp_path, tiny_model):
    new, there = str(tmp_path / "new"), str(home / "i.lance")
    refuse(IndexJob(output=new), "--embeddings: expected an output")
    refuse(IndexJob(embeddings=(str(tmp_path),), output=new), "got no job.json")
    refuse(IndexJob(embeddings=(str(home / "other"),), output=there), "expected vectors of the index's model")
    refuse(
        IndexJob(embeddings=(str(home / "out"),), output=str(home / "out")), "expected an index or a new folder, got"
    )
    refuse(IndexJob(embeddings=(str(home / "out"),), output=str(home / "a" / "in.parquet")), "got the file")
    refuse(IndexJob(embeddings=(str(home / "out"),), output=new, partitions=0), "--partitions: expected at least 1")
    refuse(IndexJob(embeddings=(str(home / "out"),), output=new, kind="ivf-pq", sub_vectors=5), "a divisor of 32")
    refuse(IndexJob(embeddings=(str(home / "out"),), output=there, partitions=3), "--reindex: expected it beside")
    refuse(IndexJob(embeddings=(str(home / "out"),), output="foo://x/i"), "expected a local path or a URI")
    named = embedded(
        tmp_path / "n", tiny_model, [{"id": 1, "text": "a", "score": 2}], conditions=("c",), keep_columns=("score",)
    )
    refuse(IndexJob(embeddings=(named,), output=new), "expected no kept column named 'score'")
    lance.write_dataset(pa.table({"mine": [1]}), tmp_path / "mine.lance")
    for overwrite in (False, True):
        job = IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "mine.lance"), overwrite=overwrite)
        refuse(job, "got a Lance dataset in")
    assert lance.dataset(tmp_path / "mine.lance").count_rows() == 1
    fewer = embedded(tmp_path / "f", tiny_model, [{"id": 9999, "text": "a"}], conditions=("color",))
    refuse(IndexJob(embeddings=(fewer,), output=there), "expected the index's columns")
    assert Index.open(there).metadata.rows == 900
    (tmp_path / "f" / "out" / "manifest.json").unlink()
    refuse(IndexJob(embeddings=(fewer,), output=new), "expected a finished output")


def test_wrong_searches_are_refused(home, index, tmp_path, tiny_model):
    def ask(words, **options):
        refuse(SearchJob(**{"index": str(home / "i.lance"), "query": ("a red dress",)} | options), words, answer)

    ask("got none that is finished", index=str(tmp_path / "none"))
    ask("--query: expected words, got ' '", query=(" ",))
    ask("-k: expected at most the 300 rows under 'color', got 301", condition=("color",), k=301)
    ask("-k: expected at most the 300 rows", k=301)
    ask("-k: expected at least 1", k=0)
    ask("a filter in SQL on id, text, year, got 'age > 3': .*No field named age", where="age > 3")
    ask("a filter in SQL .*got 'year >'", where="year >")
    ask("a filter in SQL .*got 'year > 1 --'", where="year > 1 --")
    ask("--condition: expected one of the index's", condition=("nothing",), exact_condition=True)
    ask("--condition: expected one of the index's", condition=(" ",))
    ask("expected one of --query or --queries, got none", query=())
    ask("expected one of --condition or --unconditional", condition=("color",), unconditional=True)
    ask("--nprobes: expected at least 1", nprobes=0)
    ask("expected the model that the index is of", model="minilm")
    ask("expected the index's model nowhere", model="nowhere/at/all")
    ask("--output: expected a Parquet file", query=(), queries=str(home / "a" / "in.parquet"))
    build(IndexJob(embeddings=(str(home / "out"),), output=str(tmp_path / "i")))
    ask("expected plain vectors in", index=str(tmp_path / "i"), unconditional=True)


def test_many_queries_go_from_a_file_to_parquet(home, index, tmp_path):
    (tmp_path / "q.csv").write_text("text,condition\na red dress,color\ntwo people play,number of people\n")
    result = answer(
        SearchJob(index=str(home / "i.lance"), queries=str(tmp_path / "q.csv"), output=str(tmp_path / "a"), k=3)
    )
    assert (result["queries"], result["answers"]) == (2, 6)
    assert pq.read_table(tmp_path / "a").equals(index.search(QUERIES, list(CONDITIONS), 3))


def test_the_scripts_answer_and_refuse(home, tmp_path):
    uri = str(tmp_path / "i.lance")
    built = run_job("--embeddings", home / "out", "--output", uri, script="index.py")
    assert json.loads(built.stdout.splitlines()[-1])["rows"] == 600
    found = run_job("--index", uri, "--query", "a red dress", "--condition", "colors", "-k", 2, script="search.py")
    assert found.returncode == 0, found.stderr
    assert "no 'colors' in the index; answered under 'color'" in found.stderr
    assert '"a red dress" under "colors"' in found.stdout and json.loads(found.stdout.splitlines()[-1])["answers"] == 2
    wrong = run_job("--index", uri, "--query", "a", "--where", "nope = 3", script="search.py")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --where:") and wrong.stderr.count("\n") == 1
