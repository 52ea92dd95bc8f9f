"""What training wrote about a model into its folder."""

from __future__ import annotations

import json
from typing import Any

from raycase.systems.model_folder import METRICS


def training_metrics(config: Any) -> Any:
    """The content of `metrics.json` in the folder of a system; None where there is none, or no JSON."""
    if config.local is None:
        return None
    try:
        return json.loads((config.local / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # a folder that was saved without training
        return None
