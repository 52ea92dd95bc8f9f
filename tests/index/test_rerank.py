"""Answers are re-ranked: by a scorer that knows lengths, through the search of an index, and files of them in units."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from indexed import index_of_thirty

import raycase
from raycase.commands import search as module
from raycase.commands.search import SearchFlags, find_scorer, rerank, search
from raycase.errors import RequestError
from raycase.models.configs import score_pairs
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.mixsp.model import mixsp


class Longest:
    """A scorer by the length of the answer; records the pairs that it scores."""

    def __init__(self, conditions=None):
        self.pairs = []
        self.config = SimpleNamespace(known_conditions=conditions, prepare_pairs=lambda *texts: texts)

    def scored(self, sentences1, sentences2, conditions):
        self.pairs += list(zip(sentences1, sentences2, conditions or [None] * len(sentences1), strict=True))
        lengths = [len(text) if text.strip() else np.nan for text in sentences2]
        return SimpleNamespace(vectors=np.array(lengths).reshape(-1, 1))


@pytest.fixture(autouse=True)
def by_length(monkeypatch):
    def score(scorer, prepared):
        return scorer.scored(*prepared) if isinstance(scorer, Longest) else score_pairs(scorer, prepared)

    monkeypatch.setattr("raycase.models.configs.score_pairs", score)


@pytest.fixture
def answers():
    # query, rank, score, id, text; of the second query, two equal ones
    rows = [(0, 1, 0.9, 7, "dog"), (0, 2, 0.8, 3, "two dogs"), (0, 3, 0.7, 5, "a dog")]
    rows += [(1, 1, 0.6, 5, "a dog"), (1, 2, 0.5, 8, "a cat"), (1, 3, 0.4, 7, "dog")]
    names, types = ("query", "rank", "score", "id", "text"), {"rank": pa.int32(), "score": pa.float32()}
    columns = {n: pa.array(values, types.get(n)) for n, values in zip(names, zip(*rows, strict=True), strict=True)}
    return pa.table(columns | {"asked": ["color"] * 6, "condition": ["color"] * 6})


def test_answers_are_ordered_by_the_scorer_and_ties_keep_their_order(answers):
    scorer = Longest()
    found = rerank(answers, ["a", "b"], scorer, text="text", k=2)
    got = [tuple(row.values()) for row in found.select(["query", "rank", "id", "score"]).to_pylist()]
    assert got == [(0, 1, 3, 8.0), (0, 2, 5, 5.0), (1, 1, 5, 5.0), (1, 2, 8, 5.0)]
    assert found["cosine"].to_pylist() == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert found.schema.remove(len(found.schema) - 1) == answers.schema, "one column more, at the end"
    assert len(scorer.pairs) == 6 and scorer.pairs[0] == ("a", "dog", "color")
    assert len(rerank(answers[:0], ["a"], Longest(), text="text", k=3)) == 0


@pytest.mark.parametrize("value", [None, "  "])
def test_an_answer_without_words_has_no_score_and_comes_last(answers, value):
    texts = answers["text"].to_pylist()
    broken = answers.set_column(answers.column_names.index("text"), "text", pa.array([texts[0], value, *texts[2:]]))
    found = rerank(broken, ["a", "b"], Longest(), text="text", k=3)
    assert found["id"].to_pylist()[:3] == [5, 7, 3]
    assert found["score"].to_pylist()[:3] == [5.0, 3.0, None]
    assert found["cosine"].to_pylist()[:3] == pytest.approx([0.7, 0.9, 0.8])


def test_answers_that_cannot_be_reranked_are_refused(answers):
    with pytest.raises(RequestError, match="--text-column: expected the column 'words' among those"):
        rerank(answers, ["a", "b"], Longest(), text="words", k=3)
    again = rerank(answers, ["a", "b"], Longest(), text="text", k=3)
    with pytest.raises(RequestError, match="none named 'cosine'"):
        rerank(again, ["a", "b"], Longest(), text="text", k=3)


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
        assert (
            search(SearchFlags(**asked | {"condition": ("color=-2",)}, rerank=str(tmp_path / "scorer")))["answers"] == 8
        )
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
    assert some.drop_columns(["score"]).equals(one.drop_columns(["score"]))
    assert some["score"].to_pylist() == pytest.approx(one["score"].to_pylist(), abs=1e-5)
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
