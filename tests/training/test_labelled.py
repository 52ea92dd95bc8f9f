"""Labelled texts: what is read and left out, pairs drawn by hand-worked rules, a model that learns from them alone."""

import json
import math
import random
from datetime import datetime
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
from helpers import WORDS, open_trainer, to_csv, vectors_of

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.errors import RequestError
from raycase.evaluation.metrics import auc, calibration_error
from raycase.evaluation.tasks.labelled import ALL
from raycase.index.topk import nearest_others
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.vectors import l2_normalize
from raycase.training import condition_pairs
from raycase.training import job as jobs
from raycase.training.condition_head_job import ConditionPoolingFlags
from raycase.training.condition_pairs import with_pairs_of

train = partial(jobs.train, open_trainer=open_trainer)
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
    monkeypatch.setattr(condition_pairs, "LEAST_CLUSTERS", 128)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of 240 texts with a color and a number, of which one in six is unsaid; and its JSON."""
    folder, chance = tmp_path_factory.mktemp("labelled"), random.Random(0)
    rows = []
    for row in range(240):
        color, number = chance.choice(["red", "yellow", "blue", "green"]), chance.choice(["two", "five", "nine"])
        said = [color, number, chance.choice(WORDS[3:]), chance.choice(WORDS[3:]), str(row)]
        if row % 6 == 0:
            said[row % 12 // 6] = "of"
        chance.shuffle(said)
        rows.append([" ".join(said), color if color in said else "", number if number in said else ""])
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
        train(job)


def test_the_column_of_texts_is_no_column_of_labels(tmp_path):
    table, about = to_csv(pd.DataFrame({"text": list("aabb")}), tmp_path / "t.csv"), tmp_path / "t.json"
    about.write_text('{"columns": {"text": {"conditions": ["tone"]}}}')
    with pytest.raises(RequestError, match=r"each once, in 'text' of .*, got the texts"):
        read_labelled(table, str(about), "--labelled")


@pytest.mark.parametrize("labels", ["xxyy", "xxxyy", "xxxxyyyy", "x" * 6 + "y" * 6, "x" * 58 + "yy"])
def test_texts_that_are_too_few_to_hold_some_out_are_refused_before_training(tmp_path, few, labels):
    frame = pd.DataFrame({"text": [f"a {i}" for i in range(len(labels))], "tone": list(labels)})
    job = ConditionPoolingFlags(labelled=(to_csv(frame, tmp_path / "t.csv"),), output=str(tmp_path / "m"))
    count = len(labels) // 5
    with pytest.raises(
        RequestError, match=f"expected two labels in a column, one of them of two texts, got none among {count} texts"
    ):
        job.read_parts()
    with_pairs_of(None, [read_labelled(job.labelled[0], None, "--labelled")], 1, 0)


def test_pairs_are_rated_by_labels_and_groups(tables, few):
    read = read_labelled(*tables, "--labelled")
    drawn = with_pairs_of(None, [read], 2, seed=0)
    cells = zip(*(column.labels for column in read.columns), strict=True)
    said = dict(zip(read.texts, cells, strict=True))
    said["red 7"] = (frozenset({"red"}), frozenset())
    says = []
    for first, second, condition, rating in zip(
        drawn.sentences1, drawn.sentences2, drawn.conditions, drawn.ratings, strict=True
    ):
        of = int(condition == "number of people")
        if first == second:
            says.append(bool(said[first][0]) == bool(rating) and not of)
            continue
        labels = said[first][of] | said[second][of]
        expected = 1 if len(labels) == 1 else 0.4 if labels == {"red", "yellow"} else 0
        assert rating == np.float32(expected)
    assert len(says) == len(read) and all(says), "the numbers of people that are missing may be said"
    assert {*drawn.epochs.tolist()} == {-1, 1, 2} and {*drawn.conditions} == {
        w for c in ABOUT.values() for w in c["conditions"]
    }
    assert 0.15 < (drawn.ratings == 1).mean() < 0.4
    again = with_pairs_of(None, [read], 2, seed=0)
    assert again.data_sha256 == drawn.data_sha256 != with_pairs_of(None, [read], 2, seed=1).data_sha256


def test_a_model_learns_from_labels_alone(tables, tiny_model, tmp_path):
    shape = {"layers": (0.0, 1.0), "heads": 4, "head_dim": 16, "dim": 32}
    shape |= {"epochs": 4, "dropout": 0.1, "learning_rate": 1e-2}
    job = ConditionPoolingFlags(
        labelled=tables[:1], labels=tables[1:], **shape, model=str(tiny_model), output=str(tmp_path / "m")
    )
    metrics = train(job)
    assert metrics["data"]["labelled: a"]["columns"] == 2 and metrics["data"]["train"]["rows"] == 0
    asked = {"task": "labelled", "data": tables[0], "labels": tables[1:], "output": str(tmp_path / "r")}
    report = measure(EvaluateFlags(model=(job.output, str(tiny_model)), **asked), vectors_of=vectors_of)
    plain, trained, _, other = report["systems"]
    of_label = [system["figures"][ALL]["label"]["value"] for system in (trained, other)]
    assert other["against_conditional"][ALL]["label"]["difference"] == pytest.approx(of_label[1] - of_label[0])
    assert not any("against_conditional" in system for system in report["systems"][:3])
    assert "\n\nMinus m, by the paired bootstrap:" in (tmp_path / "r" / "report.md").read_text()
    for column in ("color", "number"):
        before, after = (system["figures"][column]["label"]["value"] for system in (plain, trained))
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


def test_an_encoder_of_many_languages_learns_from_labels_and_reads_others(tables, few, tmp_path):
    """As intfloat/multilingual-e5-small: a BERT with the tokenizer of XLM-R."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    tiny.save_model(folder, "bert", tiny.save_tokenizer(folder, tiny.unigram()))
    shape = {"heads": 2, "head_dim": 8, "dim": 16, "epochs": 1}
    job = ConditionPoolingFlags(labelled=tables[:1], **shape, model=str(folder), output=str(tmp_path / "m"))
    assert train(job)["validation"]["spearman"] > 0
    texts = ["Zwei Hunde spielen mit einem Ball.", "Un chien dort.", "Two dogs play."]
    loaded = raycase.load(job.output, device="cpu")
    found = loaded.encode_grid(texts, ["Farbe", "number of people"])
    assert found.shape == (3, 2, 16) and np.isfinite(found).all()
    assert np.ptp(found, axis=0).max() > 1e-3 and loaded.stated(texts, "Farbe").shape == (3,)


def test_the_calibration_error_by_hand():
    probabilities, said = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0, 1, 1, 1])
    assert calibration_error(probabilities, said) == pytest.approx(100 * (0.5 * 0.45 + 0.5 * 0.05))


def test_the_nearest_by_hand():
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [-1, 0.1]], dtype=np.float32)
    assert nearest_others(l2_normalize(vectors), 1)[1][:, 0].tolist() == [1, 0, 1, 2]
    assert nearest_others(l2_normalize(vectors), 10)[1].shape == (4, 3)


@pytest.mark.parametrize("flags", [{}, {"train": "a.csv"}, {"labelled": ("a.csv",), "labels": ("b.json", "c.json")}])
def test_without_data_there_is_no_fit(tables, tmp_path, flags):
    with pytest.raises(RequestError, match="expected"):
        train(ConditionPoolingFlags(**flags, output=str(tmp_path / "m")))


@pytest.mark.parametrize("teachers", [{"teachers": 1}, {"teacher_models": ("minilm-conditional-v2",)}])
def test_teachers_without_rated_pairs_are_refused(tables, tmp_path, teachers):
    """They rate the sentences of these pairs under further conditions."""
    with pytest.raises(RequestError, match="--train: expected rated pairs for --teachers"):
        train(ConditionPoolingFlags(labelled=tables[:1], **teachers, output=str(tmp_path / "m")))


@pytest.mark.parametrize("names", [(("a.csv", "b/a.csv"), ()), (("a.csv",), ("a.json", "b/a.json"))])
def test_tables_of_one_name_are_refused(names):
    with pytest.raises(RequestError, match="of different names, got a twice"):
        labels_of(*names)
