"""A job resumes by job.json: the same configuration, the input files that it knew, and new ones; which have changed."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from helpers import embed_here, read_output, read_rejected, sentences, stopped, unit_times, write_csv

from raycase.encoder.model_files import DEFAULT_MODEL
from raycase.errors import RequestError
from raycase.job.output import Output
from raycase.job.verify import verify


def test_a_stopped_job_resumes_where_it_was(job):
    stopped(job, 3)
    assert not Output(job.output).manifest.exists()
    before = unit_times(job)
    assert len(before) == 3
    result = embed_here(job)
    assert (result["units_done"], result["units_resumed"], result["rows_in"], result["pairs"]) == (2, 3, 500, 1000)
    assert before.items() <= unit_times(job).items(), "finished units were computed again"
    undisturbed = replace(job, output=job.output + "-undisturbed")
    embed_here(undisturbed)
    assert read_output(job.output).equals(read_output(undisturbed.output))
    verify(job.output)


def test_overwrite_begins_anew_and_leaves_other_files_alone(job):
    embed_here(job)
    other = Output(job.output).root / "notes.txt"
    other.put(b"mine")
    changed = replace(job, conditions=("color",))
    with pytest.raises(RequestError, match=r"conditions.*--overwrite"):
        embed_here(changed)
    with pytest.raises(RequestError):
        embed_here(replace(job, overwrite=True, text_column="body"))
    assert verify(job.output)["pairs"] == 1000, "expected nothing destroyed by wrong requests"
    assert embed_here(replace(changed, overwrite=True))["pairs"] == 500
    assert verify(job.output)["pairs"] == 500 and other.read() == b"mine"


def test_the_fingerprint_is_of_what_changes_the_vectors(job):
    embed_here(job)
    assert embed_here(replace(job, batch_tokens=64, unit_rows=50, max_rejected=0.5))["units_done"] == 0
    changes = {"dtype": "float16", "normalize": True, "subtract": False, "pooling": "cls", "on_unknown": "embed"}
    for name, value in changes.items():
        with pytest.raises(RequestError, match="expected an empty folder or the same job"):
            embed_here(replace(job, **{name: value}))


def test_without_a_model_a_job_resumes_with_its_own_and_says_so(job, tiny_model, capsys):
    stopped(job, 3)
    assert Output(job.output).job_file.read_json()["model"] == str(tiny_model)
    capsys.readouterr()
    unnamed = replace(job, model=None)
    assert embed_here(unnamed)["units_resumed"] == 3
    assert capsys.readouterr().err.startswith(f"{job.output}: started with --model {tiny_model}; resuming with it\n")
    with pytest.raises(RequestError, match=r"leave the flag out, or pass --model minilm$"):  # begun anew by the default
        embed_here(replace(unnamed, overwrite=True))
    assert verify(job.output)["rows_out"] == 500


def test_a_model_that_has_moved_is_asked_for(job, tiny_model, tmp_path):
    moved = shutil.copytree(tiny_model, tmp_path / "model")
    embed_here(replace(job, model=str(moved), limit=100))
    moved = moved.rename(tmp_path / "moved")
    with pytest.raises(RequestError, match=r"was started with, .*/model, got: .*; pass its present place as --model$"):
        embed_here(replace(job, model=None))
    assert embed_here(replace(job, model=str(moved), limit=200))["units_resumed"] == 1
    assert embed_here(replace(job, model=None))["rows_out"] == 500


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r": written by another version of raycase, 0\.2 or earlier: embed again$"),
        ("{}", r"job\.json: expected the job\.json of `raycase embed`, got: "),
    ],
)
def test_a_record_of_another_version_or_kind_is_refused(job, content, words):
    embed_here(job)
    record = Output(job.output).job_file
    old = {name: value for name, value in record.read_json().items() if name != "format"}
    record.put(json.dumps(old).encode() if content is None else content.encode())
    with pytest.raises(RequestError, match=words):
        embed_here(job)
    assert embed_here(replace(job, overwrite=True))["rows_out"] == 500


def test_a_record_whose_configuration_was_altered_is_refused_and_no_unit_is_dropped(job):
    stopped(job, 3)
    output = Output(job.output)
    record, units = output.job_file.read_json(), output.units.list()
    output.job_file.put_json(record | {"config": record["config"] | {"conditions": ["another", "one"]}})
    for answer in (embed_here, lambda job: verify(job.output)):
        with pytest.raises(RequestError, match="another configuration than its fingerprint is of; put the file back"):
            answer(job)
    output.job_file.put_json(record)
    assert output.units.list() == units and embed_here(job)["units_resumed"] == 3


@pytest.fixture
def folder(job, tmp_path):
    """The job over a folder of one file, and the folder."""
    place = tmp_path / "in"
    place.mkdir()
    write_csv(place / "a.csv", ["text"], [["a dog"], ["a red dress"]])
    return replace(job, input=str(place), text_column="text", id_column=None, keep_columns=("text",), max_rejected=1.0)


def test_a_file_that_comes_later_under_an_earlier_name_is_read_and_finished_units_stay(folder):
    embed_here(folder)
    before = Output(folder.output).units.list()
    place = Path(folder.input)
    write_csv(place / "A.CSV", ["text"], [["a cat"]])
    result = embed_here(folder)
    assert (result["rows_in"], result["units_resumed"]) == (3, 1)
    assert before.items() <= Output(folder.output).units.list().items()
    assert {*read_output(folder.output)["text"].to_pylist()} == {"a cat", "a dog", "a red dress"}
    assert embed_here(folder)["units_done"] == 0
    verify(folder.output)


def test_a_file_has_changed_where_its_size_or_time_has_and_one_that_is_gone_is_missed(folder):
    """Its content is not read for that."""
    file = Path(folder.input) / "a.csv"
    embed_here(folder)
    stat = file.stat()
    file.write_bytes(file.read_bytes().replace(b"dog", b"cat"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert embed_here(folder)["units_done"] == 0
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns - 10**9))
    before = unit_times(folder)
    with pytest.raises(RequestError, match="but it has changed"):
        embed_here(folder)
    write_csv(file.rename(file.with_name("b.csv")), ["text"], [["a cat"]])
    with pytest.raises(RequestError, match=r"a\.csv.* it is missing"):
        embed_here(folder)
    assert unit_times(folder) == before


# --------------------------------------------------------------------------------------------------- Lance datasets


def test_a_lance_dataset_is_embedded_and_resumes_with_the_rows_it_began_with(job, tmp_path, capsys):
    table = pa.table({"id": list(range(200)), "text": [*sentences(199), ""]})
    dataset = lance.write_dataset(table, str(tmp_path / "things.lance"), max_rows_per_file=45)
    dataset.delete("id < 20")
    things = replace(job, input=str(tmp_path / "things.lance"), unit_rows=20, max_rejected=1)
    stopped(things, 3)
    dataset.delete("id < 150")
    result = embed_here(things)
    assert (result["rows_in"], result["rows_out"], result["units_resumed"]) == (180, 179, 3)
    assert list(dict.fromkeys(read_output(things.output)["id"].to_pylist())) == list(range(20, 199))
    assert [(row["row"], row["file"]) for row in read_rejected(things.output)] == [(179, things.input)]
    said = f"{things.input} is now lance version 3; this job continues with lance version 2"
    assert capsys.readouterr().err.count(said) == 1
    verify(things.output)
    assert embed_here(replace(things, overwrite=True))["rows_in"] == 50


def test_a_new_job_takes_the_default_model_and_keeps_it(job, capsys):
    unnamed = replace(job, model=None, prompt=None, pooling=None, unit_rows=10, limit=10)
    assert embed_here(unnamed)["rows_out"] == 10
    assert Output(job.output).job_file.read_json()["model"] == DEFAULT_MODEL
    assert Output(job.output).manifest.read_json()["model"]["name"] == DEFAULT_MODEL
    capsys.readouterr()
    assert embed_here(replace(unnamed, limit=20))["rows_out"] == 20
    assert embed_here(replace(unnamed, limit=30, model=DEFAULT_MODEL))["rows_out"] == 30
    assert "started with" not in capsys.readouterr().err
    with pytest.raises(RequestError, match=r"expected an empty folder or the same job.*model"):
        embed_here(replace(unnamed, model="minilm"))
