"""Searches from the command line: from a file to Parquet, on failing object storage, re-ranked."""

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers import embedded
from indexed import QUERIES, alike, index_of_thirty, refuse
from s3_proxy import FAULTS, Proxy
from storing import indexed

import raycase
from raycase.commands import search as module
from raycase.commands.search import SearchFlags, find_scorer, read_queries, search
from raycase.commands.search import search as answer
from raycase.errors import RequestError, WorkError
from raycase.index.answers import rerank
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.options import EFFORTS, Options
from raycase.io import storage
from raycase.io.storage import locate
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.mixsp.model import mixsp


def test_an_index_on_object_storage_is_that_on_disk(home, index, s3_server):
    uri = "s3://corpus/indices/i.lance"
    job = {"embeddings": (str(home / "out"), str(home / "plain")), "output": uri}
    build(**job)
    assert build(**job)["rows_added"] == 0
    for condition in ("color", None):
        alike(Index.open(uri).search(QUERIES, condition, 5), index.search(QUERIES, condition, 5))
    answer(SearchFlags(index=uri, query=("a red dress",), condition=("color",), output="s3://corpus/answers.parquet"))
    assert len(pq.read_table(pa.BufferReader(locate("s3://corpus/answers.parquet").read()))) == 10
    with pytest.raises(RequestError, match="specified bucket does not exist"):
        Index.open("s3://nobody/i.lance")


def test_queries_whose_conditions_have_another_name_are_refused(tmp_path):
    (tmp_path / "q.csv").write_text("text,Conditions\na red dress,color\n")
    with pytest.raises(RequestError, match=r"--queries: .*expected the column 'condition', got 'Conditions'"):
        read_queries(str(tmp_path / "q.csv"))


def test_wrong_searches_are_refused(home, index, tmp_path):
    def ask(words, **options):
        refuse(SearchFlags(**{"index": str(home / "i.lance"), "query": ("a red dress",)} | options), words, answer)

    ask("got no finished one", index=str(tmp_path / "none"))
    ask("^query: expected a text that .* can embed", query=(" ",))
    ask(r"--query: expected text in UTF-8, got '\\udcff'", query=("\udcff",))
    ask("--memory: expected GiB above 0, at most 1,048,576, got 1e\\+308", memory=1e308)
    ask("-k: expected at least 1", k=0)
    ask("^--condition: expected words in every condition, got ' ' at index 0", condition=(" ",))
    ask("expected one of --query, --phrase or --queries, got none", query=())
    ask("got --query and --queries$", queries="q.csv")
    ask("--phrase: expected the --condition that it answers, got none", query=(), phrase=("heavy rain",))
    ask("expected --condition, --unconditional or conditions in --queries", condition=("color",), unconditional=True)
    ask("expected the index's model nowhere", model="nowhere/at/all")
    ask("^--rerank: expected a model that scores pairs, got: .*, got 'nowhere'", rerank="nowhere")


def test_more_effort_looks_at_more_of_an_index():
    low, usual, high, exact = (Options(**EFFORTS[name]) for name in ("low", "usual", "high", "exact"))
    assert [o.nprobes for o in (low, usual, high)] == [2, 10, 40] and exact.exact
    assert [o.candidates(10, 3) for o in (low, usual, high)] == [10, 30, 120]  # never below k
    assert [o.candidates(10, 50, 5000) for o in (low, usual, high)] == [1250, 5000, 20000]
    assert replace(high, refine=2).candidates(10, 50, 5000) == 20


def test_an_answer_without_words_has_no_score_and_comes_last(tiny_model):
    scorer = cross_encoder(str(tiny_model)).load(dtype=torch.float32)
    columns = {"query": [0] * 4, "rank": pa.array([1, 2, 3, 4], pa.int32()), "id": [3, 7, 5, 8]}
    columns |= {"score": pa.array([0.9, 0.8, 0.7, 0.6], pa.float32()), "text": [None, "dog", "  ", "a cat"]}
    answers = pa.table(columns | {"asked": ["color"] * 4, "condition": ["color"] * 4})
    found = rerank(answers, ["a"], scorer, text="text", k=4)
    assert found["id"].to_pylist()[2:] == [3, 5] and found["score"].to_pylist()[2:] == [None, None]
    assert found["cosine"].to_pylist()[2:] == pytest.approx([0.9, 0.7])
    assert found.schema.remove(len(found.schema) - 1) == answers.schema, "one column more, at the end"


@pytest.fixture(scope="module")
def thirty(tmp_path_factory, tiny_model):
    return index_of_thirty(tmp_path_factory.mktemp("thirty"), tiny_model)


@pytest.mark.parametrize("make", [mixsp, cross_encoder])
def test_a_search_is_reranked(make, thirty, tiny_model, tmp_path, capsys):
    uri, texts = thirty
    torch.manual_seed(0)
    make(str(tiny_model)).trainable().save(tmp_path / "scorer")
    asked = {"index": uri, "query": ("red dog", "a cat"), "condition": ("color",), "k": 4}
    output = str(tmp_path / "answers.parquet")
    done = search(SearchFlags(**asked, rerank=str(tmp_path / "scorer"), candidates=9, output=output))
    assert done["answers"] == 8
    found = pq.read_table(output)
    plain = str(tmp_path / "plain.parquet")
    search(SearchFlags(**asked | {"k": 9}, output=plain))
    candidates = pq.read_table(plain).to_pylist()
    scorer = raycase.load(str(tmp_path / "scorer"))
    for query, sentence in enumerate(asked["query"]):
        ids = [row["id"] for row in candidates if row["query"] == query]
        scores = scorer.score([sentence] * 9, [texts[i] for i in ids], ["color"] * 9)
        best = np.argsort(-scores, kind="stable")[:4]
        own = found.filter(pa.compute.equal(found["query"], query))
        assert own["id"].to_pylist() == [ids[i] for i in best]
        assert own["score"].to_pylist() == pytest.approx(scores[best].tolist(), abs=1e-4)
    if make is mixsp:  # which knows no conditions
        weighted = SearchFlags(**asked | {"condition": ("color=-2",)}, rerank=str(tmp_path / "scorer"))
        assert search(weighted)["answers"] == 8
    search(SearchFlags(**asked, rerank=str(tmp_path / "scorer")))
    assert '"red dog" under "color"' in capsys.readouterr().out
    more = search(SearchFlags(**asked | {"k": 31}, rerank=str(tmp_path / "scorer")))  # fewer rows are all of them
    assert more["answers"] == 30 * len(asked["query"])


def test_a_file_of_queries_is_reranked_some_at_a_time(thirty, tiny_model, tmp_path, monkeypatch):
    torch.manual_seed(0)
    cross_encoder(str(tiny_model)).trainable().save(tmp_path / "scorer")
    queries = [{"text": f"{word} dog {n}", "condition": "color"} for n, word in enumerate(["red", "blue", "cat"] * 9)]
    pq.write_table(pa.Table.from_pylist(queries), tmp_path / "queries.parquet")
    found = {}
    for at_once in (module.ANSWERS_AT_ONCE, 40):  # all, and four queries
        monkeypatch.setattr(module, "ANSWERS_AT_ONCE", at_once)
        file = tmp_path / f"{at_once}.parquet"
        flags = {"queries": str(tmp_path / "queries.parquet"), "output": str(file), "k": 3, "explain": False}
        done = search(SearchFlags(index=thirty[0], rerank=str(tmp_path / "scorer"), candidates=10, **flags))
        assert done["queries"] == 27 and done["answers"] == 81
        found[at_once] = pq.read_table(file)
    assert pq.ParquetFile(file).num_row_groups == 7
    one, some = found.values()
    assert some.drop_columns(["score", "cosine"]).equals(one.drop_columns(["score", "cosine"]))
    for figure in ("score", "cosine"):
        assert some[figure].to_pylist() == pytest.approx(one[figure].to_pylist(), abs=1e-5)
    assert some["query"].to_pylist() == [query for query in range(27) for _ in range(3)]


def test_what_cannot_rerank_is_refused(thirty, tiny_model, tmp_path):
    bi_encoder(str(tiny_model)).trainable().save(tmp_path / "vectors")
    cross_encoder(str(tiny_model)).trainable().save(tmp_path / "cross")
    with pytest.raises(RequestError, match=r"expected a model that scores pairs .*, got .*vectors"):
        find_scorer(str(tmp_path / "vectors"), conditional=True)
    with pytest.raises(RequestError, match="expected queries under conditions for"):
        find_scorer(str(tmp_path / "cross"), conditional=False)
    with pytest.raises(RequestError, match="--candidates: expected at least 1, got 0"):
        search(SearchFlags(index=thirty[0], query=("a",), rerank=str(tmp_path / "cross"), candidates=0))
    rows, asked = [{"id": 1, "text": "a", "year": 1, "cosine": 0.5}], {"query": ("a",), "condition": ("color",)}
    for keep in ("text", "cosine"), ("year",):
        output = embedded(tmp_path / keep[0], tiny_model, rows, conditions=("color",), keep_columns=keep)
        index = indexed(tmp_path / f"{keep[0]}.lance", output)
        words = f"--text-column: expected the column 'text' .*, and none named 'cosine', .*, got id, {', '.join(keep)}$"
        refuse(SearchFlags(index=index, **asked, rerank=str(tmp_path / "cross")), words, search)


def answers_of(uri):
    """Under a condition that was embedded and one that was not."""
    return Index.open(uri).search(["a red dress"] * 2, ["number of people", "color"], 5)


@pytest.fixture(scope="module")
def stored(s3_server, tokens):
    """The URI of an index on S3, and its answers when nothing fails."""
    uri = indexed("s3://corpus/faults/i.lance", tokens / "words", tokens / "out")
    return uri, answers_of(uri)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_search_meets_each_fault_and_gives_the_same_or_one_line(stored, fault, through, s3_server, monkeypatch):
    """Lance has a client of its own."""
    uri, wanted = stored
    monkeypatch.setattr(storage, "TIMEOUT", 0.5)  # it asks again and again
    began = time.monotonic()
    with Proxy(s3_server, failing=0.1, faults=(fault,), seed=4) as proxy:
        through(proxy.url)
        try:
            found = answers_of(uri)
        except (RequestError, WorkError) as error:
            assert "\n" not in str(error) and ".rs:" not in str(error)
        else:
            assert found.drop_columns(["score"]).equals(wanted.drop_columns(["score"]))
            np.testing.assert_allclose(found["score"].to_numpy(), wanted["score"].to_numpy(), atol=1e-5)
    assert proxy.failed[fault] and time.monotonic() - began < 30
