"""Answers in a new order: by a scorer by hand, and through the search of a real index."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import embedded

import raycase
from raycase.index import IndexJob, build
from raycase.queries import SearchJob, search
from raycase.rerank import load_scorer, rerank
from raycase.schema import RequestError
from raycase.systems.baselines import bi_encoder, cross_encoder
from raycase.systems.mixsp import mixsp


class Longest:
    """Similar is what is long; counts what it is asked."""

    def __init__(self):
        self.asked = []

    def score(self, sentences1, sentences2, conditions=None):
        self.asked += list(zip(sentences1, sentences2, conditions, strict=True))
        return np.array([len(text) for text in sentences2], dtype=np.float32)


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


@pytest.mark.parametrize("value", [None, "  "])
def test_an_answer_without_words_is_named(answers, value):
    texts = answers["text"].to_pylist()
    broken = answers.set_column(answers.column_names.index("text"), "text", pa.array([*texts[:4], value, texts[5]]))
    with pytest.raises(RequestError, match=r"wanted words in 'text' of every answer.*query 1, rank 2"):
        rerank(broken, ["a", "b"], Longest(), text="text", k=3)
    with pytest.raises(RequestError, match="--text-column: wanted a column that the index keeps, found 'words'"):
        rerank(answers, ["a", "b"], Longest(), text="words", k=3)


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
    search(SearchJob(**asked, rerank=str(tmp_path / "scorer")))
    assert '"red dog" under "color"' in capsys.readouterr().out


def test_what_cannot_rerank_is_refused(index, tiny_model, tmp_path):
    bi_encoder(str(tiny_model)).trainable().system.save(tmp_path / "vectors")
    cross_encoder(str(tiny_model)).trainable().system.save(tmp_path / "cross")
    with pytest.raises(
        RequestError, match=r"wanted a model that scores pairs \(mixsp, cross-encoder\), found .*vectors"
    ):
        load_scorer(str(tmp_path / "vectors"), conditional=True)
    with pytest.raises(RequestError, match="wanted queries under conditions for"):
        load_scorer(str(tmp_path / "cross"), conditional=False)
    with pytest.raises(RequestError, match="--candidates: wanted at least 1, found 0"):
        search(SearchJob(index=index[0], query=("a",), rerank=str(tmp_path / "cross"), candidates=0))
