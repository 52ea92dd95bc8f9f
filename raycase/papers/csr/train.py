"""The flags of CSR, which learns from rated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raycase.commands.systems import RatedFlags
from raycase.names import Advanced
from raycase.papers.csr import Asks, Router

if TYPE_CHECKING:
    from raycase.models.configs import SystemConfig


@dataclass(frozen=True, kw_only=True)
class CsrFlags(RatedFlags):
    """CSR: the condition weights the sentence's tokens in the last layers (Lin et al., 2024).

    The paper's router is --router query --asks cls --routed 1. It does not see the condition in an encoder that is
    averaged: there the defaults are --router query --asks words --routed 3, and --router hidden for minilm.
    """

    SYSTEM = "csr"

    router: Router | None = None
    """Query and keys of the router: query, the attention's (the paper's); hidden, hidden states. Default: see
    above."""
    asks: Advanced[Asks | None] = None
    """Query of the condition: cls, the state of its [CLS] (the paper's); words, the mean of its words. With words, only
    the words of the sentence are weighted, by w times their number instead of 1 + w. Default: see above."""
    routed: Advanced[int | None] = None
    """Number of last layers with a router, T - t. Default: see above."""

    def config(self) -> SystemConfig:
        from raycase.papers.csr.model import csr, default_router

        choices = default_router(self.model)
        choices |= {name: value for name in choices if (value := getattr(self, name)) is not None}
        return csr(self.model, **choices)


FLAGS = {"csr": CsrFlags}
