"""The page of a map: one file of HTML that asks for nothing else, in which no text of the corpus is HTML or code."""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain
from typing import Any

import numpy as np

from raycase.explore.condition_map import ConditionMap, MapRows
from raycase.tokens.words import Word

MOST_CHARACTERS = 300  # of a text or an id; the rest is cut off
STEPS = 2**16 - 1  # from one edge of the map to the other
SCRIPTS = ("text.js", "data.js", "link.js", "plot.js", "panel.js", "main.js")
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")  # ends a script, or is no text for every reader
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def map_page(maps: Sequence[ConditionMap], rows: MapRows, title: str, summary: str) -> bytes:
    """The page of maps of these rows; `summary`: how many of how many rows they are."""
    data = {
        "title": title,
        "summary": summary,
        "count": len(rows.texts),
        "sampled": _packed(np.isin(np.arange(len(rows.texts)), rows.sampled), "u1"),
        "texts": _packed([_cut(text) for text in rows.texts]),
        "ids": _packed([_cut(each) for each in rows.ids]),
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
    """Nothing is loaded, and no script runs but these."""
    hashes = " ".join(f"'sha256-{_base64(sha256(script.encode()).digest())}'" for script in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'"


def script_json(value: Any) -> str:
    """JSON that can stand in a <script>, and that UTF-8 can encode."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def _numbers(each: ConditionMap) -> dict[str, Any]:
    """A map as the page reads it."""
    ends = None if each.words is None else [_ends(words) for words in each.words]
    members = ((words, np.flatnonzero(each.facet == facet)) for facet, words in enumerate(each.facet_words))
    return {
        "condition": each.condition,
        "positions": _packed(np.rint((each.positions + 1) / 2 * STEPS).clip(0, STEPS), "<u2"),
        "rows": _packed(each.rows, "<u4"),
        "cosines": _packed(np.rint(100 * each.cosines), "i1"),
        "facet": _packed(each.facet, "u1"),
        "facets": [{"words": w, "rows": len(rows), "point": _middle(each.positions, rows)} for w, rows in members],
        "starts": None if ends is None else _packed(np.cumsum([0, *map(len, ends)]), "<u4"),
        "ends": None if ends is None else _packed([*chain.from_iterable(ends)], "<u2"),
    }


def _middle(positions_N2: np.ndarray, rows: np.ndarray) -> int:
    """Of these rows the one that is nearest to the median of their positions."""
    far = np.linalg.norm(positions_N2[rows] - np.median(positions_N2[rows], axis=0), axis=1)
    return int(rows[far.argmin()])


def _packed(values: Any, dtype: str | None = None) -> str:
    """Numbers, or else JSON, as base64 of gzip, the same each time."""
    data = np.asarray(values).astype(dtype).tobytes() if dtype else script_json(values).encode()
    return _base64(gzip.compress(data, mtime=0))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _ends(words: Sequence[Word]) -> list[int]:
    """Start and end of each word that was not cut off, one after the other."""
    return [end for word in words if word.end <= MOST_CHARACTERS for end in (word.start, word.end)]


def _file(name: str) -> str:
    return (files("raycase.explore") / "page" / name).read_text(encoding="utf-8")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
