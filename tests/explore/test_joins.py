"""The join: against brute force, a stop in the middle."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from helpers import embedded, meanwhile, read_output, sentences, stop_after, vectors

from raycase.commands.join import JoinFlags
from raycase.commands.join import join as join_command
from raycase.errors import RequestError, WorkError
from raycase.explore.join import join as join_by
from raycase.io.vectors import l2_normalize
from raycase.job.runner import Runner

CONDITIONS = ("color", "number of people")
join = partial(join_by, runner=Runner(), group_rows=100, block_rows=400)


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """Queries (some of the vectors' own rows) and vectors, each under two conditions in several units."""
    home = tmp_path_factory.mktemp("joined")
    rows = [{"id": f"r{i}", "text": t, "image": i // 5} for i, t in enumerate(sentences(450))]
    kept = {"conditions": CONDITIONS, "keep_columns": ("text", "image")}
    embedded(home / "v", tiny_model, rows, output=str(home / "vectors"), **kept)
    embedded(home / "q", tiny_model, rows[::3], output=str(home / "queries"), unit_rows=40, **kept)
    embedded(home / "p", tiny_model, rows[:5], output=str(home / "without"), unconditional=True)
    embedded(home / "o", tiny_model, rows[:5], output=str(home / "other"), subtract=False, **kept)
    return home


def brute(home, k, exclude=None):
    """(id, condition) -> ids and cosines of the k nearest under the same condition."""
    queries, found = read_output(str(home / "queries")).to_pylist(), read_output(str(home / "vectors"))
    theirs, all_vectors = found.to_pylist(), l2_normalize(vectors(found))
    answers = {}
    for row in queries:
        scores = all_vectors @ l2_normalize(np.array([row["embedding"]]))[0]
        kept = [i for i, r in enumerate(theirs) if r["condition"] == row["condition"]]
        kept = [i for i in kept if exclude is None or theirs[i][exclude] != row[exclude]]
        order = sorted(kept, key=lambda i: (-scores[i], i))[:k]
        answers[row["id"], row["condition"]] = [theirs[i]["id"] for i in order], scores[order]
    return answers


def check(uri, wanted, k):
    found = {}
    for row in ds.dataset(f"{uri}/neighbours").to_table().to_pylist():
        found.setdefault((row["id"], row["condition"]), []).append((row["rank"], row["neighbour"], row["score"]))
    assert found.keys() == wanted.keys()
    for key, (ids, scores) in wanted.items():
        ranks, neighbours, ours = zip(*sorted(found[key]), strict=True)
        assert ranks == tuple(range(1, k + 1))
        assert list(neighbours) == ids
        assert np.allclose(ours, scores, atol=1e-5)


def of(home, tmp_path, **options):
    """Arguments that join the queries with the vectors."""
    places = {"query_vectors": str(home / "queries"), "vectors": str(home / "vectors"), "output": str(tmp_path / "n")}
    return places | {"k": 5} | options


def counts(queries, neighbours, without=0):
    return {"queries": queries, "neighbours": neighbours, "queries_without_neighbours": without}


@pytest.mark.parametrize("cut", [(100, 400), (10**6, 10**6), (1, 1)])
@pytest.mark.parametrize("exclude", [None, "image"])
def test_a_join_gives_what_brute_force_gives(home, tmp_path, cut, exclude):
    asked = of(home, tmp_path, exclude_same=exclude)
    assert join(**asked, group_rows=cut[0], block_rows=cut[1]) == counts(300, 1500)
    check(asked["output"], brute(home, 5, exclude), 5)


@pytest.mark.parametrize("weights", [("color=2", "number of people=-0.5"), ("color=0", "number of people")])
def test_a_weighted_join_gives_the_sum_of_brute_force(home, tmp_path, weights):
    of_name = {name: float(number or 1) for name, _, number in (given.partition("=") for given in weights)}
    total = sum(map(abs, of_name.values()))
    shares = {name: weight / total for name, weight in of_name.items()}
    queries, found = (read_output(str(home / name)) for name in ("queries", "vectors"))
    scores = 0
    for name, share in shares.items():
        own, theirs = (t.filter(pc.equal(t["condition"], name)) for t in (queries, found))
        scores = scores + share * l2_normalize(vectors(own)) @ l2_normalize(vectors(theirs)).T
    for i, j in itertools.product(range(len(own)), range(len(theirs))):
        if own["image"][i] == theirs["image"][j]:
            scores[i, j] = -np.inf
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    ids = np.array(theirs["id"].to_pylist())
    wanted = {(id, None): (ids[b].tolist(), s[b]) for id, b, s in zip(own["id"].to_pylist(), best, scores, strict=True)}
    asked = of(home, tmp_path, exclude_same="image")
    assert join(**asked | {"output": f"{tmp_path}/cut"}, shares=shares, group_rows=1, block_rows=1) == counts(150, 750)
    result = join_command(JoinFlags(**asked, condition=weights))
    assert result.items() >= {"output": asked["output"], **counts(150, 750)}.items()
    for output in (f"{tmp_path}/cut", asked["output"]):
        check(output, wanted, 5)
    for wrong, message in (
        (("color",), "expected weights"),
        (("color=0",), "other than 0"),
        (("color=x",), "expected a number after"),
        (("mood=1",), "each row of --query-vectors has a vector under, got 'mood'"),
    ):
        with pytest.raises(RequestError, match=message):
            join_command(JoinFlags(**asked | {"output": str(tmp_path / "m")}, condition=wrong))
    with pytest.raises(RequestError, match="got another"):
        join_command(JoinFlags(**asked))


def test_ids_may_be_of_two_types_and_conditions_a_column(tmp_path, tiny_model):
    """Sorted by condition, so that some blocks have none of a group's."""
    texts = sentences(120, 4)
    vectors = [{"id": f"v{i}", "text": t, "about": "color" if i < 60 else "dogs"} for i, t in enumerate(texts)]
    queries = [{"id": i, "text": t, "about": "dogs" if i else "cats"} for i, t in enumerate(texts[:5])]
    named = {"condition_column": "about", "unit_rows": 20}
    v, q = (embedded(tmp_path / n, tiny_model, r, **named) for n, r in (("v", vectors), ("q", queries)))
    asked = {"query_vectors": q, "vectors": v, "k": 3}
    assert join(**asked, output=str(tmp_path / "n")) == counts(5, 12, without=1)
    found = ds.dataset(tmp_path / "n" / "neighbours").to_table().to_pylist()
    assert {row["id"] for row in found} == {1, 2, 3, 4}
    assert all(int(row["neighbour"][1:]) >= 60 for row in found)
    with pytest.raises(WorkError, match="same type"):  # its ids are numbers
        join(**asked, exclude_same="id", output=str(tmp_path / "m"))


def test_a_join_whose_folder_another_took_over_ends(home, tmp_path):
    taken = meanwhile(lambda: (tmp_path / "n" / "join.json").write_text('{"fingerprint": "another"}'))
    with pytest.raises(WorkError, match="a job with --overwrite took it over"):
        join(**of(home, tmp_path), runner=taken)


def test_a_join_that_was_stopped_resumes(home, tmp_path):
    asked, tasks = of(home, tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        join(**asked, runner=stop_after(3))
    assert len([*(tmp_path / "n" / "neighbours").iterdir()]) == 3
    with pytest.raises(RequestError, match="or this very join"):
        join(**asked | {"k": 4})

    def counted(work, todo, **how):
        tasks.append(len(todo))
        return map(work, todo)

    runner = SimpleNamespace(map=counted)
    join(**asked, runner=runner)
    check(asked["output"], brute(home, 5), 5)
    assert tasks == [1]
    assert join(**asked, runner=runner)["neighbours"] == 1500
    assert len(tasks) == 1  # nothing was left to do


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "-k: expected at least 1"),
        ({"query_vectors": "nowhere"}, "--query-vectors: expected a finished output of `raycase embed`"),
        ({"vectors": "other"}, "--vectors: expected vectors of the queries' model"),
        ({"vectors": "without"}, "expected both under conditions or both without"),
        ({"exclude_same": "embedding"}, "--exclude-same: expected one of id, text, image"),
        ({"exclude_same": ""}, "--exclude-same: expected one of id, text, image, got ''"),
    ],
)
def test_wrong_joins_are_refused(home, tmp_path, options, words):
    files = {"query_vectors": "queries", "vectors": "vectors"}
    named = {name: str(home / options.get(name, file)) for name, file in files.items()}
    with pytest.raises(RequestError, match=words):
        join_command(JoinFlags(output=str(tmp_path / "n"), **options | named))
