"""A filter in SQL on the kept columns, as a user or a stranger wrote it, becomes the filter that Lance gets.

It is parsed as one expression, checked, and written anew from what was parsed, so no text of the user reaches Lance.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NewType

import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, first_line, needs_package, visible
from raycase.index.lance_files import lance_errors, returned_columns
from raycase.io.json_values import loads
from raycase.io.lance_dataset import METADATA_KEY, import_lance
from raycase.io.schema import ID
from raycase.io.storage import Location

if TYPE_CHECKING:
    from lance import LanceDataset

Filter = NewType("Filter", str)  # checked, and in parentheses; made by `checked_filter` alone
# Of these and of `_written`'s operators, Lance computes all on any value. A function or a cast that fails at one value
# ends the whole search; where Lance panics it never returns
FUNCTIONS = frozenset(
    """
    lower upper trim btrim length char_length character_length starts_with ends_with contains coalesce
    array_has array_contains array_has_any array_has_all array_length list_has list_contains
    """.split()  # noqa: SIM905
)

# A time: a date, the seconds of its day, digits of a second, and how far from UTC
TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))? ?(Z|[+-]\d\d(?::?\d\d)?)?)?")
UNITS = {"s": (10**9, "Second"), "ms": (10**6, "Millisecond"), "us": (10**3, "Microsecond"), "ns": (1, "Nanosecond")}
DATES = {pa.date32(): (86_400 * 10**9, "Date32"), pa.date64(): (10**6, "Date64")}


def checked_filter(dataset: LanceDataset, root: Location, where: str, named: str) -> Filter:
    """The filter on id and the kept columns of an index that some text in SQL asks for.

    `"year"` and `` `year` `` name columns, in their case. Raises RequestError, in which it is `named` so, for
    anything else than one condition on these columns.
    """
    columns = returned_columns(dataset)
    schema = pa.schema([dataset.schema.field(name) for name in columns], dataset.schema.metadata)
    try:
        sql = _written(_parsed(where), schema)
        with lance_errors(root):
            empty = import_lance().write_dataset(schema.empty_table(), "memory://filter")
            empty.scanner(filter=sql, limit=1).to_table()
    except (ValueError, RecursionError) as error:
        of_lance = first_line(error).partition("got: ")[2].partition(". Valid fields")[0]
        reason = of_lance or str(error)
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else reason
        known, got, why = (visible(each, MOST_LABEL) for each in (", ".join(columns), repr(where), reason))
        raise RequestError(f"{named}: expected a filter in SQL on {known}, got {got}: {why}") from error
    return Filter(f"({sql})")


# ------------------------------------------------------------------------------------------------------------ parsing


@cache
def _sqlglot() -> Any:
    """The package sqlglot, and its dialect for Lance: both quotes are of columns, functions keep their names."""
    with needs_package("sqlglot", "search", "for a filter"):
        import sqlglot
        from sqlglot import exp, generator, parser, tokens
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    words = {"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "ESCAPE", "TRUE", "FALSE", "AS"}
    words |= {"DISTINCT", "FROM"}
    kinds = parser.Parser.TYPE_TOKENS

    class Lance(sqlglot.Dialect):
        class Tokenizer(tokens.Tokenizer):
            IDENTIFIERS: ClassVar = ["`", '"']  # the first is written
            KEYWORDS: ClassVar = {  # any other word may be a column
                word: kind
                for word, kind in tokens.Tokenizer.KEYWORDS.items()
                if word in words or kind in kinds or not word[0].isalpha()
            }

        class Parser(parser.Parser):
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS: ClassVar = {name: parser.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")}
            NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
            NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {}

        class Generator(generator.Generator):
            TRANSFORMS: ClassVar = generator.Generator.TRANSFORMS | {
                exp.Array: lambda self, array: f"[{self.expressions(array, flat=True)}]",
            }
            TYPE_MAPPING: ClassVar = generator.Generator.TYPE_MAPPING | {
                exp.DType.TEXT: "STRING",
                exp.DType.VARCHAR: "STRING",
            }

    return sqlglot, Lance


def _parsed(where: str) -> Any:
    """The expression of a text. Raises ValueError for none, several, comments, and what is no SQL."""
    sqlglot, dialect = _sqlglot()
    kinds = sqlglot.tokens.TokenType
    try:
        tokens = dialect().tokenize(where)
        if any(token.comments or token.token_type is kinds.HINT for token in tokens):
            raise ValueError("it has a comment")
        return sqlglot.parse_one(where, into=sqlglot.exp.Condition, dialect=dialect)
    except sqlglot.errors.ParseError as error:
        at = error.errors[0] if error.errors else {}
        place = f" at {at['highlight']!r}" if at.get("highlight") else ""
        raise ValueError(f"it is not one condition in SQL{place}") from error
    except sqlglot.errors.TokenError as error:
        raise ValueError("a quote or a comment in it does not end") from error


# ------------------------------------------------------------------------------------------------- checking, writing


def _written(parsed: Any, schema: pa.Schema) -> str:
    """The expression as Lance reads it. Raises ValueError for what a filter cannot have."""
    sqlglot, dialect = _sqlglot()
    exp, kinds = sqlglot.exp, sqlglot.exp.DType
    compared = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
    tested = (exp.In, exp.Between, exp.Is, exp.Like, exp.ILike)
    operators = (exp.And, exp.Or, exp.Not, exp.Neg, exp.Mod, *compared, *tested)
    values = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Cast, exp.TryCast, exp.Anonymous, exp.Bracket)
    parts = (exp.Array, exp.Dot, exp.Paren, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Escape)
    nodes = list(parsed.walk())
    for node in nodes:
        name = str(node.this).lower() if isinstance(node, exp.Anonymous) else None
        is_try = isinstance(node, exp.TryCast) and node.to.this in (kinds.INT, kinds.BIGINT, kinds.DOUBLE)
        of_column = isinstance(node, (exp.Cast, exp.Neg)) and not isinstance(node.this, exp.Literal) and not is_try
        by_any = isinstance(node, exp.Mod) and not (node.expression.is_int and int(node.expression.sql()) > 0)
        if of_column or by_any or not isinstance(node, (*operators, *values, *parts)) or name not in (None, *FUNCTIONS):
            has = "casts TRY_CAST(name AS DOUBLE)" if of_column else f"functions {', '.join(sorted(FUNCTIONS))}"
            raise ValueError(f"a filter cannot have {_shown(node)}; it may have the {has}")
        if name == "trim":  # Lance's parser keeps that name for itself
            node.set("this", "btrim")
    _check_parts(parsed, exp)
    for column in [node for node in nodes if isinstance(node, exp.Column)]:
        column.parts[0].set("this", _named(column.parts[0], schema))
    for node in nodes:
        _write_times(node, schema, exp, (*compared, exp.In, exp.Between))
    for node in reversed(nodes):
        if isinstance(node, exp.Identifier):
            node.set("quoted", True)
            if "`" in node.this:
                raise ValueError(f"Lance cannot read the column {node.this!r}")
        chained = type(node) is type(node.parent) and isinstance(node, (exp.And, exp.Or))
        listed = node.arg_key == "expressions"  # between commas
        if isinstance(node, operators) and isinstance(node.parent, operators) and not (chained or listed):
            inner = exp.Paren()  # whatever binds more tightly in Lance's own grammar
            node.replace(inner)
            inner.set("this", node)
    return str(parsed.sql(dialect=dialect, normalize_functions=False))


def _check_parts(parsed: Any, exp: Any) -> None:
    """Raise ValueError for a part that AND, OR and NOT join, or the whole, which reads no column, as 'text' != 'a'."""
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (exp.And, exp.Or)):
            waiting += [node.expression, node.this]
        elif isinstance(node, (exp.Not, exp.Paren)):
            waiting.append(node.this)
        elif node.find(exp.Column) is None:
            raise ValueError(f"{_shown(node)} reads no column, so it is the same for every row")


def _named(identifier: Any, schema: pa.Schema) -> str:
    """The column of this name; without quotes also in another case, if there is only one. Raises ValueError."""
    name, is_quoted = identifier.this, bool(identifier.args.get("quoted"))
    record = (schema.metadata or {}).get(METADATA_KEY.encode()) or "{}"
    if name not in schema.names and name == loads(record).get("id_column"):  # a record may be large
        return ID
    in_any_case = [other for other in schema.names if other.lower() == name.lower() and not is_quoted]
    found = [name] if name in schema.names else in_any_case
    if len(found) != 1:
        advice = "; strings take single quotes" if is_quoted else ""
        raise ValueError(f"there is no column {name[:MOST_LABEL]!r}{advice}")
    return str(found[0])


def _write_times(node: Any, schema: pa.Schema, exp: Any, compared: tuple[Any, ...]) -> None:
    """Write times that are compared with a column as whole numbers of its own unit and type: Lance would round them to
    it, and take them as local to its zone. Raises ValueError for any other use of a time."""
    parts = [one.unnest() for one in node.iter_expressions()]
    kinds = [schema.field(one.name).type for one in parts if isinstance(one, exp.Column) and not one.table]
    kinds = [kind for kind in kinds if kind in DATES or pa.types.is_timestamp(kind)]
    if len({getattr(kind, "tz", None) is None for kind in kinds}) > 1:
        raise ValueError(f"{_shown(node)} compares times with a zone and without one")
    for time in parts:
        if isinstance(time, exp.Cast) and time.to.this in exp.DataType.TEMPORAL_TYPES:
            if not kinds or not isinstance(node, compared):
                raise ValueError(f"{_shown(time)} may only be compared with a column of times or dates")
            number, name = _whole(time, kinds[0], is_day=time.to.this is exp.DType.DATE)
            given = [exp.Literal.number(number), exp.Literal.string(name)]
            time.replace(exp.Anonymous(this="arrow_cast", expressions=given))


def _whole(time: Any, kind: pa.DataType, *, is_day: bool) -> tuple[int, str]:
    """A time, in UTC where it has no zone, as a number of a column's units, and Lance's name of the column's type.
    Raises ValueError for one that the column cannot hold."""
    found = TIME.fullmatch(time.this.name.upper() * time.this.is_string)
    size, name = DATES.get(kind) or UNITS[kind.unit]
    if found and not (is_day and found[2]):
        with suppress(ValueError):  # of a day that there is not
            moment = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[4] or 'Z'}")
            seconds = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(seconds=1)
            number, rest = divmod(seconds * 10**9 + int((found[3] or "").ljust(9, "0")), size)
            if not rest and abs(number) < 2**63:
                zone = f'Some("{kind.tz}")' if getattr(kind, "tz", None) else "None"
                return number, name if kind in DATES else f"Timestamp({name}, {zone})"
    like = "DATE '2024-03-31' or TIMESTAMP '2024-03-31T12:30:00+02:00'"
    raise ValueError(f"{_shown(time)} is no {like} that a column of {kind} can hold")


def _shown(node: Any) -> str:
    return repr(node.sql(dialect=_sqlglot()[1])[:MOST_LABEL])
