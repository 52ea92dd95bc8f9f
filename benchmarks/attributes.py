"""Attributes that a caption names, by the word lists of attribute_words.json; a measure of ours, not of any paper."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

Patterns = dict[str, dict[str, re.Pattern[str]]]  # condition -> value -> what names it in lower-case text


@cache
def attribute_patterns() -> Patterns:
    """The patterns of attribute_words.json."""
    return compile_patterns(Path(__file__).with_name("attribute_words.json").read_text(encoding="utf-8"))


def attributes_of(caption: str, condition: str) -> set[str]:
    """The values that a caption names: `{"red"}` of "a girl in a red dress" under "color of the clothes"."""
    lower = caption.lower()
    return {value for value, pattern in attribute_patterns()[condition].items() if pattern.search(lower)}


def compile_patterns(text: str) -> Patterns:
    """Compile word lists, the text of a JSON file with `lists` and `conditions`.

    A value's patterns match at the start of a word and end with one; `{name}` stands for any word of the list `name`.
    Raises ValueError for an unknown list, a condition or value without patterns, and a broken regular expression.
    """
    words = json.loads(text)
    any_of = {name: f"(?:{'|'.join(map(re.escape, listed))})" for name, listed in words["lists"].items()}

    def expand(match: re.Match[str]) -> str:
        if match[1] not in any_of:
            raise ValueError(f"word lists: expected one of {', '.join(any_of)} in braces, got {match[1]!r}")
        return any_of[match[1]]

    patterns: Patterns = {}
    for condition, values in words["conditions"].items():
        if not values or not all(values.values()):
            raise ValueError(f"word lists: expected values with patterns under {condition!r}, got {values}")
        patterns[condition] = {}
        for value, alternatives in values.items():
            expanded = "|".join(re.sub(r"\{([a-z]+)\}", expand, alternative) for alternative in alternatives)
            try:
                patterns[condition][value] = re.compile(rf"(?:\b|^)(?:{expanded})\b")
            except re.error as error:
                raise ValueError(f"word lists: expected patterns of {value!r}, got {alternatives}: {error}") from error
    return patterns
