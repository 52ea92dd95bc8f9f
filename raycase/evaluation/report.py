"""metrics.json, and the parts that every report in Markdown has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raycase.data.json_values import UNDEFINED
from raycase.data.storage import Location
from raycase.systems.model_folder import METRICS

REPORT = "report.md"
NOT_AVAILABLE = "n/a"
WHY_UNDEFINED = "all scores or all ratings are equal, there are too few, or one is not finite"
UNDEFINED_VALUES = "undefined"  # key of metrics.json: which metrics of each system are undefined


def write_report(folder: Location, metrics: dict[str, Any], render: Callable[[dict[str, Any]], str]) -> None:
    """Write the metrics, then the report, rendered from the metrics as they were written."""
    (folder / METRICS).put_json(metrics)
    (folder / REPORT).put(render((folder / METRICS).read_json()).encode())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 2) -> str:
    """A number that may be missing."""
    return NOT_AVAILABLE if value is None else f"{value:.{digits}f}"


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


def provenance_lines(metrics: dict[str, Any]) -> str:
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
