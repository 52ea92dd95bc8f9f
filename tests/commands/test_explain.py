"""`raycase explain` shows the words that a condition looks at: in bold in a terminal, as figures elsewhere; and how
wordings differ."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
from helpers import call_command, sentences, write_csv

import raycase
from raycase.commands.explain import ExplainFlags, explain
from raycase.errors import RequestError
from raycase.explore.wordings import SAMPLED, heaviest, same_nearest
from raycase.tokens.words import Word

TEXTS = ("A woman in a red dress", "{x} <b>café</b> & 😀 [SEP] dogs")
CONDITIONS = ("color of the dress", "number of <people>")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "simcse-roberta-large")
    return f"condition-pooling:{folder}"


def job(name, **options):
    return ExplainFlags(**{"text": TEXTS, "condition": CONDITIONS, "model": name} | options)


@pytest.mark.parametrize("system", ["condition-pooling", "csr"])
def test_words_are_printed_with_their_weights(model, system, capsys):
    """Of CSR as its router looks at them (figures 6 and 7)."""
    name = model.replace("condition-pooling:", f"{system}:")
    result = explain(job(name))
    printed = capsys.readouterr().out
    assert "\033" not in printed
    pairs = [(t, c) for t in TEXTS for c in CONDITIONS]
    weighed = raycase.load(name).word_weights(*map(list, zip(*pairs, strict=True)))
    assert [(e["text"], e["condition"]) for e in result["weights"]] == pairs
    for (text, condition), words, each in zip(pairs, weighed, result["weights"], strict=True):
        figures = ", ".join(f"{text[w.start : w.end]} {w.weight:.2f}" for w in words)
        assert f"  {condition}: {figures}\n" in printed
        assert [Word(**word) for word in each["words"]] == [pytest.approx(word, abs=1e-4) for word in words]


def test_wrong_requests_are_refused(model):
    encoder = model.removeprefix("condition-pooling:")
    for wrong, words in [
        ({"model": "minilm"}, r"--model: expected a model that weighs words .*, got minilm$"),
        ({"model": f"tri-encoder:{encoder}"}, r"--model: expected a model that weighs words .*, got tri-encoder:"),
        ({"condition": ()}, "--condition: expected at least one, got"),
        ({"text": ("a.csv",)}, "--text: expected words, got the file a.csv; --input reads files"),
        ({"text": ()}, "expected one of --text or --input, got none"),
        ({"input": "a.csv"}, "expected one of --text or --input, got both"),
        ({"text": (), "input": "a.csv", "condition": ("a", " a")}, "expected two wordings or more .*, got 'a' alone"),
        ({"text": (), "input": "a.csv", "model": "minilm"}, "--model: expected a model that weighs words"),
        (
            {"condition": ("",)},
            "--text, --condition: expected texts .*, got: empty condition: 'A woman in a red dress' under ''",
        ),
    ]:
        with pytest.raises(RequestError, match=words):
            explain(job(model, **wrong))


def test_wordings_are_compared_on_a_sample_of_texts(model, tmp_path, capsys):
    texts = [*dict.fromkeys(sentences(SAMPLED + 200))]
    assert len(texts) > SAMPLED
    write_csv(tmp_path / "texts.csv", ["id", "note"], [*enumerate([*texts, texts[0], " "])])
    flags = job(model, text=(), input=str(tmp_path / "texts.csv"), text_column="note")
    result = explain(flags)
    printed = capsys.readouterr().out
    assert result == explain(flags)
    assert (result["texts"], result["nearest"]) == (SAMPLED, 10)
    unconditional, first, second = result["wordings"]
    assert [unconditional["condition"], first["condition"], second["condition"]] == [None, *CONDITIONS]
    assert [each["same"][i] for i, each in enumerate(result["wordings"])] == [1, 1, 1]
    assert first["same"][2] == second["same"][1] < 1
    for number, each in enumerate((first, second), 1):
        assert [*each["words"].values()] == sorted(each["words"].values(), reverse=True)
        looks = ", ".join(f"{word} {share:.3f}" for word, share in each["words"].items())
        figures = "  ".join(f"{share:.2f}" for share in each["same"])
        assert f"  {number}  {figures}  {each['condition']}: {looks[:9]}" in printed
    with pytest.raises(RequestError, match=r"texts.csv: expected the column 'text', got id, note; --text-column names"):
        explain(job(model, text=(), input=flags.input))
    write_csv(tmp_path / "few.csv", ["text"], [[text] for text in texts[:9]] * 9)
    with pytest.raises(RequestError, match="--input: expected at least 50 different texts in 'text', got 9"):
        explain(job(model, text=(), input=str(tmp_path / "few.csv")))


def test_a_file_or_what_the_model_cannot_read_is_no_wording(tmp_path):
    write_csv(tmp_path / "texts.csv", ["text"], [[text] for text in dict.fromkeys(sentences(99))])
    flags = {"text": (), "input": str(tmp_path / "texts.csv")}
    for words, expected in (
        ("words.txt", "words, got the file words.txt"),
        ("\N{SNOWMAN}", "words, of which .*"),
        ("Place", "texts that the model reads differently"),
    ):
        with pytest.raises(RequestError, match=f"^--condition: expected {expected}"):
            explain(job("condition-pooling:minilm", condition=("place", words), **flags))
    for command in ("facets", "dedup", "classify", "teach"):
        more = {
            "dedup": ["--threshold", "1", "--output", "a.parquet"],
            "classify": ["--labels", "a", "b", "--output", "a.parquet"],
            "teach": ["--answers", flags["input"]],
        }
        done = call_command(command, "--index", str(tmp_path), "--condition", "words.txt", *more.get(command, ()))
        assert (done.returncode, done.stderr) == (2, "error: --condition: expected words, got the file words.txt\n")


def test_what_is_no_text_or_has_no_known_token_is_not_compared(tmp_path):
    pq.write_table(pa.table({"text": [["a list"], None]}), tmp_path / "lists.parquet")
    strange = [*("\N{SNOWMAN}" * n for n in range(1, 70)), "half of an emoji: \ud83d"]  # all have one vector
    (tmp_path / "strange.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in strange))
    for name in ("lists.parquet", "strange.jsonl"):
        with pytest.raises(RequestError, match="--input: expected at least 50 different texts in 'text', got 0"):
            explain(job("condition-pooling:minilm", text=(), input=str(tmp_path / name)))


def test_what_wordings_have_in_common_by_hand():
    """Three texts at 0, 10 and 90 degrees: the nearest to them are the second, the first and the second."""
    line = np.array([[1, 0], [np.cos(0.1745), np.sin(0.1745)], [0, 1]], np.float32)
    assert same_nearest([line, line], 1).tolist() == [[1, 1], [1, 1]]
    turned = line[[0, 2, 1]]  # the third, the third and the first are nearest
    assert same_nearest([line, turned], 1).tolist() == [[1, 0], [0, 1]]
    assert same_nearest([line, turned], 2).tolist() == [[1, 1], [1, 1]]  # all others


def test_the_heaviest_words_by_hand():
    texts = ["The red dog", "a Red cat"]
    weights = [[Word(0, 3, 0.5), Word(4, 7, 0.3), Word(8, 11, 0.2)], [Word(0, 1, 0), Word(2, 5, 0.6), Word(6, 9, 0.4)]]
    found = heaviest(texts, weights)
    assert [(each.word, round(each.score, 4)) for each in found] == [("red", 0.6), ("cat", 0.2667), ("dog", 0.1333)]
    assert found[:2] == heaviest(texts, weights, 2)
