"""Tokens a second and MFU on one NVIDIA GPU, against transformers and sentence-transformers as installed there.

    python benchmarks/gpu.py --output gpu.json

Nothing is downloaded: weights are random in the exact shapes of published encoders, and tokens are words. It needs
torch, transformers, tokenizers, numpy and pyarrow, and no Ray. Texts are captions of flickr30k where they are at
RAYCASE_DATA, else made-up ones of like length; documents are captions up to 1,000 tokens.

raycase                   the engine: prefix trees, or rows without padding, by FlexAttention
transformers              batches sorted by length, padded, at most as many tokens
sentence-transformers     the same model in its modules, its own batching (tokenizing included, in the others not)

Rates are tokens as if each prompt were encoded alone. MFU is model FLOPs of what was processed over the rate of this
device's own bf16 matrix product in the encoder's shapes. Medians of 3 turns.
"""

import argparse
import copy
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from raycase.encoder.attention import NAME, register  # noqa: E402 (raycase need not be installed)
from raycase.encoder.engine import TextEncoder  # noqa: E402
from raycase.encoder.latent_attention import LatentAttention  # noqa: E402
from raycase.encoder.pooling import Pooling  # noqa: E402
from raycase.encoder.prompts import PromptStyle, Span, prompt_set  # noqa: E402
from raycase.encoder.table import EncoderSpec  # noqa: E402
from raycase.encoder.tokenizer import PromptTokenizer  # noqa: E402

DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))
CAPTIONS = DATA / "flickr30k" / "captions.parquet"
WORDS = ["a", "man", "woman", "dog", "in", "the", "red", "dress", "plays", "with", "two", "children", "near", "water"]
CONDITIONS = ["color of the clothes", "number of people", "type of activity", "the place", "age of the people",
              "the animal", "time of day", "what is held in the hands"]  # fmt: skip
QWEN3 = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6}
PEERS = ("transformers", "sentence-transformers")
NO_TOKENS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}


def shapes(tiny):
    """Name: model class, configuration, whether causal, prompt, pooling; in the published shapes."""
    t = transformers
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    small_decoder = small | {"num_key_value_heads": 2, "head_dim": 16}

    def size(hidden, layers, heads, intermediate, **more):
        published = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        published |= {"intermediate_size": intermediate} | more
        return (small_decoder if more else small) if tiny else published

    qwen = t.Qwen3Config
    mistral = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "sliding_window": None}
    xlm = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    return {
        "Qwen3-Embedding-0.6B": (
            t.Qwen3Model, qwen(vocab_size=151669, **size(1024, 28, 16, 3072, **QWEN3), **NO_TOKENS),
            True, PromptStyle.COND, Pooling.LAST,
        ),
        "Qwen3-Embedding-8B": (
            t.Qwen3Model, qwen(vocab_size=151665, **size(4096, 36, 32, 12288, **QWEN3), **NO_TOKENS),
            True, PromptStyle.COND, Pooling.LAST,
        ),
        "NV-Embed-v2": (
            t.MistralModel,
            t.MistralConfig(vocab_size=32000, is_causal=False, **size(4096, 32, 32, 14336, **mistral), **NO_TOKENS),
            False, PromptStyle.COND, Pooling.LATENT,
        ),
        "E5-large": (
            t.XLMRobertaModel, t.XLMRobertaConfig(vocab_size=250002, **size(1024, 24, 16, 4096), **xlm),
            False, PromptStyle.COND, Pooling.MEAN,
        ),
    }  # fmt: skip


def texts(count):
    """Captions, or what looks like them."""
    if CAPTIONS.is_file():
        import pyarrow.parquet as pq

        return pq.read_table(CAPTIONS, columns=["text"])["text"].slice(0, count).to_pylist()
    chance = random.Random(0)
    return [" ".join(chance.choices(WORDS, k=chance.randint(6, 24))) + f" {n}" for n in range(count)]


def documents(captions, words):
    """Captions one after the other, up to so many words."""
    found, held = [], []
    for caption in captions:
        held += caption.split()
        if len(held) >= words:
            found.append(" ".join(held[:words]))
            held = []
    return found


def word_tokenizer(captions):
    """A token for each word."""
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    template = prompt_set(PromptStyle.COND).pair.pattern
    vocabulary = {"<pad>": 0, "<s>": 1, "<unk>": 2}
    for text in [template, *CONDITIONS, *captions]:
        for word, _ in pieces.pre_tokenize_str(text):
            vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(dict(list(vocabulary.items())[:30000]), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pieces
    return tokenizer


def make(kind, config, device, attention):
    """A random model in bf16, made on the device."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = kind._from_config(copy.deepcopy(config), attn_implementation=attention)
    finally:
        torch.set_default_dtype(before)
    model.config.use_cache = False
    if hasattr(model, "pooler"):
        model.pooler = None
    return model.to(torch.bfloat16).eval()


def timed(work, device, turns=3):
    """Median seconds, after one turn to warm up."""
    work()
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@torch.inference_mode()
def by_transformers(model, batch, budget, bidirectional):
    """The last states of batches sorted by length and padded, averaged over all tokens."""
    lengths = batch.lengths
    order = lengths.argsort()[::-1]
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, budget // int(lengths[order[start]]))]
        start += len(rows)
        sequences = batch.ids(rows)
        ids = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(s) for s in np.split(sequences.flat, sequences.offsets[1:-1])], True
        ).to(model.device, torch.long)
        keep = torch.arange(ids.shape[1], device=ids.device) < torch.from_numpy(lengths[rows]).to(ids.device)[:, None]
        if bidirectional and hasattr(model, "layers"):
            keep_4d = keep[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
            hidden = model(ids, attention_mask=keep_4d).last_hidden_state
        else:
            hidden = model(ids, attention_mask=keep).last_hidden_state
        ((hidden * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)).float().cpu()


@torch.inference_mode()
def least_cosine(engine, model, batch, bidirectional):
    """Of the engine's vectors of a few prompts to the plain model's of each prompt alone."""
    rows = np.linspace(0, len(batch) - 1, 5).astype(int)
    found = torch.from_numpy(engine.encode(batch.take(rows))[0])
    wanted = []
    for row in rows:
        ids = torch.from_numpy(batch.ids(np.array([row])).flat).to(model.device, torch.long)[None]
        mask = (
            torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device) if bidirectional else None
        )
        hidden = model(ids, attention_mask=mask).last_hidden_state
        hidden = hidden if engine.latent is None else engine.latent(hidden)
        span = (
            slice(-1, None) if engine.spec.pooling[0] is Pooling.LAST else slice(batch.start[row, 0], batch.end[row, 0])
        )
        wanted.append(hidden[0, span].float().mean(0).cpu())
    return torch.nn.functional.cosine_similarity(found, torch.stack(wanted)).min().item()


def sentence_transformer(model, tokenizer, config, device):
    """The same model in sentence-transformers' modules; None where it is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Pooling as MeanPooling
        from sentence_transformers.models import Transformer
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:  # a tiny model that the real one then replaces
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
        fast.save_pretrained(folder)
        small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
        transformers.BertModel(transformers.BertConfig(vocab_size=100, **small)).save_pretrained(folder)
        inner = Transformer(folder)
    inner.auto_model = model
    inner.max_seq_length = 2048
    if hasattr(inner, "model"):
        inner.model = model
    return SentenceTransformer(modules=[inner, MeanPooling(config.hidden_size, pooling_mode="mean")], device=device)


@dataclass(frozen=True)
class Contenders:
    """An encoder by raycase, and the peers with the same weights."""

    name: str
    engine: TextEncoder
    prompts: Any
    plain: torch.nn.Module
    library: Any  # None where it is not installed
    rate: float  # of this device's matrix products in its shapes, FLOP/s
    budget: int  # tokens in a batch of transformers; the engine's own is halved when memory runs out

    @property
    def bidirectional(self):
        return not self.engine.spec.causal


def load(name, shape, tokenizer, device, tiny):
    kind, config, causal, style, pooling = shape
    budget = 512 if tiny else 32768
    spec = EncoderSpec(source="", prompt=style, pooling=(pooling,), causal=causal, max_tokens=2000)
    engine = TextEncoder(
        spec=spec,
        model=make(kind, config, device, NAME),
        tokenize=PromptTokenizer(tokenizer=tokenizer, max_tokens=512 if name == "E5-large" else 2000),
        unpadded=True,
        batch_tokens=budget,
    )
    if pooling is Pooling.LATENT:
        sizes = {"latents": 8, "heads": 2, "head_dim": 16} if tiny else {}
        engine.latent = LatentAttention(dim=config.hidden_size, **sizes).to(device, torch.bfloat16).eval()
    engine.try_flex()
    plain = make(kind, config, device, "sdpa")
    plain.load_state_dict(engine.model.state_dict())
    return Contenders(
        name=name,
        engine=engine,
        prompts=prompt_set(style, template=spec.template, span=Span.CONDITION).pair,
        plain=plain,
        library=sentence_transformer(plain, tokenizer, config, device),
        rate=engine.matrix_product_rate(),
        budget=budget,
    )


def compare(contenders, corpus, found, conditions, device, tiny):
    """Tokens a second of each, over texts under so many conditions."""
    engine, rate, bidirectional = contenders.engine, contenders.rate, contenders.bidirectional
    # so many prompts as take the peers about a second at half the rate of the matrix product
    words = 40 if corpus == "captions" else 1000
    most = max(2 * conditions, int((2e8 if tiny else 0.5 * rate) / (2 * engine.weights) / words))
    chosen = found[: max(1, min(most, 20_000) // conditions)]
    pairs = [(text, c) for text in chosen for c in CONDITIONS[:conditions]]
    batch = engine.tokenize.pairs([contenders.prompts], pairs)
    work = engine.encode(batch)[1]
    cosine = least_cosine(engine, contenders.plain, batch, bidirectional and hasattr(contenders.plain, "layers"))
    if cosine < 0.999:
        raise SystemExit(f"{contenders.name}: expected the plain model's vectors, got cosine {cosine:.5f}")
    seconds = timed(partial(engine.encode, batch), device)
    line = {
        "encoder": contenders.name,
        "texts": corpus,
        "conditions": conditions,
        "prompts": len(pairs),
        "cosine": round(cosine, 5),
        "tokens": work.tokens,
        "sharing": round(work.tokens / work.processed, 2),
        "mfu": round(work.flops / seconds / rate, 4),
        "padding": round(1 - work.processed / work.computed, 4),
        "raycase": round(work.tokens / seconds),
    }
    seconds = timed(partial(by_transformers, contenders.plain, batch, contenders.budget, bidirectional), device)
    line["transformers"] = round(work.tokens / seconds)
    if contenders.library is not None:
        whole = [contenders.prompts.render(*pair).text for pair in pairs]
        size = 32 if corpus == "documents" else 256
        embed = partial(contenders.library.encode, whole, batch_size=size, show_progress_bar=False)
        seconds = timed(embed, device, turns=1)
        line["sentence-transformers"] = round(work.tokens / seconds)
    return line


def show(line):
    own = f"{line['raycase']:,} ({line['mfu']:.0%})"
    peers = (f"{line[peer]:,}" if peer in line else "-" for peer in PEERS)
    head = f"{line['encoder']:<22}{line['texts']:<11}{line['conditions']:>5}{line['sharing']:>9.2f}  {own:>24}"
    print(head + "".join(f"{peer:>24}" for peer in peers), flush=True)


def main(device, tiny, output, limit):
    began = time.perf_counter()
    register()
    captions = texts(20_000)
    tokenizer = word_tokenizer(captions)
    corpora = {"captions": captions, "documents": documents(captions, 100 if tiny else 970)}
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    print(f"{name}; torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'encoder':<22}{'texts':<11}{'cond.':>5}{'sharing':>9}  " + "".join(
        f"{n:>24}" for n in ("raycase tok/s (MFU)", *PEERS)))  # fmt: skip
    lines, skipped, rates = [], [], {}
    for encoder, shape in shapes(tiny).items():
        contenders = load(encoder, shape, tokenizer, device, tiny)
        rates[encoder] = contenders.rate
        for (corpus, found), conditions in product(corpora.items(), (1, 2, 8)):
            if time.perf_counter() - began > limit:
                skipped.append(f"{encoder}, {corpus}, {conditions}")
                continue
            lines.append(compare(contenders, corpus, found, conditions, device, tiny))
            show(lines[-1])
        del contenders
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    for combination in skipped:
        print(f"skipped after {limit} s: {combination}")
    ratios = {
        f"{line['encoder']}, {line['texts']}, {line['conditions']} over {peer}": round(line["raycase"] / line[peer], 2)
        for line in lines
        for peer in PEERS
        if peer in line
    }
    result = {"ratios": ratios, "lines": lines, "skipped": skipped, "device": name}
    result["matrix_product_tflops"] = {encoder: round(rate / 1e12, 2) for encoder, rate in rates.items()}
    result |= {"torch": torch.__version__, "transformers": transformers.__version__}
    result |= {"date": datetime.now(UTC).isoformat(timespec="minutes"), "tiny": tiny}
    if output:
        Path(output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models: whether it runs, not how fast")
    parser.add_argument("--output", help="a file for the last line")
    parser.add_argument("--limit", type=float, default=420, help="seconds after which nothing more is begun")
    arguments = parser.parse_args()
    main(arguments.device, arguments.tiny, arguments.output, arguments.limit)
