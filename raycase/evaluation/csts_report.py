"""The report on rated pairs (C-STS), made from its metrics.json alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.evaluation.procedure import ValuesBySystem
from raycase.evaluation.report import NOT_AVAILABLE, difference, interval, number, provenance_lines, table
from raycase.evaluation.scores import CORRELATIONS

TITLES = {
    "spearman": "Spearman",
    "spearman_rated": "Spearman without -1",
    "pearson": "Pearson",
    "pearson_rated": "Pearson without -1",
}
SEEN = {"train": "was trained on these very pairs", "validation": "had its epoch chosen on these very pairs"}


def render_csts(metrics: dict[str, Any]) -> str:
    """The report in Markdown; `metrics` holds every number in it."""
    data, models = metrics["data"], metrics["models"]
    parts = [
        f"# {', '.join(model['name'] for model in models)} on {data['file']}",
        f"Conditional semantic textual similarity: the cosine of two sentences' vectors under a condition, against "
        f"people's rating; {data['rows']:,} pairs, to {data['not_applicable']:,} of which the condition does not apply "
        f"(label -1). Correlations are x 100, with 95 % intervals of the bootstrap over sentence pairs.",
        _summary(models),
        *(f"{model['name']} {SEEN[model['seen']]}." for model in models if model["seen"]),
        *(_differences(metrics) if metrics["comparison"] else []),
        "## Vectors",
        "`f` is the encoder's vector, `base` the condition's own (eq. 1), `g` the projector. Isotropy is I_iso of "
        f"eq. 5 over {metrics['settings']['directions']:,} directions, 1 where vectors point everywhere; cos to mean "
        "is the cosine of a vector to the mean of all (appendix C).",
        _vectors(models),
        "## How it was made",
        "\n".join([provenance_lines(metrics), *_hashes(data, models)]),
    ]
    return "\n\n".join(parts) + "\n"


def _hashes(data: dict[str, Any], models: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"- {data['file']}: {data['rows']:,} pairs of {data['distinct']:,} distinct (sentence, condition); sha256 of "
        f"what was read\n  `{data['sha256']}`",
        *(f"- {model['name']}: encoder weights `{model['weights']}`" for model in models),
    ]


def csts_values(metrics: dict[str, Any]) -> ValuesBySystem:
    """The correlations of each model."""
    own = {model["name"]: model["variants"][model["system"]] for model in metrics["models"]}
    return {
        model: {name: estimates[name] and estimates[name]["value"] for name in CORRELATIONS}
        for model, estimates in own.items()
    }


def _summary(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        own = model["variants"][model["system"]]
        encoder = f"{model['encoder']}, {model['setting']}, {model['pooling']}"
        columns = [model["name"], encoder, f"`{model['system']}`", str(own["dim"] or NOT_AVAILABLE)]
        rows.append([*columns, *(interval(own[name]) for name in TITLES)])
    return table(["model", "encoder", "vector", "dimensions", *TITLES.values()], rows)


def _differences(metrics: dict[str, Any]) -> list[str]:
    least, names = 2 / metrics["settings"]["resamples"], list(TITLES)[:3]
    rows = [
        [f"{line['model']} - {line['against']}", *(difference(line[name], least) for name in names)]
        for line in metrics["comparison"]
    ]
    return [
        "## Differences",
        "By the paired bootstrap, both models over the same resamples; above 0 the first is better; p is two-sided.",
        table(["difference", *(TITLES[name] for name in names)], rows),
    ]


def _vectors(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        for formula, v in model["variants"].items():
            to_mean = v["to_mean"]
            mean = f"{to_mean['mean']:.3f} ± {to_mean['std']:.3f}" if to_mean else NOT_AVAILABLE
            correlations = (interval(v[name]) for name in ("spearman", "spearman_rated"))
            dim = str(v["dim"] or NOT_AVAILABLE)
            rows.append([model["name"], f"`{formula}`", dim, *correlations, number(v["isotropy"], 4), mean])
    header = ["model", "vectors", "dimensions", "Spearman", "Spearman without -1", "isotropy", "cos to mean"]
    return table(header, rows)
