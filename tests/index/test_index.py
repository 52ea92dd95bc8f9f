"""Searches of an index: against brute force over the written vectors; approximate, filtered, of cut vectors."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers import embedded, read_output, sentences, vectors
from indexed import CONDITIONS, QUERIES, alike, brute, refuse, rows, same
from nested_models import SAVE, save_case
from storing import indexed

import raycase
from raycase.commands.join import JoinFlags, join
from raycase.commands.search import SearchFlags, search
from raycase.errors import RequestError, WorkError
from raycase.index import approximate, lance_files
from raycase.index.approximate import MOST_PARTS, add_new_rows
from raycase.index.build import build
from raycase.index.index import Index, text_column
from raycase.index.lance_files import IndexMetadata
from raycase.index.query_encoder import QueryEncoder
from raycase.io import reader
from raycase.io.lance_dataset import METADATA_KEY
from raycase.io.schema import embedding_array
from raycase.io.storage import locate
from raycase.io.vectors import l2_normalize


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_search_gives_what_brute_force_over_the_files_gives(index, home, model, condition):
    found = index.search(QUERIES, condition, 7)
    assert found["rank"].to_pylist() == [*range(1, 8)] * 2
    for i, sentence in enumerate(QUERIES):
        same(found.filter(pa.compute.equal(found["query"], i)), brute(home / "out", model, sentence, condition, 7))
    texts = {r["id"]: r["text"] for r in rows(300)}
    assert [texts[i] for i in found["id"].to_pylist()] == found["text"].to_pylist()
    plain = index.search(QUERIES[:1], k=5)
    assert plain.equals(index.search(QUERIES[:1], None, 5, unconditional=True))
    same(plain, brute(home / "plain", model, QUERIES[0], None, 5))
    assert plain["condition"].to_pylist() == [None] * 5


def test_queries_of_several_conditions_keep_their_order(index):
    asked = ["number of people", "color", "number of people"]
    found = index.search(["a", "a red dress", "b"], asked, 2)
    assert found["query"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert found["condition"].to_pylist() == [c for c in asked for _ in range(2)]
    alone = index.search(["a red dress"], "color", 2)
    assert found["id"].to_pylist()[2:4] == alone["id"].to_pylist()
    for array in (np.array(asked), pa.array(asked), pa.array(asked).to_pandas()):
        assert index.search(["a", "a red dress", "b"], array, 2).equals(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 0}, "^k: expected at least 1, got 0"),
        ({"k": "3"}, "^k: expected int, got '3'$"),
        ({"where": 5}, "^where: expected str | None, got 5"),
        ({"effort": "high"}, "^expected other arguments, got: .*unexpected keyword argument 'effort'"),
        ({"conditions": "color", "hybrid": True, "stated": True}, "^hybrid: expected no stated beside it, got both"),
        ({"conditions": [None, "color"]}, r"^conditions\[0\]: expected a string, got None"),
        ({"conditions": {"color", "number of people"}}, "^conditions: expected a list or a column of strings, got set"),
        ({"conditions": {"color": 1, "color\u00a0": 2}}, "^conditions: expected each condition once, got 'color' tw"),
        ({"conditions": {None: 1}}, "^conditions: expected finite numbers .*, got 1 for None"),
        ({"conditions": {"color": (None, 1)}}, r"^conditions: expected finite numbers .*, got \(None, 1\) for 'color'"),
        ({"conditions": "nothing", "exact_condition": True}, "^condition: expected one of the index's .*got 'nothing'"),
        ({"conditions": "color", "phrases": True}, "^phrases: expected a condition and an index"),
        ({"conditions": ["color"] * 3}, "^expected one condition, one for each sentence"),
        ({"conditions": "color", "nprobes": 0}, "^nprobes: expected a number at least 1, at most 1,048,576, got 0"),
        ({"conditions": "color", "refine": 0}, "^refine: expected a number at least 1, .* got 0"),
        ({"conditions": "color", "refine": 10**12}, "^refine: expected a number at least 1, .* got 1000000000000"),
        ({"conditions": "color", "factor": 0.0}, "^factor: expected a number above 0, .* got 0.0"),
        ({"conditions": "color", "factor": math.nan}, "^factor: expected a number above 0, .* got nan"),
    ],
)
def test_errors_name_no_flags(index, options, said):
    with pytest.raises(RequestError, match=said) as error:
        index.search(QUERIES, **options)
    assert "--" not in str(error.value)


def test_vectors_of_any_length_and_kind_find_the_same(index):
    """As those of `encode`, which are not of length 1: scores clipped to 1 would all be equal."""
    units_QD = index.embed(QUERIES, "color")
    scores_Qk, offsets_Qk = index.nearest(units_QD, "color", 5)
    for given in (units_QD * 50, units_QD.tolist(), torch.from_numpy(units_QD)):
        scores, offsets = index.nearest(given, " color", 5)
        assert np.array_equal(offsets, offsets_Qk) and scores == pytest.approx(scores_Qk, abs=2e-6)
    assert index.rows("color ") == index.rows("color") > 0 and not index.is_pooled("color ")


@pytest.mark.parametrize(
    ("vectors_QD", "k", "said"),
    [
        (np.ones((1, 32)), -1, "^k: expected at least 1, got -1"),
        (np.ones((1, 31)), 3, r"^vectors_QD: expected finite numbers, \(Q, 32\), got \(1, 31\)"),
        ([["a"]], 3, r"^vectors_QD: expected finite numbers, \(Q, 32\), got: could not convert"),
    ],
)
def test_vectors_that_are_none_of_the_index_are_refused(index, vectors_QD, k, said):
    with pytest.raises(RequestError, match=said):
        index.nearest(vectors_QD, "color", k)


@pytest.mark.parametrize("option", [{"match": "dog"}, {"stated": True}, {"per": "year"}, {"exact_condition": True}])
def test_vectors_are_not_searched_by_what_only_sentences_have(index, option):
    """It would be left out of the answer without a word."""
    expected = f"^options: expected none but exact, nprobes, refine, factor, got {next(iter(option))}"
    with pytest.raises(RequestError, match=expected):
        index.nearest(np.ones((1, 32)), "color", 3, **option)


ALIKE = ["the caf\u00e9", "the caf\u00e9 ", "the\u00a0caf\u00e9\n", "\tthe  cafe\u0301"]


def test_an_index_from_before_that_was_so_is_searched_as_it_is_spelled(tmp_path, tiny_model, monkeypatch, capsys):
    monkeypatch.setattr(reader, "normal_words", lambda text: text)
    uri, _ = look_alike(tmp_path, tiny_model)
    monkeypatch.undo()
    index = Index.open(uri)
    assert "conditions that look alike are searched apart; spell them alike, embed" in capsys.readouterr().err
    found = {asked: index.search("a dog", asked, 50)["condition"].to_pylist() for asked in (*ALIKE, " the caf\u00e9")}
    assert found == {asked: [asked if asked in ALIKE else ALIKE[0]] * 10 for asked in found}
    metadata = replace(index.metadata, conditions={"a  dog": 1})
    assert QueryEncoder(metadata, metadata.name, uri).condition_for("a dog", exact=True) == "a  dog"


def test_an_unknown_condition_is_answered_by_the_nearest_and_named(index):
    found = index.search(["a red dress"], "the color", 3)
    assert found["asked"].to_pylist() == ["the color"] * 3
    assert found.drop_columns(["asked"]).equals(index.search("a red dress", "color", 3).drop_columns(["asked"]))
    with pytest.raises(RequestError, match="expected one of the index's"):
        index.nearest(index.embed(["a red dress"], "color"), "the color", 3)


def test_an_index_of_an_earlier_version_is_refused_in_a_line(home, tmp_path):
    uri = indexed(tmp_path / "i.lance", home / "out")
    _, dataset, metadata = lance_files.open_ready(locate(uri))
    dataset.update_schema_metadata({METADATA_KEY: json.dumps(asdict(metadata) | {"auto": "hnsw"})})
    dataset.tags.update("ready", dataset.version)
    with pytest.raises(RequestError, match=r"auto: expected no such name.*earlier version wrote it, embed"):
        Index.open(uri)
    assert build(embeddings=(str(home / "out"),), output=uri, overwrite=True)["rows"] == 600


def test_an_approximate_index_finds_nearly_all(home, index, tmp_path):
    """An index keeps the vectors as they were written; its codes only say which of them are looked at."""
    uri = str(tmp_path / "i.lance")
    result = build(embeddings=(str(home / "out"), str(home / "plain")), output=uri, vector_index="ivf-rq")
    assert result["vector_index"] == "ivf-rq"
    approximate = Index.open(uri)
    for condition, where in (("color", None), ("color", "year > 2010")):
        exact = index.search(QUERIES, condition, 10, where)
        alike(approximate.search(QUERIES, condition, 10, where, exact=True), exact)
        found = approximate.search(QUERIES, condition, 10, where, nprobes=50, refine=20)
        wanted = set(exact["id"].to_pylist())
        assert len(set(found["id"].to_pylist()) & wanted) >= 0.9 * len(wanted)
        assert found["condition"].unique().to_pylist() == ["color"]
        scores = index.search(QUERIES, condition, 300).to_pylist()
        score_of = {(row["query"], row["id"]): row["score"] for row in scores}
        for row in found.to_pylist():
            assert row["score"] == pytest.approx(score_of[row["query"], row["id"]], abs=2e-6)
    most = approximate.search(QUERIES, "color", 10, refine=2**20, nprobes=2**20)
    alike(most, index.search(QUERIES, "color", 10))
    assert approximate.search(QUERIES, "color", 10, factor=2**20, nprobes=2**20).equals(most)
    assert len(approximate.search(QUERIES[:1], None, 5, unconditional=True)) == 5
    assert build(output=uri, vector_index="exact")["vector_index"] == "exact"
    assert approximate.search(QUERIES, "color", 5).num_rows == 10  # who has it open is not disturbed
    alike(Index.open(uri).search(QUERIES, "color", 5), index.search(QUERIES, "color", 5))


def test_an_approximate_index_that_grows_has_few_parts(tmp_path):
    """Lance makes one of each append, and a search would look into each of them."""
    vectors_ND = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    table, uri = pa.table({"id": range(400), "vector": embedding_array(vectors_ND)}), str(tmp_path / "i.lance")
    lance.write_dataset(table[:300], uri)
    lance.dataset(uri).create_index("vector", "IVF_RQ", metric="dot", num_partitions=2, num_bits=1)
    for n in range(300, 400, 10):
        add_new_rows(lance.write_dataset(table[n : n + 10], uri, mode="append"))
        dataset = lance.dataset(uri)
        [index] = dataset.describe_indices()
        assert len(index.segments) <= MOST_PARTS and index.num_rows_indexed == n + 10
    assert len(index.segments) <= 3, "expected one of what were eight, and what came after"
    for row in (7, 305, 399):
        nearest = {"column": "vector", "q": vectors_ND[row], "k": 40, "nprobes": 2, "refine_factor": 10}
        assert row in dataset.to_table(nearest=nearest, columns=["id", "_distance"])["id"].to_pylist()


def test_a_filter_finds_what_is_far_off_in_an_approximate_index(home, tmp_path, monkeypatch):
    monkeypatch.setattr(approximate, "ROWS_A_PARTITION", 30)
    uri = indexed(tmp_path / "i.lance", home / "out", vector_index="ivf-rq")
    found = Index.open(uri).search(QUERIES, "color", 10, "id < 10", nprobes=1)
    assert [sorted(found["id"].to_pylist()[i : i + 10]) for i in (0, 10)] == [list(range(10))] * 2


def test_scores_are_cosines_of_the_vectors_that_float16_rounded(tmp_path):
    """Of an index of 300 ids under two conditions a and b, which no model made."""
    vectors_ND = l2_normalize(np.random.default_rng(0).normal(size=(600, 128))).astype(np.float16)
    columns = {"id": np.repeat(np.arange(300), 2), "condition": ["a", "b"] * 300, "vector": embedding_array(vectors_ND)}
    uri, table = str(tmp_path / "hand.lance"), pa.table(columns).replace_schema_metadata({METADATA_KEY: ""})
    encoder = {"prompt": "cond", "pooling": ["mean"]}
    model = {"system": "case", "dim": 2, "weights": "none", "subtract": True, "encoder": encoder}
    metadata = IndexMetadata(model=model, name="none", dtype="float16", conditions={"a": 300, "b": 300})
    lance_files.publish(locate(uri), lance.write_dataset(table, uri), metadata, None)
    index = Index.open(uri)
    stored = index.dataset.to_table(columns=["vector"], filter="condition = 'a'")["vector"]
    stored_ND = np.array(stored.to_pylist(), np.float64)
    lengths_N = np.linalg.norm(stored_ND, axis=1)
    assert np.abs(lengths_N - 1).max() > 5e-5
    cosines_NN = (stored_ND / lengths_N[:, None]) @ (stored_ND / lengths_N[:, None]).T
    scores_N3, offsets_N3 = index.nearest(l2_normalize(stored_ND), "a", 3, nprobes=50)
    assert (offsets_N3[:, 0] == np.arange(300) * 2).all() and scores_N3.max() <= 1
    assert np.abs(scores_N3 - np.take_along_axis(cosines_NN, offsets_N3 // 2, 1)).max() < 2e-6


def test_ids_are_strings_and_conditions_a_column(tmp_path, tiny_model, model):
    texts = sentences(60, 3)
    rows = [{"id": f"it's \\{i}", "text": t, "about": ["color", "it's"][: 1 + i % 2]} for i, t in enumerate(texts)]
    output = embedded(tmp_path, tiny_model, rows, condition_column="about")
    job = {"embeddings": (output,), "output": str(tmp_path / "i.lance")}
    assert build(**job)["rows"] == 90
    index = Index.open(job["output"])
    assert index.metadata.conditions == {"color": 60, "it's": 30}
    same(index.search(QUERIES[:1], "it's", 30), brute(output, model, QUERIES[0], "it's", 30))
    with pytest.raises(RequestError, match=r"^unconditional: expected unconditional vectors in .*; name a condition"):
        index.search(QUERIES[:1])
    again = embedded(tmp_path / "2", tiny_model, rows[:1], conditions=("color",))
    with pytest.raises(RequestError, match="which the index has from another job"):
        build(embeddings=(again,), output=job["output"])


def test_a_vector_that_is_not_finite_ends_a_search():
    """As an index of an earlier version may hold: it would be near to nothing, and hide what is."""
    vectors_ND = np.full((3, 4), 0.5, np.float32)
    vectors_ND[0] = 0
    assert lance_files.vectors_of(embedding_array(vectors_ND)).tolist() == vectors_ND.tolist()
    vectors_ND[1, 2] = np.nan
    with pytest.raises(WorkError, match="the index holds a vector that is not finite; build it again"):
        lance_files.vectors_of(embedding_array(vectors_ND))


def test_what_lance_says_of_a_damaged_file_is_one_line(tmp_path):
    words = r"got: LanceError\(Arrow\): EOF$"
    with pytest.raises(WorkError, match=words), lance_files.lance_errors(locate(str(tmp_path))):
        raise RuntimeError("LanceError(Arrow): EOF, /home/x/lance/src/refs.rs:964:8")
    with pytest.raises(RuntimeError), lance_files.lance_errors(locate(str(tmp_path))):
        raise RuntimeError("of another library")


def test_an_index_knows_the_columns_that_were_embedded(tiny_model, tmp_path, capsys):
    """`message` and `key` have texts and ids without being named again; an index without this record opens."""
    texts = [{"key": f"t{i}", "message": f"dog {i}", "kind": "a note", "text": "another"} for i in range(9)]
    options = {"text_column": "message", "id_column": "key", "keep_columns": ("kind", "text", "message")}
    output = embedded(tmp_path / "a", tiny_model, texts, conditions=("color",), **options)
    uri = indexed(tmp_path / "i.lance", output, text_index=True)
    asked = {"query": ("a dog",), "condition": ("color",), "index": uri}
    search(SearchFlags(**asked, match="dog", where="key = 't5'"))
    printed = capsys.readouterr()
    assert re.search(r"\n   1  +-?0\.\d{3}  dog 5\n", printed.out) and printed.err == ""
    index = Index.open(uri)
    assert text_column(index, None) == "message" and text_column(index, "kind") == "kind"
    assert build(output=uri, delete="key IN ('t7', 't8') OR id = 't6'")["rows_deleted"] == 3
    refuse(
        SearchFlags(**asked, where="kye = 't5'"), "^where: expected a filter in SQL on id, .* no column 'kye'", search
    )
    other = embedded(tmp_path / "c", tiny_model, texts, conditions=("place",), **options | {"text_column": "text"})
    several = Index.open(indexed(tmp_path / "j.lance", output, other))
    assert text_column(several, None) is None and several.metadata.id_column == "key"
    dataset = lance.dataset(uri)
    record = json.loads(dataset.schema.metadata[METADATA_KEY.encode()])
    assert (record.pop("text_column"), record.pop("id_column")) == ("message", "key")
    dataset.update_schema_metadata({METADATA_KEY: json.dumps(record)})
    dataset.tags.update("ready", dataset.version)
    assert text_column(Index.open(uri), None) == "text"
    refuse(SearchFlags(**asked, where="key = 't5'"), "^where: .* no column 'key'", search)
    none = embedded(tmp_path / "b", tiny_model, texts, conditions=("color",), **options | {"keep_columns": ("kind",)})
    search(SearchFlags(**asked | {"index": indexed(tmp_path / "n.lance", none)}))
    shown = "ids are shown, for the index keeps no column 'message'; --text-column names another: kind"
    assert shown in capsys.readouterr().err


TRAINED = {"prompt": None, "pooling": None}


@pytest.mark.parametrize("system", SAVE)
def test_queries_are_cut_as_the_vectors_were_and_unconditional_ones_stay_whole(tmp_path, tiny_model, system):
    folder = SAVE[system](tmp_path / "model", tiny_model)
    under = {"conditions": ("color", "number of people")} | TRAINED
    cut, other = (embedded(tmp_path / f"cut-{dim}", folder, rows(30), dim=dim, **under) for dim in (4, 2))
    whole = embedded(tmp_path / "whole", folder, rows(30), unconditional=True, **TRAINED)
    assert vectors(read_output(cut)).shape == (60, 4)
    loaded, uri = raycase.load(folder, dim=4), str(tmp_path / "i.lance")
    for outputs in [(whole, cut)], [(cut,), (whole,)], [(whole,), (cut,)]:  # at once, or one after the other
        for number, some in enumerate(outputs):
            indexed(uri, *some, overwrite=number == 0)
        index = Index.open(uri)
        same(index.search(QUERIES[:1], "color", 5), brute(cut, loaded, QUERIES[0], "color", 5))
        plain = index.search(QUERIES[:1], None, 5, unconditional=True)
        same(plain, brute(whole, loaded, QUERIES[0], None, 5))
    assert index.encoder.config == loaded.config
    assert index.search(QUERIES[:1], "colors", 5)["condition"].unique().to_pylist() == ["color"]
    refuse({"embeddings": (whole, cut, other), "output": str(tmp_path / "j.lance")}, "got another's")
    refuse({"embeddings": (other,), "output": uri}, "expected vectors of the index's model")
    with pytest.raises(RequestError, match="--vectors: expected vectors of the queries' model, got another's"):
        join(JoinFlags(query_vectors=cut, vectors=other, output=str(tmp_path / "n")))


def look_alike(folder, tiny_model):
    """Index 40 rows whose conditions look alike; gives its URI, and the output."""
    rows = [{"id": i, "text": text, "under": ALIKE[i % 4]} for i, text in enumerate(sentences(40))]
    output = embedded(folder, tiny_model, rows, condition_column="under")
    return indexed(folder / "i.lance", output), output


def test_conditions_that_look_alike_are_one(tmp_path, tiny_model, capsys):
    uri, output = look_alike(tmp_path, tiny_model)
    assert {*read_output(output)["condition"].to_pylist()} == {ALIKE[0]}
    index = Index.open(uri)
    wanted = index.search("a dog", ALIKE[0], 50, exact_condition=True)
    assert len(wanted) == 40
    for asked in ALIKE[1:]:
        found = index.search("a dog", asked, 50, exact_condition=True)
        assert found.drop_columns(["asked"]) == wanted.drop_columns(["asked"])
        assert index.search("a dog", {asked: 1}, 50)["score"] == wanted["score"]
        search(SearchFlags(index=uri, query=("a dog",), condition=(asked,)))
    assert capsys.readouterr().err == ""


def test_a_record_of_before_is_read_and_written_by_its_names():
    record = {"model": {}, "name": "m", "dtype": "float32", "kind": "ivf-rq", "plain": 3, "words": 2}
    metadata = IndexMetadata.of_json(json.dumps(record).encode())
    assert (metadata.vector_index, metadata.unconditional, metadata.with_tokens) == ("ivf-rq", 3, 2)
    assert json.loads(metadata.as_json()).items() >= record.items()


def test_a_projectors_vectors_have_other_dimensions_than_plain_ones_and_its_folder_may_move(tmp_path, tiny_model):
    folder = Path(save_case(tmp_path / "model", tiny_model, nested=(), dim=12))
    trained = {"prompt": None, "pooling": None}
    out = embedded(tmp_path / "o", folder, rows(30), conditions=("color",), **trained)
    plain = embedded(tmp_path / "p", folder, rows(30), unconditional=True, **trained)
    uri = str(tmp_path / "i.lance")
    assert build(embeddings=(plain,), output=uri)["unconditional_rows"] == 30
    made = build(embeddings=(out,), output=uri, vector_index="ivf-rq")
    assert (made["rows"], made["vector_index"]) == (60, "ivf-rq")  # of the plain ones: 8 does not divide 12
    assert build(embeddings=(out,), output=f"{uri}.2", vector_index="ivf-rq")["vector_index"] == "exact"
    folder.rename(tmp_path / "moved")
    with pytest.raises(RequestError, match="model: expected the index's model"):
        Index.open(uri).search(QUERIES[:1], "color", 3)
    index, system = Index.open(uri, model=str(tmp_path / "moved")), raycase.load(str(tmp_path / "moved"))
    same(index.search(QUERIES[:1], "color", 5), brute(out, system, QUERIES[0], "color", 5))
    same(index.search(QUERIES[:1], None, 5, unconditional=True), brute(plain, system, QUERIES[0], None, 5))
    assert [index.dataset.schema.field(name).type.list_size for name in ("vector", "plain")] == [12, 32]
