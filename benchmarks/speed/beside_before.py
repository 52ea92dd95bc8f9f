"""Whether a change made engines, searches or the start of commands slower, beside a checkout of the commit before.

    python -m benchmarks.speed.beside_before --before CHECKOUT

MiniLM by CASE's prompt, condition pooling, and a random causal encoder (`shared_prefix.py`), in float32 and in each
one's default format; `Index.search` under an embedded condition and pooled from stored tokens: both checkouts wait in
processes of their own and take turns, tokenizing included, no Ray, nothing compiled. `starting` is processor seconds of
whole processes: `index` of 1,000 captions under one condition, `verify`, `search` and `embed` of ten captions, and
imports, of which torch's is the floor. Both use this environment's packages.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.shared_prefix import conditions, make_encoder
from benchmarks.turns import (
    RAYCASE,
    ROOT,
    Contender,
    captions,
    finish,
    median,
    of_checkout,
    parser_of,
    run,
    serve,
    take_turns,
)

SYSTEMS = {"minilm": (1000, 2), "minilm-conditional-v3": (1000, 8), "causal": (100, 8)}  # texts, conditions
CAUSAL = {"prompt": "cond", "pooling": "last"}
ROWS = dict.fromkeys(SYSTEMS, ("float32", "default")) | {"search": ("embedded", "pooled"), "starting": ()}
STARTED = {
    "index": "index --embeddings out --output {}.lance",
    "verify": "verify out --no-ray",
    "search": "search --index index.lance --query beach --condition place --no-ray",
    "embed": "embed --input ten.csv --conditions place --output {} --no-ray",
    "--help": "--help",
}
IMPORTS = ("raycase", "torch", "lance")


def contender(name, how, folder):
    import torch

    import raycase

    if name == "search":
        searcher(how, folder)
        return
    count, under = SYSTEMS[name]
    dtype = torch.float32 if how == "float32" else None
    system = raycase.load(folder, dtype=dtype, **CAUSAL) if name == "causal" else raycase.load(name, dtype=dtype)
    sentences = [sentence for sentence in captions(count) for _ in range(under)]
    asked = conditions(under) * count
    serve(lambda: {"tokens": system.encode_prepared(system.config.prepare(sentences, asked)).work.tokens})


def searcher(how, folder):
    """An index of 5,000 captions under one condition, or with stored tokens; a turn asks it for 20 captions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import raycase

    texts, home = captions(5020), Path(folder) / Path(raycase.__file__).parts[-3]
    home.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts[:5000]}), home / "in.parquet")
    under = {"any_condition": True} if how == "pooled" else {"conditions": ["place"]}
    raycase.embed(home / "in.parquet", home / how, ray=False, compute="float32", **under)
    run("-P", *RAYCASE, "index", "--embeddings", home / how, "--output", home / f"{how}.lance")
    index = raycase.Index.open(str(home / f"{how}.lance"))
    index.search(texts[-1:], "place", 10)
    serve(lambda: {"tokens": sum(len(index.search([text], "place", 10)) for text in texts[5000:])})


def starting(checkouts, rounds, folder):
    """Processor seconds of commands and imports by checkout."""
    for name, count in (("rows", 1000), ("ten", 10)):
        lines = (text.replace('"', "") for text in captions(count))
        Path(folder, f"{name}.csv").write_text("text\n" + "".join(f'"{line}"\n' for line in lines))
    for words in ("embed --input rows.csv --conditions place --output out --no-ray", STARTED["index"].format("index")):
        run(*RAYCASE, *words.split(), cwd=folder, env=of_checkout(ROOT))
    found = {name: {which: [] for which in checkouts} for name in (*STARTED, *IMPORTS)}
    for number in range(rounds):
        for name, of in found.items():
            for which, checkout in checkouts.items():
                words = RAYCASE if name in STARTED else ("-c", f"import {name}")
                flags = STARTED.get(name, "").format(f"{which}{number}").split()
                done = run(*words, *flags, cwd=folder, env=of_checkout(checkout))
                of[which].append(done.processor_seconds)
    return found


def main(before, rounds, only):
    ratios, figures = {}, {}
    checkouts = {"before": before, "now": ROOT}
    module = "benchmarks.speed.beside_before"
    with tempfile.TemporaryDirectory() as folder:
        make_encoder(Path(folder))
        for name in only or ROWS:
            for how in ROWS[name]:
                running = {w: Contender(module, name, how, folder, checkout=c) for w, c in checkouts.items()}
                answers, row = take_turns(running, rounds), f"{name}, {how}"
                seconds = {which: median(answer["seconds"] for answer in of) for which, of in answers.items()}
                ratios[row] = seconds["before"] / seconds["now"]
                figures[row] = {which: round(of[0]["tokens"] / seconds[which]) for which, of in answers.items()}
                print(f"{row:<28}{ratios[row]:>6.2f} times as fast, {figures[row]} a second", file=sys.stderr)
        for row, of in starting(checkouts, rounds, folder).items() if "starting" in (only or ROWS) else ():
            figures[row] = {which: round(median(seconds), 2) for which, seconds in of.items()}
            ratios[row] = median(of["before"]) / median(of["now"])
            print(f"{row:<28}{ratios[row]:>6.2f} times as fast, {figures[row]} processor seconds", file=sys.stderr)
    finish(ratios, figures=figures, rounds=rounds)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=ROWS, help="default: all")
    parser.add_argument("--contender", nargs=3, metavar=("SYSTEM", "FORMAT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(*arguments.contender)
    elif not arguments.before:
        parser.error("expected --before, got none")
    else:
        main(arguments.before.resolve(), arguments.rounds, arguments.only)
