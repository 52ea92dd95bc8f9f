"""Stored tokens as an input: vectors are those of the embedding job within the rounding; a stop; what is refused."""

import shutil

import pytest
import small
import storing
from helpers import cosines, embed_here, read_output, read_rejected, vectors

from raycase.commands.embed import EmbedFlags
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.job.output import Output
from raycase.job.verify import verify

CONDITIONS = ("what they wear on their heads", "number of people")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: 200 rows with stored tokens and two that are rejected; `out`: the same rows under both conditions."""
    home = tmp_path_factory.mktemp("materialized")
    model = storing.model_folder(home)
    rows = storing.texts(200)
    rows[5]["text"] = rows[150]["text"] = ""
    options = {"max_rejected": 0.1, "unit_rows": 20}
    storing.stored(home / "a", model, rows, output=str(home / "words"), **options)
    storing.stored_under(home / "b", model, rows, *CONDITIONS, output=str(home / "out"), **options)
    return home


def job(home, output, **changes):
    return EmbedFlags(**{"input": str(home / "words"), "conditions": CONDITIONS, "output": str(output)} | changes)


def check(home, uri):
    """The output against the one that was embedded."""
    found, wanted = read_output(uri), read_output(str(home / "out"))
    for column in ("id", "condition", "text", "year"):
        assert found[column].to_pylist() == wanted[column].to_pylist()
    near = cosines(vectors(found), vectors(wanted))
    assert near.mean() > 0.9995 and near.min() > 0.99
    assert verify(uri)["rows_out"] == 198


@pytest.mark.parametrize("unit_rows", [30, None])
def test_they_give_what_embedding_gives_after_a_stop_whatever_the_units(home, tmp_path, unit_rows):
    embed_here(job(home, tmp_path / "m", unit_rows=unit_rows, limit=50))
    result = embed_here(job(home, tmp_path / "m", unit_rows=unit_rows))
    assert (result["rows_in"], result["rows_rejected"], result["pairs"]) == (198, 0, 396)
    check(home, str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conditions": (), "unconditional": True}, "--input: expected --conditions for the stored tokens"),
        ({"conditions": ("dog " * 600,)}, "--conditions: expected words that .* can read, with room"),
        ({"keep_columns": ("none",)}, "--keep-columns: .*: expected the column 'none', got text, year"),
        ({"input": "out"}, "--input: expected an output of `raycase embed --any-condition`"),
        ({"dim": 16}, "--input: expected --conditions .* got --dim beside them"),
        ({"model": "minilm"}, "--model: expected the model of the stored tokens"),
    ],
)
def test_what_is_refused(home, tmp_path, changes, words):
    changes = {name: str(home / value) if name == "input" else value for name, value in changes.items()}
    with pytest.raises(RequestError, match=words):
        embed_here(job(home, tmp_path / "m", **changes))


def test_words_with_anothers_basis_are_not_pooled(home, tmp_path):
    words = str(shutil.copytree(home / "words", tmp_path / "words"))
    other = storing.stored(tmp_path / "b", str(home / "model"), storing.texts(14, 50))
    shutil.copy(f"{other}/word_basis.safetensors", words)
    with pytest.raises(RequestError, match=r"--input: expected .*, the basis of the stored tokens, got another"):
        embed_here(job(home, tmp_path / "m", input=words))
    with pytest.raises(RequestError, match=r"--embeddings: expected .*, the basis of the stored tokens, got another"):
        build(embeddings=(words,), output=str(tmp_path / "i.lance"))
    Output(words).basis.remove()
    with pytest.raises(RequestError, match="the basis of the stored tokens, got none"):
        embed_here(job(home, tmp_path / "m", input=words))
    settings = {"any_condition": True, "token_bytes": storing.ENOUGH, "keep_columns": ("text", "year")}
    settings |= {"input": str(home / "a" / "in.parquet"), "compute": "float32", "dtype": "float32"}
    flags = EmbedFlags(output=words, model=str(home / "model"), **settings)
    with pytest.raises(RequestError, match="the basis of the units there, got none; pass --overwrite"):
        embed_here(flags)
    with pytest.raises(RequestError, match=f"token_bytes: {storing.ENOUGH} there, 9 requested"):
        embed_here(EmbedFlags(**vars(flags) | {"token_bytes": 9}))


def test_an_output_that_began_with_one_row_codes_later_rows_as_well(home, tmp_path):
    """Its basis was not chosen by that row alone."""
    flags = {"input": str(home / "b" / "in.parquet"), "output": str(tmp_path / "words"), "model": str(home / "model")}
    flags |= {"any_condition": True, "token_bytes": storing.ENOUGH, "max_rejected": 0.1}
    for limit in (1, None):
        embed_here(EmbedFlags(limit=limit, **flags))
    embed_here(job(home, tmp_path / "m", input=flags["output"]))
    near = cosines(vectors(read_output(str(tmp_path / "m"))), vectors(read_output(str(home / "out"))))
    assert near.mean() > 0.999 and near.min() > 0.98


def test_a_text_whose_states_are_not_finite_spoils_the_basis_of_no_other(tmp_path):
    model, folder, rows = storing.model_folder(tmp_path), tmp_path / "bert", storing.texts(40)
    encoder = small.stock(folder)
    encoder.embeddings.word_embeddings.weight.data[small.tokenizer(folder).convert_tokens_to_ids("bar")] = float("nan")
    encoder.save_pretrained(folder)
    bad = [row["id"] for row in rows if "bar" in row["text"]]
    words = storing.stored(tmp_path, model, rows, max_rejected=1)
    assert 0 < len(bad) < 30 and [int(each["id"]) for each in read_rejected(words)] == bad
    assert len(read_output(words)) == len(rows) - len(bad)
