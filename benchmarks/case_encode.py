"""What CASE does with vectors beside its encoder: python benchmarks/case_encode.py

Base, g, rounding and the way of the vectors to their rows, around an encoder that costs nothing, against the formula as
it was before: each view stored by a list of columns, all of a unit subtracted, projected and rounded at once. Both take
turns in one process, on one thread. Nanoseconds are those of an element of the encoder's vectors; g's matrix product is
apart.
"""

import argparse
import tempfile
import time
from types import SimpleNamespace

import numpy as np
import torch
from transformers import Qwen3Config
from turns import finish, median

from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.table import EncoderSpec
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.encoder.transfers import Collector
from raycase.systems.case import Case, CaseConfig
from raycase.systems.projector import Projector, ProjectorConfig


class Free:
    """An encoder whose vectors are there already."""

    def __init__(self, vectors_ND, batch_rows):
        self.vectors_ND, self.batch_rows = vectors_ND, batch_rows
        self.dim = vectors_ND.shape[1]
        self.model = SimpleNamespace(device=vectors_ND.device)

    @torch.inference_mode()
    def encode(self, batch, finish=lambda rows, pooled: pooled):
        rows_N = np.random.default_rng(0).permutation(len(batch))  # sorted by length they are in no order
        empty = torch.empty(0, dtype=torch.long)
        collector = Collector(len(batch), like=finish(empty, self.vectors_ND[:0]))
        for start in range(0, len(batch), self.batch_rows):
            rows = rows_N[start : start + self.batch_rows]
            made = self.vectors_ND[start : start + len(rows)]
            collector.add(rows, finish(torch.from_numpy(rows), made))
        return collector.result(), Work()


def before(case, prepared):
    """`Case.encode_prepared` and the unit's rounding, as they were."""
    pair_index = np.array([i for i, reason in enumerate(prepared.reasons) if reason is None])

    def views(batch):
        vectors = np.empty((len(batch), case.encoder.dim), dtype=np.float32)
        columns = np.concatenate([np.arange(case.encoder.dim)])
        vectors[:, columns], _ = case.encoder.encode(batch)
        return vectors

    vectors_KD = views(prepared.pairs[0].take(pair_index))
    distinct, condition_index = np.unique(prepared.condition[pair_index], return_inverse=True)
    bases_CD, _ = case.memory.of(prepared, distinct, lambda new: (views(prepared.bases[0].take(new)), Work()))
    vectors_KD -= bases_CD[condition_index]
    if case.projector is not None:
        with torch.inference_mode():
            vectors_KD = case.projector(torch.from_numpy(vectors_KD)).numpy()
    vectors_MD = np.full((len(prepared.reasons), vectors_KD.shape[1]), np.nan, dtype=np.float32)
    vectors_MD[pair_index] = vectors_KD
    return vectors_MD[prepared.rows].astype(np.float16)


def seconds(work):
    began = time.process_time()  # of one thread: other load on the machine counts little
    work()
    return time.process_time() - began


def compare(name, folder, dim, projected, arguments):
    """Nanoseconds an element of both, and their ratio."""
    rows, conditions = arguments.rows, arguments.conditions
    Qwen3Config(hidden_size=dim).save_pretrained(folder)
    spec = EncoderSpec(source=folder, prompt="cond", pooling=(Pooling.LAST,), causal=True, max_tokens=512)
    shape = ProjectorConfig(input_dim=dim) if projected else None
    torch.manual_seed(0)
    case = Case(
        config=CaseConfig(model=folder, encoder=spec, subtract=True, projector=shape),
        encoder=Free(torch.randn(rows, dim), arguments.batch_rows),
        projector=Projector(shape).eval() if shape else None,
    )
    case.round_to("float16")
    tokens = [Tokens(ids=[1], start=0, end=1)] * rows
    prepared = Prepared(
        rows=np.arange(rows),
        conditions=[str(c) for c in range(conditions)],
        sentence=np.arange(rows),
        condition=np.arange(rows) % conditions,
        pairs=[TokenBatch.of(tokens)],
        alone=[],
        bases=[TokenBatch.of(tokens[:conditions])],
    )
    views = [case.encoder.vectors_ND[i : i + arguments.batch_rows] for i in range(0, rows, arguments.batch_rows)]

    @torch.inference_mode()
    def product():
        for view in views:
            case.projector(view)

    now = case.encode_prepared(prepared).vectors  # both warm up
    cosines = torch.nn.functional.cosine_similarity(
        *(torch.from_numpy(v).float() for v in (now, before(case, prepared)))
    )
    assert cosines.min() > 0.9999, f"expected the same vectors, got cosine {cosines.min():.5f}"
    turns = {"before": [], "now": [], "product": []}
    for _ in range(arguments.turns):
        turns["before"].append(seconds(lambda: before(case, prepared)))
        turns["now"].append(seconds(lambda: case.encode_prepared(prepared)))
        turns["product"].append(seconds(product) if projected else 0.0)
    ns = {turn: median(values) / rows / dim * 1e9 for turn, values in turns.items()}
    outside = {turn: max(0.01, ns[turn] - ns["product"]) for turn in ("before", "now")}
    print(f"{name:<24}{outside['before']:>8.2f} ns before{outside['now']:>8.2f} ns now; g {ns['product']:.2f} ns")
    return {f"{name}: {turn}": value for turn, value in ns.items()}, outside["before"] / outside["now"]


def main(arguments):
    torch.set_num_threads(1)
    measured, ratios = {}, {}
    for dim in arguments.dims:
        for projected in (True, False):
            name = f"{dim} dimensions{', g' if projected else ''}"
            with tempfile.TemporaryDirectory() as folder:
                ns, ratios[name] = compare(name, folder, dim, projected, arguments)
            measured |= {key: round(value, 3) for key, value in ns.items()}
    finish({"ratios": ratios, "nanoseconds_an_element": measured, "rows": arguments.rows, "turns": arguments.turns})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--dims", type=int, nargs="+", default=[4096, 384])
    parser.add_argument("--conditions", type=int, default=8)
    parser.add_argument("--batch-rows", type=int, default=128, help="about what 4,096 tokens of captions are")
    parser.add_argument("--turns", type=int, default=7)
    main(parser.parse_args())
