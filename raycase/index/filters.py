"""A filter in SQL on the kept columns, as a stranger wrote it, is parsed as one expression, checked, and written anew
from what was parsed for Lance, which no text of the stranger reaches."""

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
# Of these and of `_Writer`'s operators, Lance computes all on any value. A function or a cast that fails at one value
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
# Of an expression: all others are refused, lest one is left out of what is written
PARTS = {"this", "expression", "expressions", "low", "high", "to", "is_string", "table", "db", "catalog"}
PARTS |= {"safe", "negate"}
DATES = {pa.date32(): (86_400 * 10**9, "Date32"), pa.date64(): (10**6, "Date64")}


def checked_filter(dataset: LanceDataset, root: Location, where: str, named: str) -> Filter:
    """The filter on id and the kept columns that a text in SQL asks for; a RequestError for another is `named` so."""
    columns = returned_columns(dataset)
    schema = pa.schema([dataset.schema.field(name) for name in columns], dataset.schema.metadata)
    try:
        sql = _Writer(schema).condition(_parsed(where))
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
    names = {"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "BETWEEN", "ESCAPE", "TRUE", "FALSE", "AS"}
    names |= {"DISTINCT", "FROM"}

    class Lance(sqlglot.Dialect):
        class Tokenizer(tokens.Tokenizer):
            IDENTIFIERS: ClassVar = ["`", '"']  # the first is written
            KEYWORDS: ClassVar = {  # anything else may be a column
                name: token
                for name, token in tokens.Tokenizer.KEYWORDS.items()
                if name in names or token in parser.Parser.TYPE_TOKENS or not name[0].isalpha()
            }

        class Parser(parser.Parser):
            FUNCTIONS: ClassVar[dict[str, Any]] = {}
            FUNCTION_PARSERS: ClassVar = {name: parser.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")}
            NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
            NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {}

        class Generator(generator.Generator):
            TYPE_MAPPING: ClassVar = generator.Generator.TYPE_MAPPING | {
                exp.DType.TEXT: "STRING",
                exp.DType.VARCHAR: "STRING",
            }

    return sqlglot, Lance


def _parsed(where: str) -> Any:
    """The expression of a text: one, in SQL, without comments."""
    sqlglot, dialect = _sqlglot()
    try:
        tokens = dialect().tokenize(where)
        if any(token.comments or token.token_type is sqlglot.tokens.TokenType.HINT for token in tokens):
            raise ValueError("it has a comment")
        return sqlglot.parse_one(where, into=sqlglot.exp.Condition, dialect=dialect)
    except sqlglot.errors.ParseError as error:
        at = error.errors[0] if error.errors else {}
        place = f" at {at['highlight']!r}" if at.get("highlight") else ""
        raise ValueError(f"it is not one condition in SQL{place}") from error
    except sqlglot.errors.TokenError as error:
        raise ValueError("a quote or a comment in it does not end") from error


# ------------------------------------------------------------------------------------------------- checking, writing


class _Writer:
    """Writes an expression as Lance reads it. What has no case here is refused with a ValueError."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.exp, self.dialect = schema, _sqlglot()[0].exp, _sqlglot()[1]
        exp = self.exp
        self.signs = {exp.EQ: "=", exp.NEQ: "<>", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
        self.signs |= {exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM"}
        self.signs |= {exp.Is: "IS", exp.Like: "LIKE", exp.ILike: "ILIKE", exp.Mod: "%"}

    def condition(self, node: Any) -> str:
        """The whole, or a part that AND, OR and NOT join: each reads a column, unlike 'text' != 'a'."""
        exp = self.exp
        if isinstance(node, (exp.And, exp.Or)):
            joined = " AND " if isinstance(node, exp.And) else " OR "
            return joined.join(f"({self.condition(part)})" for part in node.flatten())
        if isinstance(node, exp.Not):
            return f"NOT ({self.condition(node.this)})"
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if node.find(exp.Column) is None:
            raise ValueError(f"{_shown(node)} reads no column, so it is the same for every row")
        return self.value(node)

    def value(self, node: Any, compared: pa.DataType | None = None) -> str:
        """Any part. compared: the type of the column of times with which it is compared."""
        exp, sql, times = self.exp, {"dialect": self.dialect}, self.times(node)
        is_literal, to = isinstance(node.this, exp.Literal), node.args.get("to")

        def write(part: Any) -> str:  # in parentheses, whatever binds more tightly in Lance's own grammar
            written = self.value(part, times)
            operators = (exp.And, exp.Or, exp.Not, exp.In, exp.Between, exp.Escape, *self.signs)
            return f"({written})" if isinstance(part, operators) else written

        listed = ", ".join(map(write, node.expressions))
        match node:
            case _ if {name for name, given in node.args.items() if given} - PARTS:
                pass
            case exp.And() | exp.Or() | exp.Not():
                return self.condition(node)
            case exp.Paren():
                return f"({self.value(node.this, compared)})"
            case exp.In() if listed:
                return f"{write(node.this)} IN ({listed})"
            case exp.Between():
                return f"{write(node.this)} BETWEEN {write(node.args['low'])} AND {write(node.args['high'])}"
            case exp.Escape():
                return f"{self.value(node.this)} ESCAPE {write(node.expression)}"
            case exp.Mod() if not (node.expression.is_int and int(node.expression.sql()) > 0):
                pass
            case exp.Binary() if type(node) in self.signs:
                sign = "NOT " * bool(node.args.get("negate")) + self.signs[type(node)]
                return f"{write(node.this)} {sign} {write(node.expression)}"
            case exp.Column() | exp.Dot() if all(isinstance(part, exp.Identifier) for part in node.parts):
                return ".".join(
                    map(_quoted, [_named(node.parts[0], self.schema), *(one.this for one in node.parts[1:])])
                )
            case exp.Literal() | exp.Boolean() | exp.Null():
                return str(node.sql(**sql))
            case exp.Neg() if is_literal:
                return f"-{write(node.this)}"
            case exp.TryCast() if to.this in (exp.DType.INT, exp.DType.BIGINT, exp.DType.DOUBLE):
                return f"TRY_CAST({write(node.this)} AS {to.sql(**sql)})"
            case exp.Cast() if to.this in exp.DataType.TEMPORAL_TYPES and is_literal:
                if compared is None:
                    raise ValueError(f"{_shown(node)} may only be compared with a column of times or dates")
                number, name = _whole(node, compared, is_day=to.this is exp.DType.DATE)
                return f"arrow_cast({number}, '{name}')"  # else Lance would round it, and take it as local to its zone
            case exp.Cast() if is_literal and not isinstance(node, exp.TryCast):
                if all(isinstance(part, (exp.DataType, exp.DataTypeParam, exp.Literal)) for part in to.walk()):
                    return f"CAST({write(node.this)} AS {to.sql(**sql)})"
            case exp.Anonymous() if (name := node.name.lower()) in FUNCTIONS:
                return f"{'btrim' if name == 'trim' else name}({listed})"  # Lance's parser keeps trim for itself
            case exp.Array():
                return f"[{listed}]"
            case exp.Bracket():
                return f"{write(node.this)}[{listed}]"
        casts = isinstance(node, (exp.Cast, exp.Neg))
        has = "casts TRY_CAST(name AS DOUBLE)" if casts else f"functions {', '.join(sorted(FUNCTIONS))}"
        raise ValueError(f"a filter cannot have {_shown(node)}; it may have the {has}")

    def times(self, node: Any) -> pa.DataType | None:
        """The type of the columns of times among the parts of an expression; None for none."""
        parts = [one.unnest() for one in node.iter_expressions()]
        columns = [one for one in parts if isinstance(one, self.exp.Column) and not one.table]
        types = [self.schema.field(_named(one.parts[0], self.schema)).type for one in columns]
        types = [one for one in types if one in DATES or pa.types.is_timestamp(one)]
        if len({getattr(one, "tz", None) is None for one in types}) > 1:
            raise ValueError(f"{_shown(node)} compares times with a zone and without one")
        return types[0] if types and isinstance(node, (self.exp.Predicate, *self.signs)) else None


def _quoted(name: str) -> str:
    if "`" in name:
        raise ValueError(f"Lance cannot read the column {name!r}")
    return f"`{name}`"


def _named(identifier: Any, schema: pa.Schema) -> str:
    """The column of this name; without quotes also in another case, if there is only one."""
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


def _whole(time: Any, column: pa.DataType, *, is_day: bool) -> tuple[int, str]:
    """A time, in UTC where it has no zone, as a number of a column's units, and Lance's name of the column's type."""
    found = TIME.fullmatch(time.this.name.upper() * time.this.is_string)
    size, name = DATES.get(column) or UNITS[column.unit]
    if found and not (is_day and found[2]):
        with suppress(ValueError):  # of a day that there is not
            moment = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{found[4] or 'Z'}")
            seconds = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(seconds=1)
            number, rest = divmod(seconds * 10**9 + int((found[3] or "").ljust(9, "0")), size)
            if not rest and abs(number) < 2**63:
                zone = f'Some("{column.tz}")' if getattr(column, "tz", None) else "None"
                return number, name if column in DATES else f"Timestamp({name}, {zone})"
    like = "DATE '2024-03-31' or TIMESTAMP '2024-03-31T12:30:00+02:00'"
    raise ValueError(f"{_shown(time)} is no {like} that a column of {column} can hold")


def _shown(node: Any) -> str:
    return repr(node.sql(dialect=_sqlglot()[1])[:MOST_LABEL])
