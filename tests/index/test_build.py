"""Indexes are built, grow, survive killed builds; wrong builds are refused."""

import json
import re
from unittest import mock

import lance
import pyarrow as pa
import pytest
from crashing import Killed
from helpers import embed_here, embedded
from indexed import CONDITIONS, QUERIES, refuse, rows

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
