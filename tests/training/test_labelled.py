"""Labelled texts: what is read and left out, pairs drawn by hand-worked rules, a model that learns from them alone."""

import json
import math
import random
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import WORDS, to_csv, train_here, vectors_of

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.commands.train import ConditionPoolingFlags
from raycase.errors import RequestError
from raycase.evaluation.metrics import auc, calibration_error
from raycase.evaluation.tasks.labelled import ALL
from raycase.index.topk import nearest_others
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.vectors import l2_normalize
from raycase.training import labelled_pairs
from raycase.training.labelled_pairs import check_drawn, drawn_pairs, stated_texts

ABOUT = {
    "color": {
        "conditions": ["color", "color of the dress"],
        "groups": {"red": "warm", "yellow": "warm"},
        "answers": {"red": ["red 7"]},
    },
    "number": {"conditions": ["number of people"], "soft_nulls": True},
}


@pytest.fixture
def few(monkeypatch):
    """Of few clusters that are drawn."""
    monkeypatch.setattr(labelled_pairs, "LEAST_CLUSTERS", 128)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of 240 texts with a color and a number, of which one in six is left out; and its JSON."""
    folder, chance = tmp_path_factory.mktemp("labelled"), random.Random(0)
    rows = []
    for row in range(240):
        color, number = chance.choice(["red", "yellow", "blue", "green"]), chance.choice(["two", "five", "nine"])
        words = [color, number, chance.choice(WORDS[3:]), chance.choice(WORDS[3:]), str(row)]
        if row % 6 == 0:
            words[row % 12 // 6] = "of"
        chance.shuffle(words)
        rows.append([" ".join(words), color if color in words else "", number if number in words else ""])
    (folder / "a.json").write_text(json.dumps({"columns": ABOUT}))
    return to_csv(pd.DataFrame(rows, columns=["text", "color", "number"]), folder / "a.csv"), str(folder / "a.json")


def test_without_a_json_columns_are_conditions_and_what_teaches_nothing_is_left_out(tmp_path, capsys):
    frame = pd.DataFrame({"text": list("abcdea"), "id": range(6), "time_of_day": ["x|y", "x", None, "y", "y ", "x"]})
    read = read_labelled(to_csv(frame, tmp_path / "t.csv"), None, "--labelled")
    assert read.texts == list("abcde")
    [column] = read.columns
    assert column.conditions == ("time of day",)
    assert column.labels == tuple(map(frozenset, ["xy", "x", "", "y", "y"]))
    assert len(read.left_out) == 2 and "'id'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"color": {"conditions": []}}, "with words"),
        ({"color": {"conditions": [" "]}}, "with words"),
        ({"color": {"conditions": ["a"], "answers": {"red": [""]}}}, "with words"),
        ({"color": {"conditions": ["a", "a"]}}, "'a' twice"),
        ({"color": {"conditions": ["a b"]}, "number": {"conditions": ["a  b "]}}, "'a b' twice"),
        ({"color": {"conditions": ["a"], "soft_null": True}}, "columns.color.soft_null: expected no such name"),
        ({"color": {"conditions": ["a"], "groups": {"red": "x", "red ": "y"}}}, "'red' twice"),
        ({"color": {"conditions": ["a"], "answers": {"red": []}}}, "with words"),
        (
            '{"columns": {"color": {"conditions": ["a"], "groups": {"red": "x", "red": "y"}}}}',
            "once, got several values of the name 'red'",
        ),
        ({"color": {"groups": {}}}, "conditions"),
        ({"shape": {"conditions": ["a"]}}, "shape"),
        ({"text": {"conditions": ["tone"]}}, r"each once, in 'text' of .*, got the texts"),
        ([], "columns"),
    ],
)
def test_bad_json(tables, tmp_path, about, said):
    (tmp_path / "b.json").write_text(about if isinstance(about, str) else json.dumps({"columns": about}))
    with pytest.raises(RequestError, match=said):
        read_labelled(tables[0], str(tmp_path / "b.json"), "--labelled")


def test_labels_of_a_json_that_no_text_has_are_named(tables, tmp_path, capsys):
    about = {"color": {"conditions": ["color"], "groups": {" red": "warm", "rad": "warm"}, "answers": {"gren": ["g"]}}}
    (tmp_path / "b.json").write_text(json.dumps({"columns": about, "kind": "a", "licence": "b"}))
    read = read_labelled(tables[0], str(tmp_path / "b.json"), "--labelled")
    assert read.columns[0].coarse(frozenset({"red"})) == {"warm"}
    assert read.left_out == ["column 'color': groups and answers of labels that no text has: gren, rad"]
    assert "gren, rad" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([1.0, math.nan, 2.0, 1.0, 2.0], ["1", "", "2", "1", "2"]),
        ([1, None, 2, 1, 2], ["1", "", "2", "1", "2"]),
        ([True, None, False, True, False], ["true", "", "false", "true", "false"]),
        (["a  b", "a\u00a0b ", "x|cafe\u0301 ", "caf\u00e9", ""], ["a b", "a b", "x|caf\u00e9", "caf\u00e9", ""]),
        ([["a", "b"]] * 5, r"got \['a', 'b'\]"),
        ([{"a": 0}] * 5, r"got \{'a': 0\}"),
        ([b"a"] * 5, "got b'a'"),
        ([0.5] * 5, "got 0.5"),
        ([math.inf] * 5, "got inf"),
        ([datetime(2024, 1, 1)] * 5, "got datetime"),
    ],
)
def test_cells_are_texts_or_whole_numbers(tmp_path, cells, wanted):
    file = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"text": list("abcde"), "it": cells}), file)
    if isinstance(wanted, list):
        [column] = read_labelled(file, None, "--labelled").columns
        assert column.labels == tuple(frozenset(cell.split("|")) - {""} for cell in wanted)
    else:
        with pytest.raises(RequestError, match=f"row 0: 'it': expected a text or a whole number, {wanted}"):
            read_labelled(file, None, "--labelled")


@pytest.mark.parametrize("names", [["a_b", "a b"], ["tone", " tone"]])
def test_columns_of_one_condition_are_refused(tmp_path, names):
    frame = pd.DataFrame({"text": list("abcd"), names[0]: list("xxyy"), names[1]: list("xyxy")})
    with pytest.raises(RequestError, match=r"expected each condition once in .* twice"):
        read_labelled(to_csv(frame, tmp_path / "t.csv"), None, "--labelled")


def test_columns_that_the_encoder_reads_alike_are_refused(tmp_path, tiny_model):
    frame = pd.DataFrame({"text": [f"a {i}" for i in range(40)], "Tone": list("xy" * 20), "tone": list("xxyy" * 10)})
    job = ConditionPoolingFlags(
        model=str(tiny_model), labelled=(to_csv(frame, tmp_path / "t.csv"),), output=str(tmp_path / "m")
    )
    with pytest.raises(RequestError, match="--labelled: expected texts that the model reads differently, got 'Tone'"):
        train_here(job)


@pytest.mark.parametrize("labels", ["xxyy", "xxxyy", "xxxxyyyy", "x" * 6 + "y" * 6, "x" * 58 + "yy"])
def test_texts_that_are_too_few_to_hold_some_out_are_refused_before_training(tmp_path, few, labels):
    frame = pd.DataFrame({"text": [f"a {i}" for i in range(len(labels))], "tone": list(labels)})
    job = ConditionPoolingFlags(labelled=(to_csv(frame, tmp_path / "t.csv"),), output=str(tmp_path / "m"))
    count = len(labels) // 5
    with pytest.raises(
        RequestError, match=f"expected two labels in a column, one of them of two texts, got none among {count} texts"
    ):
        job.training().read()
    tables = [read_labelled(job.labelled[0], None, "--labelled")]
    check_drawn(drawn_pairs(tables, 1, 0)[0], tables)


def test_pairs_are_rated_by_labels_and_groups(tables, few):
    read = read_labelled(*tables, "--labelled")
    drawn, epochs = drawn_pairs([read], 2, seed=0)
    cells = zip(*(column.labels for column in read.columns), strict=True)
    labels_of_text = dict(zip(read.texts, cells, strict=True))
    labels_of_text["red 7"] = (frozenset({"red"}), frozenset())
    for first, second, condition, rating in zip(
        drawn.sentences1, drawn.sentences2, drawn.conditions, drawn.ratings, strict=True
    ):
        of = int(condition == "number of people")
        labels = labels_of_text[first][of] | labels_of_text[second][of]
        expected = 1 if len(labels) == 1 else 0.4 if labels == {"red", "yellow"} else 0
        assert rating == np.float32(expected)
    stated = stated_texts([read], seed=0)
    assert {*stated.conditions} == {*ABOUT["color"]["conditions"]}, "missing numbers of people may be there"
    assert stated.sentences1 == stated.sentences2 == read.texts
    assert stated.ratings.tolist() == [float(bool(labels_of_text[text][0])) for text in read.texts]
    assert {*epochs.tolist()} == {1, 2} and {*drawn.conditions} == {w for c in ABOUT.values() for w in c["conditions"]}
    assert 0.15 < (drawn.ratings == 1).mean() < 0.3
    again, other = (drawn_pairs([read], 2, seed=seed)[0] for seed in (0, 1))
    assert again.data_sha256 == drawn.data_sha256 != other.data_sha256


def test_texts_that_state_something_are_no_pairs_that_select(tables, few, tmp_path):
    """Nor are they counted among the rated pairs; the hash of what is learned from has them."""
    flags = ConditionPoolingFlags(labelled=tables[:1], labels=tables[1:], output=str(tmp_path / "m"))
    train, validation, table = flags.training().read()
    assert not any(a == b for a, b in zip(validation.sentences1, validation.sentences2, strict=True))
    assert {*validation.ratings.tolist()} <= {1.0, np.float32(2.6), 5.0}
    assert len(train) == 0 and len(train.stated) == 192 == len(table) * 4 / 5
    assert train.counts == {"drawn": len(train.drawn) + 192, "not_applicable": 0}


def test_a_model_learns_from_labels_alone(tables, tiny_model, tmp_path):
    shape = {"layers": (0.0, 1.0), "heads": 4, "head_dim": 16, "dim": 32}
    shape |= {"epochs": 4, "dropout": 0.1, "learning_rate": 1e-2}
    job = ConditionPoolingFlags(
        labelled=tables[:1], labels=tables[1:], **shape, model=str(tiny_model), output=str(tmp_path / "m")
    )
    metrics = train_here(job)
    assert metrics["data"]["labelled: a"]["columns"] == 2 and metrics["data"]["train"]["rows"] == 0
    asked = {"task": "labelled", "data": tables[0], "labels": tables[1:], "output": str(tmp_path / "r")}
    report = measure(EvaluateFlags(model=(job.output, str(tiny_model)), **asked), vectors_of=vectors_of)
    unconditional, trained, _, other = report["systems"]
    of_label = [system["figures"][ALL]["label"]["value"] for system in (trained, other)]
    assert other["against_conditional"][ALL]["label"]["difference"] == pytest.approx(of_label[1] - of_label[0])
    assert not any("against_conditional" in system for system in report["systems"][:3])
    assert "\n\nMinus m, by the paired bootstrap:" in (tmp_path / "r" / "report.md").read_text()
    for column in ("color", "number"):
        before, after = (system["figures"][column]["label"]["value"] for system in (unconditional, trained))
        assert after > max(before, 95), column
    read, loaded = read_labelled(*tables, "--labelled"), raycase.load(job.output, device="cpu")
    found = loaded.stated(read.texts, "color")
    assert auc(found, np.array([bool(labels) for labels in read.columns[0].labels])) > 0.8
    assert report["stated"]["m"]["value"] == pytest.approx(
        100 * auc(found, np.array([bool(labels) for labels in read.columns[0].labels])), abs=0.5
    )
    assert "states anything of a column's condition, AUC x 100: m 9" in (tmp_path / "r" / "report.md").read_text()
    with pytest.raises(ValueError, match="one for each of 1 texts, got 2"):
        loaded.stated(["a"], ["color", "number"])
    assert {"auc", "calibration_error", "texts"} == set(metrics["stated"]) and 0 <= found.min() <= found.max() <= 1
    np.testing.assert_allclose(loaded.stated(read.texts[:1], "color"), found[:1], atol=1e-4)
    with pytest.raises(ValueError, match="states nothing"):
        raycase.load(f"condition-pooling:{tiny_model}", device="cpu").stated(["a dog"], "color")


def test_the_calibration_error_by_hand():
    probabilities, stated = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0, 1, 1, 1])
    assert calibration_error(probabilities, stated) == pytest.approx(100 * (0.5 * 0.45 + 0.5 * 0.05))


def test_the_nearest_by_hand():
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [-1, 0.1]], dtype=np.float32)
    assert nearest_others(l2_normalize(vectors), 1)[1][:, 0].tolist() == [1, 0, 1, 2]
    assert nearest_others(l2_normalize(vectors), 10)[1].shape == (4, 3)


@pytest.mark.parametrize("flags", [{}, {"train": "a.csv"}, {"labelled": ("a.csv",), "labels": ("b.json", "c.json")}])
def test_without_data_there_is_no_fit(tables, tmp_path, flags):
    with pytest.raises(RequestError, match="expected"):
        train_here(ConditionPoolingFlags(**flags, output=str(tmp_path / "m")))


@pytest.mark.parametrize("teachers", [{"teachers": 1}, {"teacher_models": ("minilm-conditional-v2",)}])
def test_teachers_without_rated_pairs_are_refused(tables, tmp_path, teachers):
    """They rate the sentences of these pairs under further conditions."""
    with pytest.raises(RequestError, match="--train: expected rated pairs for --teachers"):
        train_here(ConditionPoolingFlags(labelled=tables[:1], **teachers, output=str(tmp_path / "m")))


@pytest.mark.parametrize("names", [(("a.csv", "b/a.csv"), ()), (("a.csv",), ("a.json", "b/a.json"))])
def test_tables_of_one_name_are_refused(names):
    with pytest.raises(RequestError, match="of different names, got a twice"):
        labels_of(*names)
