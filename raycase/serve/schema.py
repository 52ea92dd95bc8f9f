"""What requests hold, and their limits. A name that is not here is refused: a typing error must not go unnoticed.

Shapes: N texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator

from raycase.errors import RequestError, is_words, normal_words, visible
from raycase.names import Effort

MOST_BODY = 8 * 2**20  # bytes
MOST_NAMES = 64  # of a request: of a million wrong ones pydantic would make a million errors
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


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for `json.loads`. Raises RequestError for a name given twice, of which readers take the last."""
    if len(found := dict(pairs)) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RequestError(f"expected each name of an object once, got {visible(repr(name), 80)} twice")
    return found


def _words(text: str) -> str:
    if not is_words(text):
        raise ValueError(f"expected words, got {visible(repr(text), 80)}")
    return text


Text = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(_words)]
Condition = Annotated[str, Field(max_length=MOST_CONDITION), AfterValidator(_words)]
Phrase = Annotated[tuple[Text, FiniteFloat], Field(strict=False)]  # JSON has no tuples, only lists
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]  # 3.0, too
Where = Annotated[str, Field(max_length=MOST_WHERE)]
ONE_OR_MANY = BeforeValidator(
    lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]
)
OneOrMany = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS), ONE_OR_MANY]
Conditions = Annotated[list[Condition], Field(min_length=1, max_length=MOST_TEXTS), ONE_OR_MANY]
NormalConditions = Annotated[Conditions, AfterValidator(lambda conditions: [*map(normal_words, conditions)])]


class Body(BaseModel):
    """Base of what requests hold: no other names, and no value in place of one of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, asked: Any) -> Any:
        if isinstance(asked, dict) and len(asked) > MOST_NAMES:
            raise ValueError(f"expected at most {MOST_NAMES} names, got {len(asked):,}")
        return asked


def first_problem(errors: Sequence[Any], inside: int = 0) -> tuple[str, str]:
    """The name of the first value that is wrong, without the outer parts of its place; and what is wrong with it."""
    return ".".join(map(str, errors[0]["loc"][inside:])), errors[0]["msg"].removeprefix("Value error, ")


def each(conditions: Sequence[str] | None, texts: Sequence[str], most: int) -> list[str] | None:
    """The condition of each text; a single one is that of all."""
    if conditions is None:
        return None
    if len(conditions) not in (1, len(texts)) or len(set(conditions)) > most:
        raise RequestError(
            f"condition: expected one, or one for each of the {len(texts):,} texts, and at most {most:,} different "
            f"ones, got {len(conditions):,}"
        )
    return [*conditions] * (len(texts) // len(conditions))


class EmbeddingRequest(Body):
    """`POST /v1/embeddings` of OpenAI, with `condition` and `normalize` beside it."""

    input: OneOrMany
    model: str | None = None
    condition: NormalConditions | None = None
    dimensions: Whole | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] | None = "float"
    normalize: bool = False
    truncate: Literal["END", "NONE"] | None = None  # NONE: a text that is too long is refused
    user: str | None = None  # OpenAI's and of proxies, ignored, as what follows
    input_type: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def conditions(self) -> list[str] | None:
        """The condition of each text: (N,)."""
        return each(self.condition, self.input, MOST_CONDITIONS)


class SearchRequest(Body):
    """`POST /search`: the rows nearest to each query, as `raycase search` finds them."""

    queries: Annotated[list[Text], Field(min_length=1, max_length=MOST_QUERIES), ONE_OR_MANY]
    condition: Conditions | None = None
    conditions: dict[Condition, FiniteFloat | Phrase] | None = Field(None, min_length=1, max_length=MOST_SEARCHED)
    unconditional: bool = False
    k: Whole = Field(10, ge=1, le=MOST_K)
    where: Where | None = None
    match: Text | None = None
    hybrid: bool = False
    per: Where | None = None
    effort: Effort = "usual"
    exact_condition: bool = False

    @model_validator(mode="after")
    def _check(self) -> SearchRequest:
        if (self.condition is not None) + (self.conditions is not None) + self.unconditional > 1:
            raise ValueError("expected condition, conditions or unconditional, got several")
        if self.k * (count := len(self.queries)) > MOST_ANSWERS:
            got = f"got {self.k:,} for {count:,} queries"
            raise ValueError(f"k: expected at most {MOST_ANSWERS:,} answers to all queries, {got}")
        return self

    @property
    def asked(self) -> list[str] | dict[str, Any] | None:
        """The condition of each query, (Q,), or weights of conditions."""
        return self.conditions or each(self.condition, self.queries, MOST_SEARCHED)


class ExplainRequest(Body):
    """`POST /explain`: which words of each text each condition looks at."""

    texts: OneOrMany
    conditions: NormalConditions

    @model_validator(mode="after")
    def _check(self) -> ExplainRequest:
        texts, conditions = len(self.texts), len(self.conditions)
        if texts * conditions > MOST_EXPLAINED:
            raise ValueError(f"expected at most {MOST_EXPLAINED} texts times conditions, got {texts} and {conditions}")
        return self


class FacetsRequest(Body):
    """`POST /facets`: the rows of the index in clusters under a condition, as `raycase facets` finds them."""

    condition: Condition
    where: Where | None = None
    exact_condition: bool = False
    clusters: Whole | None = Field(None, ge=2, le=MOST_CLUSTERS)
