"""Tokenizers of every family, trained on a few lines, and random models of every architecture, saved to folders."""

import json

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from raycase.encoder.bert import LatentAttention

CORPUS = [
    "Instruct: Retrieve semantically similar texts to a given Condition, given the Sentence : A woman in a red dress",
    "Instruct: Retrieve semantically similar texts to a given Sentence, given the Condition : color of the dress",
    "Query: number of people two people play with a dog at the bar 0123456789",
    "café cafe\u0301 naïve Łódź Straße 北京 東京 привет 😀 👩‍👩‍👧",
    "{sentence} {condition} [SEP] [CLS] </s> <s> <pad> <|endoftext|> # ' - .",
] * 4
# The pre-tokenizer of Qwen2 and Qwen3.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SENTENCES = [
    "A woman in a red dress",
    "café naïve.",
    "Two people play (with a dog)!",
    "100 % 😀",
    "北京 東京",
    "  spaces around \n",
    "it's",
    "a",
    "the word " * 60,
    "\u200b",
]
CONDITIONS = ["color of the dress", "number", "'s color?", "7", "e\u0301t\u00e9", "😀", "(a)", ": colon", "\u200d"]
PAIRS = [(s, c) for s in SENTENCES for c in CONDITIONS]  # texts of every kind, under conditions of every kind


def _around(tokenizer, first, last):
    """Let `first $A last` be the sequence; an empty name is left out."""
    special, single = [(n, tokenizer.token_to_id(n)) for n in (first, last) if n], f"{first} $A {last}".strip()
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)


def wordpiece(pieces=()):
    """BERT's; over these pieces it is the same in every process, as a trained one is not."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*special, *pieces]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary if pieces else None, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if pieces:
        tokenizer.add_special_tokens(special)
    else:
        trainer = trainers.WordPieceTrainer(show_progress=False, vocab_size=300, special_tokens=special)
        tokenizer.train_from_iterator(CORPUS, trainer)
    _around(tokenizer, "[CLS]", "[SEP]")
    return tokenizer, {"tokenizer_class": "BertTokenizer"}


def byte_level():
    """RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = {"show_progress": False, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, **letters)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer, {"tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}


def qwen(*, ends=False):
    """Qwen2's and Qwen3's: no special tokens added; `ends`: with the end token, as Qwen3-Embedding's file has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    letters = {"show_progress": False, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], **letters)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False, use_regex=False)
    if ends:
        _around(tokenizer, "", "<|endoftext|>")
    return tokenizer, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def mistral(*, ends=False):
    """Mistral's: spaces as a letter, bytes for unknown characters; `ends`: with `</s>`."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(show_progress=False, vocab_size=10)  # letters only
    tokenizer.train_from_iterator([" " + line for line in CORPUS], trainer)
    letters = sorted(c for c in tokenizer.get_vocab() if c.isascii() and c != " ")  # the others fall back to bytes
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    merges = [("c", "o"), ("l", "o"), ("co", "lo"), ("colo", "r"), ("▁", "color"), ("▁", "d"), ("o", "f"), ("▁", "of")]
    pieces += ["".join(m) for m in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    _around(tokenizer, "<s>", "</s>" if ends else "")
    return tokenizer, {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}


def unigram():
    """XLM-R's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(show_progress=False, vocab_size=300, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    _around(tokenizer, "<s>", "</s>")
    return tokenizer, {"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}


TOKENIZERS = {"wordpiece": wordpiece, "byte-level": byte_level, "qwen": qwen, "mistral": mistral, "unigram": unigram}


def save_tokenizer(folder, made):
    """Save what a function of `TOKENIZERS` gives, as the hub's folders hold it, with the configuration of a BERT of its
    size; gives the number of its tokens."""
    tokenizer, options = made
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    rows = tokenizer.get_vocab_size() + 8  # room for what transformers adds, as <mask>
    transformers.BertConfig(vocab_size=rows).save_pretrained(folder)
    return rows


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
# Weights large enough for every token to change every other that can see it.
SIZES |= {"initializer_range": 0.2}
DECODER = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 512}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
ARCHITECTURES = {
    "bert": SIZES | {"max_position_embeddings": 512},
    "roberta": SIZES | {"max_position_embeddings": 514},
    "xlm-roberta": SIZES | {"max_position_embeddings": 514},
    "mistral": DECODER | {"sliding_window": 4096},
    "qwen2": DECODER | NO_TOKENS,
    "qwen3": DECODER | NO_TOKENS | {"head_dim": 8},
}


def save_model(folder, architecture, vocab_size, seed=0):
    """Save a random model of an architecture, or an "nvembed"."""
    torch.manual_seed(seed)
    kind = "mistral" if architecture == "nvembed" else architecture
    config = transformers.AutoConfig.for_model(kind, vocab_size=vocab_size, **ARCHITECTURES[kind])
    model = transformers.AutoModel.from_config(config)
    if architecture != "nvembed":
        model.save_pretrained(folder)
        return
    latent = LatentAttention(dim=32, latents=6, heads=2, head_dim=8)
    for parameter in latent.parameters():  # norms too, which begin as 1 and 0
        torch.nn.init.normal_(parameter, std=0.3)
    sizes = {"num_latents_value": 6, "num_cross_heads": 2, "hidden_dim": 32, "cross_dim_head": 8}
    weights = {f"embedding_model.{k}": v for k, v in model.state_dict().items()}
    weights |= {f"latent_attention_model.{k}": v for k, v in latent.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "nvembed",
        "architectures": ["NVEmbedModel"],
        "auto_map": {"AutoConfig": "configuration_nvembed.NVEmbedConfig", "AutoModel": "modeling_nvembed.NVEmbedModel"},
        "text_config": model.config.to_dict() | {"model_type": "bidir_mistral", "architectures": ["MistralModel"]},
        "latent_attention_config": {"model_type": "latent_attention", **sizes},
    }
    (folder / "config.json").write_text(json.dumps(config))


# Encoder of the table -> architecture and tokenizer as published.
PUBLISHED = {
    "minilm": ("bert", wordpiece),
    "simcse-bert-base": ("bert", wordpiece),
    "simcse-roberta-large": ("roberta", byte_level),
    "e5-large-instruct": ("xlm-roberta", unigram),
    "sfr-mistral": ("mistral", mistral),
    "gte-qwen2-7b": ("qwen2", qwen),
    "nv-embed-v2": ("nvembed", mistral),
    "qwen3-embedding-0.6b": ("qwen3", lambda: qwen(ends=True)),
    "qwen3-embedding-4b": ("qwen3", lambda: qwen(ends=True)),
    "qwen3-embedding-8b": ("qwen3", lambda: qwen(ends=True)),
}


def save_encoder(folder, name):
    """Save a tiny encoder of the same kind as the one in the table; gives the folder."""
    architecture, tokenizer = PUBLISHED[name]
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, architecture, save_tokenizer(folder, tokenizer()))
    return folder


def latent_reference(weights, hidden_TD, heads):
    """NV-Embed's latent attention of one sequence in plain steps, for its weights by name -> (T, D)."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    block = "cross_attend_blocks"
    q = norm(hidden_TD, f"{block}.0.norm") @ weights[f"{block}.0.fn.to_q.weight"].T
    k, v = (norm(weights["latents"], f"{block}.0.norm_context") @ weights[f"{block}.0.fn.to_kv.weight"].T).chunk(2, 1)
    width = q.shape[1] // heads
    parts = []
    for head in range(heads):
        at = slice(head * width, (head + 1) * width)
        parts.append(torch.softmax(q[:, at] @ k[:, at].T / width**0.5, dim=-1) @ v[:, at])
    x = torch.cat(parts, 1) @ weights[f"{block}.0.fn.to_out.weight"].T + hidden_TD
    inner = norm(x, f"{block}.1.norm") @ weights[f"{block}.1.fn.net.0.weight"].T + weights[f"{block}.1.fn.net.0.bias"]
    value, gate = inner.chunk(2, 1)
    gated = value * (gate * 0.5 * (1 + torch.erf(gate / 2**0.5)))
    return gated @ weights[f"{block}.1.fn.net.2.weight"].T + weights[f"{block}.1.fn.net.2.bias"] + x


def nv_embed_model(folder):
    """NV-Embed's Mistral as transformers has it, and the weights of its latent attention by name."""
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())["text_config"]
    model = transformers.MistralModel(transformers.MistralConfig(**config | {"model_type": "mistral"})).eval()
    inner, latent = (
        {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        for prefix in ("embedding_model.", "latent_attention_model.")
    )
    model.load_state_dict(inner)
    return model, latent


def nv_embed(folder, instruction, text):
    """NV-Embed's vector of one text, by the steps of its authors' `encode`: the end token is written behind the text,
    and as many tokens are left out of the mean as the instruction has by itself, without `<s>`: (D,)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(instruction + text + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    model, latent = nv_embed_model(folder)
    everywhere = torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)
    with torch.inference_mode():
        hidden_TD = model(ids, attention_mask=everywhere).last_hidden_state[0]
    masked = len(tokenizer.tokenize(instruction)) if instruction else 0
    return latent_reference(latent, hidden_TD, heads=2)[masked:].mean(0).numpy()


def batches_equal(found, wanted):
    """Assert that two batches hold the same prompts."""
    assert len(found) == len(wanted)
    assert found.lengths.tolist() == wanted.lengths.tolist()
    assert found.sequences.flat.tolist() == wanted.sequences.flat.tolist()
    for name in ("start", "end", "truncated", "refused"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    assert np.array_equal(found.second, wanted.second)


def tokens(tokenizer, prompts):
    """Prompts of one view each, tokenised."""
    return [found for [found] in tokenizer.views([[prompt] for prompt in prompts])]
