"""Compiling the layers of an encoder, or leaving them as they are where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import nn

from raycase.encoder.attention import allow_graphs
from raycase.errors import first_line

log = logging.getLogger(__name__)


def compile_layers(layers: Sequence[nn.Module], warm_up: Callable[[], object], *, fixed: bool) -> None:
    """Compile modules one by one, so that equal ones compile once; `warm_up` runs them in two shapes of those to come.

    fixed: shapes are few, and each is compiled by itself; else any shape is compiled as one.
    Where compiling fails, for example without a C++ compiler, it logs a warning and leaves the modules as they are.
    """
    if fixed:
        allow_graphs()
    for layer in layers:
        layer.compile(dynamic=not fixed)
    try:
        warm_up()
    except Exception as error:  # the compiler raises errors of any kind
        log.warning("not compiled: %s", first_line(error))
        for layer in layers:
            layer._compiled_call_impl = None
