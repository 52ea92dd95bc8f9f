"""Token states in a column: what is written is read, from whole columns, slices and chunks."""

import numpy as np
import pyarrow as pa
import pytest

from raycase.tokens.stored import StoredStates

WIDTH = 3
COUNTS = [2, 0, 1, 4]


def parts():
    random = np.random.default_rng(0)
    return [random.standard_normal((count, WIDTH)).astype(np.float16) for count in COUNTS]


def same(states, wanted):
    found = [states.flat[a:b] for a, b in zip(states.offsets[:-1], states.offsets[1:], strict=True)]
    for found_TW, wanted_TW in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(found_TW, wanted_TW)


def test_a_text_is_finite_where_it_has_tokens_and_all_are_finite():
    made = [np.ones((2, WIDTH)), np.empty((0, WIDTH)), [[1, np.nan, 1]], [[1, 1, 1], [1e6, 1, 1]], np.ones((1, WIDTH))]
    assert StoredStates.of(made, WIDTH).finite.tolist() == [True, False, False, False, True]


def test_a_column_is_read_back():
    states = StoredStates.of(parts(), WIDTH)
    column = states.to_arrow()
    column.validate(full=True)
    assert [len(value) for value in column.to_pylist()] == [2 * WIDTH * count for count in COUNTS]
    same(StoredStates.read(column, WIDTH), parts())
    same(StoredStates.read(column.slice(2, 2), WIDTH), parts()[2:])
    chunks = pa.chunked_array([column.slice(2, 2), column.slice(0, 2), column])
    same(StoredStates.read(chunks, WIDTH), [*parts()[2:], *parts()[:2], *parts()])
    for empty in (StoredStates.of([], WIDTH).to_arrow(), pa.chunked_array([], pa.large_binary())):
        assert StoredStates.read(empty, WIDTH).flat.shape == (0, WIDTH)
    with pytest.raises(ValueError, match="expected 5 numbers a token"):
        StoredStates.read(column, 5)
