"""The report on rated pairs (C-STS), made from its metrics.json alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycase.evaluation.report import NOT_AVAILABLE, difference, interval, number, picture, provenance_lines, table
from raycase.evaluation.scores import CORRELATIONS
from raycase.evaluation.seeds import FiguresOf, seeds_section


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown; `metrics` holds every figure in it."""
    data, models = metrics["data"], metrics["models"]
    parts = [
        f"# {', '.join(model['name'] for model in models)} on {data['file']}",
        f"Conditional semantic textual similarity: the cosine of two sentences' vectors under a condition, against "
        f"people's rating; {data['rows']:,} pairs, to {data['not_applicable']:,} of which the condition does not apply "
        f"(label -1). Correlations are x 100, with 95 % intervals of the bootstrap over sentence pairs.",
        _summary(models),
        *(["## Differences", _comparison(metrics)] if metrics["comparison"] else []),
        *seeds_section(metrics),
        "## Vectors",
        "`f` is the encoder's vector, `base` the condition's own (eq. 1), `g` the projector. Isotropy is I_iso of "
        f"eq. 5 over {metrics['settings']['directions']:,} directions, 1 where vectors point everywhere; cos to mean "
        "is the cosine of a vector to the mean of all (appendix C).",
        *(_variants(model, several=len(models) > 1) for model in models),
        *_before_and_after(models),
        *(picture(metrics, "Cosine to the mean", "cosines_to_mean.png") if any(map(has_vectors, models)) else []),
        *(["## Training", *_training(metrics)] if any(model["training"] for model in models) else []),
        "## Cosine by rating",
        *(_by_rating(model, several=len(models) > 1) for model in models),
        *picture(metrics, "Cosine by rating", "cosine_by_rating.png"),
        "## Conditions by how often training has them",
        *_by_times(metrics),
        "## Two conditions of the same sentences",
        _order(metrics),
        "## The worst pairs",
        "Pairs with a rating whose place by cosine and by rating differ most. A place is in percent of those pairs: 0 "
        "the least similar, 100 the most.",
        *(_worst(model, several=len(models) > 1) for model in models),
        "## The worst conditions",
        *_worst_conditions(metrics),
        *(["## Case study", CASES, *map(_cases, models)] if models[0]["cases"] else []),
        *(["## Ablation", ABLATION, *map(_ablation, metrics["ablation"])] if metrics["ablation"] else []),
        "## How it was made",
        _made(metrics),
    ]
    return "\n\n".join(parts) + "\n"


def figures(metrics: dict[str, Any]) -> FiguresOf:
    """The correlations of each model, for the comparison of seeds."""
    found: FiguresOf = {}
    for model in metrics["models"]:
        best = model["variants"][model["system"]]
        found[model["name"]] = {name: best[name] and best[name]["value"] for name in CORRELATIONS}
    return found


CASES = (
    "Cosines before → after the projector (Table 5 of the paper); one number where a model has none. An answer is "
    "embedded as a sentence under the condition. cos(s1, s2) is that of plain vectors, without the condition: a "
    "projector of one view takes them too, though it was not trained on them."
)
BEFORE_AND_AFTER = (
    "Isotropy before → after a step (Tables 2, 8 and 9 of the paper): the base taken away, and the projector. More "
    "isotropic is a higher isotropy and a lower cosine to the mean. Of the same spread, I_iso is higher in more "
    "dimensions: where they change, compare the cosines to the mean."
)
TRAINING = (
    "Loss of the training pairs, and Spearman x 100 of training's own validation pairs after each epoch, as training "
    "recorded them in the model's folder (Figure 3 of the paper). `metrics.json` has every epoch."
)
SPANS = {"sentence": "the sentence", "condition": "the condition", "all": "everything"}
ABLATION = (
    "Every encoder zero-shot: Spearman x 100 by pooling and prompt, with the condition's own vector taken away (- c) "
    "or not (Table 10 of the paper, whose figures are over its own test pairs)."
)


def has_vectors(model: dict[str, Any]) -> bool:
    """Whether a model of `metrics.json` gives vectors, and does not only score pairs."""
    return model["variants"][model["system"]]["to_mean"] is not None


def _text(value: str) -> str:
    """Text of the data, escaped for a cell of a table."""
    return " ".join(value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def _heading(model: dict[str, Any], several: bool) -> str:
    return f"### {model['name']}\n\n" if several else ""


def _summary(models: Sequence[dict[str, Any]]) -> str:
    rows = []
    for model in models:
        best = model["variants"][model["system"]]
        correlations = [interval(best[name]) for name in ("spearman", "spearman_rated", "pearson", "pearson_rated")]
        encoder = f"{model['encoder']}, {model['setting']}, {model['pooling']}"
        rows.append([model["name"], encoder, f"`{model['system']}`", str(best["dim"] or NOT_AVAILABLE), *correlations])
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
    note = "By the paired bootstrap, both models over the same resamples; above 0 the first is better; p is two-sided."
    return note + "\n\n" + table(["difference", "Spearman", "Spearman without -1", "Pearson"], rows)


def _variants(model: dict[str, Any], several: bool) -> str:
    rows = []
    for name, v in model["variants"].items():
        to_mean = v["to_mean"]
        mean = f"{to_mean['mean']:.3f} ± {to_mean['std']:.3f}" if to_mean else NOT_AVAILABLE
        figures = [*(interval(v[m]) for m in ("spearman", "spearman_rated")), number(v["isotropy"], 4), mean]
        rows.append([f"`{name}`", str(v["dim"] or NOT_AVAILABLE), *figures])
        if paper := v["published"]:
            mean = f"{paper['mean']:.3f} ± {paper['std']:.3f}"
            rows.append([f"`{name}`, in the paper", "", "", "", f"{paper['isotropy']:.4f}", mean])
    header = ["vectors", "dimensions", "Spearman", "Spearman without -1", "isotropy", "cos to mean"]
    return _heading(model, several) + table(header, rows)


def _before_and_after(models: Sequence[dict[str, Any]]) -> list[str]:
    """Isotropy of CASE's vectors, step by step."""
    rows = []
    for model in models:
        variants, own, system = model["variants"], model["own"], model["system"]
        steps = [("f", "f - base")] if "f - base" in variants else []
        for before, after in [*steps, *([(own, system)] if own != system else [])]:
            pair = [variants[before], variants[after]]
            dims = " → ".join(dict.fromkeys(str(v["dim"]) for v in pair))
            rows.append([model["name"], f"`{before}` → `{after}`", dims, *_isotropy(pair)])
            published = [v["published"] for v in pair]
            if all(published):
                flat = [{"isotropy": paper["isotropy"], "to_mean": paper} for paper in published]
                rows.append([model["name"], f"`{before}` → `{after}`, in the paper", "", *_isotropy(flat)])
    return [BEFORE_AND_AFTER, table(["model", "step", "dimensions", "isotropy", "cos to mean"], rows)] if rows else []


def _isotropy(pair: Sequence[dict[str, Any]]) -> list[str]:
    """Isotropy and cosine to the mean, before → after."""
    means = (f"{v['to_mean']['mean']:.3f} ± {v['to_mean']['std']:.3f}" for v in pair)
    return [" → ".join(number(v["isotropy"], 4) for v in pair), " → ".join(means)]


def _training(metrics: dict[str, Any]) -> list[str]:
    """The training curves of the models that have one."""
    rows = []
    for model in filter(lambda model: model["training"], metrics["models"]):
        curve = model["training"]
        history, best = curve["history"], curve["best_epoch"]
        spearman = [number(value) for value in (curve["before"], *(history[i]["spearman"] for i in (0, best - 1, -1)))]
        losses = [f"{history[i]['loss']:.4f}" for i in (0, best - 1)]
        rows.append([model["name"], str(len(history)), str(best), *spearman, *losses])
    header = ["model", "epochs", "best", "Spearman before", "after the first epoch", "after the best", "after the last"]
    return [
        TRAINING,
        table([*header, "loss of the first", "loss of the best"], rows),
        *picture(metrics, "Training curves", "training.png"),
    ]


def _by_rating(model: dict[str, Any], several: bool) -> str:
    rows = [
        ["-1, does not apply" if r["rating"] == -1 else f"{r['rating']:g}", f"{r['pairs']:,}"]
        + [number(r[key]) for key in ("low", "q1", "median", "q3", "high")]
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
            number(pair["cosine"]),
            f"{pair['rating_rank']:.0f}",
            f"{pair['cosine_rank']:.0f}",
        ]
        for pair in model["worst"]
    ]
    header = ["row", "condition", "first sentence", "second sentence", "rating", "cosine"]
    return _heading(model, several) + table([*header, "place by rating", "by cosine"], rows)


def _by_times(metrics: dict[str, Any]) -> list[str]:
    training, models = metrics["conditions"]["training"], metrics["models"]
    if training is None:
        return ["Left out: no training data was given (`--train`)."]
    about = (
        f"Correlations of the pairs whose condition is that of so many rows of {training['file']}. Counted are all "
        f"its {training['rows']:,} rows, label -1 too, with {training['conditions']:,} conditions, which are compared "
        "as written, stripped and case-folded."
    )
    header = ["rows in training", "conditions", "pairs", "of them rated", "Spearman", "Spearman without -1"]
    parts = []
    for model in models:
        rows = [
            [_span(group["least"], group["most"]), *(f"{group[n]:,}" for n in ("conditions", "pairs", "rated"))]
            + [interval(figures[name]) for name in ("spearman", "spearman_rated")]
            for group, figures in zip(training["groups"], model["by_times"], strict=True)
        ]
        parts.append(_heading(model, several=len(models) > 1) + table(header, rows))
    return [about, *parts]


def _span(least: int, most: int | None) -> str:
    if most is None:
        return f"more than {least - 1}"
    return f"{least}" if least == most else f"{least} to {most}"


def _order(metrics: dict[str, Any]) -> str:
    count = metrics["conditions"]["order_pairs"]
    about = (
        f"How often, in percent, a model puts the same two sentences under two conditions in the order of their "
        f"ratings: {count['all']:,} times the ratings differ, {count['rated']:,} times without label -1, which is the "
        "lowest. A tie of the model counts half; 50 is chance."
    )
    rows = [[m["name"], *(interval(m["order"][name]) for name in ("all", "rated"))] for m in metrics["models"]]
    return about + "\n\n" + table(["model", "right order", "right order without -1"], rows)


def _worst_conditions(metrics: dict[str, Any]) -> list[str]:
    conditions, models = metrics["conditions"], metrics["models"]
    about = (
        f"Of the {conditions['enough_pairs']:,} conditions with {conditions['least_pairs']} rated pairs or more, those "
        "whose pairs' places by cosine and by rating are farthest apart, by the mean of the distances; over all pairs "
        "it is about 33 by chance. Spearman is over the condition's own pairs."
    )
    header = ["condition", "rated pairs", "places apart", "mean place by rating", "by cosine", "Spearman"]
    parts = []
    for model in models if conditions["enough_pairs"] else []:
        rows = [
            [_text(line["condition"]), f"{line['pairs']:,}"]
            + [number(line[name], 1) for name in ("distance", "rating_rank", "cosine_rank")]
            + [number(line["spearman"])]
            for line in model["worst_conditions"]
        ]
        parts.append(_heading(model, several=len(models) > 1) + table(header, rows))
    return [about, *parts]


def _cases(model: dict[str, Any]) -> str:
    rows = [
        [
            *(_text(case[name]) for name in ("sentence1", "sentence2", "condition")),
            *(_moved(case["cosines"][name]) for name in ("unconditional", "sentences")),
            *(f"{_text(case[name])}: {_moved(case['cosines'][name])}" for name in ("answer1", "answer2")),
        ]
        for case in model["cases"]
    ]
    header = ["s1", "s2", "c", "cos(s1, s2)", "cos(s1, s2; c)", "cos(s1, answer 1; c)", "cos(s2, answer 2; c)"]
    answers = [case["cosines"][name] for case in model["cases"] for name in ("answer1", "answer2")]
    after = [answer for answer in answers if answer["after"] is not None]
    nearer = sum(answer["after"] > answer["before"] for answer in after)
    note = f"\n\nThe projector brings {nearer} of {len(after)} answers nearer to their sentence." if after else ""
    return _heading(model, True) + table(header, rows) + note


def _moved(cosines: dict[str, float | None]) -> str:
    before, after = (number(cosines[name], 4) for name in ("before", "after"))
    return before if cosines["after"] is None else f"{before} → {after}"


def _ablation(part: dict[str, Any]) -> str:
    paper = any(row["published"] is not None for row in part["rows"])
    best = max((row["spearman"] for row in part["rows"] if row["spearman"] is not None), default=None)
    rows = []
    for row in part["rows"]:
        value = number(row["spearman"])
        pooling = row["pooling"] + (f" over {SPANS[row['span']]}" if row["span"] else "")
        cells = [pooling, row["setting"], f"**{value}**" if row["spearman"] == best else value]
        rows.append([*cells, number(row["spearman_rated"]), *([number(row["published"])] if paper else [])])
    header = ["pooling", "prompt", "Spearman", "Spearman without -1", *(["in the paper"] if paper else [])]
    return f"### {part['encoder']}\n\n" + table(header, rows)


def _made(metrics: dict[str, Any]) -> str:
    data, training = metrics["data"], metrics["conditions"]["training"]
    lines = [
        f"- {data['file']}: {data['rows']:,} pairs of {data['distinct']:,} distinct (sentence, condition); sha256 of "
        f"what was read\n  `{data['sha256']}`",
        *([f"- {training['file']}: {training['rows']:,} rows; sha256 `{training['sha256']}`"] if training else []),
        *(f"- {model['name']}: encoder weights `{model['weights']}`" for model in metrics["models"]),
    ]
    return provenance_lines(metrics) + "\n" + "\n".join(lines)
