"""Triplets, clusters and rated pairs under questions, as tasks of MTEB over files."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import Later
from sklearn.metrics import v_measure_score

import raycase

mteb, tasks = Later("mteb"), Later("inbedder")

INTENT = [
    ("I am so angry, where is my card?", "please tell me when my card arrives", "I am furious about this fee"),
    ("I am happy, how do I close my account?", "goodbye, delete my account", "I am glad that you raised my limit"),
]
EMOTION = [(anchor, negative, positive) for anchor, positive, negative in INTENT]
NEWS = [
    ("the team won the match in Paris", "sports"),
    ("a bank in Rome fell", "business"),
    ("a goal in Rome", "sports"),
]
PLACES = [(text, "Paris" if "Paris" in text else "Rome") for text, _ in NEWS]
RATED = [
    ("a man plays a harp", "a man plays a keyboard", "Which instrument?", 0),
    ("a man plays a harp", "a man plays a keyboard", "Who plays?", 1),
    ("two dogs run", "a dog sleeps", "Which animal?", 1),
    ("two dogs run", "a dog sleeps", "How many animals?", 0),
]
COLUMNS = {"triplets": ("anchor", "positive", "negative"), "clusters": ("text", "cluster")}
COLUMNS["pairs"] = ("sentence1", "sentence2", "instruction", "score")


@pytest.fixture(scope="module")
def model():
    return raycase.load(dtype=torch.float32)


def write(file, kind, rows):
    frame = pd.DataFrame(rows, columns=COLUMNS[kind])
    if file.suffix == ".parquet":
        frame.to_parquet(file)
    elif file.suffix == ".jsonl":
        frame.to_json(file, orient="records", lines=True)
    else:
        frame.to_csv(file, index=False)
    return str(file)


def scores(model, task):
    """The main score of each subset."""
    (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results
    return {row["hf_subset"]: row["main_score"] for row in result.scores["test"]}


def unit(model, texts, under):
    return model.encode(list(texts), under, normalize=True)


@pytest.mark.parametrize("instructed", [True, False])
def test_triplets_count_where_the_anchor_is_nearer_to_the_positive(model, tmp_path, instructed):
    files = {"intent": write(tmp_path / "a.jsonl", "triplets", INTENT)}
    files["emotion"] = write(tmp_path / "b.parquet", "triplets", EMOTION)
    wanted = {}
    for aspect, triplets in (("intent", INTENT), ("emotion", EMOTION)):
        parts = zip(*triplets, strict=True)
        anchor, positive, negative = (
            unit(model, texts, tasks.QUESTIONS[aspect] if instructed else None) for texts in parts
        )
        wanted[aspect] = np.mean((anchor * positive).sum(1) > (anchor * negative).sum(1))
    found = scores(raycase.to_mteb(model), tasks.intent_emotion(**files, instructed=instructed))
    assert found == wanted
    if not instructed:  # the negatives of one are the positives of the other
        assert found["intent"] + found["emotion"] == 1


def test_clusters_are_found_under_each_question(tmp_path):
    files = {
        "topic": write(tmp_path / "a.csv", "clusters", NEWS),
        "location": write(tmp_path / "b.csv", "clusters", PLACES),
    }
    task = tasks.nyt_clustering(**files)
    labels = {text: (topic, place) for (text, topic), (_, place) in zip(NEWS, PLACES, strict=True)}
    seen = []

    class Knows:
        """Knows the topic alone, whatever is asked."""

        mteb_model_meta = raycase.to_mteb(raycase.load()).mteb_model_meta
        similarity = similarity_pairwise = None

        def encode(self, inputs, **options):
            rows = [
                row for batch in inputs for row in zip(batch["query"], batch["instruction"], batch["text"], strict=True)
            ]
            seen.extend(rows)
            return np.array([[1.0, 0.0] if labels[text][0] == "sports" else [0.0, 1.0] for text, _, _ in rows])

    assert scores(Knows(), task) == {
        "topic": 1.0,
        "location": pytest.approx(v_measure_score([0, 1, 1], [0, 1, 0])),
    }
    asked = [(text, tasks.QUESTIONS[aspect]) for aspect in ("topic", "location") for text, _ in NEWS]
    assert seen == [(text, question, f"{text} {question}") for text, question in asked]  # the last is what others read


def test_pairs_are_ranked_under_their_own_instructions(model, tmp_path):
    task = tasks.instruct_stsb(write(tmp_path / "a.csv", "pairs", RATED))
    first, second, under, ratings = zip(*RATED, strict=True)
    cosines = (unit(model, first, under) * unit(model, second, under)).sum(1)
    wanted = pd.Series(cosines).corr(pd.Series(ratings), method="spearman")
    assert scores(raycase.to_mteb(model), task)["default"] == pytest.approx(wanted)
    plain = scores(raycase.to_mteb(model), tasks.instruct_stsb(str(tmp_path / "a.csv"), instructed=False))
    assert plain["default"] == pytest.approx(0)  # the same pairs, once similar and once not


def test_a_changed_file_or_no_questions_are_another_task_to_mtebs_cache(model, tmp_path, monkeypatch):
    encoder, calls = raycase.to_mteb(model), []
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda *inputs, **options: (calls.append(1), encode(*inputs, **options))[1])

    def embeds(rows, **options):
        calls.clear()
        task = tasks.instruct_stsb(write(tmp_path / "a.csv", "pairs", rows), **options)
        mteb.evaluate(encoder, task, cache=mteb.ResultCache(tmp_path / "kept"), show_progress_bar=False)
        return bool(calls)

    assert [embeds(RATED), embeds(RATED), embeds(RATED[::-1]), embeds(RATED[::-1], instructed=False)] == [1, 0, 1, 1]
    names = {json.loads(file.read_text())["task_name"] for file in tmp_path.rglob("InstructSTSB*.json")}
    assert sorted(name.split("-")[0] for name in names) == ["InstructSTSB", "InstructSTSB", "InstructSTSBPlain"]


def test_files_that_cannot_be_read(tmp_path):
    pairs = write(tmp_path / "pairs.csv", "pairs", RATED)
    with pytest.raises(ValueError, match=r"intent: .*anchor"):
        tasks.intent_emotion(intent=pairs, emotion=pairs)
    empty = write(tmp_path / "empty.csv", "clusters", [])
    with pytest.raises(ValueError, match=r"topic: expected rows in .*got none"):
        tasks.nyt_clustering(topic=empty, location=empty)
    words = write(tmp_path / "none.csv", "clusters", [("", "sports")])
    with pytest.raises(ValueError, match=r"topic: .*row 0: expected words in 'text'"):
        tasks.nyt_clustering(topic=words, location=words)
    with pytest.raises(ValueError, match="expected a number as score, got 'high'"):
        tasks.instruct_stsb(write(tmp_path / "bad.csv", "pairs", [*RATED, ("a", "b", "c", "high")]))
