"""Maps that are computed aside: as here, by a process that is replaced when it dies and ends when nobody asks."""

import numpy as np
import pytest

from raycase.data.vectors import l2_normalize
from raycase.errors import WorkError
from raycase.explore.aside import Aside
from raycase.explore.grouping import MapSettings, group

SETTINGS = MapSettings(neighbours=3, clusters=2, seed=0)


def test_it_computes_as_here_again_when_its_process_died_and_ends_with_who_asks():
    vectors = l2_normalize(np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))
    aside, here = Aside(120, nice=0), vars(group(vectors, SETTINGS))
    for dies in (True, False):
        found = aside.do("group", vectors=vectors, **vars(SETTINGS))
        assert found.keys() == here.keys()
        for name, expected in here.items():
            np.testing.assert_allclose(found[name], expected, atol=1e-6)
        with pytest.raises(WorkError, match="expected a map, got TypeError: "):
            aside.do("group", vectors=vectors)
        if dies:
            aside.process.kill()
            aside.process.wait()
    aside.process.stdin.close()
    assert aside.process.wait(60) == 0
    aside.seconds = 0.01
    with pytest.raises(WorkError, match=r"none within 0\.01 s"):
        aside.do("group", vectors=vectors, **vars(SETTINGS))
    assert aside.process is None
