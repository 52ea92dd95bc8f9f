"""metrics.json, and the report and plots that are made from it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raycase.data.storage import Location

METRICS, REPORT = "metrics.json", "report.md"
NONE = "n/a"


def write_report(
    folder: Location, metrics: dict[str, Any], render: Callable[[dict[str, Any]], str], pictures: dict[str, bytes]
) -> None:
    """Write the metrics, then what is made from them as they were written."""
    (folder / METRICS).put_json(metrics)
    for name, png in pictures.items():
        (folder / name).put(png)
    (folder / REPORT).put(render((folder / METRICS).read_json()).encode())


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown; every figure in it stands in `metrics`."""
    data, models = metrics["data"], metrics["models"]
    parts = [
        f"# {', '.join(model['name'] for model in models)} on {data['file']}",
        f"Conditional semantic textual similarity: the cosine of two sentences' vectors under a condition, against "
        f"people's rating; {data['rows']:,} pairs, to {data['not_applicable']:,} of which the condition does not apply "
        f"(label -1). Correlations are x 100, with 95 % intervals of the bootstrap over sentence pairs.",
        _summary(models),
        *(["## Differences", _comparison(metrics)] if metrics["comparison"] else []),
        "## Vectors",
        "`f` is the encoder's vector, `base` the condition's own (eq. 1), `g` the projector. Isotropy is I_iso of "
        f"eq. 5 over {metrics['settings']['directions']:,} directions, 1 where vectors point everywhere; cos to mean "
        "is the cosine of a vector to the mean of all (appendix C).",
        *(_variants(model, several=len(models) > 1) for model in models),
        *(["![Cosine to the mean](cosines_to_mean.png)"] if any(map(has_vectors, models)) else []),
        "## Cosine by rating",
        *(_by_rating(model, several=len(models) > 1) for model in models),
        "![Cosine by rating](cosine_by_rating.png)",
        "## The worst pairs",
        "Pairs with a rating whose place by cosine and by rating differ most. A place is in percent of those pairs: 0 "
        "the least similar, 100 the most.",
        *(_worst(model, several=len(models) > 1) for model in models),
        *(["## Case study", CASES, *map(_cases, models)] if models[0]["cases"] else []),
        *(["## Ablation", ABLATION, *map(_ablation, metrics["ablation"])] if metrics["ablation"] else []),
        "## How it was made",
        _made(metrics),
    ]
    return "\n\n".join(parts) + "\n"


CASES = (
    "Cosines before → after the projector (Table 5 of the paper). An answer is embedded as a sentence under the "
    "condition; plain vectors, without condition, know no projector."
)
SPANS = {"sentence": "the sentence", "condition": "the condition", "all": "everything"}
ABLATION = (
    "Every encoder zero-shot: Spearman x 100 by pooling and prompt, with the condition's own vector taken away (- c) "
    "or not (Table 10 of the paper, whose figures are over its own test pairs)."
)


def has_vectors(model: dict[str, Any]) -> bool:
    """Whether the model gives vectors; else it only scores pairs."""
    return model["variants"][model["system"]]["to_mean"] is not None


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: str) -> str:
    """Somebody else's words inside a table."""
    return " ".join(value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def interval(figure: dict[str, float] | None, key: str = "value", sign: str = "") -> str:
    """A figure with its 95 % interval."""
    if figure is None:
        return NONE
    return f"{figure[key]:{sign}.2f} [{figure['low']:{sign}.2f}, {figure['high']:{sign}.2f}]"


def difference(found: dict[str, float] | None, least: float) -> str:
    """A difference with its interval and p, which is not known below `least`."""
    p = "" if found is None else f", p = {found['p']:.3g}" if found["p"] >= least else f", p < {least:g}"
    return interval(found, "difference", "+") + p


def _heading(model: dict[str, Any], several: bool) -> str:
    return f"### {model['name']}\n\n" if several else ""


def _summary(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        best = model["variants"][model["system"]]
        correlations = [interval(best[name]) for name in ("spearman", "spearman_rated", "pearson", "pearson_rated")]
        encoder = f"{model['encoder']}, {model['setting']}, {model['pooling']}"
        rows.append([model["name"], encoder, f"`{model['system']}`", str(best["dim"] or NONE), *correlations])
    header = ["model", "encoder", "vector", "dimensions", "Spearman", "Spearman without -1", "Pearson"]
    summary = table([*header, "Pearson without -1"], rows)
    seen = {"train": "was trained on these very pairs", "validation": "had its epoch chosen on these very pairs"}
    notes = [f"{model['name']} {seen[model['seen']]}." for model in models if model["seen"]]
    return "\n\n".join([summary, *notes])


def _comparison(metrics: dict[str, Any]) -> str:
    least = 2 / metrics["settings"]["resamples"]
    rows = []
    for line in metrics["comparison"]:
        cells = [difference(line[name], least) for name in ("spearman", "spearman_rated", "pearson")]
        rows.append([f"{line['model']} - {line['against']}", *cells])
    said = "By the paired bootstrap, both models over the same resamples; above 0 the first is better; p is two-sided."
    return said + "\n\n" + table(["difference", "Spearman", "Spearman without -1", "Pearson"], rows)


def _variants(model: dict[str, Any], several: bool) -> str:
    rows = []
    for name, v in model["variants"].items():
        to_mean = v["to_mean"]
        mean = f"{to_mean['mean']:.3f} ± {to_mean['std']:.3f}" if to_mean else NONE
        figures = [*(interval(v[m]) for m in ("spearman", "spearman_rated")), _number(v["isotropy"], 4), mean]
        rows.append([f"`{name}`", str(v["dim"] or NONE), *figures])
        if paper := v["published"]:
            mean = f"{paper['mean']:.3f} ± {paper['std']:.3f}"
            rows.append([f"`{name}`, in the paper", "", "", "", f"{paper['isotropy']:.4f}", mean])
    header = ["vectors", "dimensions", "Spearman", "Spearman without -1", "isotropy", "cos to mean"]
    return _heading(model, several) + table(header, rows)


def _by_rating(model: dict[str, Any], several: bool) -> str:
    rows = [
        ["-1, does not apply" if r["rating"] == -1 else f"{r['rating']:g}", f"{r['pairs']:,}"]
        + [_number(r[key]) for key in ("low", "q1", "median", "q3", "high")]
        for r in model["variants"][model["system"]]["by_rating"]
    ]
    header = ["rating", "pairs", "5 %", "25 %", "median", "75 %", "95 %"]
    return _heading(model, several) + table(header, rows)


def _worst(model: dict[str, Any], several: bool) -> str:
    rows = [
        [
            str(pair["row"]),
            *(_text(pair[name]) for name in ("condition", "sentence1", "sentence2")),
            f"{pair['rating']:g}",
            _number(pair["cosine"]),
            f"{pair['rating_rank']:.0f}",
            f"{pair['cosine_rank']:.0f}",
        ]
        for pair in model["worst"]
    ]
    header = ["row", "condition", "first sentence", "second sentence", "rating", "cosine"]
    return _heading(model, several) + table([*header, "place by rating", "by cosine"], rows)


def _cases(model: dict[str, Any]) -> str:
    rows = [
        [
            *(_text(case[name]) for name in ("sentence1", "sentence2", "condition")),
            _number(case["cosines"]["unconditional"], 4),
            _moved(case["cosines"]["sentences"]),
            *(f"{_text(case[name])}: {_moved(case['cosines'][name])}" for name in ("answer1", "answer2")),
        ]
        for case in model["cases"]
    ]
    header = ["s1", "s2", "c", "cos(s1, s2)", "cos(s1, s2; c)", "cos(s1, answer 1; c)", "cos(s2, answer 2; c)"]
    return _heading(model, True) + table(header, rows)


def _moved(cosines: dict[str, float | None]) -> str:
    before, after = (_number(cosines[name], 4) for name in ("before", "after"))
    return before if cosines["after"] is None else f"{before} → {after}"


def _ablation(part: dict[str, Any]) -> str:
    paper = any(row["published"] is not None for row in part["rows"])
    best = max((row["spearman"] for row in part["rows"] if row["spearman"] is not None), default=None)
    rows = []
    for row in part["rows"]:
        value = _number(row["spearman"])
        pooling = row["pooling"] + (f" over {SPANS[row['span']]}" if row["span"] else "")
        cells = [pooling, row["setting"], f"**{value}**" if row["spearman"] == best else value]
        rows.append([*cells, _number(row["spearman_rated"]), *([_number(row["published"])] if paper else [])])
    header = ["pooling", "prompt", "Spearman", "Spearman without -1", *(["in the paper"] if paper else [])]
    return f"### {part['encoder']}\n\n" + table(header, rows)


def _made(metrics: dict[str, Any]) -> str:
    data = metrics["data"]
    lines = [
        f"- {data['file']}: {data['rows']:,} pairs of {data['distinct']:,} distinct (sentence, condition); sha256 of "
        f"what was read\n  `{data['sha256']}`",
        *(f"- {model['name']}: encoder weights `{model['weights']}`" for model in metrics["models"]),
    ]
    return made(metrics) + "\n" + "\n".join(lines)


def made(metrics: dict[str, Any]) -> str:
    """Command, commit, date, machine, versions, settings."""
    found, settings = metrics["provenance"], metrics["settings"]
    compute = settings["compute"] or "its default format"
    return f"""    {found["command"]}

- commit {found["commit"] or "unknown"}, {found["date"]}, {found["machine"]}, {metrics["seconds"]} s
- {", ".join(f"{name} {number}" for name, number in found["versions"].items())}
- {settings["resamples"]:,} resamples, seed {settings["seed"]}, encoder in {compute}"""
