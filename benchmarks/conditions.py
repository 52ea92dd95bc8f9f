"""The encode step of 4,096 captions under 1, 8 and 32 conditions: what a further condition costs.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/conditions.py

(pooling)  condition pooling without training
(head)     condition pooling with a head as training shapes it: 8 heads of 64, 512 dimensions, on layers 2/3 and 1
(tri)      the tri-encoder: sentences and conditions once, then their product
(bi)       the bi-encoder: each pair through the whole encoder
(csr)      CSR, one routed layer: sentences and conditions once, the routed layer's second half for each pair

MiniLM as it comes; the head's weights are random (what they are changes no time). Each system runs in a process of its
own; they take turns; medians over the rounds. Timed is `EncodeUnits` on one unit for each number of conditions; the
unit is tokenized before. No condition comes twice, so that none is remembered. (bi) and (csr) take minutes under 32
conditions: there they get `--rows` sentences, and their time is scaled.

(planned) and (long) are the peak memory of (head) in a process of its own: a unit of the planner's size under 1,000
conditions, and 4,096 sentences of 256 tokens under 8.
"""

import argparse
import itertools
import random
import resource
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from turns import CAPTIONS, Contender, captions, finish, median, serve

CONDITIONS = (1, 8, 32)
NAMES = ("pooling", "head", "tri", "bi", "csr")
SLOW = ("bi", "csr")
MEMORY = ("planned", "long")
ROWS, MOST_ROUNDS = 4096, 18
AIMS = {"8 conditions": 1.25, "32 conditions": 1.8, "MiB": 4096}  # of condition pooling, at most
PARTS = ("color", "number", "age", "size", "mood", "position", "clothing", "movement", "material", "purpose", "owner")
PARTS += ("name", "shape", "weather around", "surroundings", "direction", "distance", "sound", "speed", "danger")
WHOLES = ("dress", "dog", "people", "building", "ball", "hat", "children", "team", "road", "tool", "crowd", "shirt")
WHOLES += ("player in front", "man", "woman", "boat", "animal", "street", "water", "game", "food", "instrument", "bike")
WHOLES += ("vehicle", "hair", "trees", "bench", "group", "worker", "girl", "boy", "couple", "mountain", "stage", "sky")
WHOLES += ("picture as a whole", "person on the left", "objects on the ground", "main activity", "oldest person")


def conditions():
    """Different conditions in a random order."""
    every = [f"{part} of the {whole}" for part, whole in itertools.product(PARTS, WHOLES)]
    random.Random(0).shuffle(every)
    return every


def system(name, folder):
    """A system before training, or with a random head, which is written to `folder`."""
    import torch

    from raycase.systems.bi_encoder import bi_encoder
    from raycase.systems.condition_head import ConditionHead, HeadConfig
    from raycase.systems.condition_pooling import condition_pooling, write_model_folder
    from raycase.systems.csr import csr
    from raycase.systems.registry import resolve
    from raycase.systems.tri_encoder import tri_encoder

    if name != "head":
        return {"pooling": condition_pooling, "tri": tri_encoder, "bi": bi_encoder, "csr": csr}[name]("minilm")
    torch.manual_seed(0)
    config = condition_pooling("minilm", layers=(2 / 3, 1.0))
    shape = HeadConfig(states_dim=config.states_dim, plain_dim=config.plain_dim)
    write_model_folder(Path(folder), replace(config, head=shape), ConditionHead(shape), {}, "random weights")
    return resolve(folder)


class Step:
    """The encode step of a system, loaded."""

    def __init__(self, name):
        from raycase.corpus.encode_step import EncodeUnits
        from raycase.corpus.unit_pairs import EncodeSettings
        from raycase.data.columns import find_columns
        from raycase.data.inputs import find_input

        [captions_file] = find_input(str(CAPTIONS))
        columns = find_columns(captions_file, text="text", id=None, condition=None, keep=None)
        with tempfile.TemporaryDirectory() as folder:
            self.config = system(name, folder)
            options = {"dtype": "float16", "on_long": "truncate", "dim": self.config.dim}
            settings = EncodeSettings(columns=columns, conditions=(), unconditional=False, **options)
            self.encode = EncodeUnits(self.config, settings, weights=self.config.describe()["weights"])

    def unit(self, texts, under):
        """What the read step gives, tokenized."""
        import numpy as np
        import pyarrow as pa

        from raycase.corpus.records import ReadUnit
        from raycase.corpus.unit_pairs import prepare_rows
        from raycase.data.reader import KEEP, ROW, TEXT
        from raycase.data.schema import ID, rejected_table

        ids = [f"caption {i}" for i in range(len(texts))]
        rows = pa.table({ROW: np.arange(len(texts)), TEXT: texts, ID: ids, KEEP + "text": texts})
        prepared = prepare_rows(self.config, rows, self.under(under))
        about = {"uri": str(CAPTIONS), "file": 0, "start": 0, "rows_in": len(texts), "read_pid": 0}
        return ReadUnit(rows=rows, rejected=rejected_table("", []), prepared=prepared, **about).to_arrow()

    def under(self, conditions):
        return replace(self.encode.settings, conditions=tuple(conditions))

    def seconds(self, texts, under):
        """How long a unit takes, and that every pair has its vector."""
        from raycase.corpus.records import EncodedUnit

        self.encode.settings = self.under(under)
        unit = self.unit(texts, under)
        began = time.perf_counter()
        encoded = self.encode(unit)
        seconds = time.perf_counter() - began
        assert len(EncodedUnit.from_arrow(encoded).table) == len(texts) * len(under)
        return seconds


def contender(name, rows):
    """Seconds for each number of conditions, and the peak memory so far."""
    step, new = Step(name), iter(conditions())
    sizes = itertools.chain([64], itertools.repeat(ROWS))  # the first turn warms up

    def turn():
        texts, seconds = captions(next(sizes)), {}
        for count in CONDITIONS:
            some = texts[:rows] if name in SLOW and count == CONDITIONS[-1] else texts
            under = list(itertools.islice(new, count))
            seconds[str(count)] = step.seconds(some, under) * len(texts) / len(some)
        return {"by_conditions": seconds, "mib": peak()}

    serve(turn)


def memory(name):
    """The peak memory of a unit."""
    from raycase.corpus.request import PAIRS_OF_UNIT

    step = Step("head")
    texts, under = [f"{i // 64} {i % 64}" + " dog" * 252 for i in range(ROWS)], conditions()[:8]
    if name == "planned":
        under = [f"{condition} {i}" for i in range(2) for condition in conditions()][:1000]
        texts = captions(max(64, PAIRS_OF_UNIT // len(under)))
    serve(cache(lambda: {"seconds": step.seconds(texts, under), "mib": peak()}))  # the first turn is enough


def peak():
    """The most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(names, rounds, rows):
    from raycase.data.provenance import machine

    contestants = {name: Contender(__file__, name, "--rows", rows) for name in names}
    turns = {name: [] for name in names}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            turns[name].append(contestant.turn())
    for contestant in contestants.values():
        contestant.stop()
    held = {}
    for name in MEMORY:  # one after the other: each may take gigabytes
        contestant = Contender(__file__, name)
        held[name] = contestant.turn()["mib"]
        contestant.stop()
    seconds = {
        name: {c: median([f["by_conditions"][str(c)] for f in found]) for c in CONDITIONS}
        for name, found in turns.items()
    }
    print(f"{machine()}; seconds of {ROWS:,} sentences by conditions, times those under 1; peak memory")
    print(f"{'':<9}" + "".join(f"{c:>16}" for c in CONDITIONS) + f"{'MiB':>9}")
    for name, found in seconds.items():
        cells = (
            f"{s:>8.2f}{'*' if name in SLOW and c == CONDITIONS[-1] else ' '}{s / found[1]:>6.2f}x"
            for c, s in found.items()
        )
        print(f"{name:<9}" + "".join(cells) + f"{max(f['mib'] for f in turns[name]):>9,}")
    print(f"* {rows:,} sentences, scaled")
    print("; ".join(f"{name}: {mib:,} MiB" for name, mib in held.items()))
    ratios = {
        f"{name}, {c} conditions over 1": found[c] / found[1] for name, found in seconds.items() for c in CONDITIONS[1:]
    }
    finish({"ratios": ratios, "aims": AIMS, "mib": held, "rounds": rounds, "rows": rows, "turns": turns})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, default=5, help=f"at most {MOST_ROUNDS}, for want of conditions")
    parser.add_argument("--rows", type=int, default=512, help="sentences of (bi) and (csr) under 32 conditions")
    parser.add_argument("--contender", choices=(*NAMES, *MEMORY), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender in MEMORY:
        memory(arguments.contender)
    elif arguments.contender:
        contender(arguments.contender, arguments.rows)
    else:
        main(arguments.systems, arguments.rounds, arguments.rows)
