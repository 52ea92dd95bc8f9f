"""metrics.json and its report in Markdown: what every report has, and systems compared over the same queries."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raycase.errors import WorkError, note
from raycase.evaluation.metrics import Correlation, estimate, estimate_difference, mean_of
from raycase.io.json_values import UNDEFINED, finite
from raycase.io.provenance import provenance
from raycase.io.storage import locate
from raycase.models.model_folder import METRICS
from raycase.names import Compute

NOT_AVAILABLE = "n/a"
REPORT = "report.md"
Metrics = dict[str, Any]  # what metrics.json holds, or a part of it
ValuesBySystem = dict[str, dict[str, float | None]]  # system -> metric -> value, None where it is not defined
WHY_UNDEFINED = "all scores or all ratings are equal, there are too few, or one is not finite"
UNDEFINED_VALUES = "undefined"  # key of metrics.json: which metrics of each system are undefined


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(estimate: dict[str, float] | None, key: str = "value", sign: str = "") -> str:
    """An estimate with its 95 % interval."""
    if estimate is None:
        return NOT_AVAILABLE
    value, low, high = (UNDEFINED if estimate[k] is None else f"{estimate[k]:{sign}.2f}" for k in (key, "low", "high"))
    return f"{value} [{low}, {high}]"


def difference(estimate: dict[str, float] | None, least: float) -> str:
    """A difference with its interval and p; a p below `least`, the resolution of the bootstrap, is given as a bound."""
    p = "" if estimate is None else f", p = {estimate['p']:.3g}" if estimate["p"] >= least else f", p < {least:g}"
    return interval(estimate, "difference", "+") + p


def provenance_lines(metrics: Metrics) -> str:
    """Command, commit, date, machine, versions, settings, and which metrics are undefined."""
    origin, settings = metrics["provenance"], metrics["settings"]
    compute = settings["compute"] or "its default format"
    lines = f"""    {origin["command"]}

- commit {origin["commit"] or "unknown"}, {origin["date"]}, {origin["machine"]}, {metrics["seconds"]} s
- {", ".join(f"{name} {version}" for name, version in origin["versions"].items())}
- {settings["resamples"]:,} resamples, seed {settings["seed"]}, encoder in {compute}"""
    for system, names in metrics.get(UNDEFINED_VALUES, {}).items():
        lines += f"\n- undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}"
    return lines


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`settings` of metrics.json: of the bootstrap, and the number format inside the encoders."""

    resamples: int = 1000
    seed: int = 0
    compute: Compute | None = None


@dataclass(frozen=True, kw_only=True)
class RankedSystem:
    """A system, and each measure of each query."""

    name: str
    what: str  # the vectors or scores that it ranks by, for people
    values: dict[str, np.ndarray]  # group of queries -> (Q, measures); every system has the same queries


def rank_systems(
    settings: Settings,
    *,
    title: str,
    about: str,
    data: dict[str, Any],
    measures: Sequence[str],
    systems: Sequence[RankedSystem],
    metrics: Mapping[str, Correlation] = {},
    ratings_Q: np.ndarray | None = None,
    groups_Q: np.ndarray | None = None,
    compared: Mapping[str, Sequence[RankedSystem]] = {},
) -> dict[str, Any]:
    """A task's part of `metrics.json`: each system's figures x 100 by group of queries and measure, the mean over
    queries or the measure's metric of the ratings, and their differences from the first system's. groups_Q: equal for
    queries drawn together. compared: further differences, by their key: of these systems from the first of them."""
    compared = {"against": systems, **compared}

    def figures(estimated: Callable[..., dict[str, float] | None], *of: RankedSystem) -> dict[str, Any]:
        """Those of each group and measure."""
        return {
            group: {
                name: estimated(
                    metrics.get(name, mean_of),
                    *(s.values[group][:, i] for s in of),
                    values_QM[:, i] if ratings_Q is None else ratings_Q,
                    groups_N=groups_Q,
                    resamples=settings.resamples,
                    seed=settings.seed,
                )
                for i, name in enumerate(measures)
            }
            for group, values_QM in systems[0].values.items()
        }

    lines = {s.name: {"name": s.name, "what": s.what, "figures": figures(estimate, s)} for s in systems}
    for key, (base, *others) in compared.items():
        for other in others:
            lines[other.name][key] = figures(estimate_difference, other, base)
    return {
        "title": title,
        "about": about,
        "data": data,
        "measures": list(measures),
        "groups": [{"name": name, "queries": len(of_group)} for name, of_group in systems[0].values.items()],
        "systems": [*lines.values()],
        "compared": {key: base.name for key, (base, *_) in compared.items()},
        "settings": asdict(settings),
    }


def ranked_values(metrics: Metrics) -> ValuesBySystem:
    """The value of each measure in each group of queries, by system; None where it is not defined."""
    columns = {
        f"{title}, {name}" if title else name: place
        for title, names in _sections(metrics).items()
        for name, place in names.items()
    }
    return {
        s["name"]: {name: (s["figures"][g][m] or {}).get("value") for name, (g, m) in columns.items()}
        for s in metrics["systems"]
    }


def _sections(metrics: Metrics) -> dict[str, dict[str, tuple[str, str]]]:
    """The tables of a report by title, the group and measure of each column: one a measure, if both are several."""
    measures, groups = metrics["measures"], [group["name"] for group in metrics["groups"]]
    if len(groups) == 1:
        return {"": {measure: (groups[0], measure) for measure in measures}}
    return {measure if len(measures) > 1 else "": {group: (group, measure) for group in groups} for measure in measures}


def render_ranked(metrics: Metrics) -> str:
    """The report in Markdown; `metrics` holds every number in it."""
    systems, least = metrics["systems"], 2 / metrics["settings"]["resamples"]
    queries = {group["name"]: group["queries"] for group in metrics["groups"]}
    parts = [f"# {metrics['title']}", metrics["about"]]
    parts.append(table(["system", "what"], [[s["name"], s["what"]] for s in systems]))
    for title, columns in _sections(metrics).items():
        if title:
            parts.append(f"## {title}")
        header = ["", *(f"{name} ({queries[name]})" if name in queries else name for name in columns)]
        rows = [[s["name"], *(interval(s["figures"][g][m]) for g, m in columns.values())] for s in systems]
        parts.append(table(header, rows))
        for key, base in metrics["compared"].items():
            others = [s for s in systems if key in s]
            rows = [[s["name"], *(difference(s[key][g][m], least) for g, m in columns.values())] for s in others]
            if rows:
                parts += [f"Minus {base}, by the paired bootstrap:", table(header, rows)]
    parts += ["## How it was made", provenance_lines(metrics)]
    return "\n\n".join(parts) + "\n"


def write_report(
    output: Path, metrics: dict[str, Any], render: Callable[[dict[str, Any]], str], began: float
) -> dict[str, Any]:
    """Write metrics.json, with its origin and the seconds since the work began, and report.md; returns the former.
    Raises WorkError where no figure is a number, when both are written."""
    folder = locate(str(output))
    metrics = metrics | {"provenance": provenance(), "seconds": round(time.time() - began, 1)}
    values = ranked_values(metrics)
    found = {system: [name for name, value in of.items() if finite(value) is None] for system, of in values.items()}
    if undefined := {system: names for system, names in found.items() if names}:
        metrics[UNDEFINED_VALUES] = undefined
    (folder / METRICS).put_json(metrics)
    (folder / REPORT).put(render((folder / METRICS).read_json()).encode())  # by the metrics as they were written
    for system, names in undefined.items():
        note(f"undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}")
    if sum(map(len, undefined.values())) == sum(map(len, values.values())):
        error = WorkError(f"expected a system with a figure that is a number, got none: {WHY_UNDEFINED}")
        error.result = metrics  # type: ignore[attr-defined]
        raise error
    return metrics
