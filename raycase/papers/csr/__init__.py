"""CSR (Lin et al., 2024): a router by which a condition weighs the tokens."""

from enum import StrEnum


class Router(StrEnum):
    """Query and keys of the router (table 3)."""

    QUERY = "query"  # the condition's query against the sentence's keys
    HIDDEN = "hidden"  # hidden states on both sides


class Asks(StrEnum):
    """Which state of the condition gives the query, and what the attention's output is multiplied by."""

    CLS = "cls"  # 1 + w
    WORDS = "words"  # ours, for mean-pooled encoders, whose [CLS] holds little: mean of the words; T w over the T words
