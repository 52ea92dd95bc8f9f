"""Outputs that somebody altered and stamped anew: each ends in one line."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import storing
from altered import alter, stamp, with_column
from helpers import embed_here

from raycase.corpus.materialize import MaterializeJob, check_materialize, pool_unit
from raycase.corpus.output import output_at
from raycase.corpus.request import EmbedJob
from raycase.corpus.verify import verify
from raycase.corpus.written import open_written
from raycase.data.schema import embedding_array
from raycase.data.stored_words import WordFormat
from raycase.errors import RequestError, WorkError
from raycase.search.build import IndexJob, build


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: 14 rows with stored words; `other`: others with a basis of their own."""
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


def materialize(words, tmp_path):
    return check_materialize(MaterializeJob(words=words, conditions=("color",), output=str(tmp_path / "m")))


def index(words, tmp_path):
    return build(IndexJob(embeddings=(words,), output=str(tmp_path / "i.lance")))


def test_words_with_anothers_basis_are_not_pooled(home, words, tmp_path):
    materialize(words, tmp_path)
    shutil.copy(home / "other" / "word_basis.safetensors", words)
    for work, flag in ((materialize, "--words"), (index, "--embeddings")):
        with pytest.raises(RequestError, match=f"{flag}: expected .* as the words there were coded by it, got another"):
            work(words, tmp_path)
    output_at(words).basis.remove()
    with pytest.raises(RequestError, match="as the words there were coded by it, got none"):
        materialize(words, tmp_path)
    with pytest.raises(RequestError, match="by which the units there are coded, got none; pass --overwrite"):
        settings = {"any_condition": True, "word_bytes": storing.ENOUGH, "keep_columns": ("text", "year")}
        settings |= {"input": str(home / "a" / "in.parquet"), "compute": "float32", "dtype": "float32"}
        embed_here(EmbedJob(output=words, model=str(home / "model"), **settings))


def test_a_unit_with_words_of_another_basis_is_found(words, tmp_path):
    """The first one is as it should be."""

    def changed(table):
        place = table.schema.get_field_index("word_codes")
        field = table.schema.field(place)
        form = json.loads(field.metadata[b"raycase_words"]) | {"basis": "0" * 64}
        return table.set_column(place, field.with_metadata({"raycase_words": json.dumps(form)}), table["word_codes"])

    form = WordFormat.of(open_written(words, "--words").schema)
    alter(words, lambda table: changed(table) if table["id"][0].as_py() else table)
    written, _ = materialize(words, tmp_path)
    name, out = written.names[1], output_at(str(tmp_path / "m"))
    place = (written.output, out, "0" * 8, name, written.sums[name], ("color",), None, form)
    for work, said in (
        (lambda: verify(words), "not the one that coded"),
        (lambda: index(words, tmp_path), "words of another basis than the first file"),
        (lambda: pool_unit(*place), "expected words of the basis .* beside them, got others"),
    ):
        with pytest.raises(WorkError, match=said):
            work()


def vectors(change):
    def column(table):
        kind = table.schema.field("embedding").type
        return embedding_array(change(np.ones((len(table), kind.list_size), np.float32)))

    return with_column("embedding", column)


def plain(share, scale):
    part = np.array([share, scale], "<f2").tobytes() + b"\1" * 11
    return with_column("word_plain", lambda table: pa.array([part] * len(table), pa.large_binary()))


NULLS = {
    "id": with_column("id", lambda table: pa.nulls(len(table), pa.int64())),
    "vector": with_column("embedding", lambda table: pa.nulls(len(table), table.schema.field("embedding").type)),
}
CASES = {
    "ids that are no text": (with_column("id", lambda table: table["id"].cast(pa.float64())), "ids of double"),
    "no words": (lambda table: table.drop_columns("word_codes"), "schema differs|no stored words|as the words there"),
    "null ids": (NULLS["id"], "a null id"),
    "null vectors": (NULLS["vector"], "a vector that is null or not finite"),
    "no numbers": (vectors(lambda v: v * np.nan), "a vector that is null or not finite"),
    "ragged vectors": (
        with_column("embedding", lambda table: pa.array([[1.0] * (i + 1) for i in range(len(table))])),
        "schema differs|vectors of list",
    ),
    "no vectors": (lambda table: table.drop_columns("embedding"), "schema differs|no column 'embedding'"),
    "a condition": (with_column("condition", lambda table: pa.array(["x"] * len(table))), "a condition in an output"),
    "fewer rows": (lambda table: table.slice(1), "4 pairs of 5 rows|3 pairs of 4 rows"),
    "no rows": (lambda table: table.slice(0, 0), "0 pairs of [45] rows"),
    "a counted column": (lambda table: table.rename_columns({"year": "__row"}), "a column '__row'"),
    "shares that are no numbers": (plain(np.nan, 1), r"expected shares of plain parts in \[0, 1\]"),
    "shares above 1": (plain(2, 1), r"expected shares of plain parts in \[0, 1\]"),
    "scales without end": (plain(0.5, np.inf), "finite scales"),
    "words without bytes": (
        with_column("word_codes", lambda table: pa.array([b""] * len(table), pa.large_binary())),
        "expected tokens in each text",
    ),
    "words of another type": (
        with_column("word_codes", lambda table: table["word_codes"].cast(pa.binary())),
        "expected values of large_binary, got binary",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_altered_is_named(words, tmp_path, case):
    change, expected = CASES[case]
    alter(words, change)
    for work in (lambda: verify(words), lambda: index(words, tmp_path)):
        with pytest.raises((RequestError, WorkError), match=expected) as error:
            work()
        assert one_line(error)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (vectors(lambda v: v[:, 1:]), "of fixed_size_list<.*>.31., unlike the first file"),
        (vectors(lambda v: v.astype(np.float16)), "of fixed_size_list<.*halffloat.*>.32., unlike the first file"),
        (with_column("id", lambda table: table["id"].cast(pa.string())), "'id' of string, unlike the first file"),
        (lambda table: table.append_column("more", table["year"]), "'more' of int64, unlike the first file"),
    ],
)
def test_a_file_unlike_the_first_is_named(words, tmp_path, change, expected):
    alter(words, lambda table: change(table) if table["id"][0].as_py() else table)
    with pytest.raises(WorkError, match="schema differs"):
        verify(words)
    with pytest.raises(WorkError, match=expected) as error:
        index(words, tmp_path)
    assert one_line(error)


def test_a_file_that_is_no_parquet_is_named(words, tmp_path):
    output = output_at(words)
    (output.units / min(output.units.list())).put(b"PAR1 no rows PAR1")
    stamp(output)
    for work in (lambda: verify(words), lambda: index(words, tmp_path), lambda: materialize(words, tmp_path)):
        with pytest.raises(WorkError, match="expected the rows of a unit, got") as error:
            work()
        assert one_line(error)
