"""How many units Ray Data gets in one item."""

import pyarrow as pa

from raycase.corpus.records import unpack
from raycase.distributed.packs import in_packs, pack_units


def test_few_encoders_take_single_units_and_many_take_packs():
    assert [pack_units(encoders) for encoders in (1, 128, 129, 1000, 10**6)] == [1, 1, 2, 8, 16]


def test_a_pack_is_bounded_in_units_and_bytes():
    small = [pa.table({"unit": [i]}) for i in range(7)]
    packs = [unpack(row) for row in in_packs(small, 3)]
    assert [[unit["unit"][0].as_py() for unit in units] for units in packs] == [[0, 1, 2], [3, 4, 5], [6]]
    large = [pa.table({"unit": pa.array([b"x" * 40 * 2**20], pa.large_binary())})] * 3
    assert [len(unpack(row)) for row in in_packs(large, 16)] == [2, 1]
