"""`raycase explain` shows the words that a condition looks at: in bold in a terminal, as figures elsewhere."""

import pytest
import tiny

import raycase
from raycase.commands.explain import ExplainFlags, explain
from raycase.errors import RequestError
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
        (
            {"condition": ("",)},
            "--text, --condition: expected texts .*, got: empty condition: 'A woman in a red dress' under ''",
        ),
    ]:
        with pytest.raises(RequestError, match=words):
            explain(job(model, **wrong))
