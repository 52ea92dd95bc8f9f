"""A filter in SQL on the kept columns, as a user or a stranger wrote it, becomes the filter that Lance gets.

It is parsed as one expression, checked, and written anew from what was parsed, so no text of the user reaches Lance.
"""

from __future__ import annotations

import logging
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NewType

import pyarrow as pa
import pyarrow.types as pt

from raycase.data.storage import Location
from raycase.errors import RequestError, first_line
from raycase.search.answers import returned_columns
from raycase.search.lance_files import import_lance, lance_errors

if TYPE_CHECKING:
    from lance import LanceDataset

Filter = NewType("Filter", str)  # checked, and in parentheses; made by `checked_filter` alone
SHOWN = 200  # characters of a filter in a message
RANDOM = {"random", "rand", "uuid", "gen_random_uuid"}
UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def checked_filter(dataset: LanceDataset, root: Location, where: str, flag: str = "--where") -> Filter:
    """The filter on id and the kept columns of an index that some text in SQL asks for.

    `"year"` and `` `year` `` name columns, with the case that they have; a literal beside a decimal, a date or a time
    takes its type. Raises RequestError, which names the flag, for anything else than one condition on these columns,
    and for a part of it that reads no column, such as `1 = 1`.
    """
    columns = returned_columns(dataset)
    schema = pa.schema([dataset.schema.field(name) for name in columns])
    try:
        sql = _written(_parsed(where), schema)
        with lance_errors(root):
            empty = import_lance().write_dataset(schema.empty_table(), "memory://filter")
            empty.scanner(filter=sql, limit=1).to_table()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        got = where if len(where) <= SHOWN else f"{where[:SHOWN]}..."
        raise RequestError(
            f"{flag}: expected a filter in SQL on {', '.join(columns)}, got {got!r}: {reason}"
        ) from error
    return Filter(f"({sql})")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _reason(error: ValueError) -> str:
    """Why Lance or this module refuses a filter."""
    return first_line(error).partition("got: ")[2].partition(". Valid fields")[0] or str(error)


# ------------------------------------------------------------------------------------------------------------ parsing


@cache
def _sqlglot() -> Any:
    """The package sqlglot, and its dialect for Lance: both quotes are of columns, functions keep their names."""
    try:
        import sqlglot
        from sqlglot import exp, generator, parser, tokens
    except ImportError as error:
        raise RequestError(
            "expected the package sqlglot for a filter, got none; install it with: pip install 'raycase[search]'"
        ) from error
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    words = {"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "ESCAPE", "TRUE", "FALSE", "AS"}
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
            FUNCTION_PARSERS: ClassVar = {"CAST": parser.Parser.FUNCTION_PARSERS["CAST"]}
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
    exp = sqlglot.exp
    comparing = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Is, exp.Like, exp.ILike)
    computing = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.DPipe, exp.Not)
    operators = (exp.And, exp.Or, *comparing, *computing)
    values = (exp.Column, exp.Literal, exp.Boolean, exp.Null, exp.Cast, exp.Anonymous, exp.Bracket, exp.Array, exp.Dot)
    parts = (exp.Paren, exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Escape)
    nodes = list(parsed.walk())
    for node in nodes:
        if not isinstance(node, (*operators, *values, *parts)):
            raise ValueError(f"a filter cannot have {_shown(node)}")
        if isinstance(node, exp.Anonymous) and str(node.this).lower() in RANDOM:
            raise ValueError(f"{node.this}() gives another value each time")
    _check_parts(parsed, exp)
    for column in [node for node in nodes if isinstance(node, exp.Column)]:
        field = _named(column.parts[0], schema)
        _cast_literals(column.parent, field.type, exp)
        column.parts[0].set("this", field.name)
    for node in reversed(nodes):
        if isinstance(node, exp.Identifier):
            node.set("quoted", True)
            if "`" in node.this:
                raise ValueError(f"Lance cannot read the column {node.this!r}")
        joined = isinstance(node.parent, (exp.And, exp.Or)) and not isinstance(node, (exp.And, exp.Or))
        same = type(node) is type(node.parent) and isinstance(node, (exp.And, exp.Or))
        if isinstance(node, operators) and isinstance(node.parent, operators) and not joined and not same:
            inner = exp.Paren()  # whatever binds more tightly in Lance's own grammar
            node.replace(inner)
            inner.set("this", node)
    return str(parsed.sql(dialect=dialect, normalize_functions=False))


def _check_parts(parsed: Any, exp: Any) -> None:
    """Raise ValueError for a part that AND, OR and NOT join, or the whole, which reads no column."""
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (exp.And, exp.Or)):
            waiting += [node.expression, node.this]
        elif isinstance(node, (exp.Not, exp.Paren)):
            waiting.append(node.this)
        elif node.find(exp.Column) is None:
            raise ValueError(f"{_shown(node)} reads no column, so it is the same for every row")


def _named(identifier: Any, schema: pa.Schema) -> pa.Field:
    """The column of this name; without quotes also in another case, if there is only one. Raises ValueError."""
    name, is_quoted = identifier.this, bool(identifier.args.get("quoted"))
    found = [other for other in schema.names if other == name]
    if not found and not is_quoted:
        found = [other for other in schema.names if other.lower() == name.lower()]
    if len(found) != 1:
        raise ValueError(
            f"there is no column {_cut(name)!r}" + ("; a text stands in single quotes" if is_quoted else "")
        )
    return schema.field(found[0])


def _cast_literals(comparison: Any, kind: pa.DataType, exp: Any) -> None:
    """Give the literals that are compared with a column its type, where Lance would not."""
    if isinstance(comparison, exp.In):
        beside = comparison.expressions
    elif isinstance(comparison, exp.Between):
        beside = [comparison.args["low"], comparison.args["high"]]
    elif isinstance(comparison, (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)):
        beside = [comparison.this, comparison.expression]
    else:
        return
    for node in beside:
        literal = node.this if isinstance(node, exp.Neg) else node
        if isinstance(literal, exp.Literal):
            text = ("-" if literal is not node else "") + literal.this
            wanted = _literal_type(text, kind, is_text=literal.is_string)
            if wanted:
                cast = [exp.Literal.string(text), exp.Literal.string(wanted)]
                node.replace(exp.Anonymous(this="arrow_cast", expressions=cast))


def _literal_type(text: str, kind: pa.DataType, *, is_text: bool) -> str | None:
    """Arrow's name of the type that a literal takes beside a column of this type; None: it stays as it is."""
    if pt.is_decimal(kind):
        try:
            digits = -int(Decimal(text).as_tuple().exponent)  # none are lost: 2.505 is not 2.51
        except ArithmeticError as error:
            raise ValueError(f"expected a number, got {_cut(text)!r}") from error
        wide = pt.is_decimal256(kind) or kind.precision > 38
        return f"Decimal{256 if wide else 128}({76 if wide else 38}, {max(kind.scale, digits)})"
    if pt.is_integer(kind) and not is_text and not text.lstrip("-").isdigit():
        return "Float64"
    if not is_text:
        return None
    if pt.is_date(kind):
        return "Date32" if pt.is_date32(kind) else "Date64"
    if pt.is_time(kind):
        return f"Time{kind.bit_width}({UNITS[kind.unit]})"
    if pt.is_timestamp(kind):
        zone = f'Some("{kind.tz}")' if kind.tz else "None"
        return f"Timestamp({UNITS[kind.unit]}, {zone})"
    return None


def _shown(node: Any) -> str:
    return repr(_cut(node.sql(dialect=_sqlglot()[1])))
