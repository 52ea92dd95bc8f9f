"""Zero-shot Spearman x 100 on C-STS by prompt, pooled span, pooling and subtraction, for any encoder.

    .venv/bin/python benchmarks/zero_shot.py minilm [float32|bfloat16]

The base of eq. 1 is taken away as it is (raw) or after both vectors are brought to length 1 (unit).
"""

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from raycase.data.json_values import finite
from raycase.encoder.choices import find_encoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import BUILT_IN, TokenSpan, prompt_set
from raycase.encoder.table import ENCODERS

DATA = Path(os.environ.get("RAYCASE_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main(name, compute="float32"):
    with (DATA / "csts" / "validation.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    labels = [float(row["label"]) for row in rows]
    spec = find_encoder(name, prompt=None if name in ENCODERS else "concat-sc")  # each is tried below
    encoder = load_encoder(spec, dtype=getattr(torch, compute))

    def embed(template, sentence):
        pairs = [(row[sentence] if sentence else "", row["condition"]) for row in rows]
        place = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        vectors = encoder.pool(encoder.tokenize([template.render(*pair) for pair in place]))
        return vectors[[place[pair] for pair in pairs]]

    results = []
    print(f"{'prompt':<10} {'span':<10} {'pooling':<8} {'base span':<10} {'none':>6} {'raw':>6} {'unit':>6}")
    for style in BUILT_IN:
        spans = (TokenSpan.CONDITION, TokenSpan.ALL) if style.startswith("concat") else (None,)
        for span in spans:
            prompts = prompt_set(style, span=span or TokenSpan.ALL)
            for pooling in spec.pooling:
                encoder.spec = replace(encoder.spec, pooling=(pooling,))
                first, second = embed(prompts.pair, "sentence1"), embed(prompts.pair, "sentence2")
                for base_span in spans if span else (prompts.base.span,):
                    base = embed(replace(prompts.base, span=base_span), None)
                    scores = [
                        cosines(first, second),
                        cosines(first - base, second - base),
                        cosines(unit(first) - unit(base), unit(second) - unit(base)),
                    ]
                    none, raw, units = (round(100 * float(spearmanr(s, labels)[0]), 1) for s in scores)
                    pooled = span or prompts.pair.span
                    print(
                        f"{style:<10} {pooled:<10} {pooling:<8} {base_span:<10} {none:>6} {raw:>6} {units:>6}",
                        flush=True,
                    )
                    keys = ("prompt", "span", "pooling", "base_span", "none", "raw", "unit")
                    results.append(dict(zip(keys, (style, pooled, pooling, base_span, none, raw, units), strict=True)))
    print(json.dumps(finite({"encoder": name, "rows": len(rows), "spearman_x100": results}), allow_nan=False))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["minilm"])
