"""Filters on times: what they select is what pyarrow.compute says of the same rows, whatever units and zones."""

import datetime as dt
import operator

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycase.errors import RequestError
from raycase.index.filters import checked_filter
from raycase.io.storage import locate

ROOT = locate("captions.lance")
KINDS = [
    pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin", "+05:30")
]
KINDS += [pa.date32(), pa.date64()]
HALF_PAST = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)  # Berlin's clocks skip 2:00 to 3:00 of that night
STEPS = [0, 1, -1, 10**9, -(10**9), 3600 * 10**9, -3600 * 10**9, 86400 * 10**9, -5400 * 10**9, -(2**61)]
INSTANTS = [int(HALF_PAST.timestamp()) * 10**9 + step for step in STEPS]  # nanoseconds
DAY = 86400 * 10**9
STEP = {kind: DAY if kind == pa.date32() else 10**6 for kind in KINDS}  # nanoseconds
STEP |= {kind: {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit] for kind in KINDS[:-2]}
COMPARED = {"=": pc.equal, "<>": pc.not_equal, "<": pc.less, ">": pc.greater}
COMPARED |= {"<=": pc.less_equal, ">=": pc.greater_equal}


@pytest.fixture(scope="module")
def times():
    """A column of each kind, with the same instants rounded down to its unit, and null; and these as nanoseconds."""
    table, exact = {"id": [*map(str, range(len(INSTANTS) + 1))]}, []
    for number, kind in enumerate(KINDS):
        step = DAY if pa.types.is_date(kind) else STEP[kind]
        exact.append([at // step * step for at in INSTANTS] + [None])
        units = [None if at is None else at // STEP[kind] for at in exact[-1]]
        table[f"c{number}"] = pa.array(units, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    return lance.write_dataset(pa.table(table), "memory://times"), exact


def literal(at, style):
    """A time in nanoseconds as SQL, and what that says in nanoseconds."""
    if style == "date":
        day = at // DAY
        return f"DATE '{dt.date(1970, 1, 1) + dt.timedelta(day)}'", day * DAY
    zone = dt.timezone(dt.timedelta(hours={"-0700": -7, "+05:30": 5.5}.get(style, 0)))
    local = dt.datetime.fromtimestamp(at // 10**9, dt.UTC).astimezone(zone).replace(tzinfo=None)
    cast = "CAST('{}' AS TIMESTAMP)" if style == "-0700" else "TIMESTAMP '{}'"
    return cast.format(f"{local.isoformat(' ' if style else 'T')}.{at % 10**9:09}{style}"), at


def selected(dataset, where):
    return dataset.to_table(columns=["id"], filter=checked_filter(dataset, ROOT, where, "where"))["id"].to_pylist()


ATS = st.builds(operator.add, st.sampled_from(INSTANTS[:-1]), st.sampled_from([0, 1, -1, 10**6, 10**9, -1800 * 10**9]))
STYLES = st.sampled_from(["", "Z", "+05:30", "-0700", "date"])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(range(len(KINDS))),
    st.sampled_from([*COMPARED, "swapped", "BETWEEN", "IN"]),
    st.tuples(ATS, STYLES, ATS, STYLES),
    st.booleans(),
)
def test_times_are_compared_as_arrow_compares_them(times, number, sign, asked, negated):
    dataset, exact = times
    name, step = f"c{number}", STEP[KINDS[number]]
    (first, a), (second, b) = (literal(at // step * step, style) for at, style in (asked[:2], asked[2:]))
    column, a, b = pa.array(exact[number], pa.int64()), *(pa.scalar(each, pa.int64()) for each in (a, b))
    between = pc.and_(pc.less_equal(a, column), pc.less_equal(column, b))
    where, mask = {
        "BETWEEN": (f"{name} BETWEEN {first} AND {second}", between),
        "IN": (f"{name} IN ({first}, {second})", pc.or_(pc.equal(column, a), pc.equal(column, b))),
        "swapped": (f"{first} < {name}", pc.greater(column, a)),
    }.get(sign) or (f"{name} {sign} {first}", COMPARED[sign](column, a))
    where, mask = (f"NOT ({where})", pc.invert(mask)) if negated else (where, mask)
    assert selected(dataset, where) == [str(i) for i, passes in enumerate(mask.to_pylist()) if passes]


ODD = {
    "ms IS NOT DISTINCT FROM TIMESTAMP '2024-03-31 01:30:00Z'": "a",
    "ms IS DISTINCT FROM TIMESTAMP '2024-03-31 01:30:00.000000000'": "bc",
    "ms NOT IN (TIMESTAMP '2024-03-31 01:30:01', TIMESTAMP '2024-03-31 03:30+02')": "b",
    "ms IN (TIMESTAMP '2024-03-31 01:30', NULL)": "a",
    "ms < (TIMESTAMP '9999-12-31 23:59:59.9') AND (ms) > DATE '0001-01-01'": "ab",
    "ns <= TIMESTAMP '2024-03-31t01:30z'": "a",
    "day < DATE '9999-12-31' AND day > TIMESTAMP '0001-01-01'": "ab",
    "TIMESTAMP '2024-03-31 01:30:00Z' < ns": "b",
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


@pytest.mark.parametrize("where", ODD)
def test_times_of_any_spelling_beside_any_column(odd, where):
    assert "".join(selected(odd, where)) == ODD[where]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("ms = TIMESTAMP 'yesterday'", "'yesterday' AS TIMESTAMP.* is no DATE '2024-03-31' or TIMESTAMP"),
        ("ms = DATE '2024-03-31 12:00'", "is no DATE '2024-03-31' or"),
        ("ms = TIMESTAMP '2024-02-30'", "is no DATE '2024-03-31' or"),
        ("ms = CAST(1711848600 AS TIMESTAMP)", "is no DATE '2024-03-31' or"),
        ("ms = TIMESTAMP '2024-03-31 01:30:00.0005'", r"that a column of timestamp\[ms, tz=Europe/Berlin\] can hold"),
        ("ns < DATE '9999-12-31'", r"that a column of timestamp\[ns, tz=Europe/Berlin\] can hold"),
        ("day < TIMESTAMP '2024-03-31 00:00:01'", r"that a column of date32\[day\] can hold"),
        ("ms = naive", "'ms = naive' compares times with a zone and without one"),
        ("day < ns", "'day < ns' compares times with a zone and without one"),
        ("coalesce(ms, naive) IS NULL", "compares times with a zone and without one"),
        ("s.at > TIMESTAMP '2024-03-31'", "may only be compared with a column of times or dates"),
        ("text > DATE '2024-03-31'", "may only be compared with a column of times or dates"),
        ("array_has(l, TIMESTAMP '2024-03-31 01:30:00')", "may only be compared with a column of times or dates"),
        ("coalesce(ms, TIMESTAMP '2024-03-31') > TIMESTAMP '2024-03-31'", "may only be compared with a column"),
    ],
)
def test_what_is_no_time_or_not_compared_with_a_column_of_times_is_refused(odd, where, why):
    with pytest.raises(RequestError, match=why) as error:
        checked_filter(odd, ROOT, where, "where")
    assert "\n" not in str(error.value)
