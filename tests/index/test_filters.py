"""Filters of strangers: what is one condition on the kept columns passes, written anew; nothing else reaches Lance."""

import datetime as dt
from decimal import Decimal

import lance
import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from helpers import embedded
from indexed import rows
from storing import indexed

from raycase.commands.facets import FacetsFlags, facets
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.filters import FUNCTIONS, checked_filter
from raycase.index.index import Index
from raycase.index.lance_files import lance_errors
from raycase.io.storage import locate

ROOT = locate("captions.lance")
FILTERS = (  # which are not one condition on kept columns
    "year > 3000) OR (year > 0",
    ") OR (1=1 --",
    "year > 3000 OR 1=1",
    "'text' != 'review' AND year > 0",
    "year > 3000 /* ) */ OR year > 0 --",
    "year > 3000 --",
    "year > 3000; year > 0",
    "condition = 'color'",
    "vector IS NOT NULL",
    "_rowid >= 0",
    "_word_basis IS NULL",
    "year > (SELECT 1)",
    "random() < 0.5",
    "repeat(source, 1000000000000) = 'x'",  # ends the process where it is computed
    "array_length(range(year, 1000000000000)) > 3",
    "arrow_cast(source, 'FixedSizeList(1000000000000, Utf8)') IS NULL",
    "CAST(source AS int) > 0",  # fails at a row
    "year / 0 = 1",
    "money::decimal(76, 2) > 0",  # Lance panics, and a search by codes would never return
    "date_trunc('week', arrow_cast(length(source) - 9223372036854775807, 'Timestamp(Nanosecond, None)')) IS NOT NULL",
    "year = ?",
    "text = N'x'",
    "count(*) > 1",
    "text = 'x",
    "",
    "year",
    "\x00year > 1",
    "(" * 10_000 + "year > 1" + ")" * 10_000,
    "NOT " * 20_000 + "year > 1",
    "year = 1 AND " + "(" * 60 + "year > 1" + ")" * 60,
    "x" * 100_000 + " > 1",
)


@pytest.fixture(scope="module")
def table():
    """Two rows, with columns of many types and with names that must be quoted."""
    columns = {
        **{"id": ["a", "b"], "source": ["news", "web"], "year": [2003, 2010], "a b": ["x", "y"], "flag": [True, False]},
        **{name: [1, 2] for name in ("Year", "Odd", "when", "select", 'q"q')},
        "money": pa.array([Decimal("1.50"), Decimal("3.00")], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(2020, 1, 1), dt.date(2021, 1, 1)]),
        "s": [{"x": 1}, {"x": 2}],
        "condition": ["color", "color"],
    }
    return lance.write_dataset(pa.table(columns), "memory://rows")


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("\"source\" = 'news'", "a"),
        ("\"source\" <> 'news' AND year < 2004", ""),
        ("`source` = 'news'", "a"),
        ('"Year" = 2', "b"),
        ("odd = 2", "b"),
        ('"when" = 2 and when = 2', "b"),
        ("select = 1", "a"),
        ('"q""q" = 2', "b"),
        ("money > CAST(2.5 AS DECIMAL(10, 2))", "b"),
        ("(year) > 2003 AND s.x > 1", "b"),
        ("year IS DISTINCT FROM 2003", "b"),
        ("try_cast(source AS int) IS NULL", "ab"),
        ("year % 10 = 3", "a"),
        ("year > 3000 OR year > 0", "ab"),
        ("year > 0 AND (year > 3000 OR source = 'web')", "b"),
        ("NOT (year = 2003 OR flag)", "b"),
        ("NOT flag", "b"),
        ("s.x = 2 AND s['x'] = 2", "b"),
        ("lower(source) LIKE 'n%'", "a"),
        ("TRIM(source) = 'news' OR trim(\"a b\", 'y') = ''", "ab"),
        ("source <> 'a fixedsize list'", "ab"),
        ("source = 'ne''ws' OR source = 'we\\'", ""),
        ("source NOT ILIKE 'N%'", "b"),
        ("array_has([2003], year)", "a"),
        ("year > 0;", "ab"),
        (" OR ".join(f"year = {n}" for n in range(900, 2100)), "ab"),
        (f"year IN ({', '.join(map(str, range(900, 2100)))})", "ab"),
    ],
)
def test_what_is_a_condition_on_the_columns_selects_its_rows(table, where, ids):
    passing = checked_filter(table, ROOT, where, "where")
    assert "".join(table.to_table(columns=["id"], filter=passing)["id"].to_pylist()) == ids
    # beside another filter it means the same, and written once more it is the same
    assert table.count_rows(f"condition = 'x' AND {passing}") == 0
    assert checked_filter(table, ROOT, passing[1:-1], "where") == passing


@pytest.mark.parametrize("where", FILTERS, ids=lambda where: where[:20].encode("unicode_escape").decode())
def test_anything_else_is_refused_in_one_short_line(table, where):
    with pytest.raises(RequestError, match=r"^where: expected a filter in SQL on id, source, year") as error:
        checked_filter(table, ROOT, where, "where")
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_a_refusal_says_why(table):
    for where, why in {
        "1=1": "'1 = 1' reads no column",
        "repeat(source, 9) = 'x'": r"a filter cannot have .REPEAT\(source, 9\).",
        "age > 3": "there is no column 'age'$",
        'source = "news"': "there is no column 'news'; strings take single quotes",
        "YEAR = 1": "there is no column 'YEAR'",  # year and Year are there
        "year > 1 -- x": "it has a comment",
        "year > 1) OR (year > 0": "it is not one condition in SQL at '[)]'",
        "day > '2020-06-01'": "could not convert to literal of type 'Date32'",
        "year > 2003.5": "could not convert to literal of type 'Int64'",
    }.items():
        with pytest.raises(RequestError, match=why):
            checked_filter(table, ROOT, where, "where")


EXTREME = {
    "text": (["", "x" * 10_000, "-1e400", "9223372036854775808", None], pa.string()),
    "i": ([-(2**63), 2**63 - 1, None], pa.int64()),
    "f": ([float("nan"), float("inf"), -1e308, None], pa.float64()),
    "m": ([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
    "d": ([dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32()),
    "ns": ([-(2**63) + 1, 2**63 - 1], pa.timestamp("ns")),
    "l": ([["a", None], [], None], pa.list_(pa.string())),
}
DATES = ("'1969-12-30T12:00:00'", "DATE '9999-12-31'")
TIMES = ("TIMESTAMP '1969-12-30 12:00:00'", "CAST('0001-01-01' AS TIMESTAMP)")
OTHERS = ("CAST(9.5 AS DECIMAL(10,2))", "CAST(1 AS DECIMAL(76,2))", "CAST('x' AS INT)", "NULL", "TRUE", "'a'")
LITERALS = ("0", "-9223372036854775808", "1e400", *DATES, *TIMES, *OTHERS)


@pytest.fixture(scope="module")
def extreme():
    """An approximate index of columns with the least and the largest values of their types."""
    vectors = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    columns = {name: pa.array((values * 300)[:300], kind) for name, (values, kind) in EXTREME.items()}
    rows = pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 16)})
    dataset = lance.write_dataset(rows, "memory://extreme")
    dataset.create_index("vector", "IVF_RQ", metric="dot", num_partitions=1, num_bits=1)
    return dataset


def answered(dataset, where):
    """Whether a search under this filter has an answer; else it is refused in one line, before it or in it."""
    try:
        passing = checked_filter(dataset, ROOT, where, "where")
        with lance_errors(ROOT):
            nearest = {"column": "vector", "q": np.ones(16, np.float32), "k": 3, "metric": "dot"}
            dataset.to_table(columns=["i", "_distance"], nearest=nearest, filter=passing, prefilter=True)
    except RequestError as error:
        assert "expected a filter" in str(error) and "\n" not in str(error)
        return False
    return True


def test_a_filter_that_fails_at_a_row_is_blamed_for_it(extreme):
    assert answered(extreme, "d > DATE '1969-12-30'")
    assert not answered(extreme, "text > DATE '9999-12-31'")
    assert not answered(extreme, "d > '1969-12-30T12:00:00'")


@pytest.mark.long
def test_no_operator_function_or_cast_panics(extreme):
    """In an approximate search, Lance never returns where it panics."""
    filters = []
    for name in EXTREME:
        for other in (*LITERALS, *EXTREME):
            filters += [f"{name} > {other}", f"{other} <= {name}"]
            filters += [f"{name} IN ({other})", f"{name} BETWEEN {other} AND 1"]
        filters += [f"TRY_CAST({name} AS {kind}) > 0" for kind in ("INT", "BIGINT", "DOUBLE", "DATE", "DECIMAL(76, 2)")]
        filters += [f"{name} LIKE '%a_'", f"NOT {name} = {name}", f"-1 < {name}"]
        filters += [f"{name} {rest}" for rest in ("/ 0 = 1", "% 7 = 1", "% 0 = 1", "* 9 > 1")]
        for function in {*FUNCTIONS, *map(str.lower, sqlglot.exp.FUNCTION_BY_NAME)}:
            for more in ("", f", {name}", ", 'a'", ", 1", ", ['a']"):
                filters.append(f"{function}({name}{more}) IS NOT NULL")
    assert sum(answered(extreme, where) for where in filters) > 150


@pytest.fixture(scope="module")
def searched(tmp_path_factory, tiny_model):
    """Indexes of the same rows: exact and approximate, each with two conditions and unconditional vectors."""
    home = tmp_path_factory.mktemp("filtered")
    settings = {"conditions": ("color", "number of people"), "keep_columns": ("text", "year")}
    out = embedded(home / "a", tiny_model, rows(60), output=str(home / "out"), **settings)
    indexed(home / "exact.lance", out)
    indexed(home / "ivf-rq.lance", out, vector_index="ivf-rq")
    return home


SOME = ("year > 3000) OR (year > 0", "year > 3000 --", "_rowid >= 0", "")  # all of them: above, by what all call


@pytest.mark.parametrize("kind", ["exact", "ivf-rq"])
def test_whoever_takes_a_filter_refuses_them(searched, kind):
    uri = str(searched / f"{kind}.lance")
    index = Index.open(uri)
    vector_1D = np.ones((1, index.dataset.schema.field("vector").type.list_size), np.float32)
    for where in SOME:
        for ask in (
            lambda where=where: index.search(["a red dress"], "color", where=where),
            lambda where=where: index.search(["a red dress"], {"color": 1}, where=where),
            lambda where=where: index.nearest(vector_1D, "color", 3, where),
            lambda where=where: index.blocks("color", where),
            lambda where=where: facets(FacetsFlags(index=uri, condition="color", where=where)),
            lambda where=where: build(embeddings=(), output=uri, delete=where),
        ):
            with pytest.raises(RequestError, match=r"^(where|--delete): expected a filter in SQL on id, text, year"):
                ask()
    for conditions in ("color", {"color": 1}):
        for _ in range(2):  # read, and cached
            found = index.search(["a red dress"], conditions, k=10_000, where='"year" = 2003 OR "year" = 2004')
            assert sorted(found["year"].to_pylist()) == [2003] * 3 + [2004] * 3
