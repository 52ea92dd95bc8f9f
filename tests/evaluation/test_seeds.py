"""Seeds of one system: Welch's t-test by its formula, which models belong together, and the part of the report."""

import numpy as np
import pytest
from scipy.stats import t as student
from seeds import compare_seeds, tables, welch


def test_the_test_is_welchs():
    """Of 3, 5, 7 and 2, 3: means 5 and 2.5, variances 4 and 0.5."""
    squared = 4 / 3 + 0.5 / 2
    freedom = squared**2 / ((4 / 3) ** 2 / 2 + (0.5 / 2) ** 2 / 1)
    found = welch(np.array([3.0, 5, 7]), np.array([2.0, 3]))
    reach = student.ppf(0.975, freedom) * squared**0.5
    assert found["difference"] == pytest.approx(2.5)
    assert (found["low"], found["high"]) == pytest.approx((2.5 - reach, 2.5 + reach))
    assert found["p"] == pytest.approx(2 * student.sf(2.5 / squared**0.5, freedom))
    for few in ([4.0], [4.0, np.nan]):
        assert welch(np.array([3.0, 5, 7]), np.array(few)) is None
    assert welch(np.array([3.0, 3]), np.array([2.0, 2])) is None, "without spread there is no test"


def test_means_and_differences_by_hand():
    records = dict(
        **{f"first-{seed}": {"unseeded": "a", "seed": seed} for seed in range(3)},
        **{f"second-{seed}": {"unseeded": "b", "seed": seed} for seed in range(2)},
        alone=None,
    )
    figures = {f"first-{seed}": {"map": value, "none": None} for seed, value in enumerate((3.0, 5.0, 7.0))}
    figures |= {f"second-{seed}": {"map": value, "none": None} for seed, value in enumerate((2.0, 3.0))}
    figures |= {"alone": {"map": 4.0, "none": None}, "length": {"map": 1.0, "none": None}}
    first, second, alone = compare_seeds(records, figures)
    assert (first["system"], first["seeds"], first["models"][0]) == ("first", [0, 1, 2], "first-0")
    assert first["figures"] == {"map": {"mean": 5.0, "std": 2.0, "values": [3.0, 5.0, 7.0]}, "none": None}
    assert second["against"]["map"] == welch(np.array([2.0, 3]), np.array([3.0, 5, 7]))
    assert second["against"]["none"] is None
    assert (alone["figures"]["map"]["std"], alone["against"]["map"]) == (None, None)
    text = tables([first, second, alone])
    assert "| first | 0, 1, 2 | 5.00 ± 2.00 | n/a |" in text and "| alone | 0 | 4.00 | n/a |" in text
    assert "Minus first, by Welch's t-test over seeds:" in text and "| second | -2.50 [" in text
