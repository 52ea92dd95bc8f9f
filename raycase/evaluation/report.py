"""metrics.json, and the parts that every report in Markdown has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raycase.data.json_values import UNDEFINED
from raycase.data.storage import Location
from raycase.evaluation.plots import INSTALL
from raycase.systems.model_folder import METRICS

REPORT = "report.md"
NOT_AVAILABLE = "n/a"
WHY_UNDEFINED = "all scores or all ratings are equal, there are too few, or one is not finite"
UNDEFINED_FIGURES = "undefined"  # key of metrics.json: which figures of each system are undefined
NO_PLOTS = "plots_left_out"  # key of metrics.json: why there are no plots


def write_report(
    folder: Location, metrics: dict[str, Any], render: Callable[[dict[str, Any]], str], pictures: dict[str, bytes]
) -> None:
    """Write the metrics and plots, then the report, rendered from the metrics as they were written."""
    (folder / METRICS).put_json(metrics)
    for name, png in pictures.items():
        (folder / name).put(png)
    (folder / REPORT).put(render((folder / METRICS).read_json()).encode())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 2) -> str:
    """A figure that may be missing."""
    return NOT_AVAILABLE if value is None else f"{value:.{digits}f}"


def interval(figure: dict[str, float] | None, key: str = "value", sign: str = "") -> str:
    """A figure with its 95 % interval."""
    if figure is None:
        return NOT_AVAILABLE
    value, low, high = (UNDEFINED if figure[k] is None else f"{figure[k]:{sign}.2f}" for k in (key, "low", "high"))
    return f"{value} [{low}, {high}]"


def difference(figure: dict[str, float] | None, least: float) -> str:
    """A difference with its interval and p; a p below `least`, the resolution of the bootstrap, is given as a bound."""
    p = "" if figure is None else f", p = {figure['p']:.3g}" if figure["p"] >= least else f", p < {least:g}"
    return interval(figure, "difference", "+") + p


def picture(metrics: dict[str, Any], caption: str, file: str) -> list[str]:
    """The reference to a plot; nothing where plots were left out."""
    return [] if NO_PLOTS in metrics else [f"![{caption}]({file})"]


def provenance_lines(metrics: dict[str, Any]) -> str:
    """Command, commit, date, machine, versions, settings, and why plots were left out if they were."""
    origin, settings = metrics["provenance"], metrics["settings"]
    compute = settings["compute"] or "its default format"
    lines = f"""    {origin["command"]}

- commit {origin["commit"] or "unknown"}, {origin["date"]}, {origin["machine"]}, {metrics["seconds"]} s
- {", ".join(f"{name} {version}" for name, version in origin["versions"].items())}
- {settings["resamples"]:,} resamples, seed {settings["seed"]}, encoder in {compute}"""
    for system, names in metrics.get(UNDEFINED_FIGURES, {}).items():
        lines += f"\n- undefined for {system}: {', '.join(names)}: {WHY_UNDEFINED}"
    if NO_PLOTS in metrics:
        lines += f"\n- plots were left out: {metrics[NO_PLOTS]}; install it with `{INSTALL}` and run the command again"
    return lines
