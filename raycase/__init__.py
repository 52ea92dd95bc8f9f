"""raycase: condition-aware sentence embeddings for whole corpora, on Ray (CASE, section 3)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raycase.api import embed, evaluate, load, to_mteb, to_sentence_transformer, train
    from raycase.operators import Embed, Pool
    from raycase.search.index import Index

__version__ = "0.2.0"
__all__ = [
    "Embed",
    "Index",
    "Pool",
    "__version__",
    "embed",
    "evaluate",
    "load",
    "to_mteb",
    "to_sentence_transformer",
    "train",
]

_ELSEWHERE = {"Embed": "raycase.operators", "Index": "raycase.search.index", "Pool": "raycase.operators"}


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is used: torch and Lance take seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "raycase.api")), name)
