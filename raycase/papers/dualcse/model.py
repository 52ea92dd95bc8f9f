"""DualCSE (Oda et al., 2025): two vectors of a sentence in one space, for its explicit and its implicit meaning.

Both are learned from premises with explicit and implied entailments. Their distance shows how implicit a sentence is.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import compile_layers, load_encoder, whole_model
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.encoder.tokenizer import separated
from raycase.io.schema import Reason
from raycase.io.vectors import cosines
from raycase.models.configs import EmbedderConfig, check_conditions
from raycase.models.fine_tuned import FineTunedEmbedder, starting_encoder
from raycase.models.pairs import Encoded, accepted_pairs, encoded, prepare
from raycase.papers.dualcse import DualCseForm

EXPLICIT, IMPLICIT = "explicit", "implicit"


@dataclass(frozen=True, kw_only=True)
class DualCseConfig(EmbedderConfig):
    """r = f(s, explicit) and u = f(s, implicit); the paper takes the last layer's [CLS]."""

    SYSTEM = "dualcse"
    FORMULA = "f(s, explicit) or f(s, implicit)"
    known_conditions = (EXPLICIT, IMPLICIT)
    figure_names = ("score", "implicitness1", "implicitness2")

    form: DualCseForm = DualCseForm.CROSS

    def _tokens(self, pairs: Sequence[tuple[str, str]]) -> TokenBatch:
        rows = pairs if self.form is DualCseForm.CROSS else [(sentence,) for sentence, _ in pairs]
        batch = separated(load_tokenizer(self.encoder), rows, shortened=1)
        unknown = np.array([condition not in (EXPLICIT, IMPLICIT) for _, condition in pairs], dtype=bool)
        return batch.refuse(unknown, Reason.UNKNOWN_CONDITION)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        check_conditions(self, None if conditions is None else ())
        return prepare(self.encoder, sentences, conditions, tokens=self._tokens)

    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        meanings = [EXPLICIT] * len(firsts) + [IMPLICIT] * len(firsts)
        return self.prepare([*firsts, *firsts, *seconds, *seconds], [*meanings, *meanings])

    def pair_figures(self, vectors: np.ndarray) -> np.ndarray:
        """Entailment of the second sentence by the first, and how implicit each is: (N, 3)."""
        r1_ND, u1_ND, r2_ND, u2_ND = np.split(vectors, 4)
        figures = (entailment(r1_ND, u1_ND, r2_ND), implicitness(r1_ND, u1_ND), implicitness(r2_ND, u2_ND))
        return np.stack(figures, axis=1)

    def load(self, **options: Any) -> DualCse:
        implicit: TextEncoder | None = None
        if self.form is DualCseForm.BI:
            implicit = load_encoder(self.encoder, adapt=self.load_extra, **options)
        return DualCse(self, load_encoder(self.encoder, **options), implicit)


class DualCse(FineTunedEmbedder):
    """f(s, explicit) and f(s, implicit), from one encoder or from two."""

    def __init__(self, config: DualCseConfig, encoder: TextEncoder, implicit: TextEncoder | None) -> None:
        super().__init__(config, encoder)
        self.implicit = implicit
        self.encoders = {EXPLICIT: encoder, IMPLICIT: implicit or encoder}
        self.implicit_parts = implicit.parts() if implicit else nn.ModuleList()

    def forward(self, prepared: Prepared) -> Tensor:
        parts = self._parts(prepared, np.arange(len(prepared.condition)))
        vectors_MD = torch.cat([encoder.pooled(prepared.of_pairs[0].take(rows)) for encoder, rows in parts])
        order_M = np.argsort(np.concatenate([rows for _, rows in parts]))
        return vectors_MD[torch.from_numpy(order_M[prepared.rows])]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        vectors_MD, work = np.empty((len(prepared.condition), self.dim), dtype=np.float32), Work()
        for encoder, rows in self._parts(prepared, pair_index):
            vectors_MD[rows], new_work = encoder.encode(prepared.of_pairs[0].take(rows))
            work += new_work
        return encoded(prepared, pair_index, vectors_MD[pair_index], work)

    def _parts(self, prepared: Prepared, pair_index: np.ndarray) -> list[tuple[TextEncoder, np.ndarray]]:
        """Each encoder with the pairs that it encodes."""
        assert prepared.conditions is not None
        if self.config.form is DualCseForm.CROSS:
            return [(self.encoder, pair_index)]
        names = np.array(prepared.conditions)[prepared.condition[pair_index]]
        parts = [(encoder, pair_index[names == name]) for name, encoder in self.encoders.items()]
        return [(encoder, rows) for encoder, rows in parts if len(rows)]

    @property
    def extra(self) -> nn.Module | None:
        return whole_model(self.implicit) if self.implicit else None

    def compile(self) -> None:
        super().compile()
        if self.implicit:
            compile_layers(self.implicit)


def entailment(explicit1_ND: np.ndarray, implicit1_ND: np.ndarray, explicit2_ND: np.ndarray) -> np.ndarray:
    """max(cos(r1, r2), cos(u1, r2)) of premises 1 and hypotheses 2 (eq. 3): (N,); above a threshold, it is entailed."""
    return np.maximum(cosines(explicit1_ND, explicit2_ND), cosines(implicit1_ND, explicit2_ND))


def implicitness(explicit_ND: np.ndarray, implicit_ND: np.ndarray) -> np.ndarray:
    """1 - cos(r, u) of sentences (eq. 4): (N,)."""
    return 1 - cosines(explicit_ND, implicit_ND)


def dualcse(model: str, *, form: DualCseForm = DualCseForm.CROSS, pooling: Pooling = Pooling.CLS) -> DualCseConfig:
    """The system before training."""
    spec = starting_encoder(model, prompt="concat-sc", pooling=pooling, cls=pooling is Pooling.CLS)
    return DualCseConfig(name=model, encoder=spec, form=form)


SYSTEMS = {"dualcse": DualCseConfig}
