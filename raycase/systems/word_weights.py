"""How much a condition weighs each word of a sentence, by systems that weigh tokens.

Condition pooling: the share of the vector that comes from the word, for the vector is a weighted sum over tokens. CSR:
what the router gives the word (Lin et al., 2024, Figures 5 to 7).

Shapes: N pairs, M distinct pairs, C conditions, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raycase.encoder.prepared import Prepared
from raycase.encoder.words import Word, words_of
from raycase.systems.embeds import Embeds


class WeighsWords(Embeds):
    """Base of the loaded systems that can say which words a condition looked at."""

    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """The weight of each text token of each distinct pair, those that cover the text: M of (T,), whose sum is 1, or
        (0,) for a refused pair."""
        raise NotImplementedError

    def weights(self, sentence: str, conditions: Sequence[str]) -> np.ndarray:
        """How much each condition weighs each token of a sentence, those that cover the text.

        C conditions -> (C, T), each row sums to 1. Raises ValueError for texts that cannot be embedded.
        """
        prepared = self.config.prepare([sentence] * len(conditions), conditions)
        for condition, reason in zip(conditions, prepared.refused, strict=True):
            if reason is not None:
                raise ValueError(f"{reason}: {sentence!r} under {condition!r}")
        weights = self.token_weights(prepared)
        return np.stack([weights[i] for i in prepared.rows])

    def word_weights(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> list[list[Word]]:
        """How much each pair's condition weighs each word of its sentence: N, N -> N lists of words.

        A single string is the condition of every sentence; None (CSR): what a sentence's own [CLS] attends to. The list
        is empty for a pair that cannot be embedded; words that were truncated are left out. Raises ValueError for lists
        of different length.
        """
        conditions = [conditions] * len(sentences) if isinstance(conditions, str) else conditions
        prepared = self.config.prepare(sentences, conditions)
        weights, distinct = self.token_weights(prepared), list(dict.fromkeys(sentences))
        words = dict(zip(distinct, words_of(self.encoder.tokenize, distinct), strict=True))
        return [words[text].weigh(weights[i]) for text, i in zip(sentences, prepared.rows.tolist(), strict=True)]
