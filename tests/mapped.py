"""Maps of texts without an index: random positions, and words that are marked."""

import numpy as np

from raycase.explore.condition_map import ConditionMap
from raycase.explore.page import map_page
from raycase.index.topk import nearest_others
from raycase.tokens.words import Word

FACETS = [["dog", "puppy"], ["red", "blue"], ["</script>", "\u202eback"]]
HOSTILE = [
    "</script><script>failed = 1</script> dog",
    "<!-- <img src=x onerror=failed=1> -->",
    "a \u2028 b \u2029 c",
    "quotes \" ' ` &amp; &lt; \\u003c \\",
    "{{data}} {{scripts}} ]]>",
    "half \ud83d of a pair \udc00",
    "\u202edrawkcab \u2066 isolated",
    "bell \x07 escape \x1b[31m null \x00",
    "👩‍👩‍👧 family dog",
    "javascript:failed=1 //x",
]


def some_maps(texts, neighbours=4):
    """Two maps of these texts, without a condition and under one that weighs the second word of each."""
    maps = []
    for seed, condition in enumerate([None, 'the "animal" </script>']):
        positions = np.random.default_rng(seed).uniform(-0.9, 0.9, (len(texts), 2)).astype(np.float32)
        vectors = positions / np.linalg.norm(positions, axis=1, keepdims=True)
        cosines, rows = nearest_others(vectors, neighbours)
        words = [[Word(len(text.split(" ")[0]) + 1, len(" ".join(text.split(" ")[:2])), 0.7)] for text in texts]
        near = {"positions": positions, "rows": rows, "cosines": cosines, "words": None if condition is None else words}
        facet = np.arange(len(texts)) % len(FACETS)
        maps.append(ConditionMap(condition=condition, facet=facet, facet_words=FACETS, **near))
    return maps


def write_page(file, texts, maps=None):
    """Write a page of texts; gives its URI."""
    ids = [f"id {i}" for i in range(len(texts))]
    file.write_bytes(map_page(maps or some_maps(texts), texts, ids, "a <title>", f"{len(texts)} rows"))
    return file.as_uri()
