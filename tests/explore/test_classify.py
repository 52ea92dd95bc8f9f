"""The command classify without answers: against all cosines, its counts, filters, and wrong requests."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import storing
from helpers import embedded
from indexed import refuse

import raycase
from raycase.cli import main
from raycase.commands.classify import ClassifyFlags, classify
from raycase.explore import classify as module
from raycase.explore.classify import best_of
from raycase.index.index import Index

CONDITION, LABELS = "what they wear", ("red dress", "two people", "a dog")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An index of 90 texts with stored tokens, `words`; one of the same under the condition, `under`."""
    home = tmp_path_factory.mktemp("classified")
    model = storing.model_folder(home)
    storing.indexed(home / "words", storing.stored(home / "a", model, storing.texts(90)))
    storing.indexed(home / "under", storing.stored_under(home / "b", model, storing.texts(90), CONDITION))
    return home


def asked(home, tmp_path, index="words", **options):
    settings = {"condition": CONDITION, "labels": LABELS, "output": str(tmp_path / "labels.parquet")}
    return ClassifyFlags(**{"index": str(home / index)} | settings | options)


def test_the_nearest_label_and_its_margin_by_hand():
    rows = np.array([[1, 0], [0.6, 0.8], [0, 1], [-1, 0]], np.float32)
    label, score, margin = best_of(rows @ np.array([[0, 1], [1, 0], [1, 0]], np.float32).T)
    assert label.tolist() == [1, 0, 0, 0]  # of equal labels the first
    assert score == pytest.approx([1, 0.8, 1, 0]) and margin == pytest.approx([0, 0.2, 1, 1])


@pytest.mark.parametrize("where", [None, "year < 2007"])
@pytest.mark.parametrize("name", ["words", "under"])
def test_every_row_gets_the_label_with_the_largest_cosine(home, tmp_path, name, where, capsys, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 3 * 7)  # rows in parts of seven
    result = classify(asked(home, tmp_path, name, where=where))
    index = Index.open(str(home / name))
    rows = index.dataset.to_table(columns=["id", "year"]).to_pylist()
    kept = [i for i, row in enumerate(rows) if where is None or row["year"] < 2007]
    written = pq.read_table(result["output"]).sort_by("id")
    assert written["id"].to_pylist() == [rows[i]["id"] for i in kept]
    labels = index.embed(LABELS, CONDITION, phrases=True)
    cosines = index.vectors_at(CONDITION, np.array(kept)) @ labels.T
    if name == "words":  # whose rows have unconditional vectors
        cosines = (cosines + index.vectors_at(None, np.array(kept)) @ index.embed(LABELS, None).T) / 2
    best, ordered = cosines.argmax(1), np.sort(cosines, axis=1)
    assert written["label"].to_pylist() == [LABELS[label] for label in best]
    np.testing.assert_allclose(written["score"], ordered[:, 2], atol=1e-5)
    np.testing.assert_allclose(written["margin"], ordered[:, 2] - ordered[:, 1], atol=1e-5)
    assert ("stated" in written.column_names) == (name == "words")
    assert len(set(best)) > 1 and result["rows"] == len(kept) == sum(result["labels"].values())
    assert result["labels"] == dict(zip(LABELS, np.bincount(best, minlength=3).tolist(), strict=True))
    printed = capsys.readouterr().out
    assert f'{len(kept)} rows under "{CONDITION}"' in printed and "not stated" not in printed
    for label, count in result["labels"].items():
        assert f"{count:>10}  {count / len(kept):>6.1%}  {label}\n" in printed


def test_rows_that_state_nothing_get_no_label_where_that_is_asked(home, tmp_path, capsys):
    classify(asked(home, tmp_path))
    every = pq.read_table(tmp_path / "labels.parquet")
    result = classify(asked(home, tmp_path, stated=True))
    found = pq.read_table(tmp_path / "labels.parquet")
    assert every["label"].null_count == 0 and found.drop_columns(["label"]) == every.drop_columns(["label"])
    model = raycase.load(Index.open(str(home / "words")).model, device="cpu")
    states = model.stated([row["text"] for row in storing.texts(90)], CONDITION)
    for row, label in zip(found.to_pylist(), every["label"].to_pylist(), strict=True):
        assert row["stated"] == pytest.approx(states[row["id"]], abs=0.05)
        assert row["label"] == (None if row["stated"] < 0.5 else label)
    nothing = found["label"].null_count
    assert 0 < nothing == result["not_stated"] == 90 - sum(result["labels"].values()) and result["rows"] == 90
    assert f"{nothing:>10}  {nothing / 90:>6.1%}  not stated" in capsys.readouterr().out
    classify(asked(home, tmp_path, stated=True, labels=("red dress", "not stated")))  # a label of that name is another
    assert re.findall("  (not stated|without a label)\n", capsys.readouterr().out).count("without a label") == 1


def test_labels_stand_in_a_file(home, tmp_path):
    (tmp_path / "l.jsonl").write_text('{"label": "red dress", "n": 1}\n{"label": "two people"}\n')
    assert [*classify(asked(home, tmp_path, labels=(f"{tmp_path}/l.jsonl",)))["labels"]] == ["red dress", "two people"]


def test_of_a_label_that_is_cut_there_is_a_warning(home, tmp_path):
    with pytest.warns(UserWarning, match="1 of 2 texts were cut at 512 tokens"):
        classify(asked(home, tmp_path, labels=("dog " * 600, "cat")))


def test_wrong_requests_are_refused(home, tmp_path, tiny_model, capsys):
    def ask(words, **options):
        refuse(asked(home, tmp_path, **options), words, classify)

    ask("--labels: expected each label once, got 'a' twice", labels=("a", "b", " a"))
    ask("--labels: expected texts that the model reads differently, got 'A dog' and 'a dog'", labels=("A dog", "a dog"))
    ask("--labels: expected texts that the model reads", labels=tuple("dog " * 600 + end for end in ("red", "blue")))
    ask("--labels: expected words in every label, got ' ' at index 1", labels=("a", " "))
    ask("--labels: expected two labels or more, got 1", labels=("labels",))
    ask("--labels: expected labels or one file of them, got 2 values", labels=("a", "b.csv"))
    ask("--labels: expected .*got: empty text", labels=("a", "\u200b"))
    ask("condition: expected words, got ' '", condition=" ")
    ask("--where: expected a filter that leaves rows, got one", where="year > 3000")
    ask("stated: expected conditions that are pooled from stored tokens", index="under", stated=True)
    ask("--labels: expected labels, or --answers that have them, got neither", labels=())
    storing.indexed(tmp_path / "case", embedded(tmp_path, tiny_model, storing.texts(5), conditions=(CONDITION,)))
    ask("phrases: expected a condition and an index of condition pooling", index=str(tmp_path / "case"))
    assert not (tmp_path / "labels.parquet").exists()
    with pytest.raises(SystemExit) as ended:
        main(["classify", "--index", "i", "--labels", "a", "b", "--output", "o"])
    assert ended.value.code == 2 and "--condition" in capsys.readouterr().err
