"""The picture of `raycase explain`: each text under each condition, the words shaded by their weights, as SVG."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape

from raycase.encoder.words import Word
from raycase.search.marks import MarkedText, looked_at, runs

COLUMNS = 80  # of a line
CELL, LINE, MARGIN, LABEL = 9, 26, 16, 20  # width of a column; heights of a line, a margin and a label
STYLE = (
    "text{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:15px;fill:#24292f}"
    ".label{font-size:13px;fill:#57606a}.marked{font-weight:bold}rect{fill:#e69f00}.page{fill:#fff}"
)
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Placed = tuple[int, str, Word | None]  # column, characters, and the word that they are of


def draw(explained: Sequence[tuple[str, str, Sequence[Word]]]) -> str:
    """The SVG of (text, condition, words)."""
    parts: list[str] = []
    y, widest = MARGIN, COLUMNS
    for text, condition, words in explained:
        y += LABEL
        parts.append(f'<text class="label" x="{MARGIN}" y="{y - 6}">{_xml(condition)}</text>')
        chosen, largest = set(looked_at(words)), max((word.weight for word in words), default=0.0)
        for line in lines(text, words):
            for column, piece, word in filter(lambda placed: width(placed[1]), line):
                opacity = word.weight / largest if word and largest else 0.0
                parts.append(_piece(MARGIN + CELL * column, y, piece, opacity, word in chosen))
                widest = max(widest, column + width(piece))
            y += LINE
        y += MARGIN
    size = f'width="{2 * MARGIN + CELL * widest}" height="{y}"'
    page = f'<rect class="page" {size}/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{STYLE}</style>", page, *parts]) + (
        "\n</svg>\n"
    )


def lines(text: str, words: Sequence[Word]) -> list[list[Placed]]:
    """The text in lines of `COLUMNS` at most, unless it has a longer run without white space."""
    placed: list[list[Placed]] = [[]]
    column = 0
    for run in runs(text, words):
        needed = sum(width(piece) for piece, _ in run)
        if column and column + 1 + needed > COLUMNS:
            placed.append([])
            column = 0
        column += bool(column)
        for piece, word in _joined(run):
            placed[-1].append((column, piece, word))
            column += width(piece)
    return placed


def width(text: str) -> int:
    """Columns of a text in a font of equal widths."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _joined(run: list[MarkedText]) -> list[MarkedText]:
    """The pieces of a run, without those that have no width: they stay with the piece before."""
    found: list[MarkedText] = []
    for piece, word in run:
        if found and not width(piece):
            found[-1] = (found[-1][0] + piece, found[-1][1])
        else:
            found.append((piece, word))
    return found


def _piece(x: int, y: int, piece: str, opacity: float, marked: bool) -> str:
    """One piece on its background, stretched to its columns, whatever the font."""
    wide = CELL * width(piece)
    background = f'<rect x="{x}" y="{y}" width="{wide}" height="{LINE - 6}" fill-opacity="{opacity:.2f}"/>'
    style = ' class="marked"' if marked else ""
    return (background if opacity >= 0.005 else "") + (
        f'<text{style} x="{x}" y="{y + 15}" textLength="{wide}" lengthAdjust="spacingAndGlyphs">{_xml(piece)}</text>'
    )


def _xml(text: str) -> str:
    """Escaped, without the characters that XML cannot hold."""
    return escape(NOT_XML.sub("\ufffd", text))
