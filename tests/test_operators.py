"""The operators for other pipelines: the vectors of the jobs, every row comes back, what is refused."""

import doctest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
import torch
from helpers import cosines, embed_here, read_output, vectors

import raycase
from raycase.integrations import ray_data as operators
from raycase.job.embed_job import EmbedFlags

MODEL = {"prompt": "concat-sc", "pooling": "mean"}


def test_the_examples_of_the_docstrings():
    done = doctest.testmod(operators, extraglobs={"raycase": raycase, "pa": pa})
    assert (done.failed, done.attempted) == (0, 3)


def test_vectors_are_those_of_the_job(job):
    embed_here(job)
    embed = raycase.Embed(model=job.model, conditions=job.conditions, dtype=torch.float32, **MODEL)
    rows = pq.read_table(job.input)
    found = pa.concat_tables([embed(rows.slice(start, 64)) for start in range(0, 500, 64)])
    wanted = read_output(job.output)
    for name in ("id", "condition", "text"):
        assert found[name].to_pylist() == wanted[name].to_pylist()
    assert found["rejected"].null_count == len(found)
    assert cosines(vectors(found), vectors(wanted)).min() > 0.9999


def test_conditions_that_look_alike_are_one(tiny_model):
    under = pa.table({"text": ["a dog"] * 2, "under": ["the color", " the\u00a0color"]})
    found = raycase.Embed(model=str(tiny_model), condition_column="under", **MODEL)(under)
    assert found["condition"].to_pylist() == ["the color"] * 2
    with pytest.raises(ValueError, match="conditions: expected texts that the model reads differently"):
        raycase.Embed(model=str(tiny_model), conditions=["dress", "Dress"], **MODEL)


def test_a_row_without_a_vector_comes_back_with_its_reason(tiny_model):
    invalid = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    texts = pa.chunked_array([pa.array(["a dog", None, " ", "poison"]), invalid])
    batch = pa.table({"text": texts, "under": ["color", "color", "color", "color", "color"], "year": range(5)})
    reasons = [None, "null text", "empty text", "vector not finite", "invalid UTF-8"]
    for options in ({"conditions": "color"}, {"condition_column": "under"}, {}):
        found = raycase.Embed(model=str(tiny_model), **options, **MODEL)(batch)
        assert found["rejected"].to_pylist() == reasons
        assert found["embedding"].is_null().to_pylist() == [reason is not None for reason in reasons]
        assert found["condition"].to_pylist() == (["color"] * 5 if options else [None] * 5)
        assert found["year"].to_pylist() == list(range(5))
    under = batch.slice(0, 2).set_column(1, "condition", pa.array([None, ""]))
    found = raycase.Embed(model=str(tiny_model), condition_column="condition", **MODEL)(under)
    assert found["rejected"].to_pylist() == ["null condition", "null text"]
    assert found.column_names == ["text", "year", "condition", "embedding", "truncated", "rejected"]
    smile = pa.table({"text": ["\U0001f642", "a dog"]})
    for on_unknown, reason in (("reject", "text without a token that the encoder knows"), ("embed", None)):
        found = raycase.Embed(model=str(tiny_model), on_unknown=on_unknown, **MODEL)(smile)
        assert found["rejected"].to_pylist() == [reason, None]
    with pytest.raises(ValueError, match=r"^on_unknown: expected one of reject, embed, got 'drop'"):
        raycase.Embed(model=str(tiny_model), on_unknown="drop")
    long = pa.table({"text": ["a dog " * 2000, "a dog", None]})
    found = raycase.Embed(model=str(tiny_model), conditions="color", **MODEL)(long)
    assert found["truncated"].to_pylist() == [True, False, False]
    views = pa.table({"text": pa.array(["a dog", None], pa.string_view())})
    found = raycase.Embed(model=str(tiny_model), conditions="color", **MODEL)(views)
    assert found["text"].to_pylist() == ["a dog", None] and found["rejected"].to_pylist() == [None, "null text"]
    empty = raycase.Embed(model=str(tiny_model), conditions=["color", "animal"], **MODEL)(batch.slice(0, 0))
    assert (len(empty), empty.schema) == (0, raycase.Embed(model=str(tiny_model), **MODEL)(batch).schema)


@pytest.mark.parametrize(
    ("options", "batch", "said"),
    [
        ({}, {"text": ["a"]}, "batch_format='pyarrow'"),
        ({}, pa.table({"text": [1]}), "'text', got int64"),
        ({}, pa.table({"text": ["a"], "embedding": [1]}), "'embedding'"),
        ({"condition_column": "under"}, pa.table({"text": ["a"]}), "'under', got text"),
        ({"conditions": ["color", "color"]}, None, "'color'"),
        ({"conditions": "color", "condition_column": "under"}, None, "'under'"),
    ],
)
def test_a_wrong_request_is_refused(tiny_model, options, batch, said):
    with pytest.raises(ValueError, match=said):
        raycase.Embed(**{"model": str(tiny_model), **MODEL} | options)(batch)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    home = tmp_path_factory.mktemp("operators")
    storing.stored(home, storing.model_folder(home), storing.texts(60), output=str(home / "words"), unit_rows=20)
    return home / "words"


def test_words_are_pooled_as_by_the_job(words, tmp_path):
    conditions = ("color of the dress", "animal")
    embed_here(EmbedFlags(input=str(words), conditions=conditions, output=str(tmp_path / "out")))
    pool = raycase.Pool(words=str(words), conditions=conditions)
    rows = read_output(str(words))
    found = pa.concat_tables([pool(rows.slice(0, 25)), pool(rows.slice(25))])
    wanted = read_output(str(tmp_path / "out"))
    for name in ("id", "condition", "text"):
        assert found[name].to_pylist() == wanted[name].to_pylist()
    assert not {"word_codes", "word_plain"} & set(found.column_names)
    np.testing.assert_allclose(vectors(found), vectors(wanted), atol=1e-3)  # the job's are float16


def test_words_of_another_output_are_refused(words):
    pool, rows = raycase.Pool(words=str(words), conditions="animal"), read_output(str(words))
    with pytest.raises(ValueError, match="word_codes"):
        pool(rows.drop_columns(["word_codes"]))
    with pytest.raises(ValueError, match="'condition' once"):
        pool(rows.append_column("condition", rows["id"]))
    field = rows.schema.field("word_codes")
    key, form = next(iter(field.metadata.items()))
    other = field.with_metadata({key: form.replace(pool.codes.form.basis[:8].encode(), b"00000000")})
    place = rows.schema.get_field_index("word_codes")
    with pytest.raises(ValueError, match="got those of 00000000"):
        pool(rows.set_column(place, other, rows["word_codes"]))
    with pytest.raises(ValueError, match="conditions: expected one or more"):
        raycase.Pool(words=str(words), conditions=())
    with pytest.raises(ValueError, match=r"^words: expected a finished output"):
        raycase.Pool(words=str(words.parent / "none"), conditions="animal")
