"""raycase: condition-aware sentence embeddings for whole corpora, on Ray (CASE, section 3)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raycase.api import embed, evaluate, load, to_mteb, to_sentence_transformer, train
    from raycase.index.index import Index
    from raycase.integrations.ray_data import Embed, Pool, ProcessorConfig
    from raycase.ray.processor import build_processor

__version__ = "0.2.0"
__all__ = [
    "Embed",
    "Index",
    "Pool",
    "ProcessorConfig",
    "__version__",
    "build_processor",
    "embed",
    "evaluate",
    "load",
    "to_mteb",
    "to_sentence_transformer",
    "train",
]

_ELSEWHERE = {
    "Index": "raycase.index.index",
    "build_processor": "raycase.ray.processor",
    **dict.fromkeys(("Embed", "Pool", "ProcessorConfig"), "raycase.integrations.ray_data"),
}


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "raycase.api")), name)


def __dir__() -> list[str]:
    return __all__
