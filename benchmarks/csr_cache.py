"""Pairs a second of every system that embeds, by conditions per sentence: what reading each text once is worth.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/csr_cache.py

(bi)       the bi-encoder: each pair through the whole encoder
(csr)      CSR, one routed layer: sentences and conditions once, the routed layer's second half for each pair
(csr3)     CSR, three routed layers, words asking, by hidden states: what does best on C-STS (results/fine_tuning.md)
(uncached) (csr), each pair alone: its sentence and its condition through the whole encoder
(tri)      the tri-encoder: sentences and conditions once, then their product
(case)     CASE, MiniLM's own prompt, minus base, with a projector of 512
(cross)    the cross-encoder: pairs of sentences under a condition, scored

MiniLM as it comes (what it was trained for changes no time), sentences and conditions of C-STS, about as many pairs
under each number of conditions. Conditions have been met before, as in a corpus, where an encoder meets each once. Each
system runs in a process of its own; they take turns; medians over the rounds.
"""

import argparse
import csv
import resource
import sys
import time
from functools import partial

from turns import DATA, Contender, finish, median, serve

CONDITIONS = (1, 2, 8, 32, 128)
NAMES = ("bi", "csr", "csr3", "uncached", "tri", "case", "cross")


def texts():
    """Distinct sentences and conditions of C-STS, in the order of the file."""
    with (DATA / "csts" / "train.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    sentences = dict.fromkeys(r[name].strip() for r in rows for name in ("sentence1", "sentence2"))
    return list(sentences), list(dict.fromkeys(r["condition"].strip() for r in rows))


def system(name):
    """A loaded system, untrained."""
    import torch

    from raycase.systems import case, csr
    from raycase.systems.bi_encoder import bi_encoder
    from raycase.systems.cross_encoder import cross_encoder
    from raycase.systems.projector import Projector, ProjectorConfig
    from raycase.systems.tri_encoder import tri_encoder

    if name == "case":
        config = case.resolve("minilm")
        shape = ProjectorConfig(input_dim=config.views_dim, output_dim=512)
        return case.Case(config=config, encoder=config.load().encoder, projector=Projector(shape).eval())
    torch.manual_seed(0)
    made = {
        "bi": bi_encoder,
        "tri": tri_encoder,
        "cross": cross_encoder,
        "csr": csr.csr,
        "csr3": partial(csr.csr, asks=csr.Asks.WORDS, weight=csr.Weight.EVEN, router=csr.Router.HIDDEN, routed=3),
        "uncached": csr.csr,
    }[name]("minilm")
    return made.load().eval()


def contender(name, pairs):
    """Seconds for each number of conditions, tokenizing left out; and the peak memory so far."""
    from dataclasses import replace

    import numpy as np

    loaded = system(name)
    sentences, conditions = texts()

    def prepared(count):
        some = [s for s in sentences[: max(1, pairs // count)] for _ in range(count)]
        under = conditions[:count] * (len(some) // count)
        if name == "cross":
            return loaded.config.tokens(some, sentences[-len(some) :], under)
        found = loaded.config.prepare(some, under)
        if name == "uncached":  # every pair has texts of its own
            every = np.arange(len(some))
            alone, bases = found.alone[0].take(found.sentence), found.bases[0].take(found.condition)
            names = [f"{c} {i}" for i, c in enumerate(under)]
            found = replace(found, sentence=every, condition=every, conditions=names, alone=[alone], bases=[bases])
        return found

    ready = {count: prepared(count) for count in CONDITIONS}

    def turn():
        seconds = {}
        for count, batch in ready.items():
            if name == "uncached":
                loaded.forget()
            began = time.perf_counter()
            loaded.scores(batch) if name == "cross" else loaded.encode_prepared(batch)
            seconds[str(count)] = time.perf_counter() - began
        if name == "csr":
            seconds["routed"] = routed_alone(loaded, ready[CONDITIONS[-1]])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return {"by_conditions": seconds, "mib": peak, "pairs": {str(c): count_of(b, name) for c, b in ready.items()}}

    serve(turn)


def count_of(batch, name):
    return len(batch) if name == "cross" else len(batch.rows)


def routed_alone(loaded, prepared):
    """Seconds of the routed layer's second half alone, for as many pairs: what CSR cannot go below."""
    import torch

    alone, budget, total = prepared.alone[0], loaded.encoder.batch_tokens, 0.0
    order = torch.argsort(torch.from_numpy(alone.lengths[prepared.sentence]), descending=True).numpy()
    with torch.inference_mode():
        start = 0
        while start < len(order):
            length = int(alone.lengths[prepared.sentence[order[start]]])
            size = min(max(1, budget // length), len(order) - start)
            states = [torch.randn(size, length, loaded.encoder.dim) for _ in range(3)]
            about, real = torch.randn(size, loaded.encoder.dim), torch.ones(size, length, dtype=torch.bool)
            began = time.perf_counter()
            loaded.pair_vectors(about, *states, real, None)
            total += time.perf_counter() - began
            start += size
    return total


def main(rounds, pairs):
    from raycase.data.provenance import machine

    running = {name: Contender(__file__, name, "--pairs", pairs) for name in NAMES}
    turns = {name: [] for name in NAMES}
    for turn in range(rounds):
        for name, contestant in running.items():
            turns[name].append(contestant.turn())
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    for contestant in running.values():
        contestant.stop()
    rate = {
        name: {
            str(c): found[0]["pairs"][str(c)] / median([f["by_conditions"][str(c)] for f in found]) for c in CONDITIONS
        }
        for name, found in turns.items()
    }
    most = str(CONDITIONS[-1])
    floor = turns["csr"][0]["pairs"][most] / median([f["by_conditions"]["routed"] for f in turns["csr"]])
    memory = {name: max(f["mib"] for f in found) for name, found in turns.items()}
    print(f"{machine()}; pairs a second by conditions per sentence; peak memory")
    print(f"{'':<9}" + "".join(f"{c:>9}" for c in CONDITIONS) + f"{'MiB':>9}")
    for name in NAMES:
        print(f"{name:<9}" + "".join(f"{rate[name][str(c)]:>9,.0f}" for c in CONDITIONS) + f"{memory[name]:>9,}")
    print(f"the routed layer's second half alone: {floor:,.0f} pairs/s")
    ratios = {f"csr over bi, {c} conditions": rate["csr"][str(c)] / rate["bi"][str(c)] for c in CONDITIONS}
    ratios |= {f"csr over uncached, {c} conditions": rate["csr"][str(c)] / rate["uncached"][str(c)] for c in CONDITIONS}
    ratios["csr over the routed layer alone, 128 conditions"] = rate["csr"][most] / floor
    rounded = {name: {c: round(value, 1) for c, value in found.items()} for name, found in rate.items()}
    finish({"ratios": ratios, "pairs_per_second": rounded, "mib": memory, "rounds": rounds, "turns": turns})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=1024, help="about so many under each number of conditions")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(arguments.contender, arguments.pairs)
    else:
        main(arguments.rounds, arguments.pairs)
