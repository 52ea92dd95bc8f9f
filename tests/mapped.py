"""Maps of texts without an index: random positions, and words that are marked."""

import gzip
import json
from base64 import b64decode

import numpy as np

from raycase.explore.condition_map import ConditionMap, MapRows
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
    sampled = np.arange(0, len(texts), 2)
    rows = MapRows(offsets=[], texts=texts, ids=ids, of=len(texts), left_out=0, sampled=sampled)
    file.write_bytes(map_page(maps or some_maps(texts), rows, "a <title>", f"{len(texts)} rows"))
    return file.as_uri()


def unpacked(data):
    """What a page holds, with its lists as lists of texts, and arrays of numbers for each of them."""

    def numbers(packed, dtype):
        return np.frombuffer(gzip.decompress(b64decode(packed)), dtype)

    count = data["count"]
    for name in ("texts", "ids"):
        data[name] = json.loads(gzip.decompress(b64decode(data[name])))
    data["sampled"] = numbers(data["sampled"], "u1")
    for each in data["maps"]:
        for name, dtype in {"positions": "<u2", "rows": "<u4", "cosines": "i1"}.items():
            each[name] = numbers(each[name], dtype).reshape(count, -1)
        each["facet"] = numbers(each["facet"], "u1")
        starts, ends = each.pop("starts"), each.pop("ends")
        split = starts and np.split(numbers(ends, "<u2"), numbers(starts, "<u4")[1:-1])
        each["words"] = split and [words.tolist() for words in split]
    return data
