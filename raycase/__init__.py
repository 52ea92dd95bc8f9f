"""raycase: condition-aware sentence embeddings for whole corpora, on Ray (CASE, section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raycase.systems.contracts import Encoder

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def load(model: str = "minilm-conditional", **options: Any) -> Encoder:
    """Load the default model, an encoder of the table, a Hugging Face id or a saved model folder; see
    `raycase.systems.registry.load`."""
    from raycase.systems.registry import load as load_system  # keeps `import raycase` fast: torch takes seconds

    return load_system(model, **options)
