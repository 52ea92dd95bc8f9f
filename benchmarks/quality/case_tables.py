"""CASE's tables and figures, for any models: Tables 2, 8 and 9 (isotropy), 5 (cases) and 10 (pooling and prompt),
Figures 3 (training curves), 5 and 6 (cosines to the mean).

    python -m benchmarks.quality.case_tables --model runs/case runs/linear minilm --data csts/validation.csv \\
        --cases benchmarks/quality/cases.csv --output runs/tables

Writes metrics.json and report.md as `raycase evaluate` does, and plots where matplotlib is installed. --cases has two
sentences, a condition, and what each sentence gives for it; --ablate adds Table 10, each encoder zero-shot.

Shapes: P distinct (sentence, condition), N rated pairs, A cases, D and K dimensions before and after g.
"""

from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

from benchmarks.quality.reports import encoder_name, number, report_parser, write_report
from benchmarks.turns import finish, has_matplotlib, png
from raycase.encoder.pooling import OVER_A_SPAN
from raycase.encoder.prompts import TokenSpan, parse_views
from raycase.evaluation.metrics import spearman
from raycase.evaluation.models import training_metrics
from raycase.evaluation.report import provenance_lines, ranked_values, table
from raycase.evaluation.tasks import TASKS, Task, csts
from raycase.io.json_values import finite
from raycase.io.rated_pairs import NOT_APPLICABLE, SENTENCE1, SENTENCE2
from raycase.io.reader import read_files
from raycase.io.schema import CONDITION
from raycase.io.vectors import cosines, pair_cosines
from raycase.models.case import CaseConfig
from raycase.models.configs import EmbedderConfig
from raycase.names import PromptStyle

SIDES = (SENTENCE1, SENTENCE2, "answer1", "answer2")
BIN = 0.02  # of cosine, in histograms
PANEL = 2.9  # inches, the height of a model's panel
WIDTH = 6.4  # inches
# Okabe and Ito's colors and distinct dashes: the curves differ for color-blind readers, and in grey.
STYLES = [
    {"color": "#E69F00", "linestyle": "--"},
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#D55E00", "linestyle": "-."},
]
LABELS = {  # of the built-in ones, as the paper writes them (Table 1); the last two are ours
    PromptStyle.SENT: "sent",
    PromptStyle.COND: "cond",
    PromptStyle.CONCAT_SC: "CONC(s + c)",
    PromptStyle.CONCAT_CS: "CONC(c + s)",
    PromptStyle.QUESTION: "question",
    PromptStyle.STATEMENT: "statement",
}
PUBLISHED = (PromptStyle.SENT, PromptStyle.COND, PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)
CASES = (
    "Cosines before → after the projector (Table 5 of the paper); one number where a model has none. An answer is "
    "embedded as a sentence under the condition. cos(s1, s2) is that of unconditional vectors: a "
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
ABLATION = (
    "Every encoder zero-shot: Spearman x 100 by pooling and prompt, with the condition's own vector taken away (- c) "
    "or not (Table 10 of the paper)."
)


def before_g(config, **changes):
    """CASE without its projector, with changes to its configuration; any other system unchanged."""
    return replace(config, projector=None, folder=None, **changes) if isinstance(config, CaseConfig) else config


def isotropy(vectors_ND, *, directions=1000, seed=0):
    """I_iso = min F(u) / max F(u), F(u) = sum over unit vectors e of exp(e . u), u random directions (CASE, eq. 5).

    Close to 1 if the vectors point in all directions, close to 0 if they crowd in one.
    """
    random_KD = np.random.default_rng(seed).standard_normal((directions, vectors_ND.shape[1]))
    unit_ND, random_KD = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-30) for x in (vectors_ND, random_KD))
    sums_K = np.zeros(directions)
    for start in range(0, len(unit_ND), 4096):  # in blocks, to bound the memory
        sums_K += np.exp(unit_ND[start : start + 4096] @ random_KD.T).sum(0)
    return float(sums_K.min() / sums_K.max())


def cosines_to_mean(vectors_ND):
    """cos(x, mean of all x): (N, D) -> (N,) (CASE, appendix C)."""
    return cosines(vectors_ND, vectors_ND.mean(axis=0, dtype=np.float64))


# ------------------------------------------------------------------------------------------------------- measures


def measure(settings, rated, models, *, cases, ablate):
    """What the tables and figures show of each model."""
    metrics = csts.measure(settings, rated, models)
    encoders = {model.config.describe()["weights"]: model for model in models if isinstance(model.config, CaseConfig)}
    return metrics | {
        "models": [measure_model(settings, rated, model, cases) for model in models],
        "ablation": [ablation(model, rated) for model in encoders.values()] if ablate else [],
    }


def measure_model(settings, rated, model, cases):
    """A model's part: its own formula and those of each step, and what its vectors are like."""
    config, variants = model.config, {}
    for formula, vectors_PD in vectors_by_formula(rated, model).items() if isinstance(config, EmbedderConfig) else ():
        to_mean_P = cosines_to_mean(vectors_PD)
        bins_P = np.floor(to_mean_P / BIN).astype(int)  # a histogram from `low` on
        counts = {"low": round(int(bins_P.min()) * BIN, 6), "counts": np.bincount(bins_P - bins_P.min()).tolist()}
        variants[formula] = {
            "dim": int(vectors_PD.shape[1]),
            "isotropy": isotropy(vectors_PD, seed=settings.seed),
            "to_mean": {"mean": float(to_mean_P.mean()), "std": float(to_mean_P.std()), "histogram": counts},
            "spearman": finite(100 * spearman(pair_cosines(vectors_PD, rated.pair_index), rated.ratings)),
        }
    return {
        "name": model.name,
        "system": config.formula,
        "own": before_g(config).formula,
        "training": training_curve(training_metrics(config)),
        "cases": case_study(model, cases, settings.compute) if cases else [],
        "variants": variants,
    }


def vectors_by_formula(rated, model):
    """The model's vectors of the distinct pairs, (P, D), by formula; of CASE also those of each step before the last:
    f and, where the prompt has a base, f - base."""
    config = model.config
    if not isinstance(config, CaseConfig):
        return {config.formula: model.embed(rated.distinct)}
    steps = [before_g(config, subtract=False)]
    if all(prompts.base is not None for prompts in config.prompts):
        steps.append(before_g(config, subtract=True))
    vectors = {step.formula: replace(model, config=step).embed(rated.distinct) for step in steps}
    if model.projector is not None:
        vectors[config.formula] = model.project(vectors[before_g(config).formula])
    return vectors


def training_curve(metrics):
    """The curve of a fit on rated pairs, by what training wrote of it: the best epoch, Spearman before training (None:
    not measured), a line for each epoch. None for a model that was not trained so."""
    history = metrics.get("history", []) if isinstance(metrics, dict) else []
    if not history or not all("spearman" in line for line in history):
        return None
    lines = [{name: line[name] for name in ("epoch", "loss", "spearman")} for line in history]
    before = metrics.get("zero_shot", {}).get("spearman")
    return {"best_epoch": metrics["best_epoch"], "before": before, "history": lines}


def ablation(model, rated):
    """Table 10 for the encoder of a model."""
    rows, applicable_N = [], rated.ratings != NOT_APPLICABLE
    for config in ablation_configs(model.config):
        pooling = config.encoder.pooling[0]
        scores_N = pair_cosines(replace(model, config=config).embed(rated.distinct), rated.pair_index)
        views = [LABELS.get(style, str(style)) for style, _ in parse_views(config.encoder.prompt)]
        span = f" over {config.prompts[0].pair.span}" if pooling in OVER_A_SPAN else ""
        row = {"pooling": f"{pooling}{span}", "setting": f"{', '.join(views)}{' - c' * config.subtract}"}
        row["spearman"] = finite(100 * spearman(scores_N, rated.ratings))
        row["spearman_rated"] = finite(100 * spearman(scores_N[applicable_N], rated.ratings[applicable_N]))
        rows.append(row)
    return {"encoder": encoder_name(model.config), "rows": rows}


def ablation_configs(config):
    """The zero-shot systems of Table 10.

    If the encoder pools its concatenations over the condition, they are also pooled over the whole text.
    """
    row = config.encoder
    for pooling in row.pooling:
        poolings = (pooling, *(p for p in row.pooling if p is not pooling))
        prompts = [str(style) for style in LABELS if style in PUBLISHED or pooling in OVER_A_SPAN]
        if row.span is TokenSpan.CONDITION and pooling in OVER_A_SPAN:
            prompts += [f"{style}:{TokenSpan.ALL}" for style in (PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)]
        for prompt in prompts:
            encoder = replace(row, prompt=prompt, pooling=poolings)
            yield before_g(config, encoder=encoder, subtract=True)
            yield before_g(config, encoder=encoder, subtract=False)


def read_cases(uri):
    """Sentences with answers, a column each."""
    cases = {name: [] for name in (*SIDES, CONDITION)}
    for _, columns in read_files(uri, tuple(cases), "--cases", words=tuple(cases)):
        for name, values in cases.items():
            values += columns[name]
    return cases


def case_study(model, cases, compute):
    """Table 5: cosines before and after g of the two sentences, and of each with its answer, under the condition.

    `unconditional` is the cosine of the two sentences' own vectors; as in the paper, g of one view projects them too.
    The answer is embedded as a sentence under the same condition. Without g, `after` is None. Runs in this process.
    """
    system = before_g(model.config).load(dtype=None if compute is None else getattr(torch, compute))
    own = {side: system.embed(cases[side], None) for side in SIDES[:2]}
    under = {side: system.embed(cases[side], cases[CONDITION]) for side in SIDES}
    one_view = model.projector is not None and model.config.views_dim == model.config.unconditional_dim

    def moved(vectors, first, second, projects):
        before_A = cosines(vectors[first], vectors[second]).tolist()
        after_A = [None] * len(before_A)
        if projects:
            after_A = cosines(model.project(vectors[first]), model.project(vectors[second])).tolist()
        return [{"before": b, "after": a} for b, a in zip(before_A, after_A, strict=True)]

    projects = model.projector is not None
    found = {
        "unconditional": moved(own, *SIDES[:2], one_view),
        "sentences": moved(under, *SIDES[:2], projects),
        "answer1": moved(under, SENTENCE1, "answer1", projects),
        "answer2": moved(under, SENTENCE2, "answer2", projects),
    }
    return [
        {name: column[i] for name, column in cases.items()} | {"cosines": {name: of[i] for name, of in found.items()}}
        for i in range(len(cases[CONDITION]))
    ]


# ------------------------------------------------------------------------------------------------------ the report


def render(metrics):
    """The report in Markdown."""
    models = metrics["models"]
    parts = [
        f"# CASE's tables and figures on {metrics['data']['file']}",
        *before_and_after(models),
        *(training_table(models) if any(model["training"] for model in models) else []),
        *(["## Case study", CASES, *map(cases_table, models)] if models[0]["cases"] else []),
        *(["## Ablation", ABLATION, *map(ablation_table, metrics["ablation"])] if metrics["ablation"] else []),
        "## How it was made",
        provenance_lines(metrics),
    ]
    return "\n\n".join(parts) + "\n"


def before_and_after(models):
    """Isotropy of CASE's vectors, step by step."""
    rows = []
    for model in models:
        variants, own, system = model["variants"], model["own"], model["system"]
        steps = [("f", "f - base")] if "f - base" in variants else []
        for step in [*steps, *([(own, system)] if own != system else [])] if variants else []:
            pair = [variants[name] for name in step]
            dims = " → ".join(dict.fromkeys(str(v["dim"]) for v in pair))
            means = " → ".join(f"{v['to_mean']['mean']:.3f} ± {v['to_mean']['std']:.3f}" for v in pair)
            isotropies = " → ".join(number(v["isotropy"], 4) for v in pair)
            rows.append([model["name"], " → ".join(f"`{name}`" for name in step), dims, isotropies, means])
    return [BEFORE_AND_AFTER, table(["model", "step", "dimensions", "isotropy", "cos to mean"], rows)] if rows else []


def training_table(models):
    """The training curves of the models that have one."""
    rows = []
    for model in filter(lambda model: model["training"], models):
        curve = model["training"]
        history, best = curve["history"], curve["best_epoch"]
        values = [number(value) for value in (curve["before"], *(history[i]["spearman"] for i in (0, best - 1, -1)))]
        losses = [f"{history[i]['loss']:.4f}" for i in (0, best - 1)]
        rows.append([model["name"], str(len(history)), str(best), *values, *losses])
    header = ["model", "epochs", "best", "Spearman before", "after the first epoch", "after the best", "after the last"]
    return ["## Training", TRAINING, table([*header, "loss of the first", "loss of the best"], rows)]


def cases_table(model):
    """The cases of a model."""

    def moved(case, name):
        before, after = (number(case["cosines"][name][when], 4) for when in ("before", "after"))
        return before if case["cosines"][name]["after"] is None else f"{before} → {after}"

    rows, nearer = [], []
    for case in model["cases"]:
        text = {name: " ".join(case[name].replace("|", "\\|").split()) for name in (*SIDES, CONDITION)}
        answers = [f"{text[name]}: {moved(case, name)}" for name in SIDES[2:]]
        both = [moved(case, name) for name in ("unconditional", "sentences")]
        rows.append([*(text[name] for name in (*SIDES[:2], CONDITION)), *both, *answers])
        answered = [case["cosines"][name] for name in SIDES[2:]]
        nearer += [answer["after"] > answer["before"] for answer in answered if answer["after"] is not None]
    header = ["s1", "s2", "c", "cos(s1, s2)", "cos(s1, s2; c)", "cos(s1, answer 1; c)", "cos(s2, answer 2; c)"]
    note = (
        f"\n\nThe projector brings {sum(nearer)} of {len(nearer)} answers nearer to their sentence." if nearer else ""
    )
    return f"### {model['name']}\n\n" + table(header, rows) + note


def ablation_table(part):
    """The settings of an encoder, the best one bold."""
    best = max((row["spearman"] for row in part["rows"] if row["spearman"] is not None), default=None)
    rows = []
    for row in part["rows"]:
        value = number(row["spearman"])
        value = f"**{value}**" if row["spearman"] == best else value
        rows.append([row["pooling"], row["setting"], value, number(row["spearman_rated"])])
    return f"### {part['encoder']}\n\n" + table(["pooling", "prompt", "Spearman", "Spearman without -1"], rows)


# ------------------------------------------------------------------------------------------------------- the plots


def cosines_figure(models):
    """The distribution of cos(x, mean) of each model's vectors at each step (figures 5 and 6 of CASE)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PANEL * len(models) + 0.4), layout="constrained")
    column = figure.subplots(len(models), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, model in zip(column, models, strict=True):
        for style, (name, variant) in zip(STYLES, model["variants"].items(), strict=False):
            to_mean = variant["to_mean"]
            low, counts = (to_mean["histogram"][key] for key in ("low", "counts"))
            edges = [low + i * BIN for i in range(len(counts) + 1)]
            shares = [100 * count / sum(counts) for count in counts]
            label = f"{name}:  {to_mean['mean']:.2f} ± {to_mean['std']:.2f}"
            axes.stairs(shares, edges, linewidth=1.8, label=label, **style)
        axes.set_title(model["name"][-45:], fontsize=10, loc="left")
        axes.set_ylabel(f"share of the vectors (%)\nper {BIN:g} of cosine")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9, title="mean ± standard deviation", title_fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    column[-1].set_xlabel("cosine of a vector to the mean of all")
    return png(figure)


def training_figure(models):
    """Spearman and loss after each epoch, a line for each model; a dot at its best epoch (figure 3 of CASE)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2 * PANEL), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for i, (style, model) in enumerate(zip(cycle(STYLES), models, strict=False)):
        curve = model["training"]
        epochs, losses, values = ([line[name] for line in curve["history"]] for name in ("epoch", "loss", "spearman"))
        best, start = curve["best_epoch"], [] if curve["before"] is None else [curve["before"]]
        style = style | {"linewidth": 1.8 if i < len(STYLES) else 0.9}
        upper.plot([0] * len(start) + epochs, start + values, label=model["name"][-45:], **style)
        upper.plot([best], [values[best - 1]], "o", color=style["color"], markersize=5)
        lower.plot(epochs, losses, **style)
    upper.set_ylabel("Spearman x 100, validation")
    lower.set(xlabel="epoch", ylabel="loss, training")
    for axes in (upper, lower):
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    return png(figure)


def main(arguments):
    """Measure, write the report and draw."""
    cases = read_cases(arguments.cases) if arguments.cases else None
    measuring = partial(measure, cases=cases, ablate=arguments.ablate)
    metrics = write_report(arguments, Task(read=TASKS["csts"].read, measure=measuring, render=render))
    shown = {"cosines_to_mean.png": (cosines_figure, "variants"), "training.png": (training_figure, "training")}
    pictures = {}
    for name, (draw, part) in shown.items() if has_matplotlib() else ():
        if models := [model for model in metrics["models"] if model[part]]:
            pictures[name] = draw(models)
            (Path(arguments.output) / name).write_bytes(pictures[name])
    finish(systems=ranked_values(metrics), pictures=[*pictures], output=arguments.output)


if __name__ == "__main__":
    parser = report_parser(__doc__)
    parser.add_argument("--cases", help="sentence1, sentence2, condition, answer1, answer2: Table 5")
    parser.add_argument("--ablate", action="store_true", help="Table 10")
    main(parser.parse_args())
