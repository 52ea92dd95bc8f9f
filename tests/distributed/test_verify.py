"""`verify` on a cluster finds what it finds in one process; a worker that dies changes nothing."""

from functools import partial

import pytest
from helpers import embed_here, embedded

from raycase.corpus.output import output_at
from raycase.corpus.verify import verify
from raycase.distributed.verify import on_ray
from raycase.errors import WorkError


@pytest.fixture(scope="module")
def twice(tiny_model, tmp_path_factory):
    """An output of 100 units, in which an id stands in two units and another in three."""
    ids = [f"id {i}" for i in range(300)]
    ids[7] = ids[150] = "two"
    ids[8] = ids[151] = ids[299] = "three"
    rows = [{"id": id, "text": f"a dog {i}"} for i, id in enumerate(ids)]
    return embedded(tmp_path_factory.mktemp("twice"), tiny_model, rows, conditions=("color", "number"), unit_rows=3)


def test_the_shuffle_finds_the_pairs_of_one_process(twice, cluster):
    with pytest.raises(WorkError) as alone:
        verify(twice)
    with pytest.raises(WorkError) as shuffled:
        verify(twice, execute=partial(on_ray, partition_pairs=100))
    assert str(shuffled.value) == str(alone.value)
    assert "id 'two' under 'color': 2 times" in str(alone.value)
    assert "(and 1 more)" in str(alone.value), "expected two ids under two conditions"


def test_a_damaged_file_is_named_and_a_whole_output_passes(job, cluster):
    embed_here(job)
    assert verify(job.output, execute=on_ray)["units"] == 5
    folder = output_at(job.output).embeddings
    name = sorted(folder.list())[3]
    data = bytearray((folder / name).read())
    data[100] ^= 1
    (folder / name).put(bytes(data))
    with pytest.raises(WorkError, match=f"embeddings/{name}: checksum differs$"):
        verify(job.output, execute=on_ray)
