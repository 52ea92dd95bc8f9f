"""The operators for other pipelines: the rows, reasons and vectors of the jobs; what is refused."""

import doctest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import storing
import torch
from helpers import cosines, embed_here, read_output, read_rejected, vectors

import raycase
from raycase.commands.embed import EmbedFlags
from raycase.integrations import ray_data as operators

MODEL = {"prompt": "concat-sc", "pooling": "mean"}
SMILE = "\U0001f642"  # the tiny model does not know it


def test_the_examples_of_the_docstrings():
    done = doctest.testmod(operators, extraglobs={"raycase": raycase, "pa": pa})
    assert (done.failed, done.attempted) == (0, 3)


def hostile():
    """Rows with everything that a text or a condition can be: (their table, of which each row has its number as id)."""
    texts = [
        b"a dog",
        None,
        b"",
        b" \t ",
        b"a \xff dog",
        b"dog " * 999,
        SMILE.encode(),
        b"poison dog",
        b"a " + SMILE.encode(),
    ]
    lists = [[], ["color", None], ["color", " "], ["color", "color"], None, [" the\u00a0color", "number"]]
    texts, lists = texts + [b"a red dress"] * len(lists), [["color", "number"]] * len(texts) + lists
    columns = {"id": range(len(texts)), "text": pa.array(texts).view(pa.string()), "year": range(len(texts))}
    return pa.table(columns | {"under": pa.array(lists, pa.list_(pa.string()))})


@pytest.mark.parametrize(
    "how", [{"conditions": ("color", "number")}, {"condition_column": "under"}, {"unconditional": True}]
)
def test_rows_and_reasons_of_a_hostile_table_are_those_of_the_job(tiny_model, tmp_path, how):
    rows = hostile()
    pq.write_table(rows, tmp_path / "in.parquet")
    encoder = {"model": str(tiny_model), **MODEL}
    places = {"input": str(tmp_path / "in.parquet"), "output": str(tmp_path / "out")}
    settings = {"keep_columns": ("text", "year"), "compute": "float32", "dtype": "float32", "unit_rows": 4}
    embed_here(EmbedFlags(**encoder, **places, **settings, **how, max_rejected=1))
    wanted = read_output(str(tmp_path / "out"))
    reasons = {row["row"]: row["reason"] for row in read_rejected(str(tmp_path / "out"))}
    options = {name: value for name, value in how.items() if name != "unconditional"}
    embed = raycase.Embed(dtype=torch.float32, **encoder, **options)
    found = pa.concat_tables([embed(rows.slice(0, 5)), embed(rows.slice(5))])
    assert found.column_names == [*rows.column_names, "condition", "embedding", "truncated", "rejected"]
    assert dict.fromkeys(found["id"].to_pylist()) == dict.fromkeys(range(len(rows))), "expected every row, in order"
    rejected = found.filter(pc.is_valid(found["rejected"]))
    assert dict(zip(rejected["id"].to_pylist(), rejected["rejected"].to_pylist(), strict=True)) == reasons
    assert {*reasons.values()} >= {"null text", "empty text", "invalid UTF-8", "vector not finite"}
    assert found["embedding"].is_null().equals(pc.is_valid(found["rejected"]))
    assert all(chunk.values.null_count == 0 for chunk in found["embedding"].chunks), "Lance takes no null inside a null"
    good = found.filter(pc.is_null(found["rejected"]))
    for name in ("id", "condition", "text", "year"):
        assert good[name].to_pylist() == wanted[name].to_pylist()
    assert cosines(vectors(good), vectors(wanted)).min() > 0.9999
    assert {*good.filter(good["truncated"])["id"].to_pylist()} == {5}


def test_conditions_that_look_alike_are_one(tiny_model):
    under = pa.table({"text": ["a dog"] * 3, "condition": ["the color", " the\u00a0color", None]})
    found = raycase.Embed(model=str(tiny_model), condition_column="condition", **MODEL)(under)
    assert found["condition"].to_pylist() == ["the color"] * 2 + [None]
    assert found.column_names == ["text", "condition", "embedding", "truncated", "rejected"]
    with pytest.raises(ValueError, match="conditions: expected texts that the model reads differently"):
        raycase.Embed(model=str(tiny_model), conditions=["dress", "Dress"], **MODEL)


def test_texts_in_another_type_texts_without_a_known_token_and_no_rows(tiny_model):
    nested = pa.array([["a"], None, []], pa.list_(pa.string_view()))
    views = pa.table({"text": pa.array([SMILE, "a dog", None], pa.string_view()), "tags": nested})
    reasons = {"reject": "text without a token that the encoder knows", "embed": None}
    for on_unknown, reason in reasons.items():
        embed = raycase.Embed(model=str(tiny_model), on_unknown=on_unknown, **MODEL)
        found = embed(views)
        assert (found["text"].to_pylist(), found["tags"].to_pylist()) == ([SMILE, "a dog", None], nested.to_pylist())
        assert found["rejected"].to_pylist() == [reason, None, "null text"]
        assert embed(views.slice(0, 0)).schema == found.schema


def test_a_row_stands_once_for_each_chunk(tiny_model):
    pytest.importorskip("semantic_text_splitter")
    text = "a red dress. two people play soccer"
    rows = pa.table({"id": [7, 8], "text": [text, None]})
    found = raycase.Embed(model=str(tiny_model), conditions=["color", "animal"], chunk=4, **MODEL)(rows)
    assert found.column_names[2:5] == ["chunk", "start", "end"]
    *chunks, none, also = found.select(["id", "chunk", "start", "end", "rejected"]).to_pylist()
    assert [c["chunk"] for c in chunks] == [n for n in range(len(chunks) // 2) for _ in "ab"]
    assert "".join(text[c["start"] : c["end"]] for c in chunks[::2]).replace(" ", "") == text.replace(" ", "")
    assert none == also == {"id": 8, "chunk": None, "start": None, "end": None, "rejected": "null text"}
    with pytest.raises(ValueError, match=r"^chunk: expected at least 1 token, and fewer in overlap, got None and"):
        raycase.Embed(model=str(tiny_model), overlap=2, **MODEL)


def test_a_row_at_which_the_encoder_fails_is_rejected_alone(tiny_model, monkeypatch):
    embed = raycase.Embed(model=str(tiny_model), conditions=["color"], **MODEL)
    compute = embed.encoding.result.compute

    def fails(system, prepared, rows):
        if any(text.startswith("poison") for text in rows["text"].to_pylist()):
            raise KeyError("poison")
        return compute(system, prepared, rows)

    monkeypatch.setattr(type(embed.encoding.result), "compute", lambda self, *given: fails(*given))
    found = embed(pa.table({"text": ["a dog", None, "poison", "a red dress"]}))
    assert found["rejected"].to_pylist() == [None, "null text", "the encoder failed", None]
    with pytest.raises(RuntimeError, match="the encoder fails at any text"):
        monkeypatch.setattr(type(embed.encoding.result), "compute", lambda *given: {}["any"])
        embed(pa.table({"text": ["a dog"]}))


@pytest.mark.parametrize(
    ("options", "batch", "said"),
    [
        ({}, {"text": ["a"]}, "batch_format='pyarrow'"),
        ({}, pa.table({"text": ["a"], "embedding": [1]}), "'embedding'"),
        ({"condition_column": "under"}, pa.table({"text": ["a"]}), "'under', got text"),
        ({"conditions": "color", "condition_column": "under"}, None, "'under'"),
        ({"on_unknown": "drop"}, None, "^on_unknown: expected one of reject, embed, got 'drop'"),
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
    pool = raycase.Pool(tokens=str(words), conditions=conditions)
    rows = read_output(str(words))
    found = pa.concat_tables([pool(rows.slice(0, 25)), pool(rows.slice(25))])
    wanted = read_output(str(tmp_path / "out"))
    for name in ("id", "condition", "text"):
        assert found[name].to_pylist() == wanted[name].to_pylist()
    assert not {"word_codes", "word_plain"} & set(found.column_names)
    assert pool(rows.select(["word_codes", "word_plain"])).equals(pool(rows).select(["condition", "embedding"]))
    np.testing.assert_allclose(vectors(found), vectors(wanted), atol=1e-3)  # the job's are float16


def test_words_of_another_output_are_refused(words):
    pool, rows = raycase.Pool(tokens=str(words), conditions="animal"), read_output(str(words))
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
        raycase.Pool(tokens=str(words), conditions=())
    with pytest.raises(ValueError, match=r"^tokens: expected a finished output"):
        raycase.Pool(tokens=str(words.parent / "none"), conditions="animal")


def test_chunks_are_pooled_with_their_places(tmp_path):
    pytest.importorskip("semantic_text_splitter")
    long = [{"id": i, "text": ". ".join(["a red dress", "two people play", "a dog"] * 4)} for i in range(3)]
    output = storing.stored(tmp_path, storing.model_folder(tmp_path), long, chunk=8, keep_columns=("text",))
    rows = read_output(output)
    found = raycase.Pool(tokens=output, conditions="animal")(rows)
    assert len(found) == len(rows) > 6
    for name in ("id", "document", "chunk", "start", "end"):
        assert found[name].equals(rows[name])
