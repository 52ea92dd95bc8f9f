"""The folder that training leaves: the model, `metrics.json`, and a model card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from raycase.data.claim import claim
from raycase.data.storage import locate
from raycase.errors import RequestError
from raycase.systems.case import CaseConfig, save
from raycase.systems.projector import WEIGHTS, Projector

SYSTEM, METRICS, CARD = "raycase.json", "metrics.json", "README.md"


def open_model_folder(folder: Path, fingerprint: str, *, overwrite: bool = False) -> dict[str, Any] | None:
    """Return the metrics of the model in a folder if it has this fingerprint, None if there is none yet.

    Raises RequestError where the folder holds another model, unless `overwrite`.
    """
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"--output: expected a folder, got the file {folder}")
    root = locate(str(folder))
    results = (SYSTEM, WEIGHTS, CARD)
    metrics = claim(root, METRICS, fingerprint, job="this very model", results=results, overwrite=overwrite)
    return metrics if (root / SYSTEM).exists() else None


def write_model_folder(folder: Path, config: CaseConfig, projector: Projector, metrics: dict[str, Any]) -> None:
    """Write a CASE system with its projector."""
    card = _case_card(folder.name, config, projector, metrics)
    write_folder(folder, metrics, card, lambda folder: save(folder, config, projector))


def write_folder(folder: Path, metrics: dict[str, Any], card: str, save: Callable[[Path], None]) -> None:
    """Write the figures, the model card and, by `save`, the model; its `raycase.json` comes last, for it is what makes
    the folder a model."""
    root = locate(str(folder))
    (root / SYSTEM).remove()
    (root / METRICS).put_json(metrics)
    (root / CARD).put(card.encode())
    save(folder)


def tuned_card(name: str, label: str, metrics: dict[str, Any]) -> str:
    """The model card of a fine-tuned encoder; every figure in it stands in `metrics.json`."""
    figures = "\n".join(f"| {key} | {value:.2f} |" for key, value in metrics["validation"].items())
    history = "\n".join(
        f"| {int(h['epoch'])} | {h['loss']:.4f} | {h['seconds']:.0f} | {h['mib']:,} |" for h in metrics["history"]
    )
    settings = metrics["recipe"] | {key: metrics[key] for key in ("compute", "seed", "workers")}
    return f"""# {name}

A fine-tuned encoder: {label}; {metrics["parameters"]:,} trained parameters.

```python
import raycase

model = raycase.load("{name}")  # the path of this folder
```

| on the validation data, x 100 | |
|---|---|
{figures}

The epoch was chosen on these: epoch {metrics["best_epoch"]} of {metrics["epochs"]}.

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


def _files(metrics: dict[str, Any], *columns: str) -> str:
    return "\n".join(
        f"| {part} | {d['file']} | {' | '.join(str(d[c]) for c in columns)} | `{d['sha256'][:16]}` |"
        for part, d in metrics["data"].items()
    )


def _table(values: dict[str, Any]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in values.items())


def _made(metrics: dict[str, Any]) -> str:
    made = metrics["provenance"]
    said = f"Commit {made['commit'] or 'unknown'}, {made['date']}, {made['machine']}, {metrics['seconds']} s."
    return f"    {made['command']}\n\n{said}"


def _case_card(name: str, config: CaseConfig, projector: Projector, metrics: dict[str, Any]) -> str:
    """The model card; every figure in it stands in `metrics.json`."""
    best = metrics["validation"]
    shape = projector.config
    layers = {0: "linear", 1: f"one layer, {shape.activation}", 2: f"two layers of {shape.hidden}, {shape.activation}"}
    return f"""# {name}

Condition-aware sentence embeddings: CASE (Zhang, Zhou and Bollegala, 2025) on {config.label}, with a projector
{shape.input_dim} -> {shape.output_dim} ({layers[shape.layers]}, dropout {shape.dropout:g}); the encoder is frozen.

```python
import raycase

case = raycase.load("{name}")  # the path of this folder
vectors = case.embed(["Two girls in red dresses play soccer."], ["color of the clothes"])  # (1, {shape.output_dim})
```

| on the validation pairs, x 100 | |
|---|---|
| Spearman, all pairs | {best["spearman"]:.2f} |
| Spearman, without label -1 | {best["spearman_rated"]:.2f} |
| Pearson, all pairs | {best["pearson"]:.2f} |
| the same vectors without projector: Spearman, all pairs | {metrics["zero_shot"]["spearman"]:.2f} |

The epoch was chosen on these pairs: epoch {metrics["best_epoch"]} of {metrics["epochs"]}.

| data | file | pairs | of them label -1 | sha256 |
|---|---|---|---|---|
{_files(metrics, "rows", "not_applicable")}

| recipe | |
|---|---|
{_table(metrics["recipe"])}
| seed | {metrics["seed"]} |
| workers | {metrics["workers"]} |

Encoder weights: `{config.describe()["weights"]}`

{_made(metrics)}
"""
