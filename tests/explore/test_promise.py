"""Promises: that they hold as often as promised, the check sample, what is asked for, and rounds of classify."""

import json
import re

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import storing
from indexed import refuse
from scipy.stats import binom, hypergeom

from raycase.commands.classify import ClassifyFlags, classify
from raycase.explore.labelling import Promised, Rows, Wanted, promise, rows_to_ask
from raycase.explore.promise import (
    DOUBT,
    check_sample,
    least_checked,
    level_of,
    promise_precision,
    promise_recall,
    random_order,
    steps_of,
)
from raycase.index.index import Index
from raycase.io.row_labels import read_asked

SHARE, CONDITION, LABELS = 0.9, "what they wear", ("red dress", "two people")


def exactly(wrong):
    """As many wrong rows, anywhere."""
    return lambda confidence, draw: draw.permutation(np.arange(len(confidence)) >= wrong)


def rising(slope):
    return lambda confidence, draw: draw.random(len(confidence)) < 1 - slope * (1 - confidence)


@pytest.mark.parametrize(
    ("rows", "checked", "truth"),
    [
        (150, 60, exactly(13)),  # the promise is false by one row, or nearly so
        (150, 60, exactly(16)),
        (2000, 100, exactly(201)),
        (2000, 100, lambda confidence, draw: draw.random(len(confidence)) < SHARE),
        (2000, 100, lambda share, draw: draw.random(len(share)) < 1 - 0.2 * share),  # the wrong way round
        (2000, 200, rising(0.2)),
        (400, 100, rising(0.4)),
        (2000, 200, lambda confidence, draw: draw.random(len(confidence)) < np.where(confidence > 0.5, 0.9, 0.5)),
    ],
)
def test_a_promise_fails_less_often_than_its_chance(rows, checked, truth, level=0.2, runs=250):
    """At a level at which so few runs show it."""
    draw, failed, made = np.random.default_rng(0), 0, 0
    for _ in range(runs):
        confidence_P = draw.random(rows)
        right_P, checked_P = truth(confidence_P, draw), draw.permutation(rows) < checked
        if found := promise_precision(confidence_P, checked_P, right_P, SHARE, level):
            is_in_P = confidence_P >= found
            made += bool(is_in_P.any())
            failed += (~right_P[is_in_P]).sum() > (1 - SHARE) * is_in_P.sum() + 1e-9
    assert failed <= binom.ppf(0.999, runs, level) and failed <= level * runs


def test_a_good_model_gets_a_promise_and_a_bad_one_none():
    draw = np.random.default_rng(1)
    confidence_P, checked_P = draw.random(2000), draw.permutation(2000) < 150
    every = np.ones(2000, bool)
    found = promise_precision(confidence_P, checked_P, every, SHARE, DOUBT)
    assert found == confidence_P.min()
    half = promise_precision(confidence_P, checked_P, confidence_P > 0.4, SHARE, DOUBT)
    assert 0.3 < half < 0.5
    assert promise_precision(confidence_P, checked_P, confidence_P > 0.95, SHARE, DOUBT) == np.inf
    assert promise_precision(confidence_P, checked_P & False, every, SHARE, DOUBT) is None
    assert promise_precision(confidence_P[:0], checked_P[:0], every[:0], SHARE, DOUBT) is None


def test_the_least_rows_to_check_by_hand():
    assert least_checked(0.9, 0.05) == 29 and 0.9**29 <= 0.05 < 0.9**28
    assert sum(level_of(round_) for round_ in range(1, 10_000)) == pytest.approx(DOUBT, rel=1e-3)
    enough = np.arange(5000) < 29  # of many rows a few more suffice than of an endless number
    assert promise_precision(np.ones(5000), enough, enough, 0.9, 0.05) == 1
    assert promise_precision(np.ones(5000), np.arange(5000) < 28, enough, 0.9, 0.05) is None
    assert hypergeom.cdf(0, 5000, 501, 29) <= 0.05


def test_a_promise_of_recall_holds():
    draw, failed = np.random.default_rng(2), 0
    for _ in range(200):
        confidence_P = draw.random(1000)
        right_P, checked_P = draw.random(1000) < 0.9, draw.permutation(1000) < 200
        least = promise_recall(steps_of(confidence_P), confidence_P[checked_P], right_P[checked_P], 0.6, 0.2)
        failed += least > -np.inf and (right_P & (confidence_P >= least)).mean() < 0.6
    assert failed <= 40
    assert promise_recall([0.5], np.ones(0), np.ones(0, bool), 0.6, 0.2) == -np.inf


def test_the_check_sample_is_the_unbroken_beginning_of_a_fixed_order():
    order = random_order([*"abcdefgh"])
    assert sorted(order) == [*range(8)] and (order == random_order([*"abcdefgh"])).all()
    more = [*"abcdefgh"[::-1], "x"]
    assert [more[i] for i in random_order(more) if more[i] != "x"] == ["abcdefgh"[i] for i in order]
    drawn_N, learned_N = np.zeros((2, 8), bool)
    drawn_N[order[[0, 1, 3, 5]]], learned_N[order[2]] = True, True
    assert sorted(np.flatnonzero(check_sample(order, drawn_N, learned_N))) == sorted(order[[0, 1, 3]])
    drawn_N[:] = True
    assert check_sample(order, drawn_N & ~learned_N, learned_N).sum() == 7


def rows_of(count, answered=0, checked=0, seed=0):
    draw = np.random.default_rng(seed)
    order, answer_N, checked_N = draw.permutation(count), np.full(count, -1), np.zeros(count, bool)
    answer_N[order[: answered + checked]], checked_N[order[answered : answered + checked]] = 0, True
    best_N, share_N = np.zeros(count, int), draw.random(count)
    return Rows(order=order, answer=answer_N, checked=checked_N, best=best_N, share=share_N)


def promised(rows_N, enough=False):
    return Promised(rows=rows_N, checked=0, wrong=0, recalled=False, looks=0, lacking=0, enough=enough)


def test_rows_are_asked_for_once_half_at_random_and_half_uncertain_ones_of_other_texts():
    rows, vectors = rows_of(300, 20, 30), np.random.default_rng(3).normal(size=(300, 8))
    texts = [f"text {i // 2}" for i in range(300)]
    none, texts_at = promised(np.zeros(300, bool)), lambda at: [texts[i] for i in at]
    random, uncertain = rows_to_ask(rows, none, 25, vectors.__getitem__, texts_at)
    assert random == [i for i in rows.order if rows.answer[i] < 0 and i not in uncertain][:12]
    assert len({*random} | {*uncertain}) == 25 and not rows.learned[uncertain].any()
    assert len({texts[i] for i in uncertain} - {texts[i] for i in np.flatnonzero(rows.learned)}) == 13
    assert rows.share[uncertain].mean() < 0.35
    few = rows.share > 0.1  # those below are asked for, and those of the check sample are learned from
    left = np.flatnonzero(~few & ~rows.learned).tolist()
    assert rows_to_ask(rows, promised(few), 60, vectors.__getitem__, texts_at) == ([], left)
    enough = promised(np.zeros(300, bool), enough=True)
    assert rows_to_ask(rows, enough, 9, vectors.__getitem__, texts_at)[0] == []


def test_each_label_has_a_promise_for_itself():
    rows = rows_of(2000, 0, 800)
    rows.best[::2] = 1
    rows.answer[rows.checked] = 1  # the label 1 is right, the label 0 always wrong
    both = promise(rows, Wanted(precision=SHARE), 1, 2, 2)
    each = promise(rows, Wanted(precision=SHARE, each=True), 1, 2, 2)
    assert not both.rows.any() and both.looks == 1 and both.wrong > 300
    assert (each.rows == (rows.best == 1)).all() and each.wrong == 0


def fill(file, label_of):
    """What a person fills in."""
    rows = pyarrow.csv.read_csv(file).to_pylist()
    for row in rows:
        row["label"] = label_of[row["id"]] if row["label"] == "?" else row["label"] or ""
    lines = [json.dumps({**row, "drawn": row["drawn"] or ""}) for row in rows]
    (done := file.with_suffix(".jsonl")).write_text("\n".join(lines) + "\n")
    return str(done), rows


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of 300 texts under a condition, and a label of each by a direction of the vectors."""
    home = tmp_path_factory.mktemp("promised")
    output = storing.stored_under(home / "b", storing.model_folder(home), storing.texts(300), CONDITION)
    uri = storing.indexed(home / "i.lance", output)
    vectors = Index.open(uri).vectors_at(CONDITION, np.arange(300))
    side = vectors @ (vectors[0] - vectors[1])
    return uri, [LABELS[int(value > np.median(side))] for value in side]


def test_rounds_of_asking_end_with_every_row_answered_or_promised(index, tmp_path, capsys):
    uri, label_of = index
    given, asked, ask = [], {}, tmp_path / "1.csv"
    flags = {"index": uri, "condition": CONDITION, "labels": LABELS, "output": str(tmp_path / "o.parquet")}
    flags |= {"precision": 0.7, "asked_rows": 40}
    for round_ in range(1, 9):
        ask = tmp_path / f"{round_}.csv"
        result = classify(ClassifyFlags(**flags, answers=tuple(given), ask=str(ask)))
        rows = pq.read_table(result["output"]).to_pylist()
        assert result["decided"] + result["promised"] + result["open"] == 300 and result["decided"] == len(asked)
        assert [row["id"] for row in rows if row["answered"]] == sorted(asked)
        assert all((row["label"] is None) == (not row["answered"] and not row["promised"]) for row in rows)
        wrong = [row["id"] for row in rows if row["promised"] and row["label"] != label_of[row["id"]]]
        assert len(wrong) <= 0.3 * result["promised"]
        printed = capsys.readouterr().out
        assert f"{result['promised']} promised, {result['open']} open\n{result['statement']}" in printed
        if not result["open"]:
            break
        file, listed = fill(ask, label_of)
        assert {row["round"] for row in listed} == {round_} and len({row["id"] for row in listed}) == len(listed)
        new = {row["id"] for row in listed if row["label"] == "?"}
        assert not new & {*asked} and {row["label"] for row in listed if row["id"] in asked} <= {*LABELS}
        given.append(file)
        asked |= {i: label_of[i] for i in [row["id"] for row in listed]}
        if round_ == 1:
            assert result["promised"] == 0 and result["bound"] is None
            assert re.search("it takes at least 12 more random answers, all right", result["statement"])
    assert not result["open"] and result["promised"] > 0 and result["bound"] == 0.7 and result["confidence"] == 0.95
    assert re.match("the model is right for at least 70% of [0-9]+ rows, with 95% confidence", result["statement"])


def test_no_answer_in_an_ask_file_is_lost(index, tmp_path):
    flags = {"index": index[0], "condition": CONDITION, "output": str(tmp_path / "o.parquet"), "asked_rows": 10}
    flags |= {"labels": LABELS, "precision": 0.9, "ask": str(tmp_path / "ask.csv")}
    classify(ClassifyFlags(**flags))
    file = tmp_path / "ask.csv"
    lines = file.read_text().replace('"?"', f'"{LABELS[0]}"', 1)
    file.write_text(lines)
    classify(ClassifyFlags(**flags))  # the same rows: what stands there stays
    assert file.read_text() == lines and lines.count('"?"') == 9
    first = next(iter(read_asked(str(file))))
    file.write_text(noted := lines.replace("\n", ",mine\n").replace("round,mine", "round,note"))  # one more column
    classify(ClassifyFlags(**flags))
    assert file.read_text() == noted and [*read_asked(str(file)).values()].count("?") == 9
    file.write_text(lines)
    (tmp_path / "a.csv").write_text(f"id,label\n7,{LABELS[0]}\n9,{LABELS[1]}\n")
    (tmp_path / "o.parquet").unlink()
    other = flags | {"answers": (str(tmp_path / "a.csv"),), "where": f"id <> {first}"}
    (wrong := tmp_path / "b.csv").write_text(f"id,label\n{first},{LABELS[1]}\n9,{LABELS[0]}\n")
    for bad in (other, flags | {"answers": (str(wrong),)}):  # one that lacks an answer, and one that has another
        refuse(ClassifyFlags(**bad), "--ask: expected a new file, got .* with 1 answers that are not in", classify)
    assert file.read_text() == lines and not (tmp_path / "o.parquet").exists()
