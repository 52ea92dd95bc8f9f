"""Models that training made with several seeds of one system: means, standard deviations and Welch's t-test.

    raycase evaluate --task rte --model runs/simcse-0 runs/simcse-1 runs/dualcse-0 --data inli.csv --output runs/rte
    .venv/bin/python benchmarks/seeds.py --report runs/rte --model runs/simcse-0 runs/simcse-1 runs/dualcse-0

Models are of one system where training wrote that all but their seeds is equal (`unseeded` in their metrics.json). The
bootstrap of the report asks whether other rows would show a difference, too; this test, whether other seeds would.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
from scipy.stats import ttest_ind
from turns import finish
from typing_extensions import TypedDict

from raycase.evaluation.report import NOT_AVAILABLE, ValuesBySystem, difference, ranked_values, table
from raycase.io.json_values import from_json, loads


class _Trained(TypedDict):
    """What is read of a model's `metrics.json`."""

    unseeded: str  # fingerprint of everything but the seed
    seed: int


def seed_groups(records: Mapping[str, Any]) -> list[dict[int, str]]:
    """Seed -> name of the model, for each system in the order of the models, by what training wrote of each.

    A model that was not trained is a system of its own, as is a second one with the same seed.
    """
    groups: dict[str, dict[int, str]] = {}
    for name, record in records.items():
        try:
            trained = from_json(_Trained, record)
        except ValueError:  # not trained, or by an earlier version
            trained = _Trained(unseeded=name, seed=0)
        group = groups.setdefault(trained["unseeded"], {})
        if trained["seed"] in group:
            group = groups.setdefault(name, {})
        group[trained["seed"]] = name
    return list(groups.values())


def compare_seeds(records: Mapping[str, Any], figures: ValuesBySystem) -> list[dict[str, Any]]:
    """For each system its seeds, mean and standard deviation of each figure, and the difference from the first system.

    A model may have several systems in `figures`: "name: ...".
    """
    groups = seed_groups(records)
    lines: list[dict[str, Any]] = []
    first: dict[str, np.ndarray] | None = None
    for group in groups:
        seeds, names = list(group), list(group.values())
        for variant in _variants(names[0], figures):
            values = _values([figures[name + variant] for name in names])
            line: dict[str, Any] = {
                "system": system_name(names) + variant,
                "seeds": seeds,
                "models": names,
                "figures": {name: _spread(values_S) for name, values_S in values.items()},
            }
            if first is None:
                first = values
            else:
                line["against"] = {name: welch(values[name], first[name]) for name in values.keys() & first.keys()}
            lines.append(line)
    return lines


def _variants(model: str, figures: ValuesBySystem) -> list[str]:
    """What follows a model's name in the names of its systems."""
    return [name.removeprefix(model) for name in figures if name == model or name.startswith(f"{model}: ")]


def _values(of_seeds: Sequence[dict[str, float | None]]) -> dict[str, np.ndarray]:
    """Each figure's values, (S,); NaN where one is not defined."""
    return {name: np.array([figures[name] for figures in of_seeds], dtype=np.float64) for name in of_seeds[0]}


def _spread(values_S: np.ndarray) -> dict[str, Any] | None:
    """Mean and standard deviation of a figure over the seeds for which it is defined, and the number of the others,
    `undefined`. None where it is defined for none; the deviation of one seed is None."""
    defined_S = values_S[np.isfinite(values_S)]
    if not len(defined_S):
        return None
    std = float(defined_S.std(ddof=1)) if len(defined_S) > 1 else None
    spread = {"mean": float(defined_S.mean()), "std": std, "values": values_S.tolist()}
    left_out = len(values_S) - len(defined_S)
    return spread | ({"undefined": left_out} if left_out else {})


def welch(values_S: np.ndarray, others_S: np.ndarray) -> dict[str, float] | None:
    """The difference of two systems' means over seeds: difference, low, high (95 %), p, by Welch's t-test.

    None with less than two seeds of either, where a value is not defined, and where no seed differs from any other.
    """
    if not (np.isfinite(values_S).all() and np.isfinite(others_S).all()):
        return None
    if min(len(values_S), len(others_S)) < 2 or max(np.ptp(values_S), np.ptp(others_S)) == 0:
        return None
    with np.errstate(all="ignore"), catch_warnings(action="ignore"):  # of seeds that are nearly equal
        found = ttest_ind(values_S, others_S, equal_var=False)
        low, high = found.confidence_interval(0.95)
    if not np.isfinite([found.pvalue, low, high]).all():
        return None
    shift = float(values_S.mean() - others_S.mean())
    return {"difference": shift, "low": float(low), "high": float(high), "p": float(found.pvalue)}


def system_name(names: Sequence[str]) -> str:
    """What the names of a system's models have in common: simcse of simcse-0 and simcse-1; of one model its name."""
    if len(names) == 1:
        return names[0]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).rstrip("0123456789").rstrip("-_./ ") or ", ".join(names)


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """What `compare_seeds` gives, in Markdown."""
    names = list(dict.fromkeys(name for line in lines for name in line["figures"]))
    rows = [
        [line["system"], ", ".join(map(str, line["seeds"])), *(_cell(line["figures"].get(name)) for name in names)]
        for line in lines
    ]
    parts = ["Mean ± standard deviation over the seeds:", table(["system", "seeds", *names], rows)]
    others = [line for line in lines if any(line.get("against", {}).values())]
    if others:
        rows = [[line["system"], *(difference(line["against"].get(name), 0) for name in names)] for line in others]
        parts += [f"Minus {lines[0]['system']}, by Welch's t-test over seeds:", table(["", *names], rows)]
    return "\n\n".join(parts)


def _cell(figure: dict[str, Any] | None) -> str:
    """Mean and standard deviation."""
    if figure is None:
        return NOT_AVAILABLE
    spread = "" if figure["std"] is None else f" ± {figure['std']:.2f}"
    left_out = figure.get("undefined", 0)
    lost = f" ({left_out} of {len(figure['values'])} undefined)" if left_out else ""
    return f"{figure['mean']:.2f}{spread}{lost}"


def record_of(folder: Path) -> Any:
    """What training wrote in a model's folder; None where it wrote nothing."""
    file = folder / "metrics.json"
    try:
        return loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError:
        return None


def main(arguments):
    """Compare and print."""
    metrics = loads((Path(arguments.report) / "metrics.json").read_text(encoding="utf-8"))
    figures = ranked_values(metrics)
    names = [model if model in figures else Path(model).name for model in arguments.model]  # as the report has them
    records = {name: record_of(Path(model)) for name, model in zip(names, arguments.model, strict=True)}
    lines = compare_seeds(records, figures)
    print(tables(lines))
    finish({"ratios": {}, "seeds": lines})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", required=True, help="folder that `raycase evaluate` wrote")
    parser.add_argument("--model", nargs="+", required=True, help="model folders of the report")
    main(parser.parse_args())
