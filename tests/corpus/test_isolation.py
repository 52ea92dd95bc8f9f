"""Rows that kill the encoder are found by halving; the others are embedded as if they stood alone."""

from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
from helpers import embed_here, read_output, vectors
from killers import kills
from pandas.testing import assert_frame_equal

from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.isolation import MOST_DEATHS, isolate
from raycase.corpus.job_record import find_job
from raycase.corpus.plan import make_plan
from raycase.corpus.read_step import read_units
from raycase.corpus.records import EncodedUnit, ReadTask, ReadUnit
from raycase.corpus.request import check
from raycase.corpus.unit_pairs import prepare_rows
from raycase.errors import WorkError


@pytest.fixture
def read(job, tmp_path):
    """A function that reads some texts as one unit: gives it, the function that tokenises, and the encode step."""

    def read_unit(texts):
        pd.DataFrame({"id": range(len(texts)), "text": texts}).to_csv(tmp_path / "rows.csv", index=False)
        request = check(replace(job, input=str(tmp_path / "rows.csv"), unit_rows=len(texts)))
        opened, done = find_job(request.output, request.config, request.files)
        [pieces] = make_plan(request, opened.files, done).tasks()
        settings = request.encode_settings
        [row] = read_units(ReadTask.of(opened.files, pieces).to_arrow(), config=request.model, settings=settings)
        encode = EncodeUnits(request.model, settings, weights=opened.config["model"]["weights"], compute="float32")
        return ReadUnit.from_arrow(row), partial(prepare_rows, request.model, settings=settings), encode

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
