"""CASE's tables and figures, for any models: Tables 2, 8 and 9 (isotropy), 5 (cases) and 10 (pooling and prompt),
Figures 3 (training curves), 5 and 6 (cosines to the mean), and cosines by rating.

    .venv/bin/python benchmarks/case_tables.py --model runs/case runs/linear minilm --data csts/validation.csv \\
        --cases benchmarks/cases.csv --output runs/tables

Writes metrics.json and report.md as `raycase evaluate` does, and plots where matplotlib is installed. --cases has two
sentences, a condition, and what each sentence says about it; --ablate adds Table 10, each encoder zero-shot.

Shapes: P distinct (sentence, condition), N rated pairs, A cases, D and K dimensions before and after g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from reports import cell, encoder_name, heading, number, report_parser, write_report
from turns import finish, has_matplotlib, png

from raycase.encoder.pooling import OVER_A_SPAN
from raycase.encoder.prompts import TokenSpan, parse_views
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.metrics import spearman
from raycase.evaluation.models import Model, training_metrics
from raycase.evaluation.procedure import TASKS, Task
from raycase.evaluation.report import provenance_lines, ranked_values, table
from raycase.evaluation.tasks import csts
from raycase.io.json_values import finite
from raycase.io.rated_pairs import NOT_APPLICABLE, SENTENCE1, SENTENCE2, RatedPairs
from raycase.io.reader import read_files
from raycase.io.schema import CONDITION
from raycase.io.vectors import cosines, pair_cosines
from raycase.models.case import CaseConfig
from raycase.models.configs import EmbedderConfig
from raycase.names import Compute, PromptStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ANSWER1, ANSWER2 = "answer1", "answer2"
Cases = dict[str, list[str]]  # a column each: two sentences, a condition, what each sentence says about it
BIN = 0.02  # of cosine, in histograms
BOX = {"low": 5, "q1": 25, "median": 50, "q3": 75, "high": 95}  # percentiles of a box and its whiskers
MOST_RATINGS = 10  # if there are more distinct ratings, they are rounded
PANEL = 2.9  # inches, the height of a model's panel
WIDTH = 6.4  # inches
# Okabe and Ito's colors and distinct dashes: the curves differ for color-blind readers, and in grey.
STYLES: list[dict[str, Any]] = [
    {"color": "#E69F00", "linestyle": "--"},
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#D55E00", "linestyle": "-."},
]
VectorsBy = Callable[[Any], np.ndarray]  # a system's configuration -> its vectors of the rated pairs, (P, D)
DIRECTIONS = 1000  # k of eq. 5
LABELS = {  # of the built-in ones, as the paper writes them (Table 1); the last two are ours
    PromptStyle.SENT: "sent",
    PromptStyle.COND: "cond",
    PromptStyle.CONCAT_SC: "CONC(s + c)",
    PromptStyle.CONCAT_CS: "CONC(c + s)",
    PromptStyle.QUESTION: "question",
    PromptStyle.STATEMENT: "statement",
}
PUBLISHED = (PromptStyle.SENT, PromptStyle.COND, PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)

# Encoder -> pooling -> setting -> Spearman x 100, zero-shot (Table 10, appendix D). The pooling of SimCSE is that of
# appendix A.
SPEARMAN: dict[str, dict[str, dict[str, float]]] = {
    "nv-embed-v2": {"latent": {"sent - c": 16.98, "sent": 22.07, "cond - c": 37.61, "cond": 33.85}},
    "sfr-mistral": {
        "last": {"sent - c": 11.88, "sent": -0.18, "cond - c": 19.28, "cond": 13.00},
        "mean": {"sent - c": 19.54, "sent": 11.89, "cond - c": 20.44, "cond": 18.32},
    },
    "gte-qwen2-7b": {
        "last": {"sent - c": 7.16, "sent": 7.16, "cond - c": 20.40, "cond": 16.58},
        "mean": {"sent - c": 13.01, "sent": 11.34, "cond - c": 17.87, "cond": 18.42},
    },
    "e5-large-instruct": {
        "mean": {"sent - c": 11.08, "sent": 3.77, "cond - c": 15.37, "cond": 6.07},
        "last": {"sent - c": 9.28, "sent": 0.49, "cond - c": 8.90, "cond": 3.05},
    },
    "simcse-roberta-large": {
        "last": {"CONC(s + c)": 5.59, "CONC(c + s)": 4.00, "CONC(s + c) - c": 8.32, "CONC(c + s) - c": 8.58}
    },
    "simcse-bert-base": {
        "last": {"CONC(s + c)": 4.37, "CONC(c + s)": 1.25, "CONC(s + c) - c": 7.05, "CONC(c + s) - c": 6.00}
    },
}

# Encoder -> setting -> I_iso (Tables 2 and 9), mean and standard deviation of cos(x, mean) (Table 8).
ISOTROPY: dict[str, dict[str, tuple[float, float, float]]] = {
    "nv-embed-v2": {"cond - c": (0.9611, 0.407, 0.084), "cond": (0.9471, 0.492, 0.067)},
    "sfr-mistral": {"cond - c": (0.9463, 0.537, 0.055), "cond": (0.9266, 0.708, 0.021)},
    "gte-qwen2-7b": {"cond - c": (0.9490, 0.489, 0.067), "cond": (0.9310, 0.696, 0.036)},
    "e5-large-instruct": {"cond - c": (0.8906, 0.542, 0.056), "cond": (0.8368, 0.897, 0.010)},
    "simcse-bert-base": {"CONC(c + s) - c": (0.9461, 0.254, 0.095), "CONC(c + s)": (0.9297, 0.347, 0.088)},
    "simcse-roberta-large": {"CONC(c + s) - c": (0.9499, 0.248, 0.110), "CONC(c + s)": (0.9406, 0.333, 0.085)},
}
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
SPANS = {"sentence": "the sentence", "condition": "the condition", "all": "everything"}
ABLATION = (
    "Every encoder zero-shot: Spearman x 100 by pooling and prompt, with the condition's own vector taken away (- c) "
    "or not (Table 10 of the paper, whose figures are over its own test pairs)."
)


def before_g(config: Any, **changes: Any) -> Any:
    """CASE without its projector, with changes to its configuration; any other system unchanged."""
    return replace(config, projector=None, folder=None, **changes) if isinstance(config, CaseConfig) else config


def setting(config: Any) -> str:
    """Prompt and subtraction as the paper writes them (Table 1), several views in brackets; of a fine-tuned system,
    its label."""
    if not isinstance(config, CaseConfig):
        return str(config.label)
    views = [LABELS.get(style, str(style)) for style, _ in parse_views(config.encoder.prompt)]
    label = views[0] if len(views) == 1 else f"[{', '.join(views)}]"
    return f"{label} - c" if config.subtract else label


def isotropy(vectors_ND: np.ndarray, *, directions: int = 1000, seed: int = 0) -> float:
    """I_iso = min F(u) / max F(u), F(u) = sum over unit vectors e of exp(e . u), u random directions (CASE, eq. 5).

    Close to 1 if the vectors point in all directions, close to 0 if they crowd in one.
    """
    unit_ND = _unit(vectors_ND)
    random_KD = _unit(np.random.default_rng(seed).standard_normal((directions, vectors_ND.shape[1])))
    sums_K = np.zeros(directions)
    for start in range(0, len(unit_ND), 4096):  # in blocks, to bound the memory
        sums_K += np.exp(unit_ND[start : start + 4096] @ random_KD.T).sum(0)
    return float(sums_K.min() / sums_K.max())


def cosines_to_mean(vectors_ND: np.ndarray) -> np.ndarray:
    """cos(x, mean of all x): (N, D) -> (N,) (CASE, appendix C)."""
    return cosines(vectors_ND, vectors_ND.mean(axis=0, dtype=np.float64))


def _unit(vectors_ND: np.ndarray) -> np.ndarray:
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return vectors_ND / np.where(norms_N1 == 0, 1, norms_N1)


def vector_spread(vectors_PD: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Dimension, isotropy (CASE, eq. 5), mean and standard deviation of the cosines to the mean (appendix C)."""
    to_mean_P = cosines_to_mean(vectors_PD)
    return {
        "dim": int(vectors_PD.shape[1]),
        "isotropy": isotropy(vectors_PD, directions=DIRECTIONS, seed=seed),
        "to_mean": {"mean": float(to_mean_P.mean()), "std": float(to_mean_P.std())},
    }


def vectors_by_formula(rated: RatedPairs, model: Model) -> dict[str, np.ndarray]:
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


def training_curve(metrics: Any) -> dict[str, Any] | None:
    """The curve of a fit on rated pairs, by what training wrote of it: the best epoch, Spearman before training (None:
    not measured), a line for each epoch. None for a model that was not trained so."""
    history = metrics.get("history", []) if isinstance(metrics, dict) else []
    if not history or not all("spearman" in line for line in history):
        return None
    lines = [{name: line[name] for name in ("epoch", "loss", "spearman")} for line in history]
    before = metrics.get("zero_shot", {}).get("spearman")
    return {"best_epoch": metrics["best_epoch"], "before": before, "history": lines}


def ablation(config: CaseConfig, rated: RatedPairs, vectors_by: VectorsBy) -> dict[str, Any]:
    """Table 10 for one encoder, beside the paper's figures where it has them."""
    published = SPEARMAN.get(encoder_name(config), {})
    rows = []
    for variant in ablation_configs(config):
        pooling = variant.encoder.pooling[0]
        scores_N, applicable_N = pair_cosines(vectors_by(variant), rated.pair_index), rated.ratings != NOT_APPLICABLE
        rows.append(
            {
                "pooling": str(pooling),
                "span": str(variant.prompts[0].pair.span) if pooling in OVER_A_SPAN else None,
                "setting": setting(variant),
                "spearman": finite(100 * spearman(scores_N, rated.ratings)),
                "spearman_rated": finite(100 * spearman(scores_N[applicable_N], rated.ratings[applicable_N])),
                "published": published.get(pooling, {}).get(setting(variant)),
            }
        )
    return {"encoder": encoder_name(config), "rows": rows}


def ablation_configs(config: CaseConfig) -> list[CaseConfig]:
    """The zero-shot systems of Table 10.

    If the encoder pools its concatenations over the condition, they are also pooled over the whole text.
    """
    row = config.encoder
    configs = []
    for pooling in row.pooling:
        poolings = (pooling, *(p for p in row.pooling if p is not pooling))
        prompts = [str(style) for style in LABELS if style in PUBLISHED or pooling in OVER_A_SPAN]
        if row.span is TokenSpan.CONDITION and pooling in OVER_A_SPAN:
            prompts += [f"{style}:{TokenSpan.ALL}" for style in (PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)]
        for prompt in prompts:
            encoder = replace(row, prompt=prompt, pooling=poolings)
            configs += [
                replace(config, encoder=encoder, subtract=subtract, projector=None, folder=None)
                for subtract in (True, False)
            ]
    return configs


def _vectors_by(model: Model, rated: RatedPairs) -> VectorsBy:
    return lambda config: replace(model, config=config).embed(rated.distinct)


def read_cases(uri: str) -> Cases:
    """Sentences with answers. Raises RequestError for a missing column, an empty text, a file without rows."""
    cases: Cases = {name: [] for name in (SENTENCE1, SENTENCE2, CONDITION, ANSWER1, ANSWER2)}
    for _, columns in read_files(uri, tuple(cases), "--cases", words=tuple(cases)):
        for name, values in cases.items():
            values += columns[name]
    if not cases[CONDITION]:
        raise RequestError(f"--cases: expected sentences with answers in {uri}, got no rows")
    return cases


def case_study(model: Model, cases: Cases, compute: Compute | None) -> list[dict[str, Any]]:
    """Table 5: cosines before and after g of the two sentences, and of each with its answer, under the condition.

    `unconditional` is the cosine of the two sentences' own vectors; as in the paper, g of one view projects them too.
    The answer is embedded as a sentence under the same condition. Without g, `after` is None. Runs in this process.
    Raises RequestError for a text without a vector.
    """
    system = before_g(model.config).load(dtype=None if compute is None else getattr(torch, compute))
    sides = (SENTENCE1, SENTENCE2, ANSWER1, ANSWER2)
    try:
        plain = {side: system.embed(cases[side], None) for side in sides[:2]}
        before = {side: system.embed(cases[side], cases[CONDITION]) for side in sides}
    except ValueError as error:
        raise RequestError(f"--cases: expected texts that {model.name} can embed, got {error}") from error
    one_view = model.projector is not None and model.config.views_dim == model.config.unconditional_dim
    after = {side: model.project(before[side]) for side in sides} if model.projector else {}
    plain_after = {side: model.project(plain[side]) for side in plain} if one_view else {}
    both = {
        "unconditional": _moved(plain, plain_after, SENTENCE1, SENTENCE2),
        "sentences": _moved(before, after, SENTENCE1, SENTENCE2),
        ANSWER1: _moved(before, after, SENTENCE1, ANSWER1),
        ANSWER2: _moved(before, after, SENTENCE2, ANSWER2),
    }
    return [
        {name: column[i] for name, column in cases.items()}
        | {"cosines": {name: moved[i] for name, moved in both.items()}}
        for i in range(len(cases[CONDITION]))
    ]


def _moved(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], first: str, second: str
) -> list[dict[str, float | None]]:
    """The cosine of each case's two texts before and after g; None without vectors after it."""
    before_A = cosines(before[first], before[second]).tolist()
    after_A = cosines(after[first], after[second]).tolist() if after else [None] * len(before_A)
    return [{"before": b, "after": a} for b, a in zip(before_A, after_A, strict=True)]


def _published_isotropy(config: CaseConfig) -> dict[str, float] | None:
    """The paper's figures of this encoder in this setting; it has them for the encoder's default pooling."""
    row = ENCODERS.get(encoder_name(config))
    published = ISOTROPY.get(encoder_name(config), {}).get(setting(config))
    if row is None or published is None or row.pooling[0] is not config.encoder.pooling[0]:
        return None
    return dict(zip(("isotropy", "mean", "std"), published, strict=True))


def by_rating(scores_N: np.ndarray, ratings_N: np.ndarray) -> list[dict[str, float]]:
    """The distribution of the cosines of each rating: the percentiles of `BOX`, and the number of pairs."""
    if len(np.unique(ratings_N)) > MOST_RATINGS:
        ratings_N = np.floor(ratings_N + 0.5)
    rows = []
    for rating in np.unique(ratings_N):
        inside = scores_N[ratings_N == rating]
        box = zip(BOX, np.percentile(inside, list(BOX.values())), strict=True)
        rows.append({"rating": float(rating), "pairs": len(inside)} | {name: float(value) for name, value in box})
    return rows


def _histogram(cosines_P: np.ndarray) -> dict[str, Any]:
    """Counts in bins of width `BIN`, the first of which starts at `low`."""
    bins_P = np.floor(cosines_P / BIN).astype(int)
    return {"low": round(int(bins_P.min()) * BIN, 6), "bin": BIN, "counts": np.bincount(bins_P - bins_P.min()).tolist()}


def measure(
    flags: EvaluateFlags,
    rated: RatedPairs,
    models: Sequence[Model],
    *,
    cases: Cases | None = None,
    ablate: bool = False,
) -> dict[str, Any]:
    """What the tables and figures show of each model."""
    metrics = csts.measure(flags, rated, models)
    metrics["models"] = [_measure_model(flags, rated, model, cases) for model in models]
    encoders = {model.config.describe()["weights"]: model for model in models if isinstance(model.config, CaseConfig)}
    tables = [ablation(m.config, rated, _vectors_by(m, rated)) for m in encoders.values()] if ablate else []
    return metrics | {"ablation": tables}


def _measure_model(flags: EvaluateFlags, rated: RatedPairs, model: Model, cases: Cases | None) -> dict[str, Any]:
    """A model's part: its own formula and those of each step, and what its vectors are like."""
    config, variants = model.config, {}
    for formula, vectors_PD in vectors_by_formula(rated, model).items() if isinstance(config, EmbedderConfig) else ():
        scores_N = pair_cosines(vectors_PD, rated.pair_index)
        subtract = {"f": False, "f - base": True}.get(formula)
        known = isinstance(config, CaseConfig) and subtract is not None
        variants[formula] = vector_spread(vectors_PD, seed=flags.seed) | {
            "spearman": finite(100 * spearman(scores_N, rated.ratings)),
            "by_rating": by_rating(scores_N, rated.ratings),
            "published": _published_isotropy(before_g(config, subtract=subtract)) if known else None,
        }
        variants[formula]["to_mean"]["histogram"] = _histogram(cosines_to_mean(vectors_PD))
    return {
        "name": model.name,
        "system": config.formula,
        "own": before_g(config).formula,
        "training": training_curve(training_metrics(config)),
        "cases": case_study(model, cases, flags.compute) if cases else [],
        "variants": variants,
    }


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown."""
    models = metrics["models"]
    embedding = list(filter(has_vectors, models))
    parts = [
        f"# CASE's tables and figures on {metrics['data']['file']}",
        *_before_and_after(embedding),
        *(["## Training", *_training(metrics)] if any(model["training"] for model in models) else []),
        *(["## Case study", CASES, *map(_cases, models)] if models[0]["cases"] else []),
        *(["## Ablation", ABLATION, *map(_ablation, metrics["ablation"])] if metrics["ablation"] else []),
        "## How it was made",
        provenance_lines(metrics),
    ]
    return "\n\n".join(parts) + "\n"


def has_vectors(model: dict[str, Any]) -> bool:
    """Whether a model of `metrics.json` gives vectors, and does not only score pairs."""
    return bool(model["variants"])


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
    ]


def _cases(model: dict[str, Any]) -> str:
    rows = [
        [
            *(cell(case[name]) for name in ("sentence1", "sentence2", "condition")),
            *(_before_after(case["cosines"][name]) for name in ("unconditional", "sentences")),
            *(f"{cell(case[name])}: {_before_after(case['cosines'][name])}" for name in ("answer1", "answer2")),
        ]
        for case in model["cases"]
    ]
    header = ["s1", "s2", "c", "cos(s1, s2)", "cos(s1, s2; c)", "cos(s1, answer 1; c)", "cos(s2, answer 2; c)"]
    answers = [case["cosines"][name] for case in model["cases"] for name in ("answer1", "answer2")]
    after = [answer for answer in answers if answer["after"] is not None]
    nearer = sum(answer["after"] > answer["before"] for answer in after)
    note = f"\n\nThe projector brings {nearer} of {len(after)} answers nearer to their sentence." if after else ""
    return heading(model, True) + table(header, rows) + note


def _before_after(cosines: dict[str, float | None]) -> str:
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


def draw(models: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """The plots as PNG by file name, with a panel for each model of `metrics.json`."""
    pictures = {}
    if with_vectors := [model for model in models if has_vectors(model)]:
        pictures["cosine_by_rating.png"] = png(_figure(with_vectors, by_rating_panel))
        pictures["cosines_to_mean.png"] = png(_figure(with_vectors, to_mean_panel))
    trained = [model for model in models if model["training"]]
    if trained:
        pictures["training.png"] = png(training_curves(trained))
    return pictures


def _figure(models: Sequence[dict[str, Any]], panel: Callable[[Axes, dict[str, Any]], None]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PANEL * len(models) + 0.4), layout="constrained")
    column = figure.subplots(len(models), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axes, model in zip(column, models, strict=True):
        panel(axes, model)
        axes.set_title(model["name"][-45:], fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in column[:-1]:
        axes.set_xlabel("")
    return figure


def to_mean_panel(axes: Axes, model: dict[str, Any]) -> None:
    """Distribution of cos(x, mean) of each kind of vector (figures 5 and 6)."""
    for style, (name, variant) in zip(STYLES, model["variants"].items(), strict=False):
        to_mean = variant["to_mean"]
        low, width, counts = (to_mean["histogram"][key] for key in ("low", "bin", "counts"))
        edges = [low + i * width for i in range(len(counts) + 1)]
        shares = [100 * count / sum(counts) for count in counts]
        axes.stairs(
            shares, edges, linewidth=1.8, label=f"{name}:  {to_mean['mean']:.2f} ± {to_mean['std']:.2f}", **style
        )
    axes.set_xlabel("cosine of a vector to the mean of all")
    axes.set_ylabel(f"share of the vectors (%)\nper {width:g} of cosine")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, title="mean ± standard deviation", title_fontsize=9)


def by_rating_panel(axes: Axes, model: dict[str, Any]) -> None:
    """Cosines of the pairs of each rating, before and after g: boxes of the quartiles, whiskers from 5 % to 95 %."""
    names = list(dict.fromkeys([model["own"], model["system"]]))
    ratings = [row["rating"] for row in model["variants"][names[0]]["by_rating"]]
    width = min(0.4, 0.7 / len(names))
    for k, name in enumerate(names):
        rows = model["variants"][name]["by_rating"]
        boxes = [
            {"whislo": row["low"], "q1": row["q1"], "med": row["median"], "q3": row["q3"], "whishi": row["high"]}
            for row in rows
        ]
        color = STYLES[1 + k]["color"]
        axes.bxp(
            boxes,
            positions=[i + (k - (len(names) - 1) / 2) * width for i in range(len(rows))],
            widths=0.85 * width,
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": color, "alpha": 0.35 + 0.25 * k, "edgecolor": color},
            medianprops={"color": "black", "linewidth": 1.6},
            whiskerprops={"color": color},
            capprops={"color": color},
        )
        axes.plot([], [], "s", color=color, alpha=0.35 + 0.25 * k, label=name)
    pairs = [row["pairs"] for row in model["variants"][names[0]]["by_rating"]]
    words = ["does not\napply" if rating == -1 else f"{rating:g}" for rating in ratings]
    axes.set_xticks(range(len(ratings)), [f"{word}\n(n = {n})" for word, n in zip(words, pairs, strict=True)])
    axes.set_xlabel("people's rating (box: quartiles; whiskers: 5 % to 95 % of the pairs)")
    axes.set_ylabel("cosine of the pair")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, ncols=len(names), loc="lower right", bbox_to_anchor=(1, 1), borderpad=0)


def training_curves(models: Sequence[dict[str, Any]]) -> Figure:
    """Spearman and loss after each epoch, a line for each model; a dot at its best epoch (figure 3 of CASE)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2 * PANEL), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for i, (style, model) in enumerate(zip(cycle(STYLES), models, strict=False)):
        curve = model["training"]
        epochs, losses, spearman = ([line[name] for line in curve["history"]] for name in ("epoch", "loss", "spearman"))
        best, start = curve["best_epoch"], [] if curve["before"] is None else [curve["before"]]
        style = style | {"linewidth": 1.8 if i < len(STYLES) else 0.9}
        upper.plot([0] * len(start) + epochs, start + spearman, label=model["name"][-45:], **style)
        upper.plot([best], [spearman[best - 1]], "o", color=style["color"], markersize=5)
        lower.plot(epochs, losses, **style)
    upper.set_ylabel("Spearman x 100, validation")
    lower.set_ylabel("loss, training")
    lower.set_xlabel("epoch")
    for axes in (upper, lower):
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def main(arguments):
    """Measure, write the report and draw."""
    cases = read_cases(arguments.cases) if arguments.cases else None
    measuring = partial(measure, cases=cases, ablate=arguments.ablate)
    metrics = write_report(arguments, Task(read=TASKS["csts"].read, measure=measuring, render=render))
    pictures = draw(metrics["models"]) if has_matplotlib() else {}
    for name, image in pictures.items():
        (Path(arguments.output) / name).write_bytes(image)
    finish({"ratios": {}, "systems": ranked_values(metrics), "pictures": list(pictures), "output": arguments.output})


if __name__ == "__main__":
    parser = report_parser(__doc__)
    parser.add_argument("--cases", help="sentence1, sentence2, condition, answer1, answer2: Table 5")
    parser.add_argument("--ablate", action="store_true", help="Table 10")
    main(parser.parse_args())
