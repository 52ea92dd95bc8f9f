"""The model card of a trained model. Every figure in it comes from `metrics.json`."""

from __future__ import annotations

from typing import Any

from raycase.data.json_values import figure
from raycase.systems.contracts import SystemConfig
from raycase.systems.fine_tuned_config import FineTunedConfig
from raycase.systems.projector import Projector


def tuned_card(name: str, config: FineTunedConfig, metrics: dict[str, Any]) -> str:
    """The model card of a fine-tuned encoder."""
    validation = dict(metrics["validation"])
    threshold = validation.pop("threshold", None)  # a cosine, not x 100
    figures = "\n".join(f"| {key} | {figure(value)} |" for key, value in validation.items())
    entailed = "" if threshold is None else f" On them an entailment is best told by a cosine above {threshold:.4f}."
    history = "\n".join(
        f"| {int(h['epoch'])} | {h['loss']:.4f} | {h['seconds']:.0f} | {h['mib']:,} |" for h in metrics["history"]
    )
    settings = metrics["recipe"] | {key: metrics[key] for key in ("compute", "seed", "workers")}
    return f"""# {name}

A fine-tuned encoder: {config.label}; {metrics["parameters"]:,} trained parameters.

```python
import raycase

model = raycase.load("{name}")  # the path of this folder
```
{_elsewhere(name, config.text_of_pair)}
| on the validation data, x 100 | |
|---|---|
{figures}

The epoch was chosen on these: epoch {metrics["best_epoch"]} of {metrics["epochs"]}.{entailed}

| epoch | loss | seconds | peak MiB |
|---|---|---|---|
{history}

| data | file | rows | sha256 |
|---|---|---|---|
{_files(metrics, "rows")}

| recipe | |
|---|---|
{_table(settings)}

{_made(metrics)}
"""


def _elsewhere(name: str, text: str | None) -> str:
    """How sentence-transformers reads the folder, and how it is to write a pair as a text."""
    if text is None:
        return ""
    before = text.removesuffix("{sentence}")
    how = 'model.encode(["A sentence"])'
    if before:
        how = f'model.encode(["A sentence"], prompt="{before.replace("{condition}", "color")}")  # under "color"'
    return f"""
As a model of sentence-transformers; TEI and vLLM read this folder, too. Give texts without white space around them:
raycase takes it away, these may not.

```python
model = SentenceTransformer("{name}")
{how}
```
"""


def _files(metrics: dict[str, Any], *columns: str) -> str:
    return "\n".join(
        f"| {part} | {d['file']} | {' | '.join(str(d[c]) for c in columns)} | `{d['sha256'][:16]}` |"
        for part, d in metrics["data"].items()
    )


def _table(values: dict[str, Any]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in values.items())


def _made(metrics: dict[str, Any]) -> str:
    made = metrics["provenance"]
    run = f"Commit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}, {metrics['seconds']} s."
    return f"    {made['command']}\n\n{run}"


def case_card(name: str, config: SystemConfig, projector: Projector, metrics: dict[str, Any]) -> str:
    """The model card of a CASE system with a projector."""
    shape = projector.config
    layers = {0: "linear", 1: f"one layer, {shape.activation}", 2: f"two layers of {shape.hidden}, {shape.activation}"}
    what = f"""Condition-aware sentence embeddings: CASE (Zhang, Zhou and Bollegala, 2025) on {config.label}, whose
encoder is frozen, with a projector {shape.input_dim} -> {shape.output_dim} ({layers[shape.layers]},
dropout {shape.dropout:g} at {shape.dropout_at})."""
    return _rated_card(name, what, config, metrics, before="the same vectors without projector")


def head_card(name: str, config: SystemConfig, metrics: dict[str, Any]) -> str:
    """The model card of condition pooling with a trained head."""
    trained = "those of the encoder among them" if metrics["recipe"]["unfreeze"] else "all in the head"
    what = f"""Condition pooling on {config.model}: {config.label};
{metrics["parameters"]:,} trained parameters, {trained}.
Each sentence is encoded once, whatever the number of conditions."""
    if models := metrics["teacher_models"]:
        what += f"\nIt learned what these models say, too: {', '.join(model['name'] for model in models)}."
    return _rated_card(name, what, config, metrics, before="without training")


def _rated_card(name: str, what: str, config: SystemConfig, metrics: dict[str, Any], *, before: str) -> str:
    """The card of a model that was fitted to rated pairs: what it is, figures, epoch, data, recipe, provenance."""
    best = metrics["validation"]
    cut = {dim: value for key, value in best.items() if (dim := key.removeprefix("spearman_")).isdigit()}
    nested = "".join(
        f"| Spearman, all pairs, cut to {dim} dimensions (`dim={dim}`) | {figure(value)} |\n"
        for dim, value in cut.items()
    )
    return f"""# {name}

{what}

```python
import raycase

model = raycase.load("{name}")  # the path of this folder
vectors = model.embed(["Two girls in red dresses play soccer."], ["color of the clothes"])  # (1, {config.dim})
```

| on the validation pairs, x 100 | |
|---|---|
| Spearman, all pairs (label -1 lowest) | {figure(best["spearman"])} |
| Spearman, without label -1 | {figure(best["spearman_rated"])} |
| Pearson, all pairs | {figure(best["pearson"])} |
{nested}| {before}: Spearman, all pairs | {figure(metrics["zero_shot"]["spearman"])} |

The epoch was chosen on these pairs: epoch {metrics["best_epoch"]} of {metrics["epochs"]}.

| data | file | pairs | of them label -1 | sha256 |
|---|---|---|---|---|
{_files(metrics, "rows", "not_applicable")}

| recipe | |
|---|---|
{_table(metrics["recipe"] | {key: metrics[key] for key in ("seed", "workers")})}

Encoder weights: `{config.describe()["weights"]}`

{_made(metrics)}
"""
