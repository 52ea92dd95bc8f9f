"""What an encoder has weights for: tokens, positions and types of tokens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
POSITIONS = ("position_embeddings", "embed_positions", "wpe")  # names of tables of positions, of BERT, OPT and GPT-2
NAMED = 5  # tokens in a message


def check_tokens(tokenize: PromptTokenizer, source: str) -> None:
    """Raise RequestError where the encoder has no weights for a token of the vocabulary, or around every text.

    Added tokens are another matter: tokenizers are published with more of them than there are weights for, as that of
    Qwen3-Embedding-8B. A text with one is refused by itself (`PromptTokenizer.known`).
    """
    vocabulary = tokenize.tokenizer.get_vocab_size(with_added_tokens=False)
    around = [*tokenize.tokenizer.encode("").ids, *([] if tokenize.end_id is None else [tokenize.end_id])]
    added = tokenize.tokenizer.get_added_tokens_decoder()
    beyond = [(i, t.content) for i, t in sorted(added.items()) if i >= tokenize.rows and (i in around or not t.special)]
    tokens = ", ".join(f"{content[:40]!r} ({i})" for i, content in beyond[:NAMED])
    if vocabulary > tokenize.rows or not tokenize.known(around):
        raise RequestError(
            f"--model: expected weights for each token, got {tokenize.rows:,} rows (vocab_size in config.json) for "
            f"{max(vocabulary, *(i + 1 for i in around), 1):,} tokens of the tokenizer at {source}"
            f"{': ' if tokens else ''}{tokens}; pass the tokenizer that the weights were trained with"
        )
    if beyond:
        log.warning(
            "%s has %d rows of weights and %d added tokens beyond them, %s: texts with one are rejected",
            source,
            tokenize.rows,
            len(beyond),
            tokens,
        )


def learned_positions(model: PreTrainedModel) -> float:
    """How many tokens a prompt may have for each to have its own weights; infinite where positions are computed."""
    named = (m for name, m in model.named_modules() if name.split(".")[-1] in POSITIONS)
    tables = [m for m in named if isinstance(getattr(m, "weight", None), Tensor)]  # I-BERT's is of its own class
    return min((_positions(table) for table in tables), default=float("inf"))


def _positions(table: Any) -> int:
    """Positions of a table: RoBERTa's begin after the padding's, OPT's after two that are not used."""
    padding = getattr(table, "padding_idx", None)
    before = 0 if padding is None else padding + 1
    return len(table.weight) - max(before, getattr(table, "offset", 0))


def check_sizes(model: PreTrainedModel, source: str, max_tokens: int) -> None:
    """Raise RequestError for prompts longer than the positions, and a table of weights without rows, as for types."""
    room = learned_positions(model)
    if max_tokens > room:
        raise RequestError(
            f"--model: expected weights for {max_tokens} positions (max_tokens), got {room} at {source}; lower "
            "max_tokens in raycase.json, or pass the encoder that it was made for"
        )
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and not table.num_embeddings:
            raise RequestError(f"--model: expected weights in {name}, got none at {source}")
