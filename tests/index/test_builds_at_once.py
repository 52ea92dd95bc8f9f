"""One build of an index at a time: of two, each ends with an error or with both works done."""

import shutil

import fsspec
import pytest
import storing

from raycase.errors import WorkError
from raycase.index import build as build_module
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.lance_files import open_ready
from raycase.io.locks import mark_of
from raycase.io.storage import locate

# outputs with stored tokens, each of a basis of its own; `ra` and `rb` have changed texts of ids of the base
OF = {"base": range(60), "a": range(100, 120), "ra": range(20), "rb": range(20, 40), "next": range(300, 310)}


@pytest.fixture(scope="module")
def home(tmp_path_factory, s3_server):
    """The outputs, and `i`, the index of the base."""
    home = tmp_path_factory.mktemp("at-once")
    model = storing.model_folder(home)
    for name, ids in OF.items():
        rows = [row | {"text": text(name, row["id"])} for i in ids for row in storing.texts(1, i)]
        storing.stored(home / f"of-{name}", model, rows, output=str(home / name))
    storing.indexed(home / "i", home / "base")
    return home


def text(name, i):
    words = storing.texts(1, i)[0]["text"]
    return f"two people {words}" if name.startswith("r") else words


def texts(*names):
    return {i: text(name, i) for name in names for i in OF[name]}


def got(index):
    """The text of each id of an index that is whole, free, and can be searched."""
    _, dataset, metadata = open_ready(locate(index))
    rows = dataset.to_table(columns=["id", "text"]).to_pylist()
    found = {row["id"]: row["text"] for row in rows}
    assert len(rows) == len(found) == metadata.rows == metadata.with_tokens
    assert len(Index.open(index).search(["a dog"], "what they wear", 500)) == len(found)
    assert mark_of(locate(index) / "_building.lock") is None
    return found


def copied(home, store, name):
    """A fresh index of the base on this store."""
    if store == "disk":
        return str(shutil.copytree(home / "i", home / name))
    fsspec.filesystem("s3").put(str(home / "i"), f"corpus/at-once/{home.name}/{name}", recursive=True)
    return f"s3://corpus/at-once/{home.name}/{name}"


def error_of(job):
    """The line of a build that another one has come before; None where it is done."""
    try:
        build(**job)
    except WorkError as error:
        assert "another build is at work" in str(error) and "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize(("store", "before"), [("disk", "publish"), ("s3", "delete_same_ids"), ("s3", "publish")])
def test_a_build_within_another(home, monkeypatch, store, before):
    """On disk the second is refused; on S3 the first, which finds that the second has been there."""
    index, other, step = copied(home, store, before), [], getattr(build_module, before)
    first, second = ({"embeddings": (str(home / name),), "output": index, "replace": True} for name in ("ra", "rb"))

    def beside(*arguments):
        monkeypatch.setattr(build_module, before, step)
        other.append(error_of(second))
        return step(*arguments)

    monkeypatch.setattr(build_module, before, beside)
    errors = [error_of(first), *other]
    assert [error is None for error in errors] == ([True, False] if store == "disk" else [False, True])
    done, refused = ("ra", second) if store == "disk" else ("rb", first)
    assert got(index) == texts("base", done)
    build(embeddings=(str(home / "next"),), output=index)
    assert got(index) == texts("base", done, "next")
    assert error_of(refused) is None  # again, it is done
    assert got(index) == texts("base", "ra", "rb", "next")


def test_files_of_a_build_at_work_stay_and_those_that_are_gone_are_noticed(home, monkeypatch):
    """On S3, where a build that changes no row removes what no version names."""
    index = copied(home, "s3", "files")
    bases, at_work = locate(index) / "_word_bases", {"embeddings": (str(home / "a"),), "output": index}
    before = bases.list()

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_module, "publish", dies)
        build(**at_work)
    there = bases.list()
    assert len(there) == 2 + len(before) == 4
    build(output=index, vector_index="exact")
    assert bases.list() == there
    real = build_module.check_there

    def without(root, metadata):
        (bases / (there.keys() - before.keys()).pop()).remove()
        real(root, metadata)

    monkeypatch.setattr(build_module, "check_there", without)
    assert error_of(at_work)
    monkeypatch.setattr(build_module, "check_there", real)
    build(**at_work)
    assert got(index) == texts("base", "a")
