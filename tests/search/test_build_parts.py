"""An index built in parts has the rows and answers of one built at once; a build that was stopped makes the rest."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import storing
from crashing import SMALL, Tasks
from indexed import QUERIES
from safetensors.numpy import load_file, save

from raycase.data.storage import locate
from raycase.errors import WorkError
from raycase.search.build import IndexJob, build
from raycase.search.build_parts import BUILD, code_part
from raycase.search.fragments import shard_fragments
from raycase.search.index import Index, Options

WIDE = Options(nprobes=50, ef=300, refine=20)


def rows_of(uri):
    table = Index.open(uri).dataset.to_table()
    return sorted((r["id"], str(r["condition"]), r["text"], r["vector"] or r["plain"]) for r in table.to_pylist())


def recall(uri, condition):
    index = Index.open(uri)
    found, exact = (index.search(QUERIES, condition, 10, options=o) for o in (WIDE, Options(exact=True)))
    assert len(found) == 20
    return len(set(found["id"].to_pylist()) & set(exact["id"].to_pylist())) / len(set(exact["id"].to_pylist()))


def is_begun(job):
    return (locate(job.output) / BUILD).exists()


@pytest.fixture
def job(home, tmp_path):
    """Two outputs, of which one has no conditions: 900 rows."""
    outputs = (str(home / "out"), str(home / "plain"))
    return IndexJob(embeddings=outputs, output=str(tmp_path / "i.lance"), workers=2)


def test_it_has_the_rows_and_the_answers_of_one_process(job, index):
    tasks = Tasks()
    assert build(job, tasks, SMALL)["rows_added"] == 900
    assert rows_of(job.output) == rows_of(index.dataset.uri)
    for condition in ("color", None):
        asked = (QUERIES, condition, 7, "year >= 2003")
        assert Index.open(job.output).search(*asked).equals(index.search(*asked))
    assert {name for name, _ in tasks.done} == {"written", "indexed id:", "indexed condition:"}
    assert len(Index.open(job.output).dataset.get_fragments()) == 6
    assert Index.open(job.output).dataset.count_rows("id = 17 AND condition = 'color'") == 1
    assert not is_begun(job)


def test_its_shards_have_about_as_many_rows(job, index):
    assert build(replace(job, shards=4), Tasks(), SMALL)["shards"] == 4
    assert rows_of(job.output) == rows_of(index.dataset.uri)
    dataset = Index.open(job.output).dataset
    rows = [sum(dataset.get_fragment(one).count_rows() for one in of) for of in shard_fragments(dataset, 4)]
    assert sum(rows) == 900 and max(rows) <= 240


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq", "ivf-rq"])
def test_approximate_ones_find_what_one_process_finds(job, home, kind):
    options = {"ivf-pq": {"sub_vectors": 8, "partitions": 3}, "ivf-rq": {"bits": 4}}.get(kind, {})
    result = build(replace(job, kind=kind, **options), Tasks(), SMALL)
    assert result["kind"] == kind
    assert recall(job.output, "color") >= 0.95 and recall(job.output, None) >= 0.95
    indices = Index.open(job.output).dataset.describe_indices()
    assert {one.num_rows_indexed for one in indices} == {900}
    graphs = {"vector_idx": 3, "plain_idx": 2} if kind == "hnsw" else {}
    segments = {"vector_idx": 1, "plain_idx": 1, "id_idx": 1, "condition_idx": 1} | graphs
    assert {one.name: len(one.segments) for one in indices} == segments
    later = IndexJob(embeddings=(str(home / "later"),), output=job.output, workers=2)
    assert build(later, Tasks(), SMALL)["rows"] == 1060
    assert recall(job.output, "color") >= 0.95
    build(IndexJob(output=job.output, kind="exact"))
    build(IndexJob(output=job.output, kind=kind, reindex=True, workers=2, **options), Tasks(), SMALL)
    assert recall(job.output, "color") >= 0.95


@pytest.mark.parametrize("stop", [4, "indexed id:", "trained"])
def test_one_that_was_stopped_makes_the_rest(job, index, stop):
    job = replace(job, kind="ivf-pq", sub_vectors=8, partitions=2)
    first, second = Tasks(stop), Tasks()
    with pytest.raises(WorkError, match="stopped"):
        build(job, first, SMALL)
    assert is_begun(job)
    build(job, second, SMALL)
    whole = Tasks()
    build(replace(job, output=job.output + "-whole"), whole, SMALL)
    assert Counter(first.done + second.done) == Counter(whole.done)
    assert rows_of(job.output) == rows_of(index.dataset.uri)
    assert recall(job.output, "color") >= 0.95
    assert not is_begun(job)


def test_another_build_forgets_the_parts_of_one_that_was_stopped(job, home):
    build(replace(job, embeddings=job.embeddings[:1]))
    later = replace(job, embeddings=(str(home / "later"), str(home / "plain")))
    with pytest.raises(WorkError):
        build(later, Tasks(2), SMALL)
    assert Index.open(job.output).metadata.rows == 600
    other = Tasks()
    assert build(replace(later, embeddings=later.embeddings[1:]), other, SMALL)["rows_added"] == 300
    assert other.done[0] == ("written", 0)
    assert not is_begun(job)
    again = Tasks()
    assert build(later, again, SMALL)["rows_added"] == 160
    assert again.done[0] == ("written", 0)


def test_rows_are_replaced_and_deleted_by_a_build_that_resumes(job, index, tmp_path, home):
    build(job)
    changed = replace(job, replace=True, delete="year = 2003", embeddings=(str(home / "later"),))
    with pytest.raises(WorkError):
        build(changed, Tasks(0), SMALL)
    assert rows_of(job.output) == rows_of(index.dataset.uri)
    result = build(changed, Tasks(), SMALL)
    assert (result["rows_deleted"], result["rows_added"], result["rows"]) == (45, 160, 1015)
    assert Index.open(job.output).dataset.count_rows("year = 2003 AND id < 1000") == 0


def test_stored_words_are_sketched_as_in_one_process(tmp_path):
    model = storing.model_folder(tmp_path)
    words = storing.stored(tmp_path / "a", model, storing.texts(120), unit_rows=20)
    job = IndexJob(embeddings=(words,), output=str(tmp_path / "many"), workers=2)
    build(job, Tasks(), replace(SMALL, part_rows=40))
    one = storing.indexed(tmp_path / "one", words)
    many, one = (Index.open(uri).dataset.to_table().sort_by("id") for uri in (job.output, one))
    assert many.equals(one)
    build(replace(job, overwrite=True, keep_condition=("dog",)), Tasks(), replace(SMALL, part_rows=40))
    assert Index.open(job.output).metadata.conditions == {"dog": 120}
    assert np.isfinite(Index.open(job.output).search(["a dog"], "dog", 5)["score"].to_numpy()).all()


def test_codes_stand_for_the_vectors_themselves(tmp_path):
    """Not for what is left of them after a centroid: an index of dot products codes whole vectors."""
    rng = np.random.default_rng(0)
    vectors_ND = (5 + rng.standard_normal((600, 8))).astype(np.float32)
    (locate(str(tmp_path)) / BUILD / "p" / "sample.safetensors").put(save({"values": vectors_ND}))
    for part, first in enumerate((0, 2)):
        code_part(index=str(tmp_path), sub_vectors=4, place="p", part=part, first=first, count=2)
    made = [tmp_path / BUILD / "p-codes" / f"00000{part}.safetensors" for part in (0, 1)]
    codes = np.concatenate([load_file(file)["values"] for file in made])
    far = [abs(vectors_ND[:, None, 2 * i : 2 * i + 2] - codes.reshape(4, 256, 2)[i]).max(2).min(1) for i in range(4)]
    assert np.mean(far) < 0.1
