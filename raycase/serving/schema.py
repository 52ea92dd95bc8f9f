"""What requests hold, and their limits. A name that is not here is refused: a typing error must not go unnoticed.

Shapes: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from raycase.errors import is_utf8, visible

MOST_BODY = 8 * 2**20  # bytes
MOST_BODIES = 256 * 2**20  # bytes of all bodies of a replica that arrive, wait or are worked on
MOST_HEADERS = 2**16  # bytes
MOST_TEXTS = 2048  # of a request for embeddings, as OpenAI has it
MOST_CHARACTERS = 2**15  # of a text
MOST_CONDITIONS = 256  # different ones, of embeddings
MOST_CONDITION = 1000  # characters of a condition
MOST_QUERIES = 256
MOST_SEARCHED = 16  # different conditions of a search: a new one takes all rows of the index
MOST_K = 1000
MOST_ANSWERS = 10_000  # queries times k
MOST_WHERE = 10_000  # characters of a filter
MOST_EXPLAINED = 64  # texts times conditions
MOST_CLUSTERS = 100


class TooLargeError(ValueError):
    """A request beyond a limit."""


def texts_of(value: Any, most: int = MOST_TEXTS, characters: int = MOST_CHARACTERS) -> list[str]:
    """One text or a list of them as a list. Raises ValueError, and TooLargeError beyond the limits."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise ValueError(f"expected a text or a list of texts, got {_shown(value)}")
    if len(texts) > most:
        raise TooLargeError(f"expected at most {most:,} texts, got {len(texts):,}")
    for i, text in enumerate(texts):
        where = "" if isinstance(value, str) else f"text {i}: "
        if isinstance(text, (int, list)) and not isinstance(text, bool):
            raise ValueError(f"{where}expected a text, got tokens: this model has a tokenizer of its own; send texts")
        if not isinstance(text, str):
            raise ValueError(f"{where}expected a text, got {_shown(text)}")
        if len(text) > characters:
            raise TooLargeError(f"{where}expected at most {characters:,} characters, got {len(text):,}")
        if not is_utf8(text):
            raise ValueError(f"{where}expected Unicode, got half of a surrogate pair in {_shown(text)}")
        if not text.strip():
            raise ValueError(f"{where}expected words, got {_shown(text)}")
    return texts


def _condition(value: Any) -> str | list[str]:
    texts = texts_of(value, characters=MOST_CONDITION)
    return texts[0] if isinstance(value, str) else texts


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {_shown(value)}")
    return texts_of(value, characters=MOST_CONDITION)[0]


def _where(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and is_utf8(value)):
        raise ValueError(f"expected a filter in SQL, got {_shown(value)}")
    if value is not None and len(value) > MOST_WHERE:
        raise TooLargeError(f"expected at most {MOST_WHERE:,} characters, got {len(value):,}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return ("an object" if isinstance(value, dict) else "a list") + ("" if value else " of nothing")
    return visible(repr(value), 80)


TextList = Annotated[list[str], BeforeValidator(texts_of, json_schema_input_type=str | list[str])]
OneCondition = Annotated[str, BeforeValidator(_words, json_schema_input_type=str)]
ConditionOrList = Annotated[str | list[str], BeforeValidator(_condition, json_schema_input_type=str | list[str])]
Where = Annotated[str | None, BeforeValidator(_where, json_schema_input_type=str | None)]


class Body(BaseModel):
    """Base of what requests hold: no other names, and no value in place of one of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def each(condition: str | list[str] | None, texts: Sequence[str], most: int) -> list[str] | None:
    """The condition of each text. Raises ValueError for another number of them, TooLargeError beyond the limit."""
    if condition is None or isinstance(condition, str):
        return None if condition is None else [condition] * len(texts)
    if len(condition) != len(texts):
        raise ValueError(
            f"condition: expected one, or one for each of the {len(texts):,} texts, got {len(condition):,}"
        )
    if len(set(condition)) > most:
        raise TooLargeError(f"condition: expected at most {most:,} different ones, got {len(set(condition)):,}")
    return condition


class EmbeddingRequest(Body):
    """`POST /v1/embeddings` of OpenAI, with `condition` and `normalize` beside it."""

    input: TextList
    model: str | None = None
    condition: ConditionOrList | None = None
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool = False
    user: str | None = None  # OpenAI's, ignored

    @model_validator(mode="after")
    def _check(self) -> EmbeddingRequest:
        each(self.condition, self.input, MOST_CONDITIONS)
        return self

    @property
    def conditions(self) -> list[str] | None:
        """The condition of each text: (N,)."""
        return each(self.condition, self.input, MOST_CONDITIONS)


class SearchRequest(Body):
    """`POST /search`: the rows nearest to each query, as `raycase search` finds them."""

    queries: Annotated[
        list[str], BeforeValidator(lambda value: texts_of(value, MOST_QUERIES), json_schema_input_type=str | list[str])
    ]
    condition: ConditionOrList | None = None
    unconditional: bool = False
    k: int = Field(10, ge=1)
    where: Where = None
    effort: Literal["low", "usual", "high", "exact"] = "usual"
    exact_condition: bool = False

    @model_validator(mode="after")
    def _check(self) -> SearchRequest:
        each(self.condition, self.queries, MOST_SEARCHED)
        if self.condition is not None and self.unconditional:
            raise ValueError("expected condition or unconditional, got both")
        if self.k > MOST_K or self.k * len(self.queries) > MOST_ANSWERS:
            raise TooLargeError(
                f"k: expected at most {MOST_K:,}, and {MOST_ANSWERS:,} answers to all queries, got {self.k:,} for "
                f"{len(self.queries):,} queries"
            )
        return self

    @property
    def conditions(self) -> list[str] | None:
        """The condition of each query: (Q,)."""
        return each(self.condition, self.queries, MOST_SEARCHED)


class ExplainRequest(Body):
    """`POST /explain`: which words of each text each condition looks at."""

    texts: TextList
    conditions: TextList

    @model_validator(mode="after")
    def _check(self) -> ExplainRequest:
        _condition(self.conditions)
        if len(self.texts) * len(self.conditions) > MOST_EXPLAINED:
            raise TooLargeError(
                f"expected at most {MOST_EXPLAINED} texts times conditions, got {len(self.texts)} and "
                f"{len(self.conditions)}"
            )
        return self


class FacetsRequest(Body):
    """`POST /facets`: the rows of the index in clusters under a condition, as `raycase facets` finds them."""

    condition: OneCondition
    where: Where = None
    exact_condition: bool = False
    clusters: int | None = Field(None, ge=2, le=MOST_CLUSTERS)
    most_clusters: int = Field(24, ge=2, le=MOST_CLUSTERS)
    seed: int = Field(0, ge=0, le=2**32 - 1)
