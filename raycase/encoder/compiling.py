"""What is compiled for an encoder: attention kernels, which are tried first, and its layers.

What fails here, for example without a C++ compiler, is left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from raycase.encoder.attention import SHORT, allow_graphs, apart
from raycase.encoder.engine import TextEncoder
from raycase.encoder.packing import Forest, Row, row_lengths, rows_without_padding
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.errors import first_line

log = logging.getLogger(__name__)
LEAST_COSINE = 0.99  # of vectors by FlexAttention and FlashAttention to those by chunks, in any number format
KernelTrial = tuple[TokenBatch, np.ndarray, Row]  # prompts, those of a row by index, the row


@torch.inference_mode()
def try_kernels(encoder: TextEncoder) -> None:
    """Run FlexAttention in both shapes of blocks and two lengths of rows, each of which is compiled by itself, and
    FlashAttention on long sequences. One that gives other vectors than attention in chunks is left out, too."""
    if not encoder.flex:
        return
    trials, varlen = list(_trials(encoder)), encoder.varlen
    flex = _runs(encoder, "FlexAttention", trials, flex=True)
    long = [trial for trial in trials if apart(trial[2])]  # none where prompts are too short for it
    varlen = varlen and bool(long) and _runs(encoder, "FlashAttention", long, flex=False)
    encoder.flex, encoder.varlen = flex, varlen


def _runs(encoder: TextEncoder, name: str, trials: list[KernelTrial], *, flex: bool) -> bool:
    """Whether FlexAttention, else FlashAttention, runs here, and gives the vectors of attention in chunks."""
    try:
        for trial in trials:
            encoder.flex, encoder.varlen = flex, not flex
            found = encoder.pool_row(*trial)[1]
            encoder.flex = encoder.varlen = False
            wanted = encoder.pool_row(*trial)[1]
            if not F.cosine_similarity(found.float(), wanted.float()).min() > LEAST_COSINE:
                raise ValueError("its vectors are not those of attention in chunks")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise errors of any kind
        log.warning("%s does not run here and is not used: %s", name, first_line(error))
        return False
    return True


def _trials(encoder: TextEncoder) -> Iterator[KernelTrial]:
    """Rows of the two shortest lengths, of short prompts and of long ones."""
    spec = encoder.spec
    positions = int(getattr(encoder.model.config, "max_position_embeddings", SHORT + 2)) - 2  # RoBERTa's begin at 2
    for length, tokens in zip(row_lengths(encoder.batch_tokens)[::-1][:2], (2, SHORT), strict=False):
        tokens = max(1, min(tokens, length, spec.max_tokens, positions))
        ids = [[(n + k * k) % 12 for k in range(tokens)] for n in range(length // tokens)]
        batch = TokenBatch.of([Tokens(ids=prompt, start=0, end=len(prompt)) for prompt in ids])
        sequences = batch.ids(np.arange(len(batch)))
        if spec.causal:
            forest = Forest.of(sequences)
            row = forest.lay(forest.cuts(length, encoder.row_length)[0])
        else:
            row = next(rows_without_padding(sequences, length, encoder.row_length))
        yield batch, row.sequences, row


def compile_layers(encoder: TextEncoder) -> None:
    """Compile the layers one by one, so that equal ones compile once, which takes about half a minute.

    In rows, shapes are few, and each is compiled by itself; else any shape is compiled as one.
    """
    layers = [*encoder.layers, *filter(None, (encoder.last_layer, getattr(encoder.model, "norm", None)))]
    fixed = encoder.flex and encoder.unpadded
    if fixed:
        allow_graphs()
    for layer in layers:
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):  # are called as they are
            hooks.update({key: torch._dynamo.disable(hook) for key, hook in hooks.items()})
        layer.compile(dynamic=not fixed)
    try:
        _warm_up(encoder, fixed=fixed)
    except Exception as error:  # the compiler raises errors of any kind
        log.warning("not compiled: %s", first_line(error))
        for layer in layers:
            layer._compiled_call_impl = None


@torch.inference_mode()
def _warm_up(encoder: TextEncoder, *, fixed: bool) -> None:
    """Run prompts in two shapes: two lengths of rows, or else so that both dimensions are compiled as dynamic."""
    if fixed:
        varlen = encoder.varlen
        try:
            for encoder.varlen in sorted({False, varlen}):
                for trial in _trials(encoder):
                    encoder.pool_row(*trial)
        finally:
            encoder.varlen = varlen
        return
    for length in (24, 40):
        sequences = [[n % 7] * (length - n % 5) + [n] for n in range(length)]
        encoder.pool([Tokens(ids=ids, start=0, end=len(ids) - n % 5) for n, ids in enumerate(sequences)])
