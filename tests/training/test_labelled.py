"""Labelled texts: what is read and left out, batches by hand-worked rules, a model that learns from them alone."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import WORDS, rated_rows, to_csv, train_here, vectors_of

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.commands.train import ConditionPoolingFlags
from raycase.errors import RequestError
from raycase.evaluation.metrics import auc, calibration_error
from raycase.evaluation.tasks.labelled import ALL
from raycase.index.topk import nearest_others
from raycase.io.labelled_texts import LabelledColumn, labels_of, read_labelled
from raycase.io.vectors import l2_normalize
from raycase.tokens.stored import StoredStates
from raycase.training import condition_head
from raycase.training.label_batches import ColumnIndex, label_batches, stated_texts, validation_pairs

COLORS = ["red", "yellow", "blue", "green"]
ABOUT = {
    "color": {
        "conditions": ["color", "color of the dress"],
        "groups": {"red": "warm", "yellow": "warm"},
        "answers": {"red": ["red 7"]},
    },
    "number": {"conditions": ["number of people"], "soft_nulls": True},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of 240 texts with a color and a number, of which one in six is left out; and its JSON."""
    folder, chance = tmp_path_factory.mktemp("labelled"), random.Random(0)
    rows = []
    for row in range(240):
        color, number = chance.choice(COLORS), chance.choice(["two", "five", "nine"])
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
    (tmp_path / "b.json").write_text(json.dumps({"columns": about, "kind": "a", "licence": "b", "source": "c"}))
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
def test_texts_that_are_too_few_to_hold_some_out_are_refused_before_training(tmp_path, labels):
    frame = pd.DataFrame({"text": [f"a {i}" for i in range(len(labels))], "tone": list(labels)})
    job = ConditionPoolingFlags(labelled=(to_csv(frame, tmp_path / "t.csv"),), output=str(tmp_path / "m"))
    count = len(labels) // 5
    with pytest.raises(
        RequestError, match=f"expected two labels in a column, one of them of two texts, got none among {count} texts"
    ):
        job.training().read()
    assert len(validation_pairs([read_labelled(job.labelled[0], None, "--labelled")], 0)) > 0


LETTERS = LabelledColumn(
    name="letter",
    conditions=("letter", "what letter"),
    labels=tuple(map(frozenset, ["a", "ab", "b", "c", ""])),
    groups={"a": "g", "c": "g"},
    answers={"a": ("an a",)},
)
TEXTS = ["zero", "one", "two", "three", "four", "an a"]  # the answer is the last
# Of texts 0 to 3, and of these with the answer: 0, 1 and the answer have a; a and c are of one group.
ALONE = {(0, 1): 1, (0, 2): 0, (0, 3): 0.4, (1, 2): 1, (1, 3): 0.4, (2, 3): 0}
ANSWERED = ALONE | {(0, 5): 1, (1, 5): 1, (2, 5): 0, (3, 5): 0.4}


def indexed(column, texts, answers=()):
    """A column of these texts, its conditions in their order from 10 on."""
    places = {text: i for i, text in enumerate([*texts, *answers])}
    return ColumnIndex.of(column, texts, places, {name: 10 + i for i, name in enumerate(column.conditions)})


def drawn(column, count=40):
    """Batches of a column."""
    random = np.random.default_rng(0)
    return [column.batch(random) for _ in range(count)]


def test_a_batch_of_a_column_by_hand():
    """Every text that states something, and in half of the batches the answer: all pairs, the alike ones of which have
    half of the weight."""
    batches = drawn(indexed(LETTERS, TEXTS[:5], TEXTS[5:]))
    assert {batch.condition for batch in batches} == {10, 11}
    with_answer = [5 in batch.texts for batch in batches]
    assert 0.3 < np.mean(with_answer) < 0.7
    for batch, answered in zip(batches, with_answer, strict=True):
        wanted = ANSWERED if answered else ALONE
        found = {tuple(pair): i for i, pair in enumerate(batch.texts[batch.pairs].tolist())}
        assert found.keys() == wanted.keys()
        alike = [target == 1 for target in wanted.values()]
        for (pair, target), same in zip(wanted.items(), alike, strict=True):
            weight = 1 / (sum(alike) if same else len(alike) - sum(alike))
            assert (batch.targets[found[pair]], batch.weights[found[pair]]) == pytest.approx((target, weight))


def test_a_batch_of_a_column_of_many_texts(tables):
    """As many of each label, no text twice, none that states nothing."""
    read = read_labelled(*tables, "--labelled")
    column, texts = read.columns[0], [*read.texts, "red 7"]
    labels_of = [*column.labels, frozenset({"red"})]
    counts = set()
    for batch in drawn(indexed(column, read.texts, ["red 7"])):
        count = len(batch.texts)
        assert len({*batch.texts.tolist()}) == count and len(batch.pairs) == count * (count - 1) / 2
        assert len({frozenset(pair) for pair in batch.pairs.tolist()}) == len(batch.pairs)
        own = [text for text in batch.texts.tolist() if texts[text] != "red 7"]
        assert Counter(labels_of[text] for text in own) == {frozenset({name}): 12 for name in COLORS}
        for (first, second), target in zip(batch.texts[batch.pairs].tolist(), batch.targets, strict=True):
            labels = labels_of[first] | labels_of[second]
            assert target == np.float32(1 if len(labels) == 1 else 0.4 if labels == {"red", "yellow"} else 0)
        for alike in (batch.targets == 1, batch.targets < 1):
            assert batch.weights[alike].sum() == pytest.approx(1, rel=1e-5) and np.ptp(batch.weights[alike]) == 0
        counts.add(count)
    assert counts == {48, 49}


def test_a_column_of_many_labels_has_pairs_of_one_label():
    """Two texts of each of 150: a batch has both of some."""
    column = LabelledColumn(name="n", conditions=("n",), labels=tuple(frozenset({f"{i % 150}"}) for i in range(300)))
    for batch in drawn(indexed(column, [str(i) for i in range(300)]), count=5):
        assert len(batch.texts) == 24 and (batch.targets == 1).sum() == 12
        assert batch.weights[batch.targets == 1] == pytest.approx(1 / 12)


def test_large_columns_do_not_drown_small_ones(monkeypatch):
    """8 and 27 times as many texts make 2 and 3 times as many batches."""
    columns = [indexed(replace(LETTERS, answers={}, labels=(frozenset("a"),) * n), range(n)) for n in (2, 16, 54)]
    monkeypatch.setattr(ColumnIndex, "batch", lambda column, random: len(column.texts))
    found = label_batches(columns, 6000, 0, 1)
    assert [found.count(n) for n in (2, 16, 54)] == pytest.approx([1000, 2000, 3000], rel=0.1)
    assert found == label_batches(columns, 6000, 0, 1)
    assert all(found != label_batches(columns, 6000, *other) for other in ((0, 2), (1, 1)))
    assert label_batches([], 3, 0, 1) == []


def test_texts_that_state_something(tables):
    """Of a column in which an empty cell means that the text states nothing, each under one of its conditions."""
    read = read_labelled(*tables, "--labelled")
    columns = [indexed(column, read.texts, ["red 7"]) for column in read.columns]
    texts, conditions, stated = stated_texts(columns, 0)
    assert texts.tolist() == [*range(240)], "missing numbers of people may be there"
    assert stated.tolist() == [float(bool(labels)) for labels in read.columns[0].labels]
    assert {*conditions.tolist()} == {10, 11}
    assert [len(part) for part in stated_texts(columns[1:], 0)] == [0, 0, 0]


class OneState:
    """In place of the cache: each text is one token, in whose state its length stands; noted are the texts."""

    def __init__(self):
        self.asked = []

    def states_of(self, texts, config, **options):
        self.asked.append(list(texts))
        states = [np.full((1, config.states_dim), len(text)) for text in texts]
        return StoredStates.of(states, config.states_dim), np.zeros((len(texts), 4), np.float32)


def test_a_fifth_of_the_texts_validates_and_is_not_trained_on(tables, tiny_model, tmp_path):
    job = ConditionPoolingFlags(
        labelled=tables[:1], labels=tables[1:], model=str(tiny_model), output=str(tmp_path / "m")
    ).training()
    parts, cache = job.read(), OneState()
    train, validation, table = parts
    assert len(train) == 0 and len(table) == 240
    held_out = {*validation.sentences1, *validation.sentences2}
    assert not any(a == b for a, b in zip(validation.sentences1, validation.sentences2, strict=True))
    assert {*validation.ratings.tolist()} == {1.0, np.float32(2.6), 5.0}
    assert {*validation.conditions} == {"color", "number of people"}
    data, _ = job.share(parts, cache)
    texts = [text for asked in cache.asked for text in asked]
    own = [*dict.fromkeys([*table.texts, "red 7"])]
    [learned] = [asked for asked in cache.asked if "red 7" in asked]
    assert len(data.rated) == 0 and len(learned) == 192 + 1 and not held_out & {*learned} and {*own} > held_out
    assert {*texts} <= {*own, *ABOUT["color"]["conditions"], "number of people"}
    for column, read in zip(data.columns, table.columns, strict=True):
        cells = dict(zip(table.texts, read.labels, strict=True))
        names = sorted({name for cell in read.labels for name in cell})
        for text, labels in zip(column.texts, column.labels, strict=True):
            assert {name for name, there in zip(names, labels, strict=True) if there} == cells[learned[text]]
    assert [learned[i] for of_label in data.columns[0].answers for i in of_label] == ["red 7"]
    assert [*map(len, data.familiar)] == [384, 384], "each text under the first condition of each column"


def test_rated_pairs_and_labelled_texts_share_their_states(tables, tiny_model, tmp_path):
    """A text of both has one state; with data to validate with, no text is held out."""
    frame = rated_rows(20, 0)
    read = read_labelled(*tables, "--labelled")
    frame.loc[3, ["sentence2", "condition"]] = [read.texts[7], "color"]
    files = {"train": to_csv(frame, tmp_path / "a.csv"), "validation": to_csv(rated_rows(20, 1), tmp_path / "b.csv")}
    flags = {"labelled": tables[:1], "labels": tables[1:], "model": str(tiny_model), "output": str(tmp_path / "m")}
    job, cache = ConditionPoolingFlags(**files, **flags).training(), OneState()
    data, _ = job.share(job.read(), cache)
    [place] = [i for i, asked in enumerate(cache.asked) if "red 7" in asked]
    texts, conditions = cache.asked[place : place + 2]
    assert len(texts) == len({*texts}) == len({*frame["sentence1"], *frame["sentence2"], *read.texts, "red 7"})
    assert texts[data.rated.sentence_index[3, 1]] == read.texts[7] == texts[data.columns[0].texts[7]]
    assert [texts[i] for i in data.rated.sentence_index.T.reshape(-1)] == [*frame["sentence1"], *frame["sentence2"]]
    assert [conditions[i] for i in data.rated.condition_index] == [*frame["condition"]]
    assert [conditions[i] for i in data.columns[0].wordings] == ABOUT["color"]["conditions"]
    assert data.familiar[0].tolist() == data.rated.under()[0].tolist()
    assert (data.states.conditions[:, 0] == [len(condition) for condition in conditions]).all()


def test_a_model_learns_from_labels_alone(tables, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(condition_head, "LEAST_BATCHES", 128)
    shape = {"layers": (0.0, 1.0), "heads": 4, "head_dim": 16, "hidden": 16, "dim": 32}
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


@pytest.mark.parametrize("names", [(("a.csv", "b/a.csv"), ()), (("a.csv",), ("a.json", "b/a.json"))])
def test_tables_of_one_name_are_refused(names):
    with pytest.raises(RequestError, match="of different names, got a twice"):
        labels_of(*names)
