"""CSFCube and attributes of captions: measures by hand, the data's refusals, systems that must win, the reports."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sentences

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import average_precision, full_recall_precision, ndcg_at, recall_at
from raycase.evaluation.ranked import render
from raycase.evaluation.tasks import captions as attributes
from raycase.evaluation.tasks import csfcube
from raycase.evaluation.tasks.captions import Captions, attributes_of, nearest, read_captions, shared
from raycase.evaluation.tasks.csfcube import Cube, Paper, best_match, fitting, measure, read_cube
from raycase.search.topk import l2_normalize
from raycase.systems.registry import resolve

# ---------------------------------------------------------------------------------------------------------- measures


def test_measures_by_hand():
    relevant = np.array([True, False, True, False, False])
    assert average_precision(relevant) == pytest.approx((1 + 2 / 3) / 2)
    assert full_recall_precision(relevant) == pytest.approx(2 / 3)
    assert recall_at(relevant, 1) == 0.5 and recall_at(relevant, 3) == 1
    none = np.zeros(3, bool)
    assert (average_precision(none), full_recall_precision(none), recall_at(none, 2)) == (0, 0, 0)


def test_ndcg_by_hand():
    """Discounts 1, 1, log2(3), 2: the first two ranks count alike, as in the collection's script."""
    grades = np.array([0, 3, 1, 2])
    assert ndcg_at(grades, 2) == pytest.approx((0 + 3) / (3 + 2))
    assert ndcg_at(grades, 4) == pytest.approx((3 + 1 / np.log2(3) + 2 / 2) / (3 + 2 + 1 / np.log2(3)))
    assert ndcg_at(np.array([2, 3]), 2) == 1
    assert ndcg_at(np.zeros(3), 2) == 0 == ndcg_at(grades, 0)


# ----------------------------------------------------------------------------------------------------------- csfcube


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
        papers=dict.fromkeys("qabcde", paper), pools={("q", "method"): (list("abcde"), np.array([0, 3, 2, 1, 0]))}
    )
    pairs = cube.pairs()
    scores = {"a": 5, "b": 4, "c": 1, "d": 3, "e": 2}
    place = {pairs[name, "method"]: value for name, value in scores.items()}
    [found] = measure(cube, pairs, lambda query, pool: np.array([place[p] for p in pool]))
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
    ],
)
def test_judgements_that_do_not_fit_are_refused(tmp_path, row, words):
    with pytest.raises(RequestError, match=words):
        read_cube(papers(tmp_path, [("0", "method", "2", 1), row]))


def test_a_candidate_that_comes_twice_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(RequestError, match="got 2 2 times for 0, method"):
        read_cube(papers(tmp_path, [("0", "method", "2", 1), ("0", "method", "2", 1)]))
    with pytest.raises(RequestError, match="--qrels: expected"):
        read_cube(str(tmp_path), str(tmp_path / "none.csv"))
    with pytest.raises(RequestError, match="--data: expected"):
        read_cube(str(tmp_path / "none"))


def letters(texts):
    """Vectors that know which digits and words a text has."""
    words = ["0", "1", "2", "3", "4", "5", "title", "want", "method", "more", "result"]
    return np.array([[t.split().count(w) + 0.01 for w in words] for t in texts], dtype=np.float32)


def embed_plain(texts, config, **_):
    return letters(texts)


def embed_case(pairs, config, **_):
    """Of the second text, as pooling over the condition does."""
    return letters([text if config.subtract else condition for text, condition in pairs])


def either(plain, conditional):
    """`VectorsOf`: sentences to the one, (sentence, condition) to the other."""
    return lambda texts, config, **options: (plain if isinstance(texts[0], str) else conditional)(texts, config)


def test_the_report_of_csfcube(tmp_path):
    job = EvaluateJob(
        task="csfcube", model=("minilm",), data=papers(tmp_path / "d"), output=str(tmp_path / "r"), resamples=100
    )
    metrics = csfcube.evaluate(job, vectors_of=either(embed_plain, embed_case))
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
    assert report == render(json.loads((tmp_path / "r" / "metrics.json").read_text()))
    for name, system in systems.items():
        assert f"| {name} | {system['what']} |" in report
    assert "method (1)" in report and "## recall at 20" in report


@pytest.mark.parametrize(("task", "option"), [("csfcube", {"ablate": True}), ("csfcube", {"cases": "c.csv"})])
def test_flags_of_another_task_are_refused(tmp_path, task, option):
    job = EvaluateJob(task=task, model=("minilm",), data=papers(tmp_path / "d"), output=str(tmp_path / "r"), **option)
    with pytest.raises(RequestError, match=f"--{next(iter(option))}: expected --task csts"):
        csfcube.evaluate(job, vectors_of=embed_plain)


# --------------------------------------------------------------------------------------------------------- captions


@pytest.mark.parametrize(
    ("caption", "condition", "values"),
    [
        ("A man in a blue shirt standing in a garden.", "color of the clothes", {"blue"}),
        ("Two girls in red dresses and a white cotton hat", "color of the clothes", {"white"}),
        ("A white dog runs past a woman in a black leather jacket", "color of the clothes", {"black"}),
        ("A red car", "color of the clothes", set()),
        ("A young man walks his dog.", "number of people", {"one"}),
        ("Two men and three women talk.", "number of people", {"two", "three"}),
        ("A man and a woman talk.", "number of people", set()),
        ("The crowd cheers.", "number of people", {"many"}),
        ("A golfer swings.", "type of sport", {"golf"}),
        ("People go skiing.", "type of sport", {"skiing"}),
        ("A dogged man fishes in a catamaran.", "animal", set()),
        ("Puppies and a cat.", "animal", {"dog", "cat"}),
    ],
)
def test_attributes_are_read_off_by_words(caption, condition, values):
    assert attributes_of(caption, condition) == values


def test_neighbours_are_of_other_images_and_shares_are_counted_by_hand():
    captions = Captions(texts=["a dog", "a dog", "a dog runs", "a cat", "a bird"], images=np.array([0, 0, 1, 2, 3]))
    vectors = np.array([[1, 0], [1, 0], [1, 0.1], [1, 0.2], [0, 1]], dtype=np.float32)
    found = nearest(vectors, captions)
    assert found.shape == (4, 10)
    assert found[0, :4].tolist() == [2, 3, 4, -1]
    own, chance = shared(found, captions, "animal")
    assert own.tolist() == [1 / 3, 2 / 4, 0, 0]
    assert chance.tolist() == [1 / 3, 2 / 4, 0, 0]
    assert shared(found, captions, "type of sport")[0].size == 0


def test_the_report_of_captions(tmp_path):
    texts = [f"a {animal} in the street with two children {i}" for i in range(20) for animal in ("dog", "cat")]
    rows = {"image": [f"{i}.jpg" for i in range(40)], "text": texts}
    pq.write_table(pa.table(rows), tmp_path / "captions.parquet")

    def by_animal(pairs, config, **_):
        return np.array([["dog" in t, "cat" in t, 0.1] for t, _ in pairs], dtype=np.float32)

    def blind(texts, config, **_):
        return np.random.default_rng(0).standard_normal((len(texts), 3)).astype(np.float32)

    job = EvaluateJob(
        task="caption-attributes", model=("minilm",), data=str(tmp_path), output=str(tmp_path / "r"), resamples=100
    )
    metrics = attributes.evaluate(job, vectors_of=either(blind, by_animal))
    plain, conditional = metrics["systems"]
    assert conditional["figures"]["animal"]["share@10"]["value"] == 100
    assert plain["figures"]["animal"]["share@10"]["value"] < 80
    group = next(g for g in metrics["groups"] if g["name"] == "animal")
    assert group == {"name": "animal", "queries": 40, "chance": pytest.approx(100 * 19 / 39)}
    assert conditional["against"]["animal"]["share@10"]["low"] > 0
    report = (tmp_path / "r" / "report.md").read_text()
    assert "| chance |" in report and "A measure of ours" in report


def test_captions_of_one_image_are_no_corpus(tmp_path):
    pq.write_table(pa.table({"image": ["a", "a"], "text": sentences(2)}), tmp_path / "captions.parquet")
    with pytest.raises(RequestError, match="expected captions of several images"):
        read_captions(str(tmp_path))


def test_the_collections_of_the_data_folder_are_read(data):
    cube = read_cube(str(data / "csfcube"))
    assert len(cube.papers) == 4205 and len(cube.pools) == 24
    assert sum(len(pool) for pool, _ in cube.pools.values()) == 2549
    captions = read_captions(str(data / "flickr30k"))
    assert len(captions.texts) == 20_000 and len(captions.queries) == 4000
