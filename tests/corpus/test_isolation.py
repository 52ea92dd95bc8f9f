"""Rows that kill the encoder are found by halving; the others are embedded as if they stood alone."""

from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny
from helpers import embed_here, read_output, read_rejected, vectors
from killers import kills
from pandas.testing import assert_frame_equal
from tokenizers import Tokenizer, models, pre_tokenizers

from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.isolation import MOST_DEATHS, isolate
from raycase.corpus.job_record import find_job
from raycase.corpus.plan import make_plan
from raycase.corpus.read_step import read_units
from raycase.corpus.records import EncodedUnit, ReadTask, ReadUnit
from raycase.corpus.request import check_embed
from raycase.corpus.unit_pairs import prepare_rows
from raycase.errors import RequestError, WorkError
from raycase.systems.case import Case, CaseConfig


@pytest.fixture
def read(job, tmp_path):
    """A function that reads some texts as one unit: gives it, the function that tokenises, and the encode step."""

    def read_unit(texts):
        pd.DataFrame({"id": range(len(texts)), "text": texts}).to_csv(tmp_path / "rows.csv", index=False)
        request = check_embed(replace(job, input=str(tmp_path / "rows.csv"), unit_rows=len(texts)))
        opened, done = find_job(request.output, request.config, request.files)
        [pieces] = make_plan(request, opened.files, done).tasks()
        [row] = read_units(ReadTask.of(opened.files, pieces).to_arrow(), config=request.model, kind=request.kind)
        weights = opened.config["model"]["weights"]
        encode = EncodeUnits(request.model, request.kind, weights=weights, compute="float32")
        return ReadUnit.from_arrow(row), partial(prepare_rows, request.model, kind=request.kind), encode

    return read_unit


@pytest.fixture
def isolated(read):
    """A function that isolates the killers among some texts; gives the unit, and the rows of parts that killed."""

    def isolate_texts(texts):
        unit, prepare, encode = read(texts)
        deaths = []

        def attempt(part):
            if kills(part.prepared, encode.encoder):
                deaths.append(len(part.rows))
                return None
            return EncodedUnit.from_arrow(encode(part.to_arrow()))

        return isolate(unit, prepare, attempt), deaths

    return isolate_texts


def test_killers_are_rejected_and_the_others_embedded(isolated, job, tmp_path):
    texts = [f"a red dog {i}" for i in range(21)]
    texts[4], texts[13], texts[17] = "poison dog", "", "a poison ball"
    unit, _ = isolated(texts)
    rejected = unit.rejected.to_pylist()
    assert [(r["row"], r["id"], r["reason"]) for r in rejected] == [
        (4, "4", "killed the encoder"),
        (13, "13", "empty text"),
        (17, "17", "killed the encoder"),
    ]
    assert '"text": "poison dog"' in rejected[0]["content"]
    good = [i for i in range(21) if i not in (4, 13, 17)]
    assert unit.table["id"].to_pylist() == [str(i) for i in good for _ in job.conditions]
    assert len(unit.table["__row"].unique()) == len(good), "expected each row counted once"
    assert unit.rows_in == 21 and unit.distinct_pairs == 2 * len(good)
    pd.DataFrame({"id": good, "text": [texts[i] for i in good]}).to_csv(tmp_path / "rows.csv", index=False)
    embed_here(replace(job, input=str(tmp_path / "rows.csv")))
    alone = read_output(job.output)
    columns = ["id", "condition", "text"]
    assert_frame_equal(unit.table.select(columns).to_pandas(), alone.select(columns).to_pandas())
    assert abs(vectors(unit.table) - vectors(alone)).max() < 1e-5


def test_one_killer_takes_few_encoders(isolated):
    _, deaths = isolated(["poison"] + [f"a dog {i}" for i in range(63)])
    assert deaths == [32, 16, 8, 4, 2, 1, 1], "expected each half once and the row alone twice"


def test_a_unit_full_of_killers_ends_and_is_rejected_with_its_schema(isolated):
    unit, deaths = isolated([f"poison dog {i}" for i in range(200)])
    assert len(unit.rejected) == 200 and not len(unit.table)
    assert "embedding" in unit.table.column_names
    assert MOST_DEATHS <= len(deaths) <= 2 * MOST_DEATHS + 1
    assert {"", "one or more of 2 rows did"} <= set(unit.rejected["detail"].to_pylist())


def test_an_encoder_that_dies_without_rows_is_no_fault_of_the_rows(read):
    unit, prepare, _ = read(["a dog", "a cat"])
    with pytest.raises(WorkError, match="killed even without rows"):
        isolate(unit, prepare, lambda part: None)


class Failing(Case):
    """Raises at the word "poison", whose vectors are not finite."""

    def encode_prepared(self, prepared):
        encoded = super().encode_prepared(prepared)
        if not np.isfinite(encoded.vectors).all():
            raise IndexError("index out of range in self\nand more")
        return encoded


@dataclass(frozen=True, kw_only=True)
class FailingConfig(CaseConfig):
    error: str = ""  # at every text

    def load(self, **options):
        case = super().load(**options)
        if self.error:
            return Broken(config=self, encoder=case.encoder)
        return Failing(config=case.config, encoder=case.encoder)


class Broken(Case):
    def encode_prepared(self, prepared):
        raise RuntimeError(self.config.error)


def failing(job, texts, tmp_path, **options):
    """Run the job over texts with an encoder that fails at some."""
    pd.DataFrame({"id": range(len(texts)), "text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    config = check_embed(job).model
    config = FailingConfig(**{f.name: getattr(config, f.name) for f in fields(config)}, **options)
    return embed_here(replace(job, input=str(tmp_path / "rows.csv"), max_rejected=1), model=config)


def test_a_row_at_which_the_encoder_fails_is_rejected_with_the_error(job, tmp_path):
    texts = [f"a red dog {i}" for i in range(21)]
    texts[4], texts[13], texts[17] = "poison dog", "", "a poison ball"
    result = failing(job, texts, tmp_path)
    assert (result["rows_out"], result["rows_rejected"]) == (18, 3)
    rejected = [(r["row"], r["reason"], r["detail"]) for r in read_rejected(job.output)]
    why = "IndexError: index out of range in self"
    assert rejected == [(4, "the encoder failed", why), (13, "empty text", ""), (17, "the encoder failed", why)]
    good = [str(i) for i in range(21) if i not in (4, 13, 17) for _ in job.conditions]
    assert read_output(job.output)["id"].to_pylist() == good
    every = replace(job, output=f"{job.output}-every", conditions=(), condition_column="text")
    result = failing(every, ["poison", "poison dog"], tmp_path)
    assert (result["rows_out"], result["rows_rejected"]) == (0, 2), "expected a unit that fails as a whole rejected"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("no kernel\nhere", r"^encoding rows from 0 of .*rows.csv: .* at any text: RuntimeError: no kernel$"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "; try fewer --batch-tokens or --act"),
    ],
)
def test_what_fails_at_any_text_ends_the_job_without_the_advice_to_resume(job, tmp_path, error, said):
    with pytest.raises(WorkError, match=said) as raised:
        failing(job, ["a dog", "a cat"], tmp_path, error=error)
    assert "resume" not in str(raised.value)


def test_a_row_at_which_the_tokenizer_fails_is_rejected(tmp_path, job):
    """As one of words alone, without a token for what is none of them."""
    texts = ["a red dog", "a zebra", "a cat", "zebra"]
    words = {word: i for i, word in enumerate(["a", "red", "dog", "cat", "color"])}
    made = Tokenizer(models.WordLevel(words))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "words"
    folder.mkdir()
    tiny.save_model(folder, "bert", tiny.save_tokenizer(folder, (made, {"tokenizer_class": "PreTrainedTokenizerFast"})))
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    job = replace(job, model=str(folder), input=str(tmp_path / "rows.csv"), conditions=("color",), max_rejected=1)
    assert embed_here(job)["rows_out"] == 2
    rejected = [(r["row"], r["reason"], r["detail"]) for r in read_rejected(job.output)]
    why = "Exception: WordLevel error: Missing [UNK] token from the vocabulary"
    assert rejected == [(1, "the encoder failed", why), (3, "the encoder failed", why)]
    with pytest.raises(RequestError, match=r"--model: expected a tokenizer that reads any text at .*, got: Exception"):
        embed_here(replace(job, conditions=("zebra",), overwrite=True))
    pd.DataFrame({"text": texts, "under": "zebra"}).to_csv(tmp_path / "rows.csv", index=False)
    assert embed_here(replace(job, conditions=(), condition_column="under", overwrite=True))["rows_rejected"] == 4


def test_rows_at_which_the_encoder_fails_are_found_whatever_their_number(read):
    """An error costs no process: no good row is rejected along with them."""
    texts = [f"{'bad' if i % 9 == 0 else 'good'} {i}" for i in range(200)]
    unit, prepare, encode = read(texts)

    def attempt(part):
        if any(text.startswith("bad") for text in part.rows["text"].to_pylist()):
            return "ValueError: bad"
        return EncodedUnit.from_arrow(encode(part.to_arrow()))

    whole = isolate(unit, prepare, attempt)
    good = [i for i, text in enumerate(texts) if text.startswith("good")]
    assert whole.table["__row"].to_pylist() == [i for i in good for _ in range(2)], "expected two conditions a text"
    assert whole.rejected["detail"].to_pylist() == ["ValueError: bad"] * 23
