"""What belongs to a version of an index stays while it can be read, beside builds and after killed ones; of two builds
at once, each ends with an error or with both works done."""

import shutil
from dataclasses import asdict
from unittest import mock

import fsspec
import pytest
import storing
from crashing import Killed, answers, dying_before
from helpers import embed_here
from indexed import refuse

from raycase.commands.embed import EmbedFlags
from raycase.commands.search import SearchFlags, search
from raycase.errors import WorkError
from raycase.index import build as build_module
from raycase.index import index as index_module
from raycase.index.build import build
from raycase.index.index import Index, on_index
from raycase.index.lance_files import open_newest, open_ready
from raycase.io.locks import mark_of
from raycase.io.storage import locate

CONDITIONS, NEW = ("color", "dog"), "what they wear"
QUERIES = ["a woman in a red dress", "two people play with a dog"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`few` and `words`: 120 and 300 rows of one output with stored tokens, before and after it grew; `under`: rows
    under a condition; `i`: the index of `few` and `under`."""
    home = tmp_path_factory.mktemp("versions")
    model, rows = storing.model_folder(home), storing.texts(300)
    words = storing.stored(home / "a", model, rows, limit=120, unit_rows=40, output=str(home / "words"))
    shutil.copytree(words, home / "few")
    settings = {"any_condition": True, "token_bytes": storing.ENOUGH, "keep_columns": ("text", "year"), "unit_rows": 40}
    settings |= {"input": str(home / "a" / "in.parquet"), "output": words, "model": model}
    embed_here(EmbedFlags(compute="float32", dtype="float32", **settings))
    storing.stored_under(home / "b", model, rows[:60], "color", output=str(home / "under"))
    storing.stored(home / "c", model, storing.texts(40, 1000), output=str(home / "other"))
    build(**first(home, home / "i"))
    return home


def first(home, place):
    """The job of an index under two conditions, of which one is pooled."""
    outputs = (str(home / "few"), str(home / "under"))
    settings = {"keep_condition": ("dog",), "exact_below": 1, "vector_index": "auto"}
    return {"embeddings": outputs, "output": str(place), **settings}


def grown(home, place):
    return dict(first(home, place), embeddings=(str(home / "words"), str(home / "under")), overwrite=True)


def asked(place):
    return answers(Index.open(str(place)), QUERIES, CONDITIONS, NEW)


def beside(place):
    """The files beside the versions."""
    return {path.name: path.read_bytes() for path in (place / "_word_bases").iterdir()}


def copied(home, folder):
    shutil.copytree(home / "i", folder / "i")
    return folder / "i"


def test_who_has_the_former_version_open_is_not_disturbed_by_an_overwrite(home, tmp_path):
    """Neither by one that dies nor by one that does not, whatever of it was read before."""
    place = copied(home, tmp_path)
    wanted, files = asked(place), beside(place)
    with pytest.raises(Killed), dying_before(3):
        build(**grown(home, place))
    assert asked(place) == wanted
    assert files.items() < beside(place).items()
    reader = Index.open(str(place))
    assert build(**grown(home, place))["rows"] == 660
    assert answers(reader, QUERIES, CONDITIONS, NEW) == wanted
    assert files.items() < beside(place).items()
    other = asked(place)
    build(**first(home, place.parent / "j"))
    build(embeddings=(str(home / "other"),), output=str(place))
    assert files.keys() - beside(place).keys()  # of a version that nobody reads any more
    assert asked(place) != other


def changes(home, place):
    """Builds that change an index, by name."""
    index, added = {"output": str(place)}, (str(home / "words"), str(home / "other"))
    changed = {"delete": "year = 2003", "keep_condition": ("cat", "play")}
    return {
        "overwrite": grown(home, place),
        "exact": dict(index, vector_index="exact"),
        "all": dict(index, embeddings=added, **changed),
    }


def content(place):
    """What an undisturbed run is compared by: the rows, and what the version says of itself."""
    _, dataset, metadata = open_ready(locate(str(place)))
    rows = dataset.to_table()
    return rows.sort_by([("id", "ascending"), ("condition", "ascending")]).to_pylist(), asdict(metadata)


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "steps"), [("overwrite", (2, 9)), ("exact", (2, 3)), ("all", (2, 7))])
def test_a_build_dies_before_some_of_its_steps(home, tmp_path, name, steps):
    """The index answers as before, or as after where it was published; run again, the build ends as if nothing had
    happened."""
    place = tmp_path / "whole"
    shutil.copytree(home / "i", place)
    before = asked(place)
    with dying_before(10**6) as came:
        build(**changes(home, place)[name])
    rows, after = content(place), asked(place)
    build(**changes(home, place)[name])  # deletes what it added itself, if its filter matches that
    twice = content(place)
    published = max(step for step, name in enumerate(came) if name == "put")  # the tag
    for step in steps:
        again = tmp_path / f"{name}-{step}"
        shutil.copytree(home / "i", again)
        with pytest.raises(Killed), dying_before(step):
            build(**changes(home, again)[name])
        if step <= published:
            assert asked(again) == before, came[step]
        else:
            assert content(again) == rows, came[step]
        build(**changes(home, again)[name])
        assert content(again) == (rows if step <= published else twice), came[step]
        assert asked(again).keys() == after.keys()
        shutil.rmtree(again)


@pytest.mark.parametrize("name", ["josé", "a b#c%20d%?e"])
def test_an_index_lies_where_its_path_says(home, tmp_path, name):
    place = tmp_path / name / "i"
    build(**dict(first(home, place), keep_condition=()))
    build(output=str(place), delete="id = 1")
    build(**grown(home, place))
    assert asked(place)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert {path.name for path in place.parent.iterdir()} == {"i"}


def test_a_search_whose_version_was_removed_is_made_once_more(home, tmp_path, monkeypatch, capsys):
    place = copied(home, tmp_path)
    real, left = index_module.Index.search, [1]

    def beside_builds(index, *arguments, **options):
        if left:
            left.pop()
            for _ in range(2):
                build(**grown(home, place))
        return real(index, *arguments, **options)

    monkeypatch.setattr(index_module.Index, "search", beside_builds)
    job = SearchFlags(index=str(place), query=(QUERIES[0],), condition=("color",), k=3)
    assert search(job)["answers"] == 3
    assert "a build removed the version in use; searching the newest one" in capsys.readouterr().err
    with pytest.raises(WorkError):  # twice
        left.extend([1, 1])
        search(job)


def test_a_file_that_is_gone_from_a_version_that_is_left_is_an_error(home, tmp_path):
    place = copied(home, tmp_path)
    for file in (place / "data").iterdir():
        file.unlink()
    opened = mock.Mock(side_effect=lambda: Index.open(str(place)))
    with pytest.raises(WorkError):
        on_index(opened, lambda index: index.search(QUERIES, "color", 3))
    assert opened.call_count == 1
    assert open_newest(locate(str(place))) is not None
    refuse({"output": str(tmp_path / "nothing")}, "--embeddings: expected an output")


# outputs with stored tokens, each of a basis of its own; `ra` and `rb` have changed texts of ids of the base
OF = {"base": range(60), "a": range(100, 120), "ra": range(20), "rb": range(20, 40), "next": range(300, 310)}


@pytest.fixture(scope="module")
def bases(tmp_path_factory, s3_server):
    """The outputs, and `i`, the index of the base."""
    bases = tmp_path_factory.mktemp("at-once")
    model = storing.model_folder(bases)
    for name, ids in OF.items():
        rows = [row | {"text": text(name, row["id"])} for i in ids for row in storing.texts(1, i)]
        storing.stored(bases / f"of-{name}", model, rows, output=str(bases / name))
    storing.indexed(bases / "i", bases / "base")
    return bases


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


def copied_to(bases, store, name):
    """A fresh index of the base on this store."""
    if store == "disk":
        return str(shutil.copytree(bases / "i", bases / name))
    fsspec.filesystem("s3").put(str(bases / "i"), f"corpus/at-once/{bases.name}/{name}", recursive=True)
    return f"s3://corpus/at-once/{bases.name}/{name}"


def error_of(job):
    """The line of a build that another one has come before; None where it is done."""
    try:
        build(**job)
    except WorkError as error:
        assert "another build is at work" in str(error) and "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize(("store", "before"), [("disk", "publish"), ("s3", "delete_same_ids"), ("s3", "publish")])
def test_a_build_within_another(bases, monkeypatch, store, before):
    """On disk the second is refused; on S3 the first, which finds that the second has been there."""
    index, other, step = copied_to(bases, store, before), [], getattr(build_module, before)
    first, second = ({"embeddings": (str(bases / name),), "output": index, "replace": True} for name in ("ra", "rb"))

    def beside(*arguments):
        monkeypatch.setattr(build_module, before, step)
        other.append(error_of(second))
        return step(*arguments)

    monkeypatch.setattr(build_module, before, beside)
    errors = [error_of(first), *other]
    assert [error is None for error in errors] == ([True, False] if store == "disk" else [False, True])
    done, refused = ("ra", second) if store == "disk" else ("rb", first)
    assert got(index) == texts("base", done)
    build(embeddings=(str(bases / "next"),), output=index)
    assert got(index) == texts("base", done, "next")
    assert error_of(refused) is None  # again, it is done
    assert got(index) == texts("base", "ra", "rb", "next")


def test_files_of_a_build_at_work_stay_and_those_that_are_gone_are_noticed(bases, monkeypatch):
    """On S3, where a build that changes no row removes what no version names."""
    index = copied_to(bases, "s3", "files")
    stored, at_work = locate(index) / "_word_bases", {"embeddings": (str(bases / "a"),), "output": index}
    before = stored.list()

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_module, "publish", dies)
        build(**at_work)
    there = stored.list()
    assert len(there) == 2 + len(before) == 4
    build(output=index, vector_index="exact")
    assert stored.list() == there
    real = build_module.check_there

    def without(root, metadata):
        (stored / (there.keys() - before.keys()).pop()).remove()
        real(root, metadata)

    monkeypatch.setattr(build_module, "check_there", without)
    assert error_of(at_work)
    monkeypatch.setattr(build_module, "check_there", real)
    build(**at_work)
    assert got(index) == texts("base", "a")
