"""Compiling the layers of an encoder, or leaving them as they are where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import nn

from raycase.errors import first_line

log = logging.getLogger(__name__)


def compile_layers(layers: Sequence[nn.Module], warm_up: Callable[[], object]) -> None:
    """Compile modules one by one, so that equal ones compile once; `warm_up` runs them in the shapes to come.

    Where compiling fails, for example without a C++ compiler, it logs a warning and leaves the modules as they are.
    """
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        warm_up()
    except Exception as error:  # the compiler raises errors of any kind
        log.warning("not compiled: %s", first_line(error))
        for layer in layers:
            layer._compiled_call_impl = None
