"""CSFCube: measures by hand, the data's refusals, systems that must win, the report."""

import json

import numpy as np
import pytest

from raycase.data.vectors import l2_normalize
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.ranked import render_ranked
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.evaluation.tasks.csfcube import Cube, Paper, best_match, fitting, rank_pools, read_cube
from raycase.systems.registry import resolve


def papers(folder, qrels=None):
    """Six papers whose method says its number; each query finds those of its parity relevant."""
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "id": str(i),
            "title": f"title {i % 3}",
            "sentences": [
                {"facet": "objective", "text": f"we want {i}"},
                {"facet": "method", "text": f"method {i % 2}"},
                {"facet": "method", "text": f"more {i % 2}"},
                *([{"facet": "result", "text": f"result {i % 3}"}] if i else []),
            ],
        }
        for i in range(6)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = qrels or [("0", "method", str(c), 3 if c % 2 == 0 else 0) for c in range(1, 6)] + [
        ("1", "result", str(c), 2 if c % 3 == 1 else 1) for c in (5, 4, 3, 2, 0)
    ]
    lines = ["query_id,facet,candidate_id,relevance", *(",".join(map(str, r)) for r in rows)]
    (folder / "qrels_dev.csv").write_text("\n".join(lines))
    return str(folder)


def test_papers_give_the_sentences_of_a_facet(tmp_path):
    cube = read_cube(papers(tmp_path))
    paper = cube.papers["1"]
    assert paper.of("background") == ["we want 1"] and paper.of("method") == ["method 1", "more 1"]
    assert paper.beside("method") == "title 1 we want 1 result 1"
    assert cube.papers["0"].of("result") == ["we want 0", "method 0", "more 0"]  # it has none
    assert list(cube.pools) == [("0", "method"), ("1", "result")]
    assert cube.pools["1", "result"][1].tolist() == [1, 2, 1, 1, 1]


def test_each_pool_is_ranked_by_itself():
    paper = Paper(title="t", sentences=("a",), labels=("method",))
    cube = Cube(
        uri="",
        papers=dict.fromkeys("qabcde", paper),
        pools={("q", "method"): (list("abcde"), np.array([0, 3, 2, 1, 0]))},
    )
    pairs = cube.pairs()
    scores = {"a": 5, "b": 4, "c": 1, "d": 3, "e": 2}
    place = {pairs[name, "method"]: value for name, value in scores.items()}
    [found] = rank_pools(cube, pairs, lambda query, pool: np.array([place[p] for p in pool]))
    # ranked a b d e c: grades 0 3 1 0 2, relevant at ranks 2 and 5; a fifth of five is one
    assert found == pytest.approx([(1 / 2 + 2 / 5) / 2, 0, 2 / 5, 1])


def test_best_match_takes_the_best_candidate_sentence_of_each_query_sentence():
    sentences = [l2_normalize(np.array(s, float)) for s in ([[1, 0], [0, 1]], [[1, 0]], [[1, 1], [0, 1]])]
    assert best_match(sentences)(0, np.array([1, 2])) == pytest.approx([0.5, (np.sqrt(0.5) + 1) / 2])


def test_a_facet_that_is_too_long_for_the_encoder_loses_its_last_sentences():
    config = resolve("minilm", subtract=False)
    sentence = "a red dress " * 30
    [first, second] = fitting([("rest", [sentence] * 4), ("rest", ["one", "two"])], config)
    assert first == ("rest", " ".join([sentence] * 2))
    assert second == ("rest", "one two")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("9", "method", "1", 0), "expected a paper of the corpus, got '9'"),
        (("0", "methods", "1", 0), "got 'methods' and '0'"),
        (("0", "method", "1", 4), "got 'method' and '4'"),
        (("0", "method", "2", 1), "got 2 2 times for 0, method"),
    ],
)
def test_judgements_that_do_not_fit_are_refused(tmp_path, row, words):
    with pytest.raises(RequestError, match=words):
        read_cube(papers(tmp_path, [("0", "method", "2", 1), row]))


def test_a_missing_file_is_refused(tmp_path):
    papers(tmp_path)
    with pytest.raises(RequestError, match="--qrels: expected"):
        read_cube(str(tmp_path), str(tmp_path / "none.csv"))
    with pytest.raises(RequestError, match="--data: expected"):
        read_cube(str(tmp_path / "none"))


def letters(texts):
    """Vectors that know which digits and words a text has."""
    words = ["0", "1", "2", "3", "4", "5", "title", "want", "method", "more", "result"]
    return np.array([[t.split().count(w) + 0.01 for w in words] for t in texts], dtype=np.float32)


def vectors_of(texts, config, **_):
    """Of a (sentence, condition) those of the condition, as pooling over it gives; minus base those of the sentence."""
    if isinstance(texts[0], str):
        return letters(texts)
    return letters([text if config.subtract else condition for text, condition in texts])


def asked(tmp_path, *models):
    """An evaluation of models on the six papers."""
    data, report = papers(tmp_path / "d"), str(tmp_path / "r")
    return EvaluateJob(task="csfcube", model=models, data=data, output=report, resamples=100)


def test_the_report_of_csfcube(tmp_path):
    metrics = evaluate(asked(tmp_path, "minilm"), vectors_of=vectors_of)
    systems = {s["name"]: s for s in metrics["systems"]}
    assert systems["minilm: facet"]["figures"]["all"]["MAP"]["value"] == 100
    plain = systems["minilm: plain"]["figures"]["all"]["MAP"]["value"]
    assert plain < 100
    assert systems["minilm: facet"]["against"]["all"]["MAP"]["difference"] == pytest.approx(100 - plain)
    assert systems["minilm: facet in context"]["figures"]["all"]["MAP"]["value"] == 100
    wrong = systems["minilm: control: plain + another facet"]["figures"]["method"]["MAP"]["value"]
    assert wrong < systems["minilm: plain + facet"]["figures"]["method"]["MAP"]["value"]
    assert "against" not in systems["minilm: plain"]
    report = (tmp_path / "r" / "report.md").read_text()
    assert report == render_ranked(json.loads((tmp_path / "r" / "metrics.json").read_text()))
    for name, system in systems.items():
        assert f"| {name} | {system['what']} |" in report
    assert "method (1)" in report and "## recall at 20" in report


def test_of_a_trained_model_each_paper_is_encoded_once_without_and_once_under_its_conditions(tmp_path):
    read = []

    def noted(texts, config, **_):
        read.append((config.folder, isinstance(texts[0], str)))
        return letters([text if isinstance(text, str) else " ".join(text) for text in texts])

    def names(*models):
        return [s["name"] for s in evaluate(asked(tmp_path, *models), vectors_of=noted)["systems"]]

    first = names("minilm-conditional")
    assert len(first) == 3 and len(read) == 2 and {plain for _, plain in read} == {True, False}
    assert len(names("minilm-conditional", "condition-pooling:minilm")) > 10


def test_conditional_vectors_of_another_dimension_stand_beside_the_plain_ones(tmp_path):
    def narrow(texts, config, **_):
        return letters([text if isinstance(text, str) else text[1] for text in texts])

    def wide(texts, config, **_):
        found = narrow(texts, config)
        return found if isinstance(texts[0], str) else np.hstack([found, np.zeros_like(found)])

    def figures(vectors_of):
        systems = evaluate(asked(tmp_path, "condition-pooling:minilm"), vectors_of=vectors_of)["systems"]
        return {s["name"]: s["figures"]["all"]["MAP"]["value"] for s in systems}

    found, wanted = figures(wide), figures(narrow)
    assert found == wanted


def test_the_collection_of_the_data_folder_is_read(data):
    cube = read_cube(str(data / "csfcube"))
    assert len(cube.papers) == 4205 and len(cube.pools) == 24
    assert sum(len(pool) for pool, _ in cube.pools.values()) == 2549
