"""Tiny random models of each architecture, as `config.json` calls it, saved with a tokenizer like the published."""

import tiny
import torch
from transformers import AutoConfig, AutoModel

SIZES = tiny.SIZES | {"num_hidden_layers": 3, "max_position_embeddings": 160}
SHARED_KEYS = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 8}
HALVES = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4, "initializer_factor": 1.0}
OPT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 64, "word_embed_proj_dim": 32}
DEBERTA = SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}

# Architecture -> what differs from the library's defaults.
ENCODERS = {
    "albert": SIZES | {"embedding_size": 16},
    "bert": SIZES,
    "convbert": SIZES | {"embedding_size": 32, "conv_kernel_size": 3},
    "deberta-v2": DEBERTA | {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 160},
    "gemma3_text, both ways": SHARED_KEYS | WINDOW | {"use_bidirectional_attention": True},
    "modernbert": SIZES | {"local_attention": 8},
    "mpnet": SIZES,
    "roberta": SIZES,
    "t5": HALVES,
    "xlm-roberta": SIZES,
}
DECODERS = {
    "gemma2": SHARED_KEYS | WINDOW,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 160},
    "llama": SHARED_KEYS,
    "mistral": SHARED_KEYS | WINDOW,
    "opt": OPT | {"max_position_embeddings": 160, "init_std": 0.2},
    "qwen2": SHARED_KEYS,
    "qwen3": SHARED_KEYS,
}
ARCHITECTURES = ENCODERS | DECODERS
LIKE_ROBERTA = ("mpnet", "roberta", "xlm-roberta")  # by their tokenizer here; its padding token is 1


def save_random(folder, architecture, seed=0):
    """Save a random model of a architecture with a tokenizer; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_level = architecture in LIKE_ROBERTA
    rows = tiny.save_tokenizer(folder, tiny.byte_level() if byte_level else tiny.wordpiece())
    values = {"vocab_size": rows, "pad_token_id": int(byte_level), "bos_token_id": 2, "eos_token_id": 2}
    values |= {"decoder_start_token_id": 0} if architecture == "t5" else {}
    config = AutoConfig.for_model(architecture.split(",")[0], **values | ARCHITECTURES[architecture])
    torch.manual_seed(seed)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


def library_states(folder, ids):
    """States of each token of one text after each layer, from the first one's input on, as transformers has them: its
    own code of attention, no batch, no mask: (layers + 1, T, D)."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    if hasattr(model, "decoder"):
        model = model.get_encoder()

    @torch.no_grad()
    def states(ids):
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        return torch.stack([s[0] for s in [*output.hidden_states[:-1], output.last_hidden_state]])

    return [states(each) for each in ids]
