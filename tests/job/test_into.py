"""Vectors in columns of the Lance dataset that a job reads: only of rows that lack them, whatever happens meanwhile."""

import json
import shutil
import threading
import uuid

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sentences

from raycase.commands.embed import EmbedFlags, embed_corpus
from raycase.errors import RequestError, WorkError
from raycase.io.lance_dataset import lance_place
from raycase.io.storage import Location, locate
from raycase.job import into
from raycase.job.run import UnfitError

PROMPT = {"prompt": "concat-sc", "pooling": "mean"}
CONDITIONS = {"color": "color of the dress", "people": "number of people"}
BAD = (None, " ", "poison")


def write(uri, texts, first=0, **options):
    """Append to the dataset, or begin it, in fragments of 20 rows."""
    mode = "append" if first else "create"
    table = pa.table({"id": range(first, first + len(texts)), "text": pa.array(texts, pa.string())})
    return lance.write_dataset(table, mode=mode, max_rows_per_file=20, **lance_place(locate(str(uri))), **options)


@pytest.fixture
def place(tmp_path):
    write(tmp_path / "a.lance", sentences(60))
    return tmp_path / "a.lance"


@pytest.fixture
def fill(tiny_model):
    """The command for the first columns of `CONDITIONS`."""

    def fill(place, columns=1, **options):
        names = [*CONDITIONS][:columns]
        asked = {"into": tuple(names), "conditions": tuple(CONDITIONS[name] for name in names)}
        how = {"model": str(tiny_model), "compute": "float32", "dtype": "float32", "unit_rows": 10, "max_rejected": 1.0}
        return embed_corpus(EmbedFlags(**PROMPT | how | asked | {"input": str(place)} | options))

    return fill


@pytest.fixture
def check(tiny_model):
    """Every row has the vectors that the model gives its text, or none where that is bad; gives the number of rows."""
    import torch

    import raycase

    model = raycase.load(str(tiny_model), dtype=torch.float32, **PROMPT)

    def check(place, columns=1):
        rows = lance.dataset(**lance_place(locate(str(place)))).to_table()
        texts = rows["text"].to_pylist()
        good = [text for text in texts if text not in BAD]
        for name in [*CONDITIONS][:columns]:
            assert [each is None for each in rows[name].to_pylist()] == [text in BAD for text in texts]
            found = np.stack(rows[name].drop_null().to_numpy())
            assert np.abs(found - model.encode(good, CONDITIONS[name])).max() < 1e-5
        return len(rows)

    return check


def folder_of(place):
    return place.parent / f".{place.name}.raycase"


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_only_rows_that_lack_vectors_of_their_texts_are_embedded(tmp_path, fill, check, stable, version):
    """In two columns, also where each lacks those of other rows."""
    place = tmp_path / "a.lance"
    write(place, sentences(60), data_storage_version=version, enable_stable_row_ids=stable)
    first = fill(place)
    assert (first["rows_in"], first["rows_written"], first["rows_left"], check(place)) == (60, 60, 0, 60)
    assert fill(place)["rows_in"] == 0
    lance.dataset(place).update({"text": "'red ball'"}, where="id < 3")
    changed = pa.table({"id": [30, 31], "text": ["blue dress", None]})
    lance.dataset(place).merge_insert("id").when_matched_update_all().execute(changed)
    write(place, ["green cat"], first=60)
    second = fill(place, columns=2)
    assert (second["rows_in"], second["pairs"], second["rows_rejected"]) == (61, 60 + 5, 1)
    assert check(place, columns=2) == 61 and fill(place, columns=2)["rows_in"] == 0
    whole = lance.dataset(place)
    assert whole.schema.field("color").type == pa.list_(pa.float32(), 32)
    whole.optimize.compact_files()
    assert fill(place, columns=2)["rows_in"] == 0


MEANWHILE = {  # what happens to the dataset between reading and commit, and the rows that are left to embed then
    "append": (lambda data: write(data.uri, ["red cat"], first=60), 1),
    "delete": (lambda data: data.delete("id % 3 = 0"), 0),
    "delete of all rows of a fragment": (lambda data: data.delete("id < 20"), 0),
    "update": (lambda data: data.update({"text": "'red shirt'"}, where="id in (3, 44)"), 2),
    "update of another column": (lambda data: data.update({"id": "id + 100"}, where="id = 3"), 0),
    "compaction": (lambda data: data.optimize.compact_files(), 0),
    "another column": (lambda data: data.add_columns({"n": "id * 2"}), 0),
}


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("what", MEANWHILE)
def test_what_happens_between_reading_and_commit_is_kept(tmp_path, fill, check, monkeypatch, what, stable):
    place = tmp_path / "a.lance"
    write(place, sentences(60), enable_stable_row_ids=stable)
    happens, left = MEANWHILE[what]
    commit, pending = lance.LanceDataset.commit, [lambda: happens(lance.dataset(place))]

    def late(*arguments, **options):
        if pending:
            pending.pop()()
        return commit(*arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(late))
    assert fill(place)["rows_left"] == left and not pending
    again = fill(place)
    assert (again["rows_in"], again["rows_left"]) == (left, 0)
    assert check(place) == lance.dataset(place).count_rows()


def test_beside_a_hundred_appends_none_is_lost(place, fill, check):
    """Of four threads, which begin before the columns are there."""

    def append(number):
        for i in range(25):
            write(place, [f"dog {number} {i}"], first=1000 * number + i)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    encoded = fill(place)["rows_in"]
    for thread in threads:
        thread.join()
    encoded += fill(place)["rows_in"]
    assert encoded == check(place) == 160


@pytest.mark.cluster
def test_a_run_that_was_killed_at_any_step_goes_on(tmp_path, fill, check, monkeypatch):
    """Between any two writes, removals and commits, of which each fragment has one."""
    monkeypatch.setattr(into, "COMMIT_ROWS", 20)
    place, calls, kill = tmp_path / "a.lance", [], []

    def counted(of, name):
        original = getattr(of, name)

        def call(*arguments, **options):
            calls.append(name)
            if kill == [len(calls)]:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        is_static = isinstance(of.__dict__[name], staticmethod)
        monkeypatch.setattr(of, name, staticmethod(call) if is_static else call)

    for of, name in ((Location, "put"), (Location, "remove"), (lance.LanceDataset, "commit")):
        counted(of, name)
    texts = [*sentences(30), *BAD, *sentences(10, seed=1)]
    write(place, texts)
    fill(place, unit_rows=20)
    assert calls.count("commit") == 3
    for at in range(1, len(calls) + 1):
        shutil.rmtree(place)
        shutil.rmtree(folder_of(place), ignore_errors=True)
        write(place, texts)
        calls.clear()
        kill[:] = [at]
        with pytest.raises(KeyboardInterrupt):
            fill(place, unit_rows=20)
        kill.clear()
        assert fill(place, unit_rows=20)["rows_left"] == 0 and check(place) == len(texts)
        assert not list(folder_of(place).glob("*.json")) and not list(folder_of(place).glob("*/rows"))
        assert fill(place)["rows_in"] == 0


@pytest.mark.parametrize("rows", [10, 30, 60])
def test_rows_that_end_where_a_file_of_staged_ones_does(place, fill, check, monkeypatch, rows):
    monkeypatch.setattr(into, "STAGED_ROWS", rows)
    assert fill(place)["rows_written"] == check(place) == 60


def test_a_run_goes_on_with_the_units_of_the_one_before(place, fill, check, monkeypatch):
    write(place, ["blue cat"], first=60)
    monkeypatch.setattr(into._Vectors, "__init__", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fill(place)
    monkeypatch.undo()
    write(place, ["green cat"], first=61)
    units = {file: file.stat().st_mtime_ns for file in folder_of(place).glob("*/out/embeddings/*")}
    assert units
    remove, removed = Location.remove, set()

    def noted(self):
        removed.update(file.stat().st_mtime_ns for file in units if file.exists())
        remove(self)

    monkeypatch.setattr(Location, "remove", noted)
    assert fill(place)["rows_in"] == 62 and removed == {*units.values()}  # none was written again
    assert check(place) == 62


def test_rejected_rows_have_no_vector_and_their_reasons_stay(place, fill, check):
    write(place, BAD, first=60)
    with pytest.raises(UnfitError, match=r"expected at most 1.00% of 63 rows rejected, got 3, and no vectors were"):
        fill(place, max_rejected=0.01)
    assert lance.dataset(place).count_rows("color IS NOT NULL") == 0
    done = fill(place, max_rejected=0.05)
    assert (done["rows_in"], done["rows_rejected"], done["rows_written"]) == (63, 3, 63) and check(place) == 63
    rows = [row for folder in done["rejected"] for row in pq.read_table(folder).to_pylist()]
    keys = {json.loads(row["content"])["key"]: row["reason"] for row in rows}
    assert keys == {60: "null text", 61: "empty text", 62: "vector not finite"}
    assert fill(place)["rows_in"] == 0
    lance.dataset(place).update({"text": "'dog'"}, where="id = 62")
    assert fill(place)["rows_in"] == 1 and not fill(place)["rejected"]


def test_what_was_rejected_before_and_is_mended_since_is_not_counted(place, fill, check):
    """The job of the run that was refused goes on, and has its rejected rows still."""
    write(place, BAD, first=60)
    for mend, rejected in (("id = 60", 3), ("id > 60", 2)):
        with pytest.raises(UnfitError, match=f"expected at most 0.00% of 63 rows rejected, got {rejected},"):
            fill(place, max_rejected=0.0)
        lance.dataset(place).update({"text": "'dog'"}, where=mend)
    done = fill(place, max_rejected=0.0)
    assert (done["rows_in"], done["rows_left"], check(place)) == (66, 0, 63)


def test_limit_and_overwrite(place, fill, check):
    assert [fill(place, limit=25)["rows_left"] for _ in range(3)] == [35, 10, 0]
    done = fill(place, conditions=("place",), overwrite=True)
    assert done["rows_written"] == 60
    assert fill(place, overwrite=True)["rows_written"] == 60 and check(place) == 60


@pytest.mark.parametrize(
    "type_", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.null()]
)
def test_any_type_of_strings_and_an_empty_dataset(tmp_path, fill, type_):
    texts = [None] * 3 if type_ == pa.null() else ["red", None, "a dog"]
    lance.write_dataset(pa.table({"text": pa.array(texts, type_)}), tmp_path / "a.lance")
    assert fill(tmp_path / "a.lance")["rows_written"] == 3
    lance.write_dataset(pa.table({"text": pa.array([], type_)}), tmp_path / "b.lance")
    assert fill(tmp_path / "b.lance")["rows_written"] == 0
    assert lance.dataset(tmp_path / "b.lance").schema.names == ["text", "color", "color_fingerprint"]


def test_in_a_store(fill, check, s3_server):
    place = f"s3://corpus/{uuid.uuid4().hex}/my things.lance"
    write(place, sentences(30))
    assert fill(place)["rows_written"] == check(place) == 30


def test_another_column_of_the_name_another_model_and_another_condition_are_refused(place, fill):
    fill(place)
    for change, got in (
        ({"conditions": ("colour",)}, "condition: color of the dress there, colour requested"),
        ({"on_long": "reject"}, "on_long: truncate there, reject requested"),
        ({"pooling": "cls"}, "pooling"),
        ({"text_column": "other"}, "text_column: text there, other requested"),
    ):
        if "text_column" in change:
            lance.dataset(place).add_columns({"other": "text"})
        with pytest.raises(RequestError, match=f"{got}.*pass --overwrite to drop the column and embed all rows"):
            fill(place, **change)
    lance.dataset(place).drop_columns(["color"])
    with pytest.raises(RequestError, match="expected color and color_fingerprint, got color_fingerprint alone"):
        fill(place)
    lance.dataset(place).drop_columns(["color_fingerprint"])
    for add in ({"color": "id * 2"}, pa.schema([pa.field("color", pa.list_(pa.float32(), 32))])):
        lance.dataset(place).add_columns(add)
        for overwrite in (False, True):
            with pytest.raises(RequestError, match=r"expected no column 'color'.* of others; choose another name"):
                fill(place, overwrite=overwrite)
        lance.dataset(place).drop_columns(["color"])


def test_columns_that_are_dropped_or_begun_anew_meanwhile_are_not_written(place, fill, check, monkeypatch):
    def meanwhile(change):
        vectors = into._Vectors
        monkeypatch.setattr(into, "_Vectors", lambda *given: (change(), vectors(*given))[1])
        with pytest.raises(WorkError, match="expected the column 'color' beside 'text', got it dropped, renamed or"):
            fill(place)
        monkeypatch.undo()

    meanwhile(lambda: lance.dataset(place).drop_columns(["color", "color_fingerprint"]))
    mark = pa.field("color", pa.list_(pa.float32(), 32), metadata={"raycase": '{"condition": "place"}'})
    new = pa.schema([mark, pa.field("color_fingerprint", pa.binary(16), metadata=mark.metadata)])

    def anew():
        lance.dataset(place).drop_columns(["color", "color_fingerprint"])
        lance.dataset(place).add_columns(new)

    meanwhile(anew)
    lance.dataset(place).restore()
    assert lance.dataset(place).count_rows("color IS NOT NULL") == 0
    lance.dataset(place).drop_columns(["color", "color_fingerprint"])
    assert fill(place)["rows_written"] == check(place) == 60


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"into": ("a", "b")}, "expected a column for each condition, 1, got a, b"),
        ({"into": ("a.b",)}, "expected names without dots and backticks"),
        ({"into": ("_rowid",)}, "expected names without dots and backticks"),
        ({"into": ("text",)}, r"expected no column 'text', or fixed_size_list<item: float>\[32\] that raycase wrote"),
        ({"output": "out", "chunk": 9}, "expected no --output or --chunk beside it; leave it out"),
        ({"dry_run": True}, "expected no --dry-run beside it"),
        ({"text_column": "id"}, "expected strings in the column 'id', got int64"),
        ({"input": "none.lance"}, "expected a Lance dataset that takes columns at .*none.lance, got: .*was not found"),
    ],
)
def test_a_wrong_request_changes_nothing(place, fill, change, expected):
    with pytest.raises(RequestError, match=expected):
        fill(place, **change)
    assert lance.dataset(place).version == 1


def test_a_legacy_dataset_is_refused_with_the_reason(tmp_path, fill):
    write(tmp_path / "a.lance", sentences(3), data_storage_version="legacy")
    with pytest.raises(RequestError, match="got: Not supported: Cannot add all-null columns to legacy dataset"):
        fill(tmp_path / "a.lance")
