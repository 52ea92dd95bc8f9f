"""One build of an index at a time: of two, each ends with an error or with both works done."""

import itertools
import random
from dataclasses import replace

import building
import pytest
from building import Content, Two, check, copied, first_build, got, kinds, readable

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
    pair = kinds(home, index, "a")["replace"], kinds(home, index, "b")["replace"]
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
        build(job)
    except WorkError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


def test_files_of_a_build_at_work_stay_and_those_that_are_gone_are_noticed(home, monkeypatch):
    """On S3, where a build that changes no row removes what no version names."""
    index = copied(home, "s3", "files")
    bases, at_work = locate(index) / "_word_bases", kinds(home, index, "a")["append"][0]
    before = bases.list()

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build_module, "publish", dies)
        build(at_work)
    there = bases.list()
    assert len(there) == 2 + len(before) == 4
    build(replace(at_work, embeddings=(), kind="exact"))
    assert bases.list() == there
    real = build_module.check_there

    def without(root, metadata):
        (bases / (there.keys() - before.keys()).pop()).remove()
        real(root, metadata)

    monkeypatch.setattr(build_module, "check_there", without)
    assert "another build is at work" in error_of(at_work)
    monkeypatch.setattr(build_module, "check_there", real)
    build(at_work)
    readable(index)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("store", ["disk", "s3"])
def test_two_builds_at_once(home, store, part):
    """Every two kinds of build, the second some ms after the first; of new indexes, too."""
    names = [*itertools.product(kinds(home, "", "a"), repeat=2), ("first", "first")]
    chance = random.Random(0)
    drawn = [pair for _ in range(PAIRS // len(names)) for pair in chance.sample(names, len(names))]
    counts = dict.fromkeys(("both", "one", "none"), 0)
    with Two() as two:
        for number, pair in list(enumerate(drawn))[part::PARTS]:
            offset = OFFSETS[(number + number // len(OFFSETS)) % len(OFFSETS)]
            index = str(home / f"new-{number}") if store == "disk" else f"s3://corpus/at-once/{home.name}/new-{number}"
            start = None
            if pair[0] == "first":
                jobs = first_build(home, index, "a"), first_build(home, index, "b")
            else:
                index, start = copied(home, store, number), Content()
                jobs = kinds(home, index, "a")[pair[0]], kinds(home, index, "b")[pair[1]]
            errors = two.build([job for job, _ in jobs], offset / 1000)
            try:
                check(home, index, jobs, errors, start)
            except Exception as error:
                raise AssertionError(f"{pair} at {offset} ms: {errors}") from error
            counts[("both", "one", "none")[sum(map(bool, errors))]] += 1
    print(store, part, counts)
