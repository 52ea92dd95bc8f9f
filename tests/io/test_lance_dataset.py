"""A Lance dataset as an input: its rows in order, without the deleted ones, at the version that was listed."""

import shutil
import uuid

import lance
import pyarrow as pa
import pytest
from input_files import columns_in, columns_of, flat, read_from, spans_of, the_file

from raycase.errors import RequestError
from raycase.io.inputs import find_input
from raycase.io.lance_dataset import METADATA_KEY, _at_version, lance_place
from raycase.io.reader import ID, ROW, TEXT, read_columns
from raycase.io.storage import locate
from raycase.job.plan import cut


def table(ids):
    return pa.table({"id": list(ids), "my text": [f"row {i}" for i in ids], "n": pa.array([i / 2 for i in ids])})


def write(uri, count=100):
    """A dataset in fragments of 30 rows, without every tenth row and one whole fragment, and with 7 rows put later."""
    dataset = lance.write_dataset(table(range(count)), max_rows_per_file=30, **lance_place(locate(uri)))
    dataset.delete("id % 10 = 3 or (id >= 30 and id < 60)")
    dataset.insert(table(range(count, count + 7)))
    return [i for i in range(count) if i % 10 != 3 and not 30 <= i < 60] + list(range(count, count + 7))


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_rows_are_those_that_are_not_deleted_in_order_and_any_unit_is_read_alone(store, tmp_path, s3_server):
    """Of a name with a blank, which need not end with .lance."""
    uri = str(tmp_path / "my things") if store == "disk" else f"s3://corpus/{uuid.uuid4().hex}/things.lance"
    wanted = write(uri)
    (file,) = find_input(uri)
    columns = columns_in(file, text="my text", keep=("n",))
    spans = spans_of(file, columns, unit_rows=20)
    assert sum(span.rows for span in spans) == len(wanted) and spans[0].start == 0
    units = [(span, unit) for span in spans for unit in cut(span.start, span.rows, 20)]
    rows, rejected = flat(part for span, unit in units for part in read_from(file, span, columns, [unit]))
    assert [row[ID] for row in rows] == wanted and [row[ROW] for row in rows] == list(range(len(wanted)))
    assert [(row[TEXT], row["keep:n"]) for row in rows] == [(f"row {i}", i / 2) for i in wanted]
    assert not rejected
    assert read_columns(file, ["id", "n"], "--queries") == {"id": wanted, "n": [i / 2 for i in wanted]}


def test_a_version_stays_what_it_was_and_one_that_is_gone_or_another_is_refused(tmp_path):
    place = str(tmp_path / "x.lance")
    wanted = write(place)
    file = the_file(place)
    columns = columns_in(file, text="my text")
    lance.dataset(place).delete("id < 50")
    assert the_file(place).mark != file.mark
    (span,) = spans_of(file, columns)
    (part,) = read_from(file, span, columns, [(0, span.rows)])
    assert part[0][ID].to_pylist() == wanted
    shutil.rmtree(place)
    write(place)
    changed = the_file(place)
    assert changed.mark.split()[2] == file.mark.split()[2] and changed.mark != file.mark
    _at_version.cache_clear()  # as in another process
    with pytest.raises(RequestError, match=r"x\.lance: expected lance version 3 .*, got: another dataset's"):
        columns_in(file, text="my text")
    shutil.rmtree(place)
    lance.write_dataset(table(range(3)), place)
    with pytest.raises(RequestError, match=r"expected lance version 3 that can be read, got: .*not found"):
        columns_in(file, text="my text")


def test_a_missing_column_an_index_and_a_broken_dataset_are_refused(tmp_path):
    place = tmp_path / "x.lance"
    write(str(place))
    with pytest.raises(RequestError, match="expected the column 'text', got id, my text, n"):
        columns_of(place)
    index = table(range(3)).replace_schema_metadata({METADATA_KEY: ""})
    lance.write_dataset(index, tmp_path / "index.lance")
    with pytest.raises(RequestError, match="got: an index of `raycase index`; pass what it was made of"):
        find_input(str(tmp_path / "index.lance"))
    for manifest in (place / "_versions").iterdir():
        manifest.write_bytes(manifest.read_bytes()[:20])
    with pytest.raises(RequestError, match="--input: expected to list "):
        find_input(str(place))
    with pytest.raises(RequestError, match="others; a Lance"):
        find_input(str(tmp_path))
