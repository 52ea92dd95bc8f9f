"""The GPU path on a CUDA build of torch, without a GPU: devices, number formats and copies.

    make cuda-build-check                          # in an environment of its own, with a CUDA build of torch

Tensors have no numbers here (FakeTensorMode), so published shapes run at full size, and whatever would wait for the GPU
to learn a number raises. Expected: no copy to the GPU once the encoder began; at most two that wait, of a unit (bases
and conditions); vectors that are on the GPU, in their output type, when they are collected. This can't show how fast
anything is, nor that FlexAttention's kernels compile and are right.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import raycase.sample
from benchmarks.gpu import shapes, throughput
from benchmarks.turns import parser_of
from raycase.encoder import attention, engine, loading
from raycase.models import condition_pooling
from raycase.tokens.basis import typical_conditions

DEVICE = torch.device("cuda", 0)
COPIES = 2  # to the GPU that wait, at most: of a unit
TEXTS = 1000  # captions


class Watch(TorchDispatchMode):
    """Notes in `events`, in order: copies to the GPU, runs of the encoder, batches collected."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.ndim]
        made = {t.device for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
        if made == {DEVICE} and any(t.device != DEVICE for t in tensors):
            self.events.append("copy" if (kwargs or {}).get("non_blocking") else "copy that waits")
        assert not made or DEVICE in made or all(t.device != DEVICE for t in tensors), (
            f"{function}: expected no copy from the GPU"
        )
        return result

    def collector(self, count, like):
        """In place of a `Collector`, whose numbers are zeros."""
        events, dtype = self.events, like.dtype
        assert like.device == DEVICE

        class Collector:
            def add(self, rows, vectors_BD, kept=None):
                assert (vectors_BD.device, vectors_BD.dtype) == (DEVICE, dtype)
                assert vectors_BD.shape == (len(rows), like.shape[1])
                events.append("collect")

            def result(self):
                return np.zeros((count, like.shape[1]), str(dtype).removeprefix("torch."))

        return Collector()

    def line(self):
        """What was seen since the last call. Copies that wait are a unit's, not a row's."""
        events, self.events = self.events, []
        rows, after, most, sent = 0, 0, 0, 0
        for event in events:
            if event == "forward":
                rows, most, sent = rows + 1, max(most, sent), 0
            elif event == "collect":
                after, sent = after + sent, 0
            elif event == "copy":
                sent += 1
        return {
            "rows": rows,
            "copies_a_row": most,
            "copies_after_the_encoder_began": after,
            "copies_that_wait": events.count("copy that waits"),
        }


def attended(query, key, value, *, block_mask, **_):
    """FlexAttention, whose compiler is not for such tensors."""
    assert {t.device for t in (query, key, value, block_mask.kv_indices, block_mask.full_kv_indices)} == {DEVICE}
    assert {t.dtype for t in (query, key, value)} == {torch.bfloat16}
    assert block_mask.seq_lengths == (query.shape[2], key.shape[2])
    return torch.empty_like(query)


def checks(shape, texts, folder, watch):
    """Each path of a shape, by name."""
    loader = shapes.Loader.of(shape, texts, folder, DEVICE, False)
    case = loader.case()
    documents = loader.documents(texts)

    def unit(system, some, count):
        (unit, *_), _ = throughput.read_units(system, some, typical_conditions()[:count])
        system.encoder.output_dtype = torch.float16
        encoded = system.encode_prepared(unit.prepared)
        assert encoded.vectors.dtype == np.float16
        assert len(encoded.vectors) == len(some) * count

    case.encoder.model.register_forward_pre_hook(lambda *_: watch.events.append("forward"))
    yield "rows, captions, 8", lambda: unit(case, texts, 8)
    yield "rows, captions, 1", lambda: unit(case, texts, 1)
    yield "rows, documents, 1", lambda: unit(case, documents, 1)
    if case.encoder.in_rows:
        case.encoder.in_rows = False
        yield "padded, captions, 1", lambda: unit(case, texts, 1)
    if shape.pools:
        pooling = loader.condition_pooling()
        pooling.encoder.model.register_forward_pre_hook(lambda *_: watch.events.append("forward"))
        for count in (1, 8, 32):
            yield f"condition pooling, {count}", lambda count=count: unit(pooling, texts, count)


def captions():
    """The sample's sentences, over and over."""
    with (Path(raycase.sample.__file__).parent / "sentences.csv").open(encoding="utf-8", newline="") as file:
        sample = [row["text"] for row in csv.DictReader(file)]
    return [sample[i % len(sample)] for i in range(TEXTS)]


def check(name):
    """The lines of a shape."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),  # which takes a GPU
        patch.object(attention, "compiled_flex", lambda: attended),
        patch.object(loading, "try_kernels", lambda encoder: None),
        FakeTensorMode(allow_non_fake_inputs=True),
        Watch() as watch,
        patch.object(engine, "Collector", watch.collector),
        patch.object(condition_pooling, "Collector", watch.collector),
    ):
        for path, run in checks(shapes.SHAPES[name], captions(), Path(folder), watch):
            watch.events.clear()
            run()
            yield {"shape": name, "path": path} | watch.line()


def right(line):
    """Whether a line is as expected."""
    return line["rows"] > 0 and line["copies_that_wait"] <= COPIES and line["copies_after_the_encoder_began"] == 0


def asked_for(description):
    """Names of the shapes that the command line asks for."""
    parser = parser_of(description)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"default: all of {', '.join(shapes.SHAPES)}")
    names = parser.parse_args().shapes or list(shapes.SHAPES)
    if torch.version.cuda is None:
        raise SystemExit(f"expected a CUDA build of torch, got {torch.__version__}: make cuda-build-check")
    return names


def main():
    names = asked_for(__doc__)
    print(f"torch {torch.__version__}, a GPU: {'yes' if torch.cuda.is_available() else 'no'}")
    well = True
    for name in names:
        for line in check(name):
            well = well and right(line)
            print(json.dumps(line), "" if right(line) else "WRONG", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
