"""Training curves (CASE, Figure 3): loss and Spearman after each epoch, as training recorded them in the folder."""

from __future__ import annotations

from typing import Any, TypedDict

from raycase.data.json_values import from_json


class CurveFigures(TypedDict):
    """Figures of the validation pairs."""

    spearman: float


class Epoch(CurveFigures):
    """Figures after an epoch, and the mean loss of its training pairs."""

    epoch: int
    loss: float


class Epochs(TypedDict):
    """The `metrics.json` of a fit on rated pairs."""

    best_epoch: int
    history: list[Epoch]


class Fit(Epochs, total=False):
    """The same, of a fit on a frozen encoder."""

    zero_shot: CurveFigures


def training_curve(metrics: Any) -> dict[str, Any] | None:
    """The curve of a fit, by its `training_metrics`: the best epoch, Spearman before training (None: not measured), a
    line for each epoch. None for a model without one, and for figures that are not finite."""
    try:
        fit = from_json(Fit, metrics)
    except ValueError:
        return None
    if not 1 <= fit["best_epoch"] <= len(fit["history"]):
        return None
    lines = [{"epoch": line["epoch"], "loss": line["loss"], "spearman": line["spearman"]} for line in fit["history"]]
    before = fit["zero_shot"]["spearman"] if "zero_shot" in fit else None
    return {"best_epoch": fit["best_epoch"], "before": before, "history": lines}
