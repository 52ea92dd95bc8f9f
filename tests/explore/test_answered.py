"""Labels learned from answers, and classify by them: what answered rows keep, probabilities, wrong files."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import storing
from indexed import refuse

from raycase.commands.classify import ClassifyFlags, classify
from raycase.explore.answered import learn
from raycase.index.index import Index
from raycase.io.vectors import l2_normalize

CONDITION, LABELS = "what they wear", ("red dress", "two people")
ROWS = storing.texts(90)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An index of 90 texts under a condition."""
    home = tmp_path_factory.mktemp("answered")
    model = storing.model_folder(home)
    storing.indexed(home / "under", storing.stored_under(home / "b", model, ROWS, CONDITION))
    return home


def truth(home):
    """A label of each row, by a direction of the vectors; none for one in ten."""
    vectors = Index.open(str(home / "under")).vectors_at(CONDITION, np.arange(90))
    side = vectors @ (vectors[0] - vectors[1])
    return ["" if i % 10 == 3 else LABELS[int(value > np.median(side))] for i, value in enumerate(side)]


def answers(file, rows, header="id,label"):
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(file)


def asked(home, tmp_path, *files, **options):
    settings = {"condition": CONDITION, "output": str(tmp_path / "labels.parquet"), "answers": files}
    return ClassifyFlags(**{"index": str(home / "under")} | settings | options)


def clusters(count, classes, seed=0, spread=0.5):
    """Unit vectors around unit vectors of classes: vectors, classes, the middle of each class."""
    draw = np.random.default_rng(seed)
    middles, class_N = l2_normalize(draw.normal(size=(classes, 16))), draw.integers(classes, size=count)
    return l2_normalize(middles[class_N] + spread * draw.normal(size=(count, 16))), class_N, middles


def test_probabilities_of_rows_that_were_left_out_mean_what_they_are():
    vectors, class_N, middles = clusters(3100, 5)
    learned = learn(vectors[:100], class_N[:100], middles, 16)
    found = learned.probabilities(vectors[100:])
    assert learned.unsure is None and found.sum(1) == pytest.approx(np.ones(3000))
    right, share = found.argmax(1) == class_N[100:], found.max(1)
    part = np.minimum((share * 10).astype(int), 9)
    gaps = [abs(right[part == i].mean() - share[part == i].mean()) * (part == i).mean() for i in set(part.tolist())]
    assert sum(gaps) < 0.05 and right.mean() > 0.6


def test_few_answers_lean_on_the_vectors_of_the_labels_and_give_no_probability():
    vectors, class_N, middles = clusters(300, 4, spread=0.2)
    none = learn(vectors[:0], class_N[:0], middles, 16)
    assert (none.probabilities(vectors).argmax(1) == class_N).mean() > 0.9  # without any answer
    assert none.unsure == "0 answers are too few to check them; it takes 10 more"
    one = learn(vectors[:12], np.array([0] * 11 + [1]), middles[:2], 16)
    assert one.unsure == "some labels have fewer than 2 answers; it takes 1 more"


def test_none_of_the_labels_is_a_class():
    vectors, class_N, middles = clusters(400, 4)
    found = learn(vectors[:100], class_N[:100], middles[:3], 16).probabilities(vectors[100:])
    assert found.shape == (300, 4) and (found.argmax(1) == class_N[100:]).mean() > 0.6


def test_rows_keep_their_answer_and_others_learn_from_it(home, tmp_path):
    labels = truth(home)
    file = answers(tmp_path / "a.csv", enumerate(labels[:40]))
    result = classify(asked(home, tmp_path, file))
    table = pq.read_table(result["output"]).sort_by("id")
    assert table.column_names == ["id", "label", "probability", "margin", "stated", "answered"]
    rows = table.to_pylist()
    assert [row["answered"] for row in rows] == [True] * 40 + [False] * 50
    assert [row["label"] or "" for row in rows[:40]] == labels[:40]
    assert {(row["probability"], row["margin"]) for row in rows[:40]} == {(1, 1)}
    assert [row["stated"] for row in rows[:40]] == [float(label != "") for label in labels[:40]]
    assert np.mean([(row["label"] or "") == label for row, label in zip(rows[40:], labels[40:], strict=True)]) > 0.6
    assert result["not_stated"] == table["label"].null_count and sum(result["labels"].values()) + 4 <= 90
    texts = answers(tmp_path / "t.csv", [(ROWS[i]["text"], labels[i]) for i in range(40)], "text,label")
    refuse(asked(home, tmp_path, texts, where="year < 2005"), "expected the text of a row .* not among them", classify)
    some = answers(tmp_path / "some.csv", [(i, labels[i]) for i in range(10)])
    classify(asked(home, tmp_path, some, labels=(*LABELS[::-1], "a dog"), where="year < 2010"))
    assert pq.read_table(tmp_path / "labels.parquet")["id"].to_pylist() == [i for i in range(90) if i % 20 < 10]


def test_answers_by_text_and_in_several_files_are_the_same(home, tmp_path, capsys):
    labels = truth(home)
    first = answers(tmp_path / "a.csv", enumerate(labels[:40]))
    classify(asked(home, tmp_path, first))
    wanted = pq.read_table(tmp_path / "labels.parquet")
    bom = "\ufefftext,label\r\n" + "".join(f"{ROWS[i]['text']}, {labels[i]} \r\n" for i in range(25))
    (tmp_path / "b.csv").write_bytes(bom.encode())
    rest = [{"text": ROWS[i]["text"], "label": labels[i] or None} for i in range(20, 40)] + [
        {"text": "x", "label": "?"}
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rest))
    classify(asked(home, tmp_path, str(tmp_path / "b.csv"), str(tmp_path / "c.jsonl")))
    assert pq.read_table(tmp_path / "labels.parquet") == wanted
    assert "1 rows of" in capsys.readouterr().err


def test_with_few_answers_there_is_a_score_and_a_note(home, tmp_path, capsys):
    classify(asked(home, tmp_path, answers(tmp_path / "a.csv", [(0, LABELS[0]), (1, LABELS[1])])))
    assert "score" in pq.read_table(tmp_path / "labels.parquet").column_names
    assert "no probabilities: 2 answers are too few to check them; it takes 8 more" in capsys.readouterr().err


def test_wrong_answers_are_refused(home, tmp_path):
    def ask(words, rows, header="id,label", **options):
        refuse(asked(home, tmp_path, answers(tmp_path / "a.csv", rows, header), **options), words, classify)

    ask("--answers: expected two labels or more, got 1", [(0, "a"), (1, "a")])
    ask("--answers: expected the id of a row .* got '900' and 1 others", [(0, "a"), (900, "b"), (901, "b")])
    ask("--answers: .*, row 1: expected one label of '0', got 'a' and 'b'", [(0, "a"), (0, "b")])
    ask("--answers: .*, row 1: expected one label of 'x', got 'a' and none", [("x", "a"), ("x", "")], "text,label")
    ask("--answers: expected rows with a label", [])
    ask("--answers: expected rows with a label", [(0, "?"), (1, "")])
    ask("--answers: expected at most 1,000 labels", [(i, f"label {i}") for i in range(10_000)])
    ask("--answers: expected labels of --labels, got 'c'", [(0, "a"), (1, "c")], labels=("a", "b"))
    ask("--answers: .*, row 0: expected a number in 'round', got x", [(0, "a", "x")], "id,label,round")
    ask("--answers: .*, row 0: expected a number in 'round' beside", [(0, "a", "random")], "id,label,drawn")
    ask("--labels: expected texts that the model reads differently", [(0, "Dog"), (1, "dog")])
    two = [(0, "a"), (1, "b")]
    ask("--labels: expected labels other than", two, labels=("a", "b", "?"))
    ask("--stated: expected none beside --answers", two, stated=True)
    ask("--ask: expected --precision beside it", two, ask=str(tmp_path / "ask.csv"))
    ask("--recall: expected --precision beside it", two, recall=0.9)
    ask("--precision: expected a share from 0.5 to below 1, got 1.0", two, precision=1.0)
    ask("--ask: expected another place than --answers", two, ask=str(tmp_path / "a.csv"), precision=0.9)
    ask("--ask-endpoint: expected --ask and --ask-model", two, precision=0.9, ask_endpoint="http://x")
    assert not (tmp_path / "labels.parquet").exists()


def test_spellings_of_a_label_are_one(home, tmp_path, capsys):
    file = answers(tmp_path / "a.csv", [(0, "caf\u00e9"), (1, "cafe\u0301"), (2, "bar"), (3, " bar")])
    assert [*classify(asked(home, tmp_path, file))["labels"]] == ["bar", "caf\u00e9"]
    assert "are read as one label" in capsys.readouterr().err


def test_all_rows_with_the_text_of_an_answer_keep_it(home, tmp_path):
    rows = storing.texts(30) + [{**row, "id": row["id"] + 100} for row in storing.texts(10)]
    output = storing.stored_under(tmp_path / "b", storing.model_folder(tmp_path), rows, CONDITION)
    index, label = storing.indexed(tmp_path / "i.lance", output), lambda i: LABELS[int(i) % 2]
    files = [answers(tmp_path / "text.csv", [(row["text"], label(row["id"])) for row in rows[:12]], "text,label")]
    ask = {"index": index, "labels": LABELS, "precision": 0.9, "asked_rows": 8}
    for round_ in range(9):  # by text, and by the ids of the rows that are asked for
        file = tmp_path / f"{round_}.csv"
        result = classify(asked(home, tmp_path, *files, **ask, ask=str(file)))
        found = pq.read_table(tmp_path / "labels.parquet").to_pylist()
        assert all(row["label"] == label(row["id"]) for row in found if row["answered"])
        assert result["decided"] == 22 or round_
        if not result["open"]:
            break
        lines = [line.replace('"?"', f'"{label(line.split(",")[0])}"') for line in file.read_text().splitlines()[1:]]
        file.write_text("\n".join(["id,text,label,drawn,round", *lines]) + "\n")
        files.append(str(file))
    assert result["decided"] == 40
    other = answers(tmp_path / "other.csv", [(101, LABELS[0])])
    refuse(
        asked(home, tmp_path, files[0], other, index=index), "--answers: .* one label of '101', got .* and", classify
    )
