"""Answers in a new order: by a scorer by hand, and through the search of a real index."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers import embedded

import raycase
from raycase.data.storage import locate
from raycase.distributed import rerank as module
from raycase.distributed.rerank import RerankJob, rerank_all
from raycase.errors import RequestError
from raycase.search.build import IndexJob, build
from raycase.search.rescore import find_scorer, rerank
from raycase.search.search_job import SearchJob, search
from raycase.systems.bi_encoder import bi_encoder
from raycase.systems.cross_encoder import cross_encoder
from raycase.systems.mixsp import mixsp


class Longest:
    """Similar is what is long; counts what it is asked."""

    def __init__(self, conditions=None):
        self.asked = []
        self.config = SimpleNamespace(CONDITIONS=conditions)

    def scores_of(self, sentences1, sentences2, conditions=None):
        self.asked += list(zip(sentences1, sentences2, conditions or [None] * len(sentences1), strict=True))
        return np.array([len(text) if text.strip() else np.nan for text in sentences2], dtype=np.float32)


@pytest.fixture
def answers():
    rows = [  # query, rank, score, id, text; of the second query, two equal ones
        (0, 1, 0.9, 7, "dog"),
        (0, 2, 0.8, 3, "two dogs"),
        (0, 3, 0.7, 5, "a dog"),
        (1, 1, 0.6, 5, "a dog"),
        (1, 2, 0.5, 8, "a cat"),
        (1, 3, 0.4, 7, "dog"),
    ]
    names = ("query", "rank", "score", "id", "text")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    types = {"rank": pa.int32(), "score": pa.float32()}
    columns = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    return pa.table(columns | {"asked": ["color"] * 6, "condition": ["color"] * 6})


def test_answers_stand_by_the_scorer_and_equals_as_before(answers):
    scorer = Longest()
    found = rerank(answers, ["a", "b"], scorer, text="text", k=2)
    assert found.select(["query", "rank", "id", "score"]).to_pylist() == [
        {"query": 0, "rank": 1, "id": 3, "score": 8.0},
        {"query": 0, "rank": 2, "id": 5, "score": 5.0},
        {"query": 1, "rank": 1, "id": 5, "score": 5.0},
        {"query": 1, "rank": 2, "id": 8, "score": 5.0},
    ]
    assert found["cosine"].to_pylist() == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert found.schema.remove(len(found.schema) - 1) == answers.schema, "one column more, at the end"
    assert len(scorer.asked) == 6 and scorer.asked[0] == ("a", "dog", "color")


def test_each_distinct_pair_is_scored_once(answers):
    scorer = Longest()
    found = rerank(answers, ["a", "a"], scorer, text="text", k=3)
    assert len(scorer.asked) == 4
    assert found["rank"].to_pylist() == [1, 2, 3, 1, 2, 3]
    assert len(rerank(answers[:0], ["a"], Longest(), text="text", k=3)) == 0


def test_a_scorer_without_conditions_is_asked_once_for_all(answers):
    both = answers.set_column(answers.column_names.index("asked"), "asked", pa.array(["color", "size"] * 3))
    for known, asked in ((None, 6), ((), 4)):
        scorer = Longest(known)
        found = rerank(both, ["a", "a"], scorer, text="text", k=3)
        assert (len(found), len(scorer.asked)) == (6, asked)


@pytest.mark.parametrize("value", [None, "  "])
def test_an_answer_without_words_has_no_score_and_comes_last(answers, value):
    texts = answers["text"].to_pylist()
    broken = answers.set_column(answers.column_names.index("text"), "text", pa.array([texts[0], value, *texts[2:]]))
    found = rerank(broken, ["a", "b"], Longest(), text="text", k=3)
    assert found["id"].to_pylist()[:3] == [5, 7, 3]
    assert found["score"].to_pylist()[:3] == [5.0, 3.0, None]
    assert found["cosine"].to_pylist()[:3] == pytest.approx([0.7, 0.9, 0.8])


def test_answers_that_cannot_be_reranked_are_refused(answers):
    with pytest.raises(RequestError, match=r"--text-column: expected a column that the index keeps .*, got 'words'"):
        rerank(answers, ["a", "b"], Longest(), text="words", k=3)
    again = rerank(answers, ["a", "b"], Longest(), text="text", k=3)
    with pytest.raises(RequestError, match="expected answers without a column 'cosine'"):
        rerank(again, ["a", "b"], Longest(), text="text", k=3)


@pytest.fixture
def index(tiny_model, tmp_path):
    torch.manual_seed(0)
    bi_encoder(str(tiny_model)).trainable().system.save(tmp_path / "bi")
    words = ["red", "blue", "dog", "cat", "people", "play"]
    rows = [{"id": i, "text": f"{words[i % 6]} {words[i // 6]} {i}"} for i in range(30)]
    output = embedded(
        tmp_path, tmp_path / "bi", rows, conditions=("color",), unconditional=False, prompt=None, pooling=None
    )
    build(IndexJob(embeddings=(output,), output=str(tmp_path / "index.lance")))
    return str(tmp_path / "index.lance"), {row["id"]: row["text"] for row in rows}


@pytest.mark.parametrize("make", [mixsp, cross_encoder])
def test_a_search_is_reranked(make, index, tiny_model, tmp_path, capsys):
    uri, texts = index
    torch.manual_seed(0)
    make(str(tiny_model)).trainable().system.save(tmp_path / "scorer")
    asked = {"index": uri, "query": ("red dog", "a cat"), "condition": ("color",), "k": 4}
    output = str(tmp_path / "answers.parquet")
    done = search(SearchJob(**asked, rerank=str(tmp_path / "scorer"), candidates=9, output=output))
    assert done["answers"] == 8 and done["rerank_seconds"] > 0
    found = pa.parquet.read_table(output)
    plain = str(tmp_path / "plain.parquet")
    assert search(SearchJob(**asked | {"k": 9}, output=plain))["rerank_seconds"] is None
    candidates = pa.parquet.read_table(plain).to_pylist()
    scorer = raycase.load(str(tmp_path / "scorer"))
    for query, sentence in enumerate(asked["query"]):
        ids = [row["id"] for row in candidates if row["query"] == query]
        scores = scorer.score([sentence] * 9, [texts[i] for i in ids], ["color"] * 9)
        best = np.argsort(-scores, kind="stable")[:4]
        own = found.filter(pa.compute.equal(found["query"], query))
        assert own["id"].to_pylist() == [ids[i] for i in best]
        assert own["score"].to_pylist() == pytest.approx(scores[best].tolist(), abs=1e-4)
    for more in ({}, {"condition": ()}):  # fewer rows than candidates are all of them
        done = search(SearchJob(**asked | more, rerank=str(tmp_path / "scorer"))) if make is mixsp or not more else done
        assert done["answers"] == 8
    assert '"red dog" under "color"' in capsys.readouterr().out
    with pytest.raises(RequestError, match="-k: expected at most the 30 rows under 'color', got 31"):
        search(SearchJob(**asked | {"k": 31}, rerank=str(tmp_path / "scorer")))


def test_what_cannot_rerank_is_refused(index, tiny_model, tmp_path):
    bi_encoder(str(tiny_model)).trainable().system.save(tmp_path / "vectors")
    cross_encoder(str(tiny_model)).trainable().system.save(tmp_path / "cross")
    with pytest.raises(
        RequestError, match=r"expected a model that scores pairs \(mixsp, cross-encoder\), got .*vectors"
    ):
        find_scorer(str(tmp_path / "vectors"), conditional=True)
    with pytest.raises(RequestError, match="expected queries under conditions for"):
        find_scorer(str(tmp_path / "cross"), conditional=False)
    for flag, value in (("candidates", 5), ("text_column", "text")):
        with pytest.raises(RequestError, match=f"--{flag.replace('_', '-')}: expected --rerank, got none"):
            search(SearchJob(index=index[0], query=("a",), **{flag: value}))
    with pytest.raises(RequestError, match="--candidates: expected at least 1, got 0"):
        search(SearchJob(index=index[0], query=("a",), rerank=str(tmp_path / "cross"), candidates=0))


@pytest.fixture
def searched(index, tmp_path):
    """Answers to a file of queries, and the queries."""
    queries = [{"text": f"{word} dog {n}", "condition": "color"} for n, word in enumerate(["red", "blue", "cat"] * 9)]
    pa.parquet.write_table(pa.Table.from_pylist(queries), tmp_path / "queries.parquet")
    output = str(tmp_path / "searched.parquet")
    search(SearchJob(index=index[0], queries=str(tmp_path / "queries.parquet"), k=8, output=output))
    return {"answers": output, "queries": str(tmp_path / "queries.parquet")}


def test_a_file_of_queries_is_reranked_on_ray_and_goes_on(searched, tiny_model, tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(module, "ROWS_OF_UNIT", 50)
    torch.manual_seed(0)
    mixsp(str(tiny_model)).trainable().system.save(tmp_path / "scorer")
    job = RerankJob(**searched, model=str(tmp_path / "scorer"), output=str(tmp_path / "again"), k=3)
    done = rerank_all(job)
    assert (done["answers_in"], done["answers_out"], done["units_done"]) == (216, 81, 4)
    folder = tmp_path / "again" / "answers"
    found = pa.concat_tables([pa.parquet.read_table(file) for file in sorted(folder.iterdir())])
    sentences = pa.parquet.read_table(searched["queries"])["text"].to_pylist()
    scorer = raycase.load(str(tmp_path / "scorer"))
    wanted = rerank(pa.parquet.read_table(searched["answers"]), sentences, scorer, text="text", k=3)
    assert found.drop_columns("score") == wanted.drop_columns("score")
    np.testing.assert_allclose(found["score"], wanted["score"], atol=1e-4)

    kept = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    lost = sorted(kept)[1]
    (folder / lost).unlink()
    again = rerank_all(job)
    assert (again["units_done"], again["units_resumed"], again["answers_out"]) == (1, 3, 81)
    assert all((folder / name).stat().st_mtime_ns == mark for name, mark in kept.items() if name != lost)
    with pytest.raises(RequestError, match=r"expected this very job in .*, got another; pass --overwrite"):
        rerank_all(replace(job, k=2))
    assert rerank_all(replace(job, k=2, overwrite=True))["answers_out"] == 54


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"text_column": "words"}, r"--text-column: expected a column that .*searched.parquet keeps .*, got 'words'"),
        ({"model": "minilm"}, "--model: expected a model that scores pairs"),
        ({"answers": "nowhere.parquet"}, "--answers"),
    ],
)
def test_wrong_requests_are_refused(searched, tmp_path, change, said):
    settings = searched | {"model": "minilm", "output": str(tmp_path / "again")}
    with pytest.raises(RequestError, match=said):
        rerank_all(RerankJob(**settings | change))


def test_no_answers_are_no_answers(searched, tiny_model, tmp_path, cluster):
    mixsp(str(tiny_model)).trainable().system.save(tmp_path / "scorer")
    pa.parquet.write_table(pa.parquet.read_table(searched["answers"])[:0], searched["answers"])
    done = rerank_all(RerankJob(**searched, model=str(tmp_path / "scorer"), output=str(tmp_path / "again")))
    assert (done["answers_in"], done["answers_out"], done["units_done"]) == (0, 0, 0)


def test_some_rows_are_read_of_the_row_groups_that_hold_them(searched, tmp_path):
    table = pa.parquet.read_table(searched["answers"])
    pa.parquet.write_table(table, tmp_path / "groups.parquet", row_group_size=10)
    for start, stop in ((0, 10), (5, 6), (9, 31), (200, len(table))):
        assert module._read(locate(str(tmp_path / "groups.parquet")), start, stop) == table[start:stop]


def test_answers_of_another_kind_are_refused(searched, tmp_path):
    job = RerankJob(**searched, model="minilm", output=str(tmp_path / "again"))
    with pytest.raises(RequestError, match=r"--answers: expected a .parquet file, got .*queries.csv"):
        (tmp_path / "queries.csv").write_text("text\na\n")
        rerank_all(replace(job, answers=str(tmp_path / "queries.csv")))
    pa.parquet.write_table(pa.parquet.read_table(searched["answers"]).drop_columns("rank"), searched["answers"])
    with pytest.raises(RequestError, match=r"searched.parquet: expected the column 'rank'"):
        rerank_all(job)


def test_answers_to_other_queries_are_refused(searched, tmp_path):
    answers = pa.parquet.read_table(searched["answers"])
    job = RerankJob(**searched, model="minilm", output=str(tmp_path / "again"))
    pa.parquet.write_table(pa.concat_tables([answers, answers]), searched["answers"])
    with pytest.raises(RequestError, match="expected the answers to each query together, got them apart"):
        rerank_all(job)
    more = answers.set_column(0, "query", pa.array(answers["query"].to_numpy() + 20))
    pa.parquet.write_table(more, searched["answers"])
    with pytest.raises(RequestError, match=r"--queries: expected the queries that .* has answers to, up to 47, got 27"):
        rerank_all(job)
