"""One question under several conditions with weights: against brute force over the vectors of each condition."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import storing
from indexed import QUERIES, refuse

from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError
from raycase.index.index import Index

KNOWN, ASKED = "number of people", "what they wear on their heads"
WEIGHTS = {KNOWN: 2, ASKED: -0.5, "dog": ("red", 1.25)}


@pytest.fixture(scope="module")
def outputs(tokens):
    """250 rows with stored tokens; all but ten of them, and ten more, under `KNOWN`."""
    under = storing.stored_under(tokens / "ten", str(tokens / "model"), storing.texts(250, first=10), KNOWN)
    return tokens / "words", under


@pytest.fixture(scope="module")
def uri(tokens, outputs):
    return storing.indexed(tokens / "weighted.lance", *outputs)


def brute(index, sentences, weights, keep=lambda row: True):
    """For each sentence the ids, and for each id its score in float64 and its cosines, from every vector."""
    dataset = index.dataset.to_table(columns=["id", "condition", "year"]).to_pylist()
    found = [{} for _ in sentences]
    for condition, value in weights.items():
        phrase, weight = value if isinstance(value, tuple) else (None, value)
        own = condition if condition in index.metadata.conditions else None
        under = {row["id"] for row in dataset if row["condition"] == condition}
        kinds = {row: [own] + [None] * (row not in under) for row in range(300)}  # what is not stored is pooled
        offsets = [i for i, row in enumerate(dataset) if row["condition"] in kinds[row["id"]] and keep(row)]
        texts = sentences if phrase is None else [phrase] * len(sentences)
        queries = index.embed(texts, condition, phrases=phrase is not None).astype(np.float64)
        cosines = index.all_rows.at(condition, np.array(offsets, np.int64)).numpy() @ queries.T
        for offset, row in zip(offsets, cosines, strict=True):
            for query, cosine in enumerate(row):
                found[query].setdefault(dataset[offset]["id"], {})[condition] = (weight, cosine)
    score = {}
    for query, ids in enumerate(found):
        for one, parts in ids.items():
            total = sum(abs(weight) for weight, _ in parts.values())
            if total:
                sums = sum(weight * cosine for weight, cosine in parts.values())
                score[query, one] = np.float32(sums / total), {name: np.float32(p[1]) for name, p in parts.items()}
    return score


@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, {ASKED: 1, "dog": 3e-300, "bar": 1e300}, {KNOWN: -1, "dog": 0}, {KNOWN: 7}, {ASKED: -1e-300, "dog": 0}],
)
@pytest.mark.parametrize(("where", "keep"), [(None, lambda row: True), ("year < 2003", lambda row: row["year"] < 2003)])
def test_an_exact_search_is_brute_force(uri, weights, where, keep):
    index = Index.open(uri)
    wanted = brute(index, QUERIES, weights, keep)
    for k in (1000, 4):
        found = index.search(QUERIES, weights, k, where).to_pylist()
        assert len(found) == (len(wanted) if k == 1000 else 8)
        for query in range(2):
            rows = [row for row in found if row["query"] == query]
            best = sorted((score for (q, _), (score, _) in wanted.items() if q == query), reverse=True)
            assert [row["score"] for row in rows] == pytest.approx(best[: len(rows)], abs=2e-6) and rows[0]["rank"] == 1
            for row in rows:
                score, parts = wanted[query, row["id"]]
                assert row["score"] == pytest.approx(score, abs=2e-6)
                assert {p["condition"]: p["cosine"] for p in row["parts"] if p["cosine"] is not None} == pytest.approx(
                    parts, abs=2e-6
                )
                asked = [(name, value[1] if isinstance(value, tuple) else value) for name, value in weights.items()]
                assert [(p["asked"], p["weight"]) for p in row["parts"]] == asked


def test_two_stages_find_nearly_all_and_score_exactly(outputs, tmp_path):
    """Without and with vectors under one of the conditions that have an approximate index; and few rows alone."""
    coded = storing.indexed(tmp_path / "i.lance", *outputs, vector_index="ivf-rq", exact_below=100)
    index = Index.open(coded)
    for weights in ({ASKED: 1, "dog": -0.5}, {ASKED: 1, "dog": 0.5, "bar": ("red dress", 2)}, {KNOWN: 1, ASKED: 2}):
        wanted = {row["id"]: row["score"] for row in index.search(QUERIES[0], weights, 300, exact=True).to_pylist()}
        index.vectors.cached.clear()
        found = index.search(QUERIES[0], weights, 10, refine=5).to_pylist()
        assert all(wanted[row["id"]] == pytest.approx(row["score"], abs=2e-6) for row in found)
        assert len({row["id"] for row in found} & set(list(wanted)[:10])) >= 8
        assert not index.vectors.cached or KNOWN in weights
        assert not len(index.search(QUERIES[0], weights, 300, "year > 3000"))
        few = index.search(QUERIES[0], weights, 300, "id IN (12, 13)", refine=1)
        assert sorted(few["id"].to_pylist()) == [12, 13]


def test_the_command_gives_one_list_with_the_cosines(uri, tmp_path, capsys):
    weights = ("color of the clothes=2", "dog", f"{KNOWN} = -.5")
    parsed = {"color of the clothes": 2, "dog": 1, KNOWN: -0.5}
    job = SearchFlags(index=uri, query=tuple(QUERIES), condition=weights, k=3, output=str(tmp_path / "a.parquet"))
    assert search(job)["answers"] == 6
    wanted = Index.open(uri).search(QUERIES, parsed, 3)
    assert pq.read_table(job.output).equals(wanted)
    (tmp_path / "q.csv").write_text("text\n" + "\n".join(QUERIES) + "\n")
    from_file = SearchFlags(index=uri, queries=str(tmp_path / "q.csv"), condition=weights, k=3, output=job.output)
    assert search(from_file)["queries"] == 2 and pq.read_table(job.output).equals(wanted)
    search(SearchFlags(index=uri, query=(QUERIES[0],), condition=weights, k=3))
    printed = capsys.readouterr().out
    assert f'"{QUERIES[0]}" under "color of the clothes=2, dog=1, {KNOWN}=-0.5"' in printed
    first = wanted.to_pylist()[0]
    cosines = "  ".join("-" if part["cosine"] is None else f"{part['cosine']:.3f}" for part in first["parts"])
    assert f"{first['score']:.3f}  ({cosines})  " in printed


def test_wrong_weights_are_refused(uri):
    def ask(words, *conditions, **options):
        refuse(SearchFlags(index=uri, query=("a",), condition=conditions, **options), words, search)

    for wrong in ("dog=two", "dog=", "dog=2=x"):
        ask(f"^--condition: expected a number after '=', .* got '{wrong}'$", wrong, ASKED)
    for wrong in ("dog=nan", "dog=1e999"):
        ask("^conditions: expected finite numbers as weights", wrong, ASKED)
    ask("^--condition: expected each condition once, got 'dog' twice", "dog=1", "dog =2")
    ask("^conditions: expected a weight other than 0, got only zeros", "dog=0", "bar=-0")
    ask("expected --condition, --unconditional or conditions in --queries", "dog=2", unconditional=True)
    ask("^stated: expected conditions that are pooled .*, got weights", "dog=2", stated=True)
    ask("^--explain: expected one condition for each query, got conditions with weights", "dog=2", explain=True)
    ask("^condition: expected one, or no more than the 64 that are combined, got 65", *(f"c{i}=1" for i in range(65)))
    for wrong in ("2", None, True, float("nan"), 10**400, ("red",), (1, "red"), ("red", 1, 2)):
        with pytest.raises(
            RequestError, match=r"^conditions: expected finite numbers as weights, or phrases with them"
        ):
            Index.open(uri).search(QUERIES, {"dog": wrong})
    with pytest.raises(RequestError, match=r"^conditions: expected a weight other than 0, got none"):
        Index.open(uri).search(QUERIES, {})
    with pytest.raises(RequestError, match=r"^phrase: expected a text that .* can embed"):
        Index.open(uri).search(QUERIES, {"dog": (" ", 1)})
