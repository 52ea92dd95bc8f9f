"""The model of an index, which embeds its queries, and the index's condition that is searched for one that is asked.

Shapes: Q queries, C conditions, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from raycase.errors import RequestError, expecting, is_words, normal_words
from raycase.heads.condition_head import ConditionQueries
from raycase.index.lance_files import CUT, IndexMetadata
from raycase.index.rows import remembered
from raycase.io.storage import fingerprint
from raycase.io.vectors import l2_normalize
from raycase.models.configs import EmbedderConfig, check_alike, check_known, check_room
from raycase.models.embedder import Embedder, as_texts, each_condition
from raycase.models.registry import resolve_embedder
from raycase.models.taught import Taught

ASKED = 64  # conditions that are remembered
COMPARED = 2000  # conditions at most among which the nearest to another is looked up


def resolve_query_encoder(metadata: IndexMetadata, model: str) -> EmbedderConfig:
    """The index's model by a name or folder, without its weights, with the conditions that it was taught."""
    own = metadata.model
    choices = {"dim": own.get(CUT)}
    if own["system"] == "case":  # the folders of others fix these, too
        encoder = own["encoder"]
        views, prompt = encoder["prompt"], encoder.get("own")
        choices["prompt"] = views if prompt is None else prompt | {"views": views.split("+")}
        choices |= {"pooling": encoder["pooling"][0], "subtract": own.get("subtract")}
    with expecting(f"model: expected the index's model {model}", RequestError):
        config = resolve_embedder(model, **choices)
    expected, got = fingerprint(metadata.model)[:8], fingerprint(config.describe())[:8]
    if expected != got:
        raise RequestError(
            f"model: expected the index's model, {metadata.name} ({expected}), got {model} ({got}); "
            f"pass its present folder, or embed and index again"
        )
    return config.knowing(*Taught.from_texts(metadata.taught, metadata.name))


@dataclass
class QueryEncoder:
    """The index's model, loaded with the first text. It knows no index: a circle of both would free its memory late."""

    metadata: IndexMetadata
    model: str  # its name, or its folder if it has moved
    uri: str  # of the index
    asked: dict[str, tuple[ConditionQueries, Tensor]] = field(default_factory=dict)  # what the head keeps of these

    @cached_property
    def encoder(self) -> Embedder:
        """The model."""
        return resolve_query_encoder(self.metadata, self.model).load()

    def take_model(self, former: QueryEncoder) -> None:
        """Take the loaded model of a former version of the index, which knows the conditions as this one has them."""
        encoder: Any = former.encoder
        if self.metadata.taught != former.metadata.taught:
            encoder = encoder.with_taught(*Taught.from_texts(self.metadata.taught, self.uri), only=True)
        self.encoder = encoder

    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """As `Index.embed`."""
        encoder: Any = self.encoder
        with expecting(f"{named}: expected a text that {self.model} can embed", ValueError):
            sentences = as_texts(sentences, "sentences")
            if phrases:
                vectors_QD, unknown_Q = encoder.phrase_vectors(sentences, condition)
            else:
                under = None if condition is None else each_condition(condition, sentences)
                vectors_QD, unknown_Q = encoder.text_vectors(sentences, under)
        check_known(encoder.config, sentences, unknown_Q, named)
        return l2_normalize(vectors_QD)

    def ask(self, condition: str) -> tuple[ConditionQueries, Tensor]:
        """What a head of condition pooling keeps of a condition, and its temperatures."""
        encoder: Any = self.encoder

        def kept() -> tuple[ConditionQueries, Tensor]:
            return encoder.questions([condition]), encoder.head.temperatures.detach()

        with expecting(f"condition: expected one that {self.model} can embed", ValueError):
            return remembered(self.asked, condition, ASKED, kept)

    def spelled(self, asked: str | None) -> str | None:
        """A condition as the index has it: as it was asked, else one of the same normal form, else one taught or kept
        that the model reads alike, such as "Place" and "place", else that form."""
        names = {**self.metadata.conditions, **self.metadata.taught}
        if asked is None or asked in names:
            return asked
        normal = normal_words(asked)
        of_form = sorted((one for one in names if normal_words(one) == normal), key=normal.__ne__)
        alike = (one for one in [*self.metadata.taught, *self.metadata.kept] if self._is_alike(one, normal))
        return of_form[0] if of_form else next(alike, normal)

    def _is_alike(self, *both: str) -> bool:
        if len({*map(str.casefold, both)}) > 1:
            return False
        with suppress(RequestError):
            check_alike(self.encoder.config.prepare(both, None), both, "condition")
            return False
        return True

    def condition_for(self, asked: str | None, exact: bool = False) -> str | None:
        """The condition of the index that is searched for the one that was asked."""
        if asked is None and not self.metadata.unconditional:
            raise RequestError(
                f"unconditional: expected unconditional vectors in {self.uri}, got none; name a condition, or embed "
                "with --any-condition, or also with --unconditional, and index that output too"
            )
        name = self.spelled(asked)
        if name is None or name in self.metadata.conditions:
            return name
        if not is_words(name):
            raise RequestError(f"condition: expected words, got {asked!r}")
        if self.metadata.with_tokens and not exact:
            if name not in self.asked:
                check_room(self.encoder.config, [name], "condition")
            return name
        names = ", ".join(map(repr, list(self.metadata.conditions)[:8]))
        is_compared = names and len(self.metadata.conditions) <= COMPARED
        if not is_compared or exact or self.encoder.config.known_conditions is not None:
            raise RequestError(f"condition: expected one of the index's ({names or 'none'}), got {name[:80]!r}")
        return self.nearest_condition(name)[0]

    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose unconditional vector f(c) is nearest to that of another one, and their cosine."""
        cosines_C = (self._conditions @ self.embed([condition], None, "condition")[0]).clip(-1, 1)
        return list(self.metadata.conditions)[int(cosines_C.argmax())], float(cosines_C.max())

    @cached_property
    def _conditions(self) -> np.ndarray:
        return l2_normalize(self.encoder.embed(list(self.metadata.conditions), None))
