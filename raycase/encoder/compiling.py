"""What is compiled for an encoder: attention kernels, which are tried first, and its layers.

What fails here, for example without a C++ compiler, is left out with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from raycase.encoder.attention import SHORT, allow_graphs
from raycase.encoder.engine import TextEncoder
from raycase.encoder.packing import Forest, Row, row_lengths
from raycase.encoder.token_batch import TokenBatch, Tokens
from raycase.errors import first_line

log = logging.getLogger(__name__)
LEAST_COSINE = 0.99  # of vectors by FlexAttention to those by chunks, in any number format


@torch.inference_mode()
def try_kernels(encoder: TextEncoder) -> None:
    """Run FlexAttention in both shapes of blocks and two lengths of rows, each of which is compiled by itself. Where it
    fails, or gives other vectors than attention in chunks, it is left out."""
    if not encoder.flex:
        return
    try:
        for trial in list(_trials(encoder)):
            encoder.flex = True
            found = encoder.pool_row(*trial)[1]
            encoder.flex = False
            wanted = encoder.pool_row(*trial)[1]
            if not F.cosine_similarity(found.float(), wanted.float()).min() > LEAST_COSINE:
                raise ValueError("its vectors are not those of attention in chunks")
        encoder.flex = True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise errors of any kind
        encoder.flex = False
        log.warning("FlexAttention does not run here and is not used: %s", first_line(error))


def _trials(encoder: TextEncoder) -> Iterator[tuple[TokenBatch, np.ndarray, Row]]:
    """Prompts, those of a row by index, and the row: of the two shortest lengths, of short prompts and of long ones."""
    spec = encoder.spec
    for length, tokens in zip(row_lengths(encoder.batch_tokens)[::-1][:2], (2, SHORT), strict=False):
        tokens = min(tokens, length, spec.max_tokens)
        ids = [[(n + k * k) % 12 for k in range(tokens)] for n in range(length // tokens)]
        batch = TokenBatch.of([Tokens(ids=prompt, start=0, end=len(prompt)) for prompt in ids])
        forest = Forest.of(batch.sequences, causal=spec.causal)
        row = forest.lay(forest.cuts(length, encoder.row_length)[0])
        yield batch, row.sequences, row


@torch.inference_mode()
def compile_layers(encoder: TextEncoder) -> None:
    """Compile the layers one by one, so that equal ones compile once, which takes about half a minute.

    In rows, shapes are few, and each is compiled by itself; else any shape is compiled as one.
    """
    layers = [*encoder.layers, *filter(None, (encoder.last_layer, getattr(encoder.model, "norm", None)))]
    if encoder.flex:
        allow_graphs()
    for layer in layers:
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):  # are called as they are
            hooks.update({key: torch._dynamo.disable(hook) for key, hook in hooks.items()})
        layer.compile(dynamic=not encoder.flex)
    try:
        if encoder.flex:
            for trial in _trials(encoder):
                encoder.pool_row(*trial)
            return
        for length in (24, 40):  # so that both dimensions are compiled as dynamic
            sequences = [[n % 7] * (length - n % 5) + [n] for n in range(length)]
            encoder.pool([Tokens(ids=ids, start=0, end=len(ids) - n % 5) for n, ids in enumerate(sequences)])
    except Exception as error:  # the compiler raises errors of any kind
        log.warning("not compiled: %s", first_line(error))
        for layer in layers:
            layer._compiled_call_impl = None
