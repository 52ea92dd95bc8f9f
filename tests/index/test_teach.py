"""Teaching an index a condition by its stored tokens; what searches, kept conditions and other outputs make of it."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import storing
import torch
from filelock import FileLock
from helpers import call_command, read_output, vectors
from indexed import refuse

import raycase
from raycase.commands.teach import TeachFlags, teach
from raycase.errors import RequestError, WorkError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.io.vectors import l2_normalize
from raycase.job.output import Output, read_job
from raycase.models.taught import Taught

ASKED = "what they wear"


def write_answers(file, column):
    with open(file, "w", encoding="utf-8", newline="") as handle:
        rows = zip(storing.texts(120), storing.answers(120)[1], strict=True)
        csv.writer(handle).writerows([[column, "label"], *([row[column], label or ""] for row, label in rows)])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model; `words`: its output with stored tokens; answers of the first 120 rows by id and by text."""
    home = tmp_path_factory.mktemp("teaching")
    model = storing.model_folder(home, **storing.TEACHABLE)
    storing.stored(home / "a", model, storing.texts(250), output=str(home / "words"), token_bytes=200)
    for column in ("id", "text"):
        write_answers(home / f"{column}.csv", column)
    return home


@pytest.fixture
def place(home, tmp_path):
    """An index of its own."""
    return storing.indexed(tmp_path / "i.lance", home / "words")


@pytest.fixture(scope="module")
def model(home):
    return raycase.load(str(home / "model"), dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def by_texts(model):
    return model.teach(*storing.answers(120), ASKED)


def taught(place, home, **options):
    return teach(TeachFlags(index=place, condition=ASKED, answers=str(home / "id.csv"), **options))


def under(index, condition=ASKED):
    """The vectors of all rows, in the order of their ids."""
    blocks = [*index.blocks(condition)[1]()]
    offsets, found = (np.concatenate([*map(np.asarray, each)]) for each in zip(*blocks, strict=True))
    return found[np.argsort(index.dataset.take(offsets, columns=["id"])["id"].to_numpy())]


def near(vectors, wanted, least=0.995):
    return (l2_normalize(vectors) * l2_normalize(wanted)).sum(1).min() > least


def test_by_tokens_as_by_texts(place, home, model, by_texts, tmp_path, capsys):
    result = taught(place, home, output=str(tmp_path / "wear.taught"))
    assert result["gained"] and by_texts.gained and result["answers"] == by_texts.answers
    for name in ("unconditional", "named", "taught"):
        assert abs(result[name]["share"] - getattr(by_texts.figures, name).share) < 4
    found = Taught.load(result["output"])
    texts = [row["text"] for row in storing.texts(250)]
    wanted, named = model.encode(texts, by_texts), model.encode(texts, ASKED)
    assert near(model.encode(texts, found), wanted) and not near(named, wanted)
    index = Index.open(place)
    assert near(under(index), model.encode(texts, found)) and near(index.embed(texts, ASKED), wanted)
    answers = index.search(texts[:3], ASKED, k=1)
    assert answers["id"].to_pylist() == [0, 1, 2] and min(answers["score"].to_pylist()) > 0.99
    assert index.search(texts[:3], f" {ASKED} ", k=3).drop(["asked"]) == index.search(texts[:3], ASKED, k=3).drop(
        ["asked"]
    )
    shown = capsys.readouterr().out
    assert "by cross-validation" in shown and f'"{ASKED}": taught' in shown


def test_texts_of_the_index_and_forgetting(place, home, tmp_path):
    before = under(Index.open(place))
    flags = TeachFlags(index=place, condition=f"{ASKED} ", answers=str(home / "text.csv"))
    assert teach(flags)["condition"] == ASKED
    assert not near(under(Index.open(place)), before)
    with pytest.raises(RequestError, match="model: expected the index's model"):
        Index.open(place, model=storing.model_folder(tmp_path, hidden=16)).search(["a"], ASKED)
    called = call_command("teach", "--index", place, "--condition", ASKED, "--forget")
    assert json.loads(called.stdout.splitlines()[-1])["forgotten"]
    assert np.array_equal(under(Index.open(place)), before)
    refuse(TeachFlags(index=place, condition=ASKED, forget=True), "taught to the index .it has none., got", teach)


def test_kept_conditions_are_pooled_anew(place, home):
    build(place, keep_condition=[ASKED, "dog"])
    before, dog = under(Index.open(place)), under(Index.open(place), "dog")
    taught(place, home)
    index = Index.open(place)
    assert index.metadata.conditions == {ASKED: 250, "dog": 250} and index.metadata.kept == [ASKED, "dog"]
    pooled = Index.open(place)
    pooled.metadata.conditions.clear()  # as though none was kept
    assert near(under(index), under(pooled), 0.999) and not near(under(index), before)
    assert near(under(index, "dog"), dog, 0.9999)
    teach(TeachFlags(index=place, condition=ASKED, forget=True))
    assert near(under(Index.open(place)), before, 0.9999)


def test_rows_that_come_later_and_overwriting(place, home, tmp_path):
    taught(place, home)
    own = Index.open(place).metadata.taught
    storing.stored(
        tmp_path, home / "model", storing.texts(40, first=1000), token_bytes=200, output=str(tmp_path / "later")
    )
    build(place, [str(tmp_path / "later")])
    assert Index.open(place).metadata.taught == own != {}
    build(place, [str(home / "words")], overwrite=True)
    assert Index.open(place).metadata.taught == {}


def test_two_teachers(place, home, tmp_path):
    first, second = (replace_condition(home, place, name) for name in (ASKED, "dog"))
    build(place, taught={ASKED: first})  # while the other was learning
    build(place, taught={"dog": second})
    assert {*Index.open(place).metadata.taught} == {ASKED, "dog"}
    with FileLock(f"{place}/_building.lock"), pytest.raises(WorkError, match="another build is at work"):
        taught(place, home)
    with pytest.raises(WorkError, match="another build"):  # of another model, which came meanwhile
        build(place, taught={ASKED: replace(first, model="0" * 64)})


def replace_condition(home, place, condition):
    """What teaching an index gives, which is put back."""
    result = taught(place, home, output=f"{place}.taught")
    teach(TeachFlags(index=place, condition=ASKED, forget=True))
    return replace(Taught.load(result["output"]), condition=condition)


def test_job_resume_index_and_search(home, by_texts, model, tmp_path):
    by_texts.save(tmp_path / "wear.taught")
    rows = storing.texts(60)
    conditions = ("dog", str(tmp_path / "wear.taught"))
    given = {"conditions": conditions, "output": str(tmp_path / "out"), "compute": "float32", "dtype": "float32"}
    storing.stored_under(tmp_path / "a", home / "model", rows, *conditions, output=given["output"])
    table = read_output(given["output"])
    for condition, asked in (("dog", "dog"), (ASKED, by_texts)):
        mine = table.filter([name == condition for name in table["condition"].to_pylist()]).sort_by("id")
        assert np.allclose(vectors(mine), model.encode(mine["text"].to_pylist(), asked), atol=1e-4)
    assert [*read_job(Output(given["output"])).config["taught"]] == [ASKED]
    again = {"input": str(tmp_path / "a" / "in.parquet"), "prompt": None, "pooling": None}
    again |= given | {"keep_columns": ("text", "year"), "model": str(home / "model"), "unit_rows": 100, "ray": False}
    assert raycase.embed(**again)["rows_out"] == 60  # all is there
    other = replace(by_texts, state=(by_texts.numbers * np.float32(0.5)).tobytes())
    other.save(tmp_path / "wear.taught")
    with pytest.raises(RequestError, match=f"taught.{ASKED}: "):
        raycase.embed(**again)
    place = storing.indexed(tmp_path / "i.lance", given["output"])
    index = Index.open(place)
    text = rows[7]["text"]
    assert near(index.embed([text], ASKED), model.encode([text], by_texts), 0.999)
    assert index.search([text], ASKED, k=1)["score"].to_pylist() == pytest.approx([1], abs=1e-3)
    storing.stored_under(
        tmp_path / "b", home / "model", storing.texts(9, 500), *conditions, output=str(tmp_path / "b2")
    )
    untaught = ("dog", ASKED)
    storing.stored_under(tmp_path / "c", home / "model", storing.texts(9, 600), *untaught, output=str(tmp_path / "c2"))
    for name in ("b2", "c2"):
        job = {"output": place, "embeddings": [str(tmp_path / name)]}
        refuse(job, f"expected '{ASKED}' as the index has it, taught by the same answers or by none, got another")
        assert len(Index.open(place).metadata.taught) == 1
    refuse(TeachFlags(index=place, condition=ASKED, answers=str(home / "id.csv")), "expected stored tokens", teach)


def test_tokens_pooled_under_a_taught_condition(home, by_texts, model, tmp_path):
    by_texts.save(tmp_path / "wear.taught")
    output = str(tmp_path / "pooled")
    raycase.embed(home / "words", output, conditions=[tmp_path / "wear.taught"], model=str(home / "model"), ray=False)
    table = read_output(output).sort_by("id")
    assert near(vectors(table), model.encode(table["text"].to_pylist(), by_texts))
    place = storing.indexed(tmp_path / "i.lance", home / "words", output)
    index = Index.open(place)
    assert [*index.metadata.taught] == [ASKED] and index.metadata.conditions == {ASKED: 250}
    refuse(
        TeachFlags(index=place, condition=ASKED, answers=str(home / "id.csv")),
        "got '.*' with vectors of its own",
        teach,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--answers: expected them, or --forget, got none"),
        ({"answers": "a.csv", "forget": True}, "got both"),
        ({"forget": True, "output": "x.taught"}, "--output: expected --answers, got --forget"),
        ({"answers": "a.csv", "output": "x.csv"}, "--output: expected a file that ends with .taught, got x.csv"),
        ({"answers": "a.csv", "condition": " "}, "--condition: expected words, got ' '"),
        ({"answers": "none.csv"}, "--answers"),
    ],
)
def test_bad_flags(place, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id,label\n1,red\n2,red\n3,dog\n")
    refuse(TeachFlags(**{"index": place, "condition": ASKED} | options), words, teach)
    Path("b.csv").write_text("id,label\n1,red\n2,red\n3,dog\n900,dog\n")
    for file, got in (("a.csv", "two labels with two texts each"), ("b.csv", "'900', which is not among them")):
        refuse(TeachFlags(index=place, condition=ASKED, answers=file), got, teach)
