"""The page of a map: one file of HTML that asks for nothing else, in which no text of the corpus is HTML or code."""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from raycase.explore.condition_map import ConditionMap
from raycase.tokens.words import Word

MOST_CHARACTERS = 300  # of a text or an id; the rest is cut off
STEPS = 2**16 - 1  # from one edge of the map to the other
SCRIPTS = ("regl-scatterplot.js", "text.js", "data.js", "link.js", "plot.js", "panel.js", "main.js")
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")  # ends a script, or is no text for every reader
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def map_page(maps: Sequence[ConditionMap], texts: Sequence[str], ids: Sequence[str], title: str, summary: str) -> bytes:
    """The page of these maps of the same rows; `summary`: how many of how many rows they are."""
    data = {
        "title": title,
        "summary": summary,
        "texts": [_cut(text) for text in texts],
        "ids": [_cut(each) for each in ids],
        "neighbours": maps[0].rows.shape[1],
        "maps": [_numbers(each) for each in maps],
    }
    scripts = [f"\n{_file(name)}" for name in SCRIPTS]
    parts = {
        "title": escape(title),
        "style": _file("map.css"),
        "policy": _policy(scripts),
        "data": script_json(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return _PLACE.sub(lambda match: parts[match[1]], _file("map.html")).encode()


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded, and no script runs but these. regl makes functions of its commands."""
    hashes = " ".join(f"'sha256-{_base64(sha256(script.encode()).digest())}'" for script in scripts)
    return f"default-src 'none'; script-src 'unsafe-eval' {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def script_json(value: Any) -> str:
    """JSON that can stand in a <script>, and that UTF-8 can encode."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def _numbers(each: ConditionMap) -> dict[str, Any]:
    """A map as the page reads it."""
    return {
        "condition": each.condition,
        "positions": _base64(np.rint((each.positions + 1) / 2 * STEPS).clip(0, STEPS).astype("<u2").tobytes()),
        "rows": _base64(each.rows.astype("<u2" if len(each.rows) <= 2**16 else "<u4").tobytes()),
        "cosines": _base64(np.rint(100 * each.cosines).astype("i1").tobytes()),
        "facet": _base64(each.facet.astype("u1").tobytes()),
        "facets": [
            {"words": words, "rows": rows}
            for words, rows in zip(each.facet_words, np.bincount(each.facet).tolist(), strict=True)
        ],
        "words": None if each.words is None else [_ends(words) for words in each.words],
    }


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _ends(words: Sequence[Word]) -> list[int]:
    """Start and end of each word that was not cut off, one after the other."""
    return [end for word in words if word.end <= MOST_CHARACTERS for end in (word.start, word.end)]


def _file(name: str) -> str:
    return (files("raycase.explore") / "page" / name).read_text(encoding="utf-8")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
