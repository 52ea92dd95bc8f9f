"""Answers are re-ranked: by a scorer that knows lengths, through the search of an index, and files of them in units."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from indexed import index_of_thirty, searched

import raycase
from raycase.corpus.tasks import open_here
from raycase.data.inputs import find_input
from raycase.errors import RequestError
from raycase.search.answer_units import AnswerUnit, cut_answers, read_unit
from raycase.search.rerank_job import RerankJob, rerank_all
from raycase.search.rescore import find_scorer, rerank
from raycase.search.search_job import SearchJob, search
from raycase.systems.baselines import bi_encoder, cross_encoder
from raycase.systems.mixsp import mixsp


class Longest:
    """A scorer by the length of the answer; records the pairs that it scores."""

    def __init__(self, conditions=None):
        self.pairs = []
        self.config = SimpleNamespace(known_conditions=conditions)

    def scores_of(self, sentences1, sentences2, conditions=None):
        self.pairs += list(zip(sentences1, sentences2, conditions or [None] * len(sentences1), strict=True))
        return np.array([len(text) if text.strip() else np.nan for text in sentences2], dtype=np.float32)


@pytest.fixture
def answers():
    # query, rank, score, id, text; of the second query, two equal ones
    rows = [(0, 1, 0.9, 7, "dog"), (0, 2, 0.8, 3, "two dogs"), (0, 3, 0.7, 5, "a dog")]
    rows += [(1, 1, 0.6, 5, "a dog"), (1, 2, 0.5, 8, "a cat"), (1, 3, 0.4, 7, "dog")]
    names = ("query", "rank", "score", "id", "text")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    types = {"rank": pa.int32(), "score": pa.float32()}
    columns = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    return pa.table(columns | {"asked": ["color"] * 6, "condition": ["color"] * 6})


def test_answers_are_ordered_by_the_scorer_and_ties_keep_their_order(answers):
    scorer = Longest()
    found = rerank(answers, ["a", "b"], scorer, text="text", k=2)
    got = [tuple(row.values()) for row in found.select(["query", "rank", "id", "score"]).to_pylist()]
    assert got == [(0, 1, 3, 8.0), (0, 2, 5, 5.0), (1, 1, 5, 5.0), (1, 2, 8, 5.0)]
    assert found["cosine"].to_pylist() == pytest.approx([0.8, 0.7, 0.6, 0.5])
    assert found.schema.remove(len(found.schema) - 1) == answers.schema, "one column more, at the end"
    assert len(scorer.pairs) == 6 and scorer.pairs[0] == ("a", "dog", "color")


def test_each_distinct_pair_is_scored_once(answers):
    scorer = Longest()
    found = rerank(answers, ["a", "a"], scorer, text="text", k=3)
    assert len(scorer.pairs) == 4
    assert found["rank"].to_pylist() == [1, 2, 3, 1, 2, 3]
    assert len(rerank(answers[:0], ["a"], Longest(), text="text", k=3)) == 0


def test_a_scorer_without_conditions_scores_a_pair_once_for_all(answers):
    both = answers.set_column(answers.column_names.index("asked"), "asked", pa.array(["color", "size"] * 3))
    for known, asked in ((None, 6), ((), 4)):
        scorer = Longest(known)
        found = rerank(both, ["a", "a"], scorer, text="text", k=3)
        assert (len(found), len(scorer.pairs)) == (6, asked)


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
    if make is mixsp:  # which knows no conditions
        assert search(SearchJob(**asked | {"condition": ()}, rerank=str(tmp_path / "scorer")))["answers"] == 8
    search(SearchJob(**asked, rerank=str(tmp_path / "scorer")))
    assert '"red dog" under "color"' in capsys.readouterr().out
    more = search(SearchJob(**asked | {"k": 31}, rerank=str(tmp_path / "scorer")))  # fewer rows are all of them
    assert more["answers"] == 30 * len(asked["query"])


def test_what_cannot_rerank_is_refused(thirty, tiny_model, tmp_path):
    bi_encoder(str(tiny_model)).trainable().save(tmp_path / "vectors")
    cross_encoder(str(tiny_model)).trainable().save(tmp_path / "cross")
    with pytest.raises(RequestError, match=r"expected a model that scores pairs .*, got .*vectors"):
        find_scorer(str(tmp_path / "vectors"), conditional=True)
    with pytest.raises(RequestError, match="expected queries under conditions for"):
        find_scorer(str(tmp_path / "cross"), conditional=False)
    for flag, value, wanted in (
        ("candidates", 5, "--rerank"),
        ("text_column", "text", "--rerank, --explain or answers to show"),
    ):
        with pytest.raises(RequestError, match=f"--{flag.replace('_', '-')}: expected {wanted}, got none"):
            search(SearchJob(index=thirty[0], query=("a",), output=str(tmp_path / "a.parquet"), **{flag: value}))
    with pytest.raises(RequestError, match="--candidates: expected at least 1, got 0"):
        search(SearchJob(index=thirty[0], query=("a",), rerank=str(tmp_path / "cross"), candidates=0))


@pytest.fixture
def files(thirty, tmp_path):
    return searched(tmp_path, thirty[0])


def units(uri, text="text", queries=27, **settings):
    [file] = find_input(uri, "--answers")
    return cut_answers(file, text=text, queries=queries, **settings)


def test_all_answers_to_a_query_are_in_one_unit(files):
    cuts = [(unit.start, unit.stop) for unit in units(files["answers"], unit_rows=50)]
    assert cuts == [(0, 56), (56, 112), (112, 168), (168, 216)]
    assert [(unit.start, unit.stop) for unit in units(files["answers"])] == [(0, 216)]
    assert not units(files["answers"])[0].unconditional


def test_a_unit_is_read_from_the_row_groups_that_hold_it(files, tmp_path):
    table = pa.parquet.read_table(files["answers"])
    pa.parquet.write_table(table, tmp_path / "groups.parquet", row_group_size=10)
    for start, stop in ((0, 10), (5, 6), (9, 31), (200, len(table))):
        unit = AnswerUnit(file=str(tmp_path / "groups.parquet"), start=start, stop=stop, unconditional=False)
        assert read_unit(unit) == table[start:stop]


def test_answers_of_another_kind_are_refused(files, tmp_path):
    (tmp_path / "queries.csv").write_text("text\na\n")
    with pytest.raises(RequestError, match=r"--answers: expected a .parquet file, got .*queries.csv"):
        units(str(tmp_path / "queries.csv"))
    with pytest.raises(RequestError, match=r"--text-column: expected a column that .*searched.parquet keeps .*'words'"):
        units(files["answers"], text="words")
    pa.parquet.write_table(pa.parquet.read_table(files["answers"]).drop_columns("rank"), files["answers"])
    with pytest.raises(RequestError, match=r"searched.parquet: expected the column 'rank'"):
        units(files["answers"])


def test_answers_to_other_queries_are_refused(files):
    answers = pa.parquet.read_table(files["answers"])
    pa.parquet.write_table(pa.concat_tables([answers, answers]), files["answers"])
    with pytest.raises(RequestError, match="expected the answers to each query together, got them apart"):
        units(files["answers"])
    more = answers.set_column(0, "query", pa.array(answers["query"].to_numpy() + 20))
    pa.parquet.write_table(more, files["answers"])
    with pytest.raises(RequestError, match=r"--queries: expected the queries that .* has answers to, up to 47, got 27"):
        units(files["answers"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"text_column": "words"}, r"--text-column: expected a column that .*searched.parquet keeps .*, got 'words'"),
        ({"model": "minilm"}, "--model: expected a model that scores pairs"),
        ({"answers": "nowhere.parquet"}, "--answers"),
    ],
)
def test_wrong_jobs_are_refused(files, tmp_path, change, said):
    settings = files | {"model": "minilm", "output": str(tmp_path / "again")}
    with pytest.raises(RequestError, match=said):
        rerank_all(RerankJob(**settings | change), open_here)
