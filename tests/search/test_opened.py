"""Indexes that somebody made or altered: what is no index of raycase is refused in one line when it is opened."""

import json
from dataclasses import asdict

import lance
import numpy as np
import pyarrow as pa
import pytest

from raycase.data.lance_dataset import METADATA_KEY
from raycase.errors import RequestError
from raycase.search import lance_files
from raycase.search.index import Index
from raycase.search.metadata import IndexMetadata

MODEL = {"system": "case", "weights": "w", "dim": 2, "encoder": {"prompt": "concat-sc", "pooling": ["mean"]}}
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(6, np.float32)), 2)
COLUMNS = {"id": pa.array([1, 2, 3]), "condition": pa.array(["a"] * 3), "vector": VECTORS}
BYTES = pa.array([b"x"] * 3, pa.large_binary())


def made(folder, columns, *, text=None, **counts):
    """An index by hand; gives its URI."""
    metadata = IndexMetadata(model=MODEL, name="none", dtype="float32", **({"conditions": {"a": 3}} | counts))
    text = json.dumps(asdict(metadata)) if text is None else text
    dataset = lance.write_dataset(pa.table(columns).replace_schema_metadata({METADATA_KEY: text}), folder / "i.lance")
    dataset.tags.create(lance_files.READY, dataset.version)
    return str(folder / "i.lance")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": None}, "the column id: expected numbers or strings, got none"),
        ({"condition": pa.array([1, 2, 3])}, "the column condition: expected strings, got int64"),
        ({"vector": None}, "the column vector: expected vectors, got none"),
        ({"vector": pa.array([[1.0], [1.0, 2.0], []])}, "the column vector: expected vectors, got list"),
        ({"vector": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2))}, "the column vector: expected vectors, got fixed"),
        ({"plain": pa.nulls(3, pa.string())}, "the column plain: expected vectors, got string"),
        ({"word_codes": pa.array(["x"] * 3)}, "the column word_codes: expected bytes, got string"),
    ],
)
def test_columns_that_no_build_makes_are_refused(tmp_path, columns, said):
    made_of = {name: column for name, column in (COLUMNS | columns).items() if column is not None}
    with pytest.raises(RequestError, match=f"expected an index of `raycase index` at .*, got: {said}") as error:
        Index.open(made(tmp_path, made_of))
    assert "\n" not in str(error.value)


def test_columns_that_the_metadata_counts_must_be_there(tmp_path):
    assert Index.open(made(tmp_path, COLUMNS)).columns == ["id"]
    (tmp_path / "1").mkdir()
    with pytest.raises(RequestError, match="the column plain: expected vectors, got none"):
        Index.open(made(tmp_path / "1", COLUMNS, plain=3))
    (tmp_path / "2").mkdir()
    with pytest.raises(RequestError, match="the column word_plain: expected bytes, got none"):
        Index.open(made(tmp_path / "2", COLUMNS | {"word_basis": pa.array(["b"] * 3), "word_codes": BYTES}, words=3))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"model": ' * 50_000, "", "null", "[]"])
def test_metadata_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(RequestError, match=r"expected an index of `raycase index` at .*, got: ") as error:
        Index.open(made(tmp_path, COLUMNS, text=text))
    assert len(str(error.value)) < 600
