"""What training wrote about a model into its folder."""

from __future__ import annotations

from typing import Any

from raycase.data.json_values import loads
from raycase.systems.model_folder import METRICS


def training_metrics(config: Any) -> Any:
    """The content of `metrics.json` in the folder of a system; None where there is none, or no JSON."""
    if config.local is None:
        return None
    try:
        return loads((config.local / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a folder that was saved without training
        return None
