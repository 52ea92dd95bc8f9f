"""Draws the rooms of the package from its imports: python docs/rooms.py writes docs/rooms.svg; --check compares.

The order of the rooms is that of the import contract in pyproject.toml; a room's sentence is its docstring.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
DRAWING = ROOT / "docs" / "rooms.svg"
WIDTH, LEFT, RIGHT, LINE, CELL = 1040, 14, 40, 17, 22
CHARACTERS = 96  # of a line of module names
STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;fill:#24292f}"
    ".room{font-size:15px;font-weight:bold}.rule{fill:#57606a;font-family:system-ui,sans-serif}"
    ".box{fill:#fff;stroke:#8c959f}.dot{fill:#0072b2}.none{fill:none;stroke:#d0d7de}"
)


def layers() -> list[str]:
    """The rooms from the foundation up."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(c["layers"] for c in contracts if c["type"] == "layers")[::-1]
    return [room for layer in found for room in reversed(layer.split(" | "))]


def modules(room: str) -> list[str]:
    """The module names of a room, those of its sub-packages behind their name."""
    folder = ROOT / "raycase" / room
    files = sorted(f.relative_to(folder).with_suffix("") for f in folder.rglob("*.py") if f.name != "__init__.py")
    return [".".join(file.parts) for file in files]


def rule(room: str) -> str:
    """The first sentence of a room's docstring."""
    folder = ROOT / "raycase" / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())


def draw() -> str:
    """The SVG: a box for each room, the foundation at the bottom, and a dot for each room that it imports."""
    rooms = layers()
    graph = grimp.build_graph("raycase", exclude_type_checking_imports=True, cache_dir=None)
    for room in rooms:
        graph.squash_module(f"raycase.{room}")
    imports = {
        r: {i.removeprefix("raycase.") for i in graph.find_modules_directly_imported_by(f"raycase.{r}")} for r in rooms
    }
    parts: list[str] = []
    matrix = WIDTH - LEFT - RIGHT - CELL * len(rooms)
    y = 112
    for i, room in enumerate(rooms):
        parts.append(f'<text transform="translate({matrix + CELL * i + 15},{y - 10}) rotate(-50)">{room}</text>')
    for room in reversed(rooms):
        lines = textwrap.wrap("  ".join(modules(room)), CHARACTERS, break_long_words=False)
        words = textwrap.wrap(rule(room), CHARACTERS)
        height = LINE * (1 + len(lines) + len(words)) + 12
        parts.append(f'<rect class="box" x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{height}" rx="4"/>')
        parts.append(f'<text class="room" x="{LEFT + 10}" y="{y + 19}">{room}</text>')
        for n, line in enumerate([*words, *lines], 1):
            style = ' class="rule"' if n <= len(words) else ""
            parts.append(f'<text{style} x="{LEFT + 10}" y="{y + 19 + LINE * n}">{escape(line)}</text>')
        for i, other in enumerate(rooms):
            if other != room:
                mark = "dot" if other in imports[room] else "none"
                parts.append(f'<circle class="{mark}" cx="{matrix + CELL * i + 11}" cy="{y + 14}" r="4"/>')
        y += height + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}"><style>{STYLE}</style>'
    title = '<text class="rule" x="14" y="24">A room imports only rooms below it; a filled dot: imported.</text>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#f6f8fa"/>', title, *parts, "</svg>"]) + "\n"


def main() -> int:
    """Write the drawing, or with --check exit with 1 where it is not that of the code."""
    drawing = draw()
    if "--check" not in sys.argv:
        DRAWING.write_text(drawing)
    elif not DRAWING.exists() or DRAWING.read_text() != drawing:
        print(
            f"{DRAWING.relative_to(ROOT)}: expected the drawing of the code, got another; run python docs/rooms.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
