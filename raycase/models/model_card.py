"""The model card of a trained model. Every figure in it comes from `metrics.json`."""

import textwrap
from typing import Any

from raycase.io.json_values import figure
from raycase.models.configs import SystemConfig

MOST_FILES, MOST_LETTERS = 4, 300  # of the data and of the command; metrics.json has all


def fine_tuned_card(name: str, config: SystemConfig, metrics: dict[str, Any]) -> str:
    """The model card of a fine-tuned encoder."""
    validation = dict(metrics["validation"])
    threshold = validation.pop("threshold", None)  # a cosine, not x 100
    best = "" if threshold is None else f" The best threshold of a cosine on them is {threshold:.4f}."
    what = f"A fine-tuned encoder: {config.label}; {metrics['parameters']:,} trained parameters."
    return _card(name, what, validation, metrics, usage=_elsewhere(name, config.text_of_pair), behind=best)


def _elsewhere(name: str, text: str | None) -> str:
    """How sentence-transformers reads the folder, and how it is to write a pair as a text."""
    if text is None:
        return ""
    prompt = text.removesuffix("{sentence}").replace("{condition}", "color")
    how = f', prompt="{prompt}")  # under "color"' if prompt else ")"
    return f"""
As a model of sentence-transformers; TEI and vLLM read this folder, too. Give texts without white space around them:
raycase takes it away, these may not.

```python
model = SentenceTransformer("{name}")
model.encode(["A sentence"]{how}
```
"""


def case_card(name: str, config: Any, metrics: dict[str, Any]) -> str:
    """The model card of a CASE system with a projector."""
    g = config.projector
    layers = {0: "linear", 1: f"one layer, {g.activation}", 2: f"two layers of {g.hidden}, {g.activation}"}
    what = f"""Condition-aware sentence embeddings: CASE (Zhang, Zhou and Bollegala, 2025) on {config.label}, whose
encoder is frozen, with a projector {g.input_dim} -> {g.output_dim} ({layers[g.layers]},
dropout {g.dropout:g} at {g.dropout_at})."""
    return _rated_card(name, what, config, metrics, before="the same vectors without projector")


def head_card(name: str, config: SystemConfig, metrics: dict[str, Any]) -> str:
    """The model card of condition pooling with a trained head."""
    what = f"""Condition pooling on {config.name}: {config.label};
{metrics["parameters"]:,} trained parameters, all in the head.
Each sentence is encoded once, whatever the number of conditions."""
    if models := metrics["teacher_models"]:
        what += f"\nIt learned what these models say, too: {', '.join(model['name'] for model in models)}."
    if stated := metrics.get("stated"):
        what += f"""
Whether a text states anything of a condition: AUC {stated["auc"]:.1f} x 100, expected calibration error
{stated["calibration_error"]:.1f} %, on {stated["texts"]:,} left-out texts, each under a condition."""
    return _rated_card(name, what, config, metrics, before="without training")


def _rated_card(name: str, what: str, config: SystemConfig, metrics: dict[str, Any], *, before: str) -> str:
    """The card of a model whose encoder stands elsewhere, and that is compared with the one before training."""
    figures = {f"spearman, {before}": metrics["zero_shot"]["spearman"]}
    for key, value in metrics["validation"].items():
        dim = key.removeprefix("spearman_")
        figures[f"spearman, cut to {dim} dimensions (`dim={dim}`)" if dim.isdigit() else key] = value
    usage = f"""
```python
vectors = model.embed(["Two girls in red dresses play soccer."], ["color of the clothes"])  # (1, {config.dim})
```
"""
    what += f"\n\nEncoder weights: `{config.describe()['weights']}`"
    return _card(name, what, figures, metrics, usage=usage)


def _card(
    name: str, what: str, figures: dict[str, Any], metrics: dict[str, Any], *, usage: str = "", behind: str = ""
) -> str:
    """What a model is, how it is loaded, its figures, data, recipe and provenance."""
    data = list(metrics["data"].items())
    rows = "".join(f"| {part} | {d['file']} | {d['rows']} | `{d['sha256'][:16]}` |\n" for part, d in data[:MOST_FILES])
    if more := data[MOST_FILES:]:
        rows += f"| {len(more)} more | | {sum(d['rows'] for _, d in more)} | |\n"
    settings = {key: metrics[key] for key in ("compute", "seed", "workers") if key in metrics}
    made = metrics["provenance"]
    command = textwrap.shorten(made["command"], MOST_LETTERS, placeholder=" ...")
    return f"""# {name}

{what}

```python
import raycase

model = raycase.load("{name}")  # the path of this folder
```
{usage}
| on the validation data, x 100 | |
|---|---|
{_table({key: figure(value) for key, value in figures.items()})}
The epoch was chosen on these: epoch {metrics["best_epoch"]} of {metrics["epochs"]}.{behind}
`metrics.json` has every epoch, file and argument.

| data | file | rows | sha256 |
|---|---|---|---|
{rows}
| recipe | |
|---|---|
{_table(metrics["recipe"] | settings)}
    {command}

Commit {made["commit"] or "unknown"}, {made["date"]}, {made["machine"]}, {metrics["seconds"]} s.
"""


def _table(values: dict[str, Any]) -> str:
    return "".join(f"| {key} | {value} |\n" for key, value in values.items())
