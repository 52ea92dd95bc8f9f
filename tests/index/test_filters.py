"""Filters of strangers: what is one condition on the kept columns passes, written anew, and compares times as instants;
nothing else reaches Lance."""

import datetime as dt
from decimal import Decimal

import lance
import numpy as np
import pyarrow as pa
import pytest
import sqlglot

from raycase.commands.facets import FacetsFlags, facets
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.filters import FUNCTIONS, checked_filter
from raycase.index.lance_files import lance_errors
from raycase.io.storage import locate

ROOT = locate("captions.lance")
FILTERS = (  # which are not one condition on kept columns
    ") OR (1=1 --",
    "'text' != 'review' AND year > 0",
    "year > 3000 /* ) */ OR year > 0 --",
    "year > 3000; year > 0",
    "condition = 'color'",
    "vector IS NOT NULL",
    "_rowid >= 0",
    "year > (SELECT 1)",
    "random() < 0.5",
    "repeat(source, 1000000000000) = 'x'",  # ends the process where it is computed
    "CAST(source AS int) > 0",  # fails at a row
    "year / 0 = 1",
    "money::decimal(76, 2) > 0",  # Lance panics, and a search by codes would never return
    "year = ?",
    "text = N'x'",
    "count(*) > 1",
    "",
    "(" * 10_000 + "year > 1" + ")" * 10_000,
    "NOT " * 20_000 + "year > 1",
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
        ("odd = 2", "b"),
        ('"when" = 2 and when = 2', "b"),
        ('"q""q" = 2', "b"),
        ("money > CAST(2.5 AS DECIMAL(10, 2))", "b"),
        ("year IS DISTINCT FROM 2003", "b"),
        ("try_cast(source AS int) IS NULL", "ab"),
        ("year > 0 AND (year > 3000 OR source = 'web')", "b"),
        ("NOT (year = 2003 OR flag)", "b"),
        ("s.x = 2 AND s['x'] = 2", "b"),
        ("lower(source) LIKE 'n%'", "a"),
        ("TRIM(source) = 'news' OR trim(\"a b\", 'y') = ''", "ab"),
        ("source = 'ne''ws' OR source = 'we\\'", ""),
        ("source NOT ILIKE 'N%'", "b"),
        ("array_has([2003], year)", "a"),
        (" OR ".join(f"year = {n}" for n in range(900, 2100)), "ab"),
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
LITERALS = ["0", "-9223372036854775808", "1e400", "CAST(9.5 AS DECIMAL(10,2))", "CAST(1 AS DECIMAL(76,2))", "NULL"]
LITERALS += ["CAST('x' AS INT)", "TRUE", "'a'", "'1969-12-30T12:00:00'", "DATE '9999-12-31'"]
LITERALS += ["TIMESTAMP '1969-12-30 12:00:00'", "CAST('0001-01-01' AS TIMESTAMP)"]


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


def test_whoever_takes_a_filter_refuses_them(index):
    uri = index.root.uri
    vector_1D = np.ones((1, index.dataset.schema.field("vector").type.list_size), np.float32)
    for where in ("year > 3000) OR (year > 0", "_rowid >= 0", ""):
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
            assert sorted(found["year"].to_pylist()) == [2003] * 15 + [2004] * 15


HALF_PAST = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)  # Berlin's clocks skip 2:00 to 3:00 of that night


def selected(dataset, where):
    return dataset.to_table(columns=["id"], filter=checked_filter(dataset, ROOT, where, "where"))["id"].to_pylist()


ODD = {
    "ms IS NOT DISTINCT FROM TIMESTAMP '2024-03-31 01:30:00Z'": "a",
    "ms NOT IN (TIMESTAMP '2024-03-31 01:30:01', TIMESTAMP '2024-03-31 03:30+02')": "b",
    "ms IN (TIMESTAMP '2024-03-31 01:30', NULL)": "a",
    "ms < (TIMESTAMP '9999-12-31 23:59:59.9') AND (ms) > DATE '0001-01-01'": "ab",
    "day < DATE '9999-12-31' AND day > TIMESTAMP '0001-01-01'": "ab",
    "TIMESTAMP '2024-03-31 02:00:00Z' BETWEEN ms AND ns": "",
    "ms > TIMESTAMP WITH TIME ZONE '2024-03-31 01:30:00Z'": "b",
    "day <= TIMESTAMP '2024-03-31 02:00+02:00' AND NOT day < DATE '2024-03-31'": "a",
    "ms = ns AND NOT ns > ms": "ab",
}


@pytest.fixture(scope="module")
def odd():
    at = [HALF_PAST, HALF_PAST + dt.timedelta(days=1), None]
    columns = {f"{unit}": pa.array(at, pa.timestamp(unit, "Europe/Berlin")) for unit in ("ms", "ns")}
    columns |= {"day": pa.array([each and each.date() for each in at]), "text": ["2024-03-31", "", None]}
    columns["naive"] = pa.array([None] * 3, pa.timestamp("us"))
    columns["l"] = pa.array([at, [], None], pa.list_(pa.timestamp("us")))
    columns["s"] = pa.StructArray.from_arrays([columns["ms"]], ["at"])
    return lance.write_dataset(pa.table({"id": ["a", "b", "c"], **columns}), "memory://odd")


KINDS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Europe/Berlin")]


@pytest.mark.parametrize("kind", [*KINDS, pa.date32(), pa.date64()], ids=str)
def test_times_are_compared_as_instants_whatever_the_unit_and_the_zone(kind):
    """A day before the night in which Berlin's clocks skip an hour, its midnight in UTC, a day after, and null."""
    days = [dt.datetime(2024, 3, 31, tzinfo=dt.UTC) + dt.timedelta(n) for n in (-1, 0, 1)]
    column = pa.array([*(day.date() if pa.types.is_date(kind) else day for day in days), None], kind)
    rows = lance.write_dataset(pa.table({"id": ["a", "b", "c", "d"], "t": column}), "memory://times")
    for where, ids in {
        "t = TIMESTAMP '2024-03-31T00:00:00Z'": "b",
        "t <> TIMESTAMP '2024-03-30 19:00:00.000000000-05:00'": "ac",
        "t < CAST('2024-03-31 02:00:00+0200' AS TIMESTAMP)": "a",
        "DATE '2024-03-31' < t": "c",
        "t >= DATE '2024-03-31'": "bc",
        "NOT (t BETWEEN DATE '2024-03-31' AND TIMESTAMP '2024-04-01 05:30+05:30')": "a",
        "t IN (DATE '2024-03-30', TIMESTAMP '2024-04-01')": "ac",
    }.items():
        assert "".join(selected(rows, where)) == ids, where


@pytest.mark.parametrize("where", ODD)
def test_times_of_any_spelling_beside_any_column(odd, where):
    assert "".join(selected(odd, where)) == ODD[where]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("ms = TIMESTAMP 'yesterday'", "'yesterday' AS TIMESTAMP.* is no DATE '2024-03-31' or TIMESTAMP"),
        ("ms = TIMESTAMP '2024-02-30'", "is no DATE '2024-03-31' or"),
        ("ms = CAST(1711848600 AS TIMESTAMP)", "is no DATE '2024-03-31' or"),
        ("ms = TIMESTAMP '2024-03-31 01:30:00.0005'", r"that a column of timestamp\[ms, tz=Europe/Berlin\] can hold"),
        ("ns < DATE '9999-12-31'", r"that a column of timestamp\[ns, tz=Europe/Berlin\] can hold"),
        ("day < TIMESTAMP '2024-03-31 00:00:01'", r"that a column of date32\[day\] can hold"),
        ("ms = naive", "'ms = naive' compares times with a zone and without one"),
        ("coalesce(ms, naive) IS NULL", "compares times with a zone and without one"),
        ("s.at > TIMESTAMP '2024-03-31'", "may only be compared with a column of times or dates"),
        ("array_has(l, TIMESTAMP '2024-03-31 01:30:00')", "may only be compared with a column of times or dates"),
    ],
)
def test_what_is_no_time_or_not_compared_with_a_column_of_times_is_refused(odd, where, why):
    with pytest.raises(RequestError, match=why) as error:
        checked_filter(odd, ROOT, where, "where")
    assert "\n" not in str(error.value)
