"""One build of an index at a time: of two, each ends with an error or with both works done."""

import building
import pytest
from building import Content, builds, check, copied, got, readable

from raycase.errors import WorkError
from raycase.index import build as build_module
from raycase.index.build import build
from raycase.io.storage import locate

PAIRS, PARTS, OFFSETS = 200, 10, (0, 10, 30, 80, 150, 300, 600, 1000)  # of a store; ms


@pytest.fixture(scope="module")
def home(tmp_path_factory, s3_server):
    home = tmp_path_factory.mktemp("at-once")
    building.write_outputs(home)
    return home


@pytest.mark.parametrize(("store", "before"), [("disk", "publish"), ("s3", "delete_same_ids"), ("s3", "publish")])
def test_a_build_within_another(home, monkeypatch, store, before):
    """On disk the second is refused; on S3 the first, which finds that the second has been there."""
    index, other = copied(home, store, before), []
    pair = builds(home, index, "a")["replace"], builds(home, index, "b")["replace"]
    step = getattr(build_module, before)

    def beside(*arguments):
        monkeypatch.setattr(build_module, before, step)
        other.append(error_of(pair[1][0]))
        return step(*arguments)

    monkeypatch.setattr(build_module, before, beside)
    errors = [error_of(pair[0][0]), *other]
    assert [error is None for error in errors] == ([True, False] if store == "disk" else [False, True])
    check(home, index, pair, errors, Content())
    assert error_of(pair[errors[0] is None][0]) is None  # again, it is done
    assert got(index) == Content().add("ra", "rb", "next")


def error_of(job):
    try:
        build(**job)
    except WorkError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


def test_files_of_a_build_at_work_stay_and_those_that_are_gone_are_noticed(home, monkeypatch):
    """On S3, where a build that changes no row removes what no version names."""
    index = copied(home, "s3", "files")
    bases, at_work = locate(index) / "_word_bases", builds(home, index, "a")["append"][0]
    before = bases.list()

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_module, "publish", dies)
        build(**at_work)
    there = bases.list()
    assert len(there) == 2 + len(before) == 4
    build(**dict(at_work, embeddings=(), vector_index="exact"))
    assert bases.list() == there
    real = build_module.check_there

    def without(root, metadata):
        (bases / (there.keys() - before.keys()).pop()).remove()
        real(root, metadata)

    monkeypatch.setattr(build_module, "check_there", without)
    assert "another build is at work" in error_of(at_work)
    monkeypatch.setattr(build_module, "check_there", real)
    build(**at_work)
    readable(index)
