"""Vectors that are remembered: by condition and row, the oldest condition is forgotten first."""

import numpy as np
import torch

from raycase.search.exact import RememberedVectors


def test_rows_of_two_conditions_in_any_order():
    random = np.random.default_rng(0)
    vectors = {condition: torch.from_numpy(random.standard_normal((100, 3))) for condition in ("color", "sport")}
    remembered = RememberedVectors()
    known = {condition: set() for condition in vectors}
    for start in range(0, 100, 7):
        for condition, vectors_ND in vectors.items():
            offsets = random.permutation(100)[: start // 3]
            is_known, found = remembered.of(condition, offsets)
            assert is_known.tolist() == [offset in known[condition] for offset in offsets.tolist()]
            if is_known.any():
                assert torch.equal(found, vectors_ND[torch.from_numpy(offsets[is_known])])
            new = offsets[~is_known]
            remembered.add(condition, new, vectors_ND[torch.from_numpy(new)])
            known[condition].update(new.tolist())
    assert all(len(rows) > 50 for rows in known.values()) and known["color"] != known["sport"]


def test_the_oldest_condition_is_forgotten_first():
    remembered, one = RememberedVectors(), torch.ones(1, 8)
    for condition in ("color", "sport", "color", "weather"):
        is_known, _ = remembered.of(condition, np.array([3]))
        if not is_known[0]:
            remembered.add(condition, np.array([3]), one)
        else:
            remembered.add(condition, np.array([4]), one)
    size = remembered.nbytes
    remembered.forget(size)
    assert list(remembered.conditions) == ["sport", "color", "weather"]
    assert remembered.of("sport", np.array([5, 3]))[0].tolist() == [False, True]
    remembered.forget(size - 1)
    assert list(remembered.conditions) == ["weather", "sport"]
    remembered.forget(0)
    assert remembered.nbytes == 0 and not remembered.of("sport", np.array([3, 4]))[0].any()
