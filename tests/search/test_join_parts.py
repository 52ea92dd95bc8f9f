"""The parts of a join, computed in this process: against brute force, over cuts and exclusions."""

import pyarrow.dataset as ds
import pytest
from helpers import embedded, sentences, swap_rows
from joined import brute, check, written_to_join

from raycase.corpus.written import open_written
from raycase.errors import RequestError, WorkError
from raycase.search.join_parts import (
    Join,
    check_join,
    claim_output,
    count_neighbours,
    cut_files,
    cut_finer,
    find_part,
    merge_parts,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    return written_to_join(tmp_path_factory.mktemp("joined"), tiny_model)


def run(queries, vectors, output, *, k, exclude_same=None, group_rows=100, range_rows=400):
    """A whole join in this process; gives the counts."""
    queries, vectors = open_written(str(queries), "--query-vectors"), open_written(str(vectors), "--vectors")
    check_join(queries, vectors, exclude_same)
    folders = {"queries": queries.output.embeddings.uri, "vectors": vectors.output.embeddings.uri}
    join = Join(**folders, output=str(output), k=k, exclude_same=exclude_same)
    groups, ranges = cut_files(queries, group_rows), cut_files(vectors, range_rows)
    _, ranges = claim_output(join, queries, vectors, groups, ranges, overwrite=False)
    for group, query_files in enumerate(groups):
        for i, vector_files in enumerate(ranges):
            find_part(join, group, i, queries.summed(query_files), vectors.summed(vector_files))
        merge_parts(join, group, len(ranges))
    return count_neighbours(join, queries)


@pytest.mark.parametrize(("group_rows", "range_rows"), [(100, 400), (10**6, 10**6), (1, 1)])
def test_any_cut_gives_what_brute_force_gives(home, tmp_path, group_rows, range_rows):
    counts = run(home / "queries", home / "vectors", tmp_path / "n", k=5, group_rows=group_rows, range_rows=range_rows)
    assert counts == {"queries": 300, "queries_without_neighbours": 0, "neighbours": 1500}
    check(str(tmp_path / "n"), brute(home, 5), 5)


def test_neighbours_with_the_querys_value_are_left_out(home, tmp_path):
    run(home / "queries", home / "vectors", tmp_path / "n", k=4, exclude_same="image")
    check(str(tmp_path / "n"), brute(home, 4, "image"), 4)


def test_ranges_are_cut_finer_down_to_one_a_file():
    assert cut_finer([["a", "b", "c"], ["d"]], 1) == [["a", "b", "c"], ["d"]]
    assert cut_finer([["a", "b", "c"], ["d"]], 3) == [["a", "b"], ["c"], ["d"]]
    assert cut_finer([["a", "b"], ["c"]], 9) == [["a"], ["b"], ["c"]]


def test_ids_may_be_of_two_types_and_conditions_a_column(tmp_path, tiny_model):
    """Sorted by condition, so that some ranges have none of a group's."""
    texts = sentences(120, 4)
    vectors = [{"id": f"v{i}", "text": t, "about": "color" if i < 60 else "dogs"} for i, t in enumerate(texts)]
    queries = [{"id": i, "text": t, "about": "dogs" if i else "cats"} for i, t in enumerate(texts[:5])]
    named = {"condition_column": "about", "unit_rows": 20}
    v, q = (embedded(tmp_path / n, tiny_model, r, **named) for n, r in (("v", vectors), ("q", queries)))
    result = run(q, v, tmp_path / "n", k=3)
    assert (result["queries"], result["queries_without_neighbours"], result["neighbours"]) == (5, 1, 12)
    found = ds.dataset(tmp_path / "n" / "neighbours").to_table().to_pylist()
    assert {row["id"] for row in found} == {1, 2, 3, 4}
    assert all(int(row["neighbour"][1:]) >= 60 for row in found)
    with pytest.raises(RequestError, match="expected 'id' of one type in both, got int64 and string"):
        check_join(open_written(q, "--query-vectors"), open_written(v, "--vectors"), "id")


def test_a_damaged_file_ends_a_join(home, tmp_path, tiny_model):
    written_to_join(tmp_path, tiny_model)
    swap_rows(tmp_path / "vectors")
    with pytest.raises(WorkError, match=r"as its manifest says, got: embeddings/.*: checksum differs"):
        run(tmp_path / "queries", tmp_path / "vectors", tmp_path / "n", k=5)
