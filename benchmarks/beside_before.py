"""Whether a change made the engines slower: python benchmarks/beside_before.py --before CHECKOUT

MiniLM by CASE's prompt, condition pooling, and a random causal encoder (`shared_prefix.py`), each of that checkout and
of this one, in float32 and in each one's default format; and `Index.search` under an embedded condition and pooled from
stored tokens. Both wait in processes of their own and take turns; tokenizing is part of a turn. They use this
environment's packages; engines alone: no Ray, nothing compiled.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from shared_prefix import conditions, make_encoder
from turns import ROOT, Contender, captions, finish, median, serve

SYSTEMS = {"minilm": (1000, 2), "minilm-conditional": (1000, 8), "causal": (100, 8)}  # captions, conditions of a turn
CAUSAL = {"prompt": "cond", "pooling": "last"}


def contender(name, number_format, folder):
    import torch

    import raycase

    if name == "search":
        searcher(number_format, folder)
        return
    count, under = SYSTEMS[name]
    dtype = torch.float32 if number_format == "float32" else None
    system = raycase.load(folder, dtype=dtype, **CAUSAL) if name == "causal" else raycase.load(name, dtype=dtype)
    sentences = [sentence for sentence in captions(count) for _ in range(under)]
    asked = conditions(under) * count
    serve(lambda: {"tokens": system.encode_prepared(system.config.prepare(sentences, asked)).work.tokens})


def searcher(kind, folder):
    """An index of 5,000 captions under one condition, or with stored tokens; a turn asks it for 20 captions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import raycase
    from raycase.index.build import IndexFlags, build

    texts, home = captions(5020), Path(folder) / Path(raycase.__file__).parts[-3]
    home.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts[:5000]}), home / "in.parquet")
    how = {"any_condition": True} if kind == "pooled" else {"conditions": ["place"]}
    raycase.embed(home / "in.parquet", home / kind, ray=False, compute="float32", **how)
    build(IndexFlags(embeddings=(str(home / kind),), output=str(home / f"{kind}.lance")))
    index = raycase.Index.open(str(home / f"{kind}.lance"))
    index.search(texts[-1:], "place", 10)
    serve(lambda: {"tokens": sum(len(index.search([text], "place", 10)) for text in texts[5000:])})


def started(checkout, *arguments):
    os.environ["PYTHONPATH"] = str(checkout)
    return Contender(__file__, *arguments)


def main(before, rounds, only):
    ratios, rates = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        make_encoder(Path(folder))
        every = dict.fromkeys(SYSTEMS, ("float32", "default")) | {"search": ("embedded", "pooled")}
        for name in only or every:
            for number_format in every[name]:
                both = {"before": started(before, name, number_format, folder)}
                both["now"] = started(ROOT, name, number_format, folder)
                seconds = {which: [] for which in both}
                for _ in range(rounds):
                    for which, one in both.items():
                        answer = one.turn()
                        seconds[which].append(answer["seconds"])
                for one in both.values():
                    one.stop()
                row = f"{name}, {number_format}"
                ratios[row] = median(seconds["before"]) / median(seconds["now"])
                rates[row] = {which: round(answer["tokens"] / median(taken)) for which, taken in seconds.items()}
                print(f"{row:<28}{ratios[row]:>6.2f} times as fast, tokens/s {rates[row]}", file=sys.stderr, flush=True)
    finish({"ratios": ratios, "tokens_per_second": rates, "rounds": rounds})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="minilm, minilm-conditional, causal, search; default: all")
    parser.add_argument("--contender", nargs=3, metavar=("SYSTEM", "FORMAT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(*arguments.contender)
    elif not arguments.before:
        parser.error("expected --before, got none")
    else:
        main(arguments.before.resolve(), arguments.rounds, arguments.only)
