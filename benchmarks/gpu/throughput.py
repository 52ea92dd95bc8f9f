"""How fast and how right an encoder is on one GPU, beside transformers and sentence-transformers as installed there.

    python -m benchmarks.gpu.throughput --shape qwen3-8b --texts captions.parquet --output qwen3-8b.jsonl

One shape a call, one line of JSON a row, written at once: what cuts the run short loses no row that is done. It needs
torch, transformers, tokenizers, safetensors, numpy and pyarrow, and no Ray. How to read the lines: docs/gpu.md.
"""

import copy
import gc
import importlib.util
import json
import logging
import os
import platform
import resource
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import transformers

from benchmarks.gpu import shapes
from benchmarks.turns import median, parser_of
from raycase.encoder.loading import try_kernels
from raycase.encoder.pooling import pool_mean
from raycase.encoder.sources import published_tokenizer
from raycase.encoder.token_batch import Work
from raycase.errors import first_line
from raycase.io.provenance import commit
from raycase.io.reader import TEXT
from raycase.io.schema import EMBEDDING, ID, Columns, rejected_table
from raycase.job.results import Encoding, RowPairs, VectorResult
from raycase.job.steps import EncodeUnits, prepare_rows
from raycase.job.units import ReadUnit
from raycase.models.pairs import accepted_pairs, tokens_of_pairs
from raycase.tokens.basis import typical_conditions

CORPORA = (("documents", 1), ("captions", 8), ("captions", 1))  # texts, conditions
POOLED = (1, 8, 32)  # conditions of condition pooling
SHARED = 4  # times as many tokens where prompts share prefixes, so that there are several rows of them
CHECKED = 8  # prompts whose vectors are compared
UNIT_PAIRS, MOST_PAIRS = 2**15, 2**18  # of a unit; of a measurement of condition pooling
LAUNCHES = 50  # of a matrix product
WRONG = 6e-5  # of a cosine, a layer: 36 of random weights lose 0.0016 in bf16, transformers' own 0.0011


class Ready:
    """A loaded system in place of the configuration that `EncodeUnits` loads."""

    def __init__(self, system):
        self.system = system

    def describe(self):
        return {"weights": "loaded"}

    def load(self, **options):
        return self.system


class Bench:
    """One shape on one device: each method is a row, and gives its line."""

    def __init__(self, arguments, texts, folder):
        self.arguments, self.texts, self.folder = arguments, texts, folder
        self.device = torch.device(arguments.device)
        self.shape = shapes.SHAPES[arguments.shape]
        self.tokens = arguments.tokens or (2**11 if arguments.tiny else self.shape.tokens)
        self.peer_tokens = arguments.peer_tokens or self.tokens // 2

    def rows(self):
        """Name and method of each row, the most telling first."""
        yield "machine", self.machine
        yield "load", self.load
        yield "matrix product", lambda: self.rates
        yield "flex", self.flex
        yield from self._of_corpora("engine, eager", self.engine)
        if not self.arguments.eager:
            yield "compile", lambda: self.compile(self.case)
            yield from self._of_corpora("engine, compiled", self.engine)
        yield from self._of_corpora("units", self.units)
        if shapes.ENCODERS[self.shape.encoder].causal:
            yield "engine, without sharing, captions, 8", partial(self.without_sharing, *CORPORA[1])
        if self.case.encoder.in_rows:
            yield from self._of_corpora("engine, padded", self.padded)
        yield from self._of_corpora("transformers", self.transformers)
        yield from self._of_corpora("sentence-transformers", self.sentence_transformers)
        if self.shape.pools:
            if not self.arguments.eager:
                yield "compile, condition pooling", lambda: self.compile(self.pooling)
            for count in POOLED:
                yield f"condition pooling, {count}", partial(self.pool, count)

    @staticmethod
    def _of_corpora(name, row):
        for corpus, count in CORPORA:
            yield f"{name}, {corpus}, {count}", partial(row, corpus, count)

    # ----------------------------------------------------------------------------------------------- what is loaded

    @cached_property
    def loader(self):
        return shapes.Loader.of(self.shape, self.texts, self.folder, self.device, self.arguments.tiny)

    @cached_property
    def case(self):
        return self.loader.case()

    @cached_property
    def pooling(self):
        """Condition pooling, in the place of the encoder that was measured before."""
        for name in ("case", "library"):
            self.__dict__.pop(name, None)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return self.loader.condition_pooling()

    @cached_property
    def library(self):
        """The same modules in sentence-transformers."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

        config = self.case.encoder.model.config
        with tempfile.TemporaryDirectory() as folder:  # a tiny model that the real one then replaces
            published_tokenizer(self.loader.spec.source).save_pretrained(folder)
            small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
            tiny = transformers.BertConfig(vocab_size=100, **small)
            transformers.BertModel(tiny).save_pretrained(folder)
            inner = Transformer(folder)
        inner.auto_model = self.case.encoder.model
        if hasattr(inner, "model"):
            inner.model = self.case.encoder.model
        inner.max_seq_length = self.loader.spec.max_tokens
        pooling = Pooling(config.hidden_size, pooling_mode="mean")
        return SentenceTransformer(modules=[inner, pooling], device=str(self.device))

    # --------------------------------------------------------------------------------------------------------- texts

    def pairs(self, corpus, count, tokens):
        """(text, condition) of so many tokens, as if each prompt were encoded alone, or of all texts there are."""
        texts = self.loader.documents(self.texts) if corpus == "documents" else self.texts
        if not texts:
            raise ValueError(f"expected {corpus}, got too few texts")
        under = typical_conditions()[:count]
        some = self.batch([(text, c) for text in texts[:64] for c in under])
        chosen = texts[: max(1, int(tokens / some.lengths.mean() / count))]
        return [(text, c) for text in chosen for c in under]

    def batch(self, pairs):
        """Tokenised prompts."""
        return self.case.encoder.tokenize.pairs([prompts.pair for prompts in self.case.config.prompts], pairs)

    def _tokens(self, count):
        return self.tokens * (SHARED if count > 1 and self.loader.spec.causal else 1)

    # ---------------------------------------------------------------------------------------------------------- rows

    def machine(self):
        cuda = self.device.type == "cuda"
        properties = torch.cuda.get_device_properties(self.device) if cuda else None
        return {
            "device": properties.name if cuda else platform.processor() or platform.machine(),
            "gpu_gib": round(properties.total_memory / 2**30, 1) if cuda else None,
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
            | {"transformers": transformers.__version__},
            "commit": commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "arguments": vars(self.arguments),
            "texts": len(self.texts),
        }

    def load(self):
        began = time.perf_counter()
        engine = self.case.encoder
        parameters = sum(p.numel() for p in engine.parts().parameters())
        return {"parameters": parameters, "dim": engine.dim, "seconds": time.perf_counter() - began}

    @cached_property
    def rates(self):
        """FLOP/s of the matrix product of a row in the encoder's largest shape, and of a large square one."""
        engine = self.case.encoder
        shape = (engine.batch_tokens, *sorted((p.shape for p in matrices(engine.model)), key=np.prod)[-1])
        side = 8192 if self.device.type == "cuda" and not self.arguments.tiny else 512
        rate = partial(product_rate, self.device, self.loader.dtype)
        own, square = rate(*shape), rate(side, side, side)
        return {"shape": shape, "tflops": own / 1e12, "square": side, "square_tflops": square / 1e12}

    @torch.inference_mode()
    def flex(self):
        """Whether FlexAttention runs, and gives what attention in chunks gives; mostly compiling."""
        engine, began = self.case.encoder, time.perf_counter()
        try_kernels(engine)
        tried = engine.in_rows and self.device.type == "cuda"
        return {"tried": tried, "runs": engine.flex, "seconds": time.perf_counter() - began}

    def compile(self, system):
        began = time.perf_counter()
        system.compile()
        return {"compiled": is_compiled(system.encoder), "seconds": time.perf_counter() - began}

    def engine(self, corpus, count):
        """The bare encoder: tokens on the host to vectors on the host."""
        return self._engine(self.case.encoder, corpus, count, self._tokens(count))

    def without_sharing(self, corpus, count):
        """The same engine, each prompt in whole: the stand-in for a server that shares no prefixes."""
        return self._engine(shapes.WithoutSharing.of(self.case.encoder), corpus, count, self.peer_tokens)

    def padded(self, corpus, count):
        """The same engine in padded batches, not compiled: what is left where neither FlexAttention nor chunks do."""
        engine = copy.copy(self.case.encoder)
        engine.in_rows = False
        with not_compiled(engine):
            return self._engine(engine, corpus, count, self.peer_tokens)

    def _engine(self, engine, corpus, count, tokens):
        batch = self.batch(self.pairs(corpus, count, tokens))
        line, (vectors, work) = self._timed(partial(engine.encode, batch))
        return line | self._rates(engine, work, line["seconds"], len(batch)) | cosines(engine, batch, vectors)

    def units(self, corpus, count):
        """The whole unit path, as a worker of a job runs it: Arrow of tokens to Arrow of vectors."""
        pairs = self.pairs(corpus, count, self._tokens(count))
        return self._units(self.case, [text for text, _ in pairs[::count]], count)[0]

    def pool(self, count):
        """Condition pooling by the unit path. Effective tokens: as if each text were encoded under each condition."""
        system = self.pooling
        lengths = system.config.prepare(self.texts[:64], None).of_sentences[0].lengths
        texts = self.texts[: max(1, min(int(self.tokens / lengths.mean()), MOST_PAIRS // count))]
        line, units = self._units(system, texts, count)
        apart = 0
        for unit in units:
            prepared = unit.prepared
            apart += int(tokens_of_pairs(prepared, accepted_pairs(prepared)).sum())
        return line | {"effective_tokens_per_s": apart / line["seconds"]}

    def _units(self, system, texts, count):
        """The line of a system's unit path, and the units."""
        units, encoding = read_units(system, texts, typical_conditions()[:count])
        encode = EncodeUnits(replace(encoding, model=Ready(system)), weights="loaded")
        encode(units[0])  # measures the device, and computes bases
        line, done = self._timed(lambda: [encode(unit) for unit in units])
        if (found := sum(len(unit.table) for unit in done)) != len(texts) * count:
            raise ValueError(f"expected {len(texts) * count} vectors, got {found}")
        work = sum((unit.work for unit in done), Work())
        line |= self._rates(system.encoder, work, line["seconds"], found) | {"units": len(units)}
        table = done[0].table
        rows = checked(len(table))
        vectors = np.stack([np.array(table[EMBEDDING][row].as_py(), np.float32) for row in rows.tolist()])
        under = typical_conditions()
        alone = [system.embed([texts[row // count]], under[row % count])[0] for row in rows.tolist()]
        cosine = least(torch.from_numpy(vectors), torch.from_numpy(np.stack(alone)))
        return line | {"cosine_one_by_one": cosine}, units

    def transformers(self, corpus, count):
        """transformers' own attention: batches sorted by length, padded, of at most a row's tokens, not compiled."""
        engine = self.case.encoder
        batch = self.batch(self.pairs(corpus, count, self.peer_tokens))
        with not_compiled(engine):
            line, _ = self._timed(lambda: [dense(engine, batch, rows) for rows in padded(batch, self.loader.budget)])
        tokens = int(batch.lengths.sum())
        return line | {"prompts": len(batch), "effective_tokens_per_s": tokens / line["seconds"]}

    def sentence_transformers(self, corpus, count):
        """The same modules in sentence-transformers, tokenising included, in batches of at most a row's tokens."""
        if not importlib.util.find_spec("sentence_transformers"):
            return {"skipped": "not installed"}
        pairs = self.pairs(corpus, count, self.peer_tokens)
        lengths = self.batch(pairs).lengths
        (template,) = (prompts.pair for prompts in self.case.config.prompts)
        whole = [template.render(*pair).text for pair in pairs]
        size = max(1, self.loader.budget // int(lengths.max()))
        library = self.library
        with not_compiled(self.case.encoder):
            line, _ = self._timed(lambda: library.encode(whole, batch_size=size, show_progress_bar=False))
        return line | {"prompts": len(pairs), "effective_tokens_per_s": int(lengths.sum()) / line["seconds"]}

    # ------------------------------------------------------------------------------------------------------ measures

    def _timed(self, work):
        """Median seconds; what the first turn took above it, which is compiling and warming up; peak memory; the
        result."""
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        seconds = []
        for _ in range(self.arguments.turns + 1):
            began = time.perf_counter()
            result = work()
            if cuda:
                torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - began)
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = torch.cuda.max_memory_allocated(self.device) if cuda else 1024 * peak_kib
        usual = median(seconds[1:])
        line = {"seconds": usual, "first_seconds": max(0.0, seconds[0] - usual), "peak_gib": peak / 2**30}
        return line | {"graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}, result

    def _rates(self, engine, work, seconds, prompts):
        """Rates of the work done; FLOPs are those of linear layers on what was processed, without padding."""
        flops = 2.0 * sum(map(torch.Tensor.numel, matrices(engine.parts()))) * work.processed / seconds / 1e12
        return {
            "compiled": is_compiled(engine),
            "prompts": prompts,
            "tokens": work.tokens,
            "tokens_per_s": work.processed / seconds,
            "effective_tokens_per_s": work.tokens / seconds,
            "sharing": work.tokens / work.processed,
            "padding": 1 - work.processed / work.computed,
            "tflops": flops,
            "of_matrix_product": flops / self.rates["tflops"],
            "of_square": flops / self.rates["square_tflops"],
        }


def matrices(model):
    """The weights of its linear layers."""
    return [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]


@torch.inference_mode()
def product_rate(device, dtype, rows, outer, inner):
    """FLOP/s of a matrix product, over launches that wait for each other only at the end."""
    a, b = (torch.randn(n, inner, device=device, dtype=dtype) for n in (rows, outer))
    launches = LAUNCHES if device.type == "cuda" else 5
    for count in (3, launches):  # the first ones warm up
        began = time.perf_counter()
        for _ in range(count):
            torch.nn.functional.linear(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    return 2 * rows * inner * outer * launches / seconds


def read_units(system, texts, under):
    """What the read step gives of these texts under these conditions: units, and how they are encoded."""
    columns = Columns(texts=(TEXT,), id=None, condition=None, keep=(), types={})
    pairs = RowPairs(columns=columns, conditions=tuple(under))
    encoding = Encoding(model=system.config, pairs=pairs, result=VectorResult(dtype="float16"))
    units, size = [], max(1, UNIT_PAIRS // len(under))
    for start in range(0, len(texts), size):
        some = texts[start : start + size]
        rows = pa.table({ID: [str(start + i) for i in range(len(some))], TEXT: some})
        read = {"rows": rows, "rejected": rejected_table("texts", [])}
        prepared = prepare_rows(rows, encoding)
        units.append(ReadUnit(uri="texts", file=0, start=start, rows_in=len(some), prepared=prepared, **read))
    return units, encoding


def padded(batch, budget):
    """Prompts sorted by length, in batches of at most so many tokens, padding included."""
    order, start = batch.lengths.argsort()[::-1], 0
    while start < len(order):
        rows = order[start : start + max(1, budget // int(batch.lengths[order[start]]))]
        start += len(rows)
        yield rows


@torch.inference_mode()
def dense(engine, batch, rows):
    """Pooled vectors of a padded batch by transformers' own attention: (B, D) float32 on the host."""
    lengths, device = batch.lengths[rows], engine.model.device
    ids, real = batch.sequences.padded(rows)
    ids_BT = torch.from_numpy(np.where(real, ids, engine.model.config.pad_token_id or 0)).to(device, torch.long)
    position_T = torch.arange(ids_BT.shape[1], device=device)
    keep_BT = position_T < torch.from_numpy(lengths).to(device)[:, None]
    mask = None if engine.spec.causal and len(rows) == 1 else keep_BT
    if not engine.spec.causal and hasattr(engine.model, "layers"):  # a decoder that reads both ways
        mask = keep_BT[:, None, None, :].expand(-1, 1, ids_BT.shape[1], -1)
    hidden_BTD = engine.model(ids_BT, attention_mask=mask).last_hidden_state
    if engine.latent is not None:
        hidden_BTD = engine.latent(hidden_BTD)
    first_VB, stop_VB = (torch.from_numpy(a.copy()).to(device) for a in engine.spans(batch, rows))
    span_BT = (position_T >= first_VB[0][:, None]) & (position_T < stop_VB[0][:, None])
    return pool_mean(hidden_BTD, span_BT).float().cpu()


def cosines(engine, batch, vectors):
    """Least cosine of some vectors of a whole batch to those of each prompt alone, and by transformers' attention; and
    the largest to the vector of another prompt, below which no vector can be told from a wrong one."""
    rows = checked(len(batch))
    whole = torch.from_numpy(vectors[rows])
    alone = np.concatenate([engine.encode(batch.take(rows[i : i + 1]))[0] for i in range(len(rows))])
    with not_compiled(engine):
        plain = torch.cat([dense(engine, batch, rows[i : i + 1]) for i in range(len(rows))])
    return {
        "cosine_one_by_one": least(whole, torch.from_numpy(alone)),
        "cosine_dense": least(whole, plain),
        "cosine_of_others": torch.nn.functional.cosine_similarity(whole, whole.roll(1, 0)).max().item(),
    }


def checked(count):
    """Rows whose vectors are compared: from the first to the last."""
    return np.unique(np.linspace(0, count - 1, CHECKED).astype(int))


def least(found, wanted):
    return torch.nn.functional.cosine_similarity(found.float(), wanted.float()).min().item()


def is_compiled(engine):
    return engine.layers[0]._compiled_call_impl is not None


@contextmanager
def not_compiled(engine):
    """Run the layers as they were before they were compiled: padded batches have many shapes, each a new graph."""
    compiled = {module: module._compiled_call_impl for module in engine.model.modules()}
    for module in compiled:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


# ------------------------------------------------------------------------------------------------------ command line


def line_of(name, row, warnings):
    """The line of a row, or of the error that it ended in; numbers have six digits."""
    warnings.clear()
    try:
        line = row()
    except Exception as error:  # the rows after it may do well
        line = {"error": f"{type(error).__name__}: {first_line(error)}"}
    line = {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in line.items()}
    return {"row": name} | line | ({"warnings": [*warnings]} if warnings else {})


def run(arguments, texts, out):
    """Every row until the limit; whether all of them went well."""
    began, well, warnings = time.perf_counter(), True, []
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("raycase").addHandler(heard)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, texts, Path(folder))
        for name, row in bench.rows():
            if arguments.rows and name != "machine" and not any(part in name for part in arguments.rows):
                continue
            if name != "machine" and time.perf_counter() - began > arguments.limit:
                line = {"row": name, "skipped": f"after {arguments.limit:g} s"}
            else:
                line = line_of(name, row, warnings)
            line["at"] = round(time.perf_counter() - began, 1)
            least_cosine = 1 - WRONG * bench.shape.sizes["num_hidden_layers"] if name.startswith("engine,") else -1
            well = well and "error" not in line and line.get("cosine_dense", 1) > least_cosine
            for to in (out, sys.stdout):
                print(json.dumps(line), file=to, flush=True)
    return well


def main():
    """0 where all rows went well, else 1."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the encode step has it
    parser = parser_of(__doc__)
    parser.add_argument("--shape", choices=shapes.SHAPES)
    parser.add_argument("--texts", help="a Parquet file with a column text (default: captions of RAYCASE_DATA)")
    parser.add_argument("--pack", nargs=2, metavar=("N", "FILE"), help="write N captions of RAYCASE_DATA to a file")
    parser.add_argument("--output", help="a file for the lines, which are printed in any case")
    parser.add_argument("--rows", nargs="+", metavar="PART", help="only rows with one of these parts in their names")
    parser.add_argument("--limit", type=float, default=540, help="seconds after which no row is begun")
    tokens = "of a row, each prompt alone; 4 times as many where prompts share (default: by the shape)"
    parser.add_argument("--tokens", type=int, help=tokens)
    parser.add_argument("--peer-tokens", type=int, help="of the peers, and without sharing (default: half of it)")
    parser.add_argument("--turns", type=int, default=2, help="after the first, which warms up")
    parser.add_argument("--eager", action="store_true", help="compile no layers")
    parser.add_argument("--tiny", action="store_true", help="two layers of 64 dimensions: whether it runs")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if not (arguments.pack or arguments.shape):
        parser.error("expected --shape or --pack, got neither")
    if arguments.pack:
        shapes.pack(int(arguments.pack[0]), arguments.pack[1])
        return 0
    if arguments.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("--device: expected a GPU that torch can use, got none; --device cpu --tiny runs without one")
    texts = shapes.read_texts(arguments.texts)
    with open(arguments.output or os.devnull, "w", encoding="utf-8") as out:
        return 0 if run(arguments, texts, out) else 1


if __name__ == "__main__":
    sys.exit(main())
