"""What all plots share. matplotlib is an optional extra, so it is imported only to draw."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSTALL = "pip install 'raycase[report]'"  # what brings matplotlib
WIDTH = 6.4  # inches
# Okabe and Ito's colors and distinct dashes: the curves differ for color-blind readers, and in grey.
STYLES: list[dict[str, Any]] = [
    {"color": "#E69F00", "linestyle": "--"},
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#D55E00", "linestyle": "-."},
]


def has_matplotlib() -> bool:
    """Whether plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def png(figure: Figure) -> bytes:
    """The figure as a PNG file, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
