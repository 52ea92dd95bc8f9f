"""Indexes are built, grow, lose and replace rows, survive killed builds; wrong builds are refused."""

import json
import re
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crashing import Killed
from helpers import embed_here, embedded
from indexed import CONDITIONS, QUERIES, brute, refuse, rows, same
from storing import indexed

from raycase.cli import main
from raycase.commands.embed import EmbedFlags
from raycase.commands.index import IndexFlags
from raycase.commands.index import index as index_command
from raycase.errors import RequestError
from raycase.index import build as build_module
from raycase.index.build import build
from raycase.index.index import Index


def test_tomorrows_units_of_the_same_output_are_added(tmp_path, tiny_model):
    options = {"conditions": CONDITIONS, "output": str(tmp_path / "out")}
    output = embedded(tmp_path, tiny_model, rows(250), limit=130, **options)
    job = {"embeddings": (output,), "output": str(tmp_path / "i")}
    assert build(**job)["rows"] == 260
    whole = {"prompt": "concat-sc", "pooling": "mean", "compute": "float32", "dtype": "float32", "unit_rows": 100}
    embed_here(EmbedFlags(input=str(tmp_path / "in.parquet"), model=str(tiny_model), **options, **whole))
    assert build(**job)["rows_added"] == 240
    assert Index.open(job["output"]).metadata.conditions == {"color": 250, "number of people": 250}


def test_embed_indexes_its_output_and_says_what_no_index_takes(tmp_path, tiny_model, capsys):
    texts, index = tmp_path / "t.csv", str(tmp_path / "i.lance")
    texts.write_text("text\na red dress\ntwo dogs\n")
    begin = ["embed", "--model", str(tiny_model), "--prompt", "concat-sc", "--pooling", "mean", "--input", str(texts)]
    begin += ["--conditions", "color", "--no-ray", "--output"]
    lance.write_dataset(pa.table({"mine": [1]}), tmp_path / "mine.lance")
    for _ in range(2):  # the second time there is nothing to do
        main([*begin, str(tmp_path / "out"), "--index", index])
        said = capsys.readouterr()
        assert json.loads(said.out.splitlines()[-1])["index"] == index and "ids are file:row" in said.err
        assert Index.open(index).metadata.conditions == {"color": 2}
    for output, other in (("out", "mine.lance"), ("other", "out")):
        with pytest.raises(SystemExit, match="2"):
            main([*begin, str(tmp_path / output), "--index", str(tmp_path / other)])
        message = "--index: expected an index .*; the output is complete but not indexed"
        assert re.search(message, capsys.readouterr().err)
    with pytest.raises(SystemExit, match="2"):
        main([*begin, str(tmp_path / "new"), "--index", str(tmp_path / "new.lance"), "--dtype", "int8"])
    assert "--index: expected vectors as the model gives them" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    with pytest.raises(SystemExit, match="2"):
        main([*begin, str(tmp_path / "new"), "--index", index, "--id-column", "text", "--keep-columns"])
    message = f"index's columns .*: `raycase index --embeddings {tmp_path}/new --output {index} --overwrite`$"
    assert re.search(message, capsys.readouterr().err.strip()) and not (tmp_path / "new" / "job.json").exists()


def test_kept_lists_are_added_to_those_of_an_index(tmp_path, tiny_model):
    """A list's items have one name in Arrow, another in Parquet."""
    index = str(tmp_path / "i.lance")
    begin = ["embed", "--model", str(tiny_model), "--prompt", "concat-sc", "--pooling", "mean", "--no-ray"]
    begin += ["--conditions", "color", "--keep-columns", "tags", "--index", index]
    for day in ("a", "b"):
        file = str(tmp_path / f"{day}.parquet")
        pq.write_table(pa.table({"id": [day], "text": [f"a red dress {day}"], "tags": [[day, None]]}), file)
        main([*begin, "--input", file, "--output", str(tmp_path / day)])
    assert sorted(Index.open(index).search(["red"], "color")["tags"].to_pylist()) == [["a", None], ["b", None]]


@pytest.mark.parametrize("where", ["update_indices", "publish"])
def test_a_killed_build_leaves_the_former_index_or_none(home, tmp_path, where):
    uri = str(tmp_path / "i.lance")

    def killed(output, **changes):
        with mock.patch.object(build_module, where, side_effect=Killed), pytest.raises(Killed):
            build(embeddings=(str(home / output),), output=uri, **changes)

    killed("out")
    with pytest.raises(RequestError, match="got no finished one"):
        Index.open(uri)
    assert build(embeddings=(str(home / "out"),), output=uri)["rows"] == 600
    killed("later")
    killed("out", delete="id < 20")
    killed("later", replace=True)
    before = Index.open(uri)
    assert before.metadata.rows == 600 == before.dataset.count_rows()
    assert build(embeddings=(str(home / "later"),), output=uri)["rows"] == 760
    assert Index.open(uri).dataset.count_rows() == 760
    assert before.search(QUERIES, "color", 3).num_rows == 6


def test_wrong_builds_are_refused(home, index, tmp_path, tiny_model):
    new, there = str(tmp_path / "new"), str(home / "i.lance")
    refuse({"output": new}, "--embeddings: expected an output")
    refuse({"embeddings": (str(tmp_path),), "output": new}, "got no job.json")
    refuse({"embeddings": (str(home / "other"),), "output": there}, "expected vectors of the index's model")
    refuse(IndexFlags(output=new, exact_below=0), "--exact-below: expected at least 1", index_command)
    lance.write_dataset(pa.table({"mine": [1]}), tmp_path / "mine.lance")
    for overwrite in (False, True):
        job = {"embeddings": (str(home / "out"),), "output": str(tmp_path / "mine.lance"), "overwrite": overwrite}
        refuse(job, "got a Lance dataset in")
    assert lance.dataset(tmp_path / "mine.lance").count_rows() == 1
    fewer = embedded(tmp_path / "f", tiny_model, [{"id": 9999, "text": "a"}], conditions=("color",))
    refuse({"embeddings": (fewer,), "output": there}, "expected the index's columns")
    assert Index.open(there).metadata.rows == 900
    (tmp_path / "f" / "out" / "manifest.json").unlink()
    refuse({"embeddings": (fewer,), "output": new}, "expected a finished output")


KEPT = {"keep_columns": ("text", "year")}
ALL = {"nprobes": 50, "refine": 20}


@pytest.fixture(scope="module")
def changed(tmp_path_factory, tiny_model):
    """Outputs of 100 changed texts, of which 40 are of ids in the index: under one condition, and plain."""
    home, new = tmp_path_factory.mktemp("changed"), rows(100, 5, 260)
    color = embedded(home / "color", tiny_model, new, conditions=("color",), **KEPT)
    return color, embedded(home / "plain", tiny_model, new, unconditional=True, **KEPT)


def whole(home, uri, **settings):
    """An index of 300 texts under two conditions and plain; gives its job without outputs."""
    return {"output": indexed(uri, home / "out", home / "plain", **settings)}


def counts(uri):
    metadata = Index.open(uri).metadata
    return metadata.conditions, metadata.unconditional


def check_rows(uri, texts):
    """The index has exactly these texts by id, and every way to search finds all and no other."""
    index = Index.open(uri)
    assert index.dataset.count_rows() == index.metadata.rows
    for condition in (*index.metadata.conditions, None):
        count = index.rows(condition)
        for options in ({"exact": True}, ALL):
            found = index.search(QUERIES[:1], condition, count, **options)
            got = dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))
            assert len(found) == count == len(got) and got.items() <= texts.items()


@pytest.mark.parametrize("kind", ["exact", "ivf-rq"])
def test_deleted_rows_are_gone_under_every_condition_and_stay_gone(home, model, tmp_path, kind):
    uri = str(tmp_path / "i.lance")
    job = dict(whole(home, uri, vector_index=kind), delete="id < 20 OR (year = 2005 AND text LIKE '%red%')")
    gone = {r["id"] for r in rows(300) if r["id"] < 20 or (r["year"] == 2005 and "red" in r["text"])}
    assert 20 < len(gone) < 35
    result = build(**job)
    left = 300 - len(gone)
    assert (result["rows_deleted"], result["rows_added"], result["rows"]) == (3 * len(gone), 0, 3 * left)
    assert counts(uri) == (dict.fromkeys(CONDITIONS, left), left)
    check_rows(uri, {r["id"]: r["text"] for r in rows(300) if r["id"] not in gone})
    exact = Index.open(uri).search(QUERIES[:1], "color", 9, exact=True)
    same(exact, brute(home / "out", model, QUERIES[0], "color", 9, keep=lambda row: row["id"] not in gone))
    again = build(embeddings=(str(home / "out"), str(home / "plain")), output=uri)
    assert (again["rows_added"], again["rows_deleted"], again["rows"]) == (0, 0, 3 * left)


@pytest.mark.parametrize("kind", ["exact", "ivf-rq"])
def test_changed_texts_take_the_place_of_all_rows_of_their_ids(home, changed, tmp_path, kind):
    uri = str(tmp_path / "i.lance")
    whole(home, uri, vector_index=kind)
    job = {"embeddings": changed, "output": uri}
    refuse(job, "got id [0-9]+ under 'color' in .* from another job; pass --replace to replace it, --overwrite")
    assert Index.open(uri).metadata.rows == 900
    result = build(**dict(job, replace=True))
    assert (result["rows_deleted"], result["rows_added"], result["rows"]) == (3 * 40, 2 * 100, 980)
    assert counts(uri) == ({"color": 360, "number of people": 260}, 360)
    check_rows(uri, {r["id"]: r["text"] for r in rows(300)} | {r["id"]: r["text"] for r in rows(100, 5, 260)})
    again = build(**dict(job, replace=True))
    assert (again["rows_deleted"], again["rows_added"], again["rows"]) == (0, 0, 980)


def test_a_condition_without_rows_is_no_condition_any_more(home, tmp_path, tiny_model):
    uri = str(tmp_path / "i.lance")
    whole(home, uri)
    dogs = embedded(tmp_path / "dogs", tiny_model, rows(4, 7, 900), conditions=("kind of dog",), **KEPT)
    assert build(embeddings=(dogs,), output=uri)["conditions"] == 3
    assert build(output=uri, delete="id IN (900, 901, 902, 903)")["conditions"] == 2
    assert counts(uri) == (dict.fromkeys(CONDITIONS, 300), 300)
    alone, kept = str(tmp_path / "alone.lance"), {"conditions": ("c",), "keep_columns": ("text",)}
    for text in ("a dog", "a cat"):  # all rows of an index; ids may be strings
        output = embedded(tmp_path / text, tiny_model, [{"id": "it's 1", "text": text}], **kept)
        result = build(embeddings=(output,), output=alone, replace=text == "a cat")
    assert (result["rows_deleted"], result["rows_added"], result["rows"]) == (1, 1, 1)
    assert Index.open(alone).search(["a cat"], "c", 3)["text"].to_pylist() == ["a cat"]


def test_wrong_changes_are_refused_and_change_nothing(home, changed, tmp_path, tiny_model, capsys):
    uri, new = str(tmp_path / "i.lance"), str(tmp_path / "new")
    job = whole(home, uri)
    before = Index.open(uri).dataset.version
    refuse({"output": new, "delete": "id = 1"}, "^--delete: expected a finished index at .*, got none; build it")
    refuse({"embeddings": changed, "output": new, "replace": True}, "^--replace: expected a finished index")
    refuse(dict(job, delete="", overwrite=True), "^--delete: .* no --overwrite beside it, got both")
    refuse(dict(job, embeddings=changed, replace=True, overwrite=True), "^--replace: .* no --overwrite beside it")
    refuse(dict(job, delete="id >= 0"), "^--delete: expected a filter that leaves rows, got 'id >= 0', which mat")
    words = embedded(tmp_path / "w", tiny_model, [{"id": "1", "text": "a", "year": 1}], conditions=("color",), **KEPT)
    refuse(dict(job, embeddings=(words,), replace=True), "expected the index's columns")
    twice = embedded(tmp_path / "t", tiny_model, rows(3, 6, 299), conditions=("color",), **KEPT)
    refuse(dict(job, embeddings=(changed[0], twice), replace=True), "or only one of the outputs")
    assert Index.open(uri).dataset.version == before
    capsys.readouterr()
    result = index_command(IndexFlags(**job, delete="text = 'this condition'"))
    assert (result["rows_deleted"], result["rows"]) == (0, 900)
    assert "no row matches --delete \"text = 'this condition'\"; 0 rows deleted" in capsys.readouterr().err
    assert Index.open(uri).dataset.version == before
    index_command(IndexFlags(**job, delete="id = 7"))
    assert "3 rows deleted, 0 added\n" in capsys.readouterr().out
