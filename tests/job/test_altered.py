"""Outputs that somebody altered and stamped anew: each ends in one line."""

import shutil

import pytest
import storing
from altered import stamp
from helpers import embed_here

from raycase.errors import RequestError, WorkError
from raycase.index.build import IndexJob, build
from raycase.job.output import output_at
from raycase.job.request import EmbedJob, check_embed
from raycase.job.verify import verify


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: 14 rows with stored tokens; `other`: others with a basis of their own."""
    home = tmp_path_factory.mktemp("altered")
    model = storing.model_folder(home)
    storing.stored(home / "a", model, storing.texts(14), output=str(home / "words"), unit_rows=5)
    rows = [row | {"text": row["text"] + " bar bar"} for row in storing.texts(14, 50)]
    storing.stored(home / "b", model, rows, output=str(home / "other"), unit_rows=5)
    return home


@pytest.fixture
def words(home, tmp_path):
    return str(shutil.copytree(home / "words", tmp_path / "words"))


def one_line(error):
    return "\n" not in str(error.value) and len(str(error.value)) < 600


def pool(words, tmp_path):
    return check_embed(EmbedJob(input=words, conditions=("color",), output=str(tmp_path / "m")))


def index(words, tmp_path):
    return build(IndexJob(embeddings=(words,), output=str(tmp_path / "i.lance")))


def test_words_with_anothers_basis_are_not_pooled(home, words, tmp_path):
    pool(words, tmp_path)
    shutil.copy(home / "other" / "word_basis.safetensors", words)
    for work, flag in ((pool, "--input"), (index, "--embeddings")):
        with pytest.raises(RequestError, match=f"{flag}: expected .* as the words there were coded by it, got another"):
            work(words, tmp_path)
    output_at(words).basis.remove()
    with pytest.raises(RequestError, match="as the words there were coded by it, got none"):
        pool(words, tmp_path)
    with pytest.raises(RequestError, match="the basis of the units there, got none; pass --overwrite"):
        settings = {"any_condition": True, "token_bytes": storing.ENOUGH, "keep_columns": ("text", "year")}
        settings |= {"input": str(home / "a" / "in.parquet"), "compute": "float32", "dtype": "float32"}
        embed_here(EmbedJob(output=words, model=str(home / "model"), **settings))


def test_a_file_that_is_no_parquet_is_named(words, tmp_path):
    output = output_at(words)
    (output.units / min(output.units.list())).put(b"PAR1 no rows PAR1")
    stamp(output)
    for work in (lambda: verify(words), lambda: index(words, tmp_path), lambda: pool(words, tmp_path)):
        with pytest.raises(WorkError, match="expected the rows of a unit, got") as error:
            work()
        assert one_line(error)
