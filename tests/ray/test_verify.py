"""`verify` on a cluster finds what it finds in one process."""

import pytest
from helpers import embedded

from raycase.errors import WorkError
from raycase.job.verify import verify
from raycase.ray.runner import RayRunner


@pytest.fixture(scope="module")
def twice(tiny_model, tmp_path_factory):
    """An output of 100 units, in which an id stands in two units and another in three."""
    ids = [f"id {i}" for i in range(300)]
    ids[7] = ids[150] = "two"
    ids[8] = ids[151] = ids[299] = "three"
    rows = [{"id": id, "text": f"a dog {i}"} for i, id in enumerate(ids)]
    return embedded(tmp_path_factory.mktemp("twice"), tiny_model, rows, conditions=("color", "number"), unit_rows=3)


def test_pairs_that_stand_twice_are_found(twice, cluster):
    with pytest.raises(WorkError) as alone:
        verify(twice)
    with pytest.raises(WorkError) as on_ray:
        verify(twice, RayRunner())
    assert str(on_ray.value) == str(alone.value)
    assert "id 'two' under 'color': 2 times" in str(alone.value)
    assert "(and 1 more)" in str(alone.value), "expected two ids under two conditions"
