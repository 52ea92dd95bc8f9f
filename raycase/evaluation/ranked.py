"""Figures of systems that rank, over the same queries: means with intervals, differences, and the report of both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raycase.data.provenance import provenance
from raycase.data.storage import locate
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import bootstrap_interval, mean_of, paired_bootstrap
from raycase.evaluation.report import difference, interval, made, table, write_report


def figure(values_Q: np.ndarray, *, resamples: int, seed: int) -> dict[str, float]:
    """The mean over queries with its 95 % interval: value, low, high."""
    low, high = bootstrap_interval(mean_of, values_Q, values_Q, resamples=resamples, seed=seed)
    return {"value": float(values_Q.mean()), "low": low, "high": high}


def against(values_Q: np.ndarray, others_Q: np.ndarray, *, resamples: int, seed: int) -> dict[str, float]:
    """The mean difference over the same queries: difference, low, high (95 %), p."""
    return paired_bootstrap(mean_of, values_Q, others_Q, values_Q, resamples=resamples, seed=seed)


def compared(
    systems: Sequence[dict[str, str]],
    values: dict[str, dict[str, np.ndarray]],
    measures: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Each system with its figures, by group of queries and measure, and their difference from the first system's.

    `values`: system -> group -> (Q, measures), the queries in one order.
    """
    settings = {"resamples": resamples, "seed": seed}
    base = values[systems[0]["name"]]
    found = []
    for system in systems:
        own = values[system["name"]]
        columns = list(enumerate(measures))
        figures = {g: {m: figure(v[:, i], **settings) for i, m in columns} for g, v in own.items()}
        line: dict[str, Any] = {**system, "figures": figures}
        if own is not base:
            line["against"] = {
                g: {m: against(v[:, i], base[g][:, i], **settings) for i, m in columns} for g, v in own.items()
            }
        found.append(line)
    return found


def report(
    job: EvaluateJob,
    folder: Path,
    began: float,
    *,
    title: str,
    about: str,
    data: dict[str, Any],
    measures: Sequence[str],
    groups: Sequence[dict[str, Any]],
    systems: Sequence[dict[str, str]],
    values: dict[str, dict[str, np.ndarray]],
) -> dict[str, Any]:
    """Compare systems and write their report; gives what `metrics.json` holds. `values`: as `compared` takes them."""
    metrics = {
        "task": job.task,
        "title": title,
        "about": about,
        "data": data,
        "measures": list(measures),
        "groups": list(groups),
        "systems": compared(systems, values, measures, resamples=job.resamples, seed=job.seed),
        "settings": {"resamples": job.resamples, "seed": job.seed, "compute": job.compute},
        "provenance": provenance(),
        "seconds": round(time.time() - began, 1),
    }
    write_report(locate(str(folder)), metrics, render, {})
    return metrics


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown; every figure in it stands in `metrics`."""
    measures, groups, systems = metrics["measures"], metrics["groups"], metrics["systems"]
    parts = [f"# {metrics['title']}", metrics["about"]]
    parts.append(table(["system", "what"], [[s["name"], s["what"]] for s in systems]))
    for measure in measures:
        if len(measures) > 1:
            parts.append(f"## {measure}")
        header = ["", *(f"{g['name']} ({g['queries']})" for g in groups)]
        rows = [[s["name"], *(interval(s["figures"][g["name"]][measure]) for g in groups)] for s in systems]
        if any("chance" in g for g in groups):
            rows.append(["chance", *(f"{g['chance']:.2f}" for g in groups)])
        parts.append(table(header, rows))
        others = [s for s in systems if "against" in s]
        if others:
            least = 2 / metrics["settings"]["resamples"]
            rows = [[s["name"], *(difference(s["against"][g["name"]][measure], least) for g in groups)] for s in others]
            parts += [f"Minus {systems[0]['name']}, by the paired bootstrap over queries:", table(header, rows)]
    parts += ["## How it was made", made(metrics)]
    return "\n\n".join(parts) + "\n"
