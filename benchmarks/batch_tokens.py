"""Tokens a second of the bare engine by the tokens of a padded batch, in turns.

HF_HUB_OFFLINE=1 .venv/bin/python benchmarks/batch_tokens.py --model mpnet --count 150 [--texts abstracts] [--compile]
"""

import argparse
import time

from embed_throughput import CONDITIONS, MODELS, TEXTS
from turns import finish, median


def main(model, kind, count, rounds, sizes, compiled):
    import raycase

    source, options = MODELS[model]
    case = raycase.load(source, **options)
    if compiled:
        case.compile()
    sentences = [s for s in TEXTS[kind](count) for _ in CONDITIONS]
    speeds = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size in sizes:
            case.encoder.batch_tokens = size
            began = time.perf_counter()
            tokens = case.encode_prepared(case.config.prepare(sentences, CONDITIONS * count)).work.tokens
            if turn:  # the first warms up
                speeds[size].append(tokens / (time.perf_counter() - began))
    found = {size: median(s) for size, s in speeds.items()}
    ratios = {f"{size} over {sizes[-1]} tokens": speed / found[sizes[-1]] for size, speed in found.items()}
    finish({"ratios": ratios, "tokens": tokens, "tokens_per_second": {size: round(s) for size, s in found.items()}})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--texts", choices=TEXTS, default="captions")
    parser.add_argument("--count", type=int, default=1500, help="texts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    main(asked.model, asked.texts, asked.count, asked.rounds, asked.sizes, asked.compile)
