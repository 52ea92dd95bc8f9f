"""The main job without Ray: every row accounted for, resuming, and clear answers to bad requests.

The steps are those that Ray Data runs; here they run one after the other in this process.
"""

import json
import os
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from helpers import cosines, in_process, read_output, read_rejected, sentences, vectors

import raycase
from raycase.cli import main
from raycase.corpus import read_step
from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.job_record import find_job
from raycase.corpus.output import output_at
from raycase.corpus.plan import make_plan
from raycase.corpus.read_step import read_units
from raycase.corpus.records import EncodedUnit, ReadTask
from raycase.corpus.request import check
from raycase.corpus.verify import verify
from raycase.distributed.embed import TooManyRejectedError, embed
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.errors import RequestError, WorkError
from raycase.systems.case import Case

embed_here = partial(embed, execute=in_process)


def test_read_back_as_plain_columns(job):
    embed_here(replace(job, dtype="float16"))
    files = job.output + "/embeddings/*.parquet"
    frame = pd.read_parquet(job.output + "/embeddings")
    assert list(frame.columns) == ["id", "condition", "text", "embedding"]
    assert frame.embedding[0].dtype == np.float16 and frame.embedding[0].shape == (32,)
    rows = duckdb.sql(
        f"select id, condition, text, embedding::float[] from '{files}' order by id, condition"
    ).fetchall()
    assert len(rows) == 1000 and len(rows[0][3]) == 32
    first = frame[(frame.id == rows[0][0]) & (frame.condition == rows[0][1])].embedding.iloc[0]
    assert np.allclose(first, rows[0][3])


def test_condition_column_keeps_rows_and_pairs_apart(job, tmp_path):
    rows = [
        {"text": "a red dress", "aspects": ["color", "number"], "year": 1},
        {"text": "a blue dog", "aspects": "color", "year": 2},
        {"text": "a red dress", "aspects": ["color"], "year": 3},
        {"text": "two cats", "aspects": []},
        {"text": "two dogs", "aspects": ["color", None]},
        {"text": "two men", "aspects": ["color", " "]},
        {"text": "two women", "aspects": ["color", "color"]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    job = replace(
        job,
        input=str(path),
        conditions=(),
        condition_column="aspects",
        keep_columns=("year", "aspects"),
        max_rejected=1,
    )
    result = embed_here(job)
    counts = {"rows_in": 7, "rows_out": 3, "rows_rejected": 4, "pairs": 4, "distinct_pairs": 3}
    assert counts.items() <= result.items()
    table = read_output(job.output)
    assert table["condition"].to_pylist() == ["color", "number", "color", "color"]
    assert table["year"].to_pylist() == [1, 1, 2, 3]
    assert [r["reason"] for r in read_rejected(job.output)] == [
        "empty condition",
        "null condition",
        "empty condition",
        "duplicate condition",
    ]
    assert table["embedding"][0].equals(table["embedding"][3])


def test_unconditional_writes_the_plain_vector(job, tiny_model):
    job = replace(job, conditions=(), unconditional=True, limit=50)
    embed_here(job)
    table = read_output(job.output)
    plain = raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean", dtype=torch.float32)
    assert table["condition"].null_count == 50
    assert cosines(vectors(table), plain.embed(table["text"].to_pylist(), None)).min() > 0.999


def test_every_bad_row_is_kept_with_its_reason_and_place(job, tmp_path):
    texts = pa.array(
        [b"a red dress", None, b"", b" \t ", b"a \xff dog", b"poison dog", b"a blue dog", b"cat " * 99, b"man"]
    )
    ids = ["a", "b", "c", "d", "e", "f", "a", "h", None]
    pq.write_table(pa.table({"id": ids, "text": texts.view(pa.string())}), tmp_path / "bad.parquet")
    job = replace(job, input=str(tmp_path / "bad.parquet"), max_rejected=1, on_long="reject")
    result = embed_here(job)
    reasons = {r["row"]: r["reason"] for r in read_rejected(job.output)}
    assert reasons == {
        1: "null text",
        2: "empty text",
        3: "empty text",
        4: "invalid UTF-8",
        5: "vector not finite",
        6: "duplicate id",
        7: "text too long",
        8: "null id",
    }
    assert read_output(job.output)["text"].to_pylist() == ["a red dress"] * 2
    assert all(r["file"] == job.input for r in read_rejected(job.output))
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (9, 1, 8)
    verify(job.output)


def test_long_text_is_truncated_and_counted(job, tmp_path):
    pd.DataFrame({"text": ["cat " * 99, "a dog"]}).to_csv(tmp_path / "long.csv", index=False)
    result = embed_here(replace(job, input=str(tmp_path / "long.csv")))
    assert (result["rows_out"], result["rows_truncated"]) == (2, 1)


def test_a_vector_that_overflows_float16_rejects_its_row(job, tiny_model, tmp_path):
    from safetensors.torch import load_file, save_file

    loud = tmp_path / "loud"
    loud.mkdir()
    for file in tiny_model.iterdir():
        (loud / file.name).write_bytes(file.read_bytes())
    weights = load_file(loud / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.weight"] *= 1e6
    save_file(weights, loud / "model.safetensors", metadata={"format": "pt"})
    job = replace(job, model=str(loud), dtype="float16", limit=3, max_rejected=1)
    assert embed_here(job)["rows_rejected"] == 3
    assert {r["reason"] for r in read_rejected(job.output)} == {"vector not finite"}


def test_too_many_rejected_is_an_error_and_the_output_is_complete(job, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a dog"}\nnot json\n{"text": "a cat"}\n')
    job = replace(job, input=str(tmp_path / "in.jsonl"))
    with pytest.raises(TooManyRejectedError, match="line does not parse") as error:
        embed_here(job)
    assert error.value.result["rows_rejected"] == 1
    assert verify(job.output)["rows_out"] == 2


def units(job):
    """Name -> modification time of the finished units."""
    folder = output_at(job.output).embeddings
    return {name: (folder / name).fs.modified((folder / name).path) for name in folder.list()}


def stop_after(count):
    """An executor that dies after so many units."""

    def execute(request, opened, plan):
        for done, stats in enumerate(in_process(request, opened, plan), 1):
            yield stats
            if done == count:
                raise KeyboardInterrupt

    return execute


def test_a_stopped_job_goes_on_where_it_was(job):
    with pytest.raises(KeyboardInterrupt):
        embed(job, execute=stop_after(3))
    assert not output_at(job.output).manifest.exists()
    before = units(job)
    assert len(before) == 3
    result = embed_here(job)
    assert (result["units_done"], result["units_resumed"], result["rows_in"], result["pairs"]) == (2, 3, 500, 1000)
    assert before.items() <= units(job).items(), "finished units were computed again"
    undisturbed = replace(job, output=job.output + "-undisturbed")
    embed_here(undisturbed)
    assert read_output(job.output).equals(read_output(undisturbed.output))
    verify(job.output)


def test_a_limit_that_grows_computes_no_row_again(job):
    assert embed_here(replace(job, limit=250))["rows_in"] == 250
    before = units(job)
    result = embed_here(replace(job, unit_rows=70))
    assert before.items() <= units(job).items()
    assert result["rows_in"] == 500 and verify(job.output)["rows_out"] == 500
    assert read_output(job.output)["id"].to_pylist() == [i for i in range(500) for _ in range(2)]
    assert embed_here(replace(job, limit=10))["units_done"] == 0


def test_overwrite_begins_anew_and_leaves_other_files_alone(job):
    embed_here(job)
    other = output_at(job.output).root / "notes.txt"
    other.put(b"mine")
    changed = replace(job, conditions=("color",))
    with pytest.raises(RequestError, match=r"conditions.*--overwrite"):
        embed_here(changed)
    assert verify(job.output)["pairs"] == 1000
    assert embed_here(replace(changed, overwrite=True))["pairs"] == 500
    assert verify(job.output)["pairs"] == 500 and other.read() == b"mine"


def test_a_wrong_request_with_overwrite_destroys_nothing(job):
    embed_here(job)
    with pytest.raises(RequestError):
        embed_here(replace(job, overwrite=True, text_column="body"))
    verify(job.output)


def test_tomorrows_files_are_added_and_changed_or_vanished_ones_refused(job, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, seed in (("b.csv", 1), ("c.csv", 2)):
        pd.DataFrame({"text": sentences(30, seed)}).to_csv(folder / name, index=False)
    job = replace(job, input=str(folder))
    embed_here(job)
    before = units(job)
    pd.DataFrame({"text": sentences(30, 3)}).to_csv(folder / "a.csv", index=False)
    result = embed_here(job)
    assert (result["rows_in"], result["units_done"], result["units_resumed"]) == (90, 1, 2)
    assert before.items() <= units(job).items()
    verify(job.output)
    text = (folder / "b.csv").read_text()
    os.utime(folder / "b.csv", (1, 1))
    with pytest.raises(RequestError, match=r"b\.csv.* is changed"):
        embed_here(job)
    (folder / "b.csv").unlink()
    with pytest.raises(RequestError, match=r"b\.csv.* is not there any more"):
        embed_here(job)
    (folder / "b.csv").write_text(text)
    assert embed_here(replace(job, overwrite=True))["rows_in"] == 90


def test_late_writers_are_not_mistaken_for_ours(job):
    """A unit of a job that was overwritten, one that a shorter limit had cut, and rejected rows without their unit."""
    embed_here(job)
    folder = output_at(job.output).embeddings
    name = sorted(folder.list())[1]
    strays = [folder / f"{'0' * 8}{name[8:]}", folder / f"{name[:27]}-50-0.parquet"]
    strays.append(output_at(job.output).rejected / f"{name[:27]}-49-1.parquet")
    assert name[9:27] == "00000-000000000100"
    for stray in strays:
        stray.put((folder / name).read())
    assert embed_here(job)["rows_in"] == 500
    assert not any(stray.exists() for stray in strays)
    verify(job.output)
    (folder / "notes.txt").put(b"")
    with pytest.raises(RequestError, match=r"notes\.txt; move it away"):
        embed_here(job)


def test_the_fingerprint_is_of_what_changes_the_vectors(job, tiny_model, tmp_path):
    embed_here(job)
    assert embed_here(replace(job, batch_tokens=64, unit_rows=50, max_rejected=0.5))["units_done"] == 0
    changes = {"dtype": "float16", "subtract": False, "pooling": "cls", "keep_columns": (), "on_long": "reject"}
    for name, value in changes.items():
        with pytest.raises(RequestError, match="expected an empty folder or the same job"):
            embed_here(replace(job, **{name: value}))


def cli(capsys, *arguments):
    """Exit status, standard output and standard error of a job's command line, run in this process."""
    status = 0
    try:
        main(["embed", *map(str, arguments)], work=embed_here)
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--input": "nothing.parquet"}, "expected .parquet, .csv, .jsonl files at"),
        ({"--input": "empty"}, "got 1 files with other endings"),
        ({"--input": "none.jsonl"}, "expected the column 'text', got none"),
        ({"--input": "header.csv"}, "expected rows, got none in 1 files"),
        ({"--input": "corrupt.parquet"}, "expected a readable parquet file, got"),
        ({"--input": "numbers.parquet"}, "expected strings in the column 'text', got int64"),
        ({"--input": "foo://x"}, "expected a local path or a URI that fsspec knows"),
        ({"--text-column": "body"}, "expected the column 'body', got id, text"),
        ({"--id-column": "key"}, "expected the column 'key', got id, text"),
        ({"--keep-columns": "year"}, "expected the column 'year', got id, text"),
        ({"--conditions": ""}, "expected words in every condition, got ''"),
        ({"--conditions": "missing.txt"}, "expected a readable file at"),
        ({"--conditions": "empty.txt"}, "expected at least one condition in"),
        ({"--conditions": "red " * 99}, "expected room for a sentence"),
        ({"--conditions": None}, "expected one of --conditions, --condition-column or --unconditional, got none"),
        ({"--condition-column": "text"}, "got --conditions and --condition-column"),
        ({"--model": "minilm9"}, "expected one of minilm, simcse-bert-base"),
        ({"--pooling": "latent"}, "expected NV-Embed's weights"),
        ({"--prompt": "loud"}, "--prompt"),
        ({"--unit-rows": "0"}, "--unit-rows: expected at least 1, got 0"),
        ({"--actors": "3:1"}, "--actors: expected MIN:MAX with 1 <= MIN <= MAX, got '3:1'"),
        ({"--max-rejected": "2"}, "--max-rejected: expected a share between 0 and 1, got 2.0"),
        ({"--output": None}, "--output: expected a folder for the vectors, got none"),
        ({"--output": "foreign"}, "expected only units in"),
        ({"--output": "in.parquet/out"}, "expected a place to write at"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(job, change, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "readme.md").write_text("no data")
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "header.csv").write_text("text\n")
    (tmp_path / "corrupt.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "empty.txt").write_text("\n\n")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    (tmp_path / "foreign" / "embeddings").mkdir(parents=True)
    (tmp_path / "foreign" / "embeddings" / "x.parquet").write_text("")
    flags = {
        "--input": "in.parquet",
        "--output": "out",
        "--conditions": "color",
        "--model": job.model,
        "--prompt": "concat-sc",
        "--pooling": "mean",
    } | change
    given = [part for flag, value in flags.items() if value is not None for part in (flag, value)]
    status, out, err = cli(capsys, *given)
    assert (status, out) == (2, "")
    assert words in err and err.count("\n") == 1
    assert not (tmp_path / "out" / "job.json").exists()


def test_corruption_inside_a_file_is_a_wrong_request_too(job, tmp_path):
    path = tmp_path / "in.parquet"
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(2900)
    path.write_bytes(data)
    with pytest.raises(RequestError, match=r"in\.parquet: expected a readable parquet file, got"):
        embed_here(job)


def test_flags_as_people_write_them(job, tmp_path, capsys):
    flags = ["--input", job.input, "--output", job.output, "--model", job.model, "--prompt", "concat-cs"]
    flags += ["--pooling", "cls", "--no-subtract", "--conditions", "color", "number of people", "--limit", "5"]
    status, out, _ = cli(capsys, *flags)
    assert status == 0 and json.loads(out.splitlines()[-1])["pairs"] == 10
    config = json.loads((output_at(job.output).job).read())["config"]
    assert config["model"]["subtract"] is False
    assert (config["model"]["encoder"]["prompt"], config["model"]["encoder"]["pooling"]) == ("concat-cs", ["cls"])
    assert cli(capsys, *flags, "--subtract")[0] == 2


def test_a_submitted_job_wants_absolute_paths(job, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(RequestError, match="--output: expected an absolute path or a URI, got 'out'"):
        embed_here(replace(job, output="out"))
    with pytest.raises(RequestError, match="--input: expected an absolute path or a URI"):
        embed_here(replace(job, input="in.parquet"))
    assert embed_here(job)["rows_in"] == 500


def test_a_store_that_cannot_be_used_is_said_early(job, s3_server):
    with pytest.raises(RequestError, match="--output: expected a place to write at s3://no-such-bucket/out, got"):
        embed_here(replace(job, output="s3://no-such-bucket/out"))
    with pytest.raises(RequestError, match="s3://no-such-bucket/in"):
        embed_here(replace(job, input="s3://no-such-bucket/in/*.csv"))


def test_the_columns_types_are_those_the_job_began_with(job, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "b.jsonl").write_text('{"id": 1, "text": "a dog"}\n')
    job = replace(job, input=str(folder), max_rejected=1)
    embed_here(job)
    (folder / "a.jsonl").write_text('{"id": "one", "text": "a cat"}\n{"id": 2, "text": "a man"}\n')
    assert embed_here(job)["rows_out"] == 2
    assert [r["reason"] for r in read_rejected(job.output)] == ["wrong type"]
    verify(job.output)


def test_a_name_like_one_of_the_outputs_is_input_all_the_same(job, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (tmp_path / "in.parquet").rename(folder / "manifest_lines-2024.parquet")
    (folder / "manifest.jsonl").write_text('{"id": 1000, "text": "a dog"}\n')
    job = replace(job, input=str(folder), output=str(folder))
    assert embed_here(job)["rows_out"] == 501
    assert embed_here(job)["rows_in"] == 501
    (folder / "manifest_lines-2024.parquet").unlink()
    (folder / "manifest.jsonl").unlink()
    with pytest.raises(RequestError, match="got the output of a job alone"):
        embed_here(job)


def test_a_unit_that_is_made_again_has_its_own_checksum(job):
    """Its line of an earlier manifest speaks of other bytes."""
    embed_here(job)
    folder = output_at(job.output).embeddings
    name = sorted(folder.list())[2]
    (folder / name).remove()

    def killed(request, opened, plan):
        yield from in_process(request, opened, plan)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(replace(job, compute="float32"), execute=killed)
    table = pq.read_table(f"{folder.path}/{name}")
    pq.write_table(table, f"{folder.path}/{name}", compression="gzip")  # the same rows, other bytes
    assert embed_here(job)["units_resumed"] == 5
    verify(job.output)


def test_output_inside_the_input_is_no_input(job, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (tmp_path / "in.parquet").rename(folder / "in.parquet")
    job = replace(job, input=str(folder), output=str(folder / "out"))
    embed_here(job)
    assert embed_here(job)["rows_in"] == 500


def test_a_limit_below_what_is_there_with_a_gap_is_refused(job):
    embed_here(job)
    folder = output_at(job.output).embeddings
    (folder / sorted(folder.list())[2]).remove()
    with pytest.raises(WorkError, match=r"rows 200 to 300 of .*in\.parquet are missing; raise --limit"):
        embed_here(replace(job, limit=100))
    assert embed_here(job)["units_done"] == 1
    verify(job.output)


def test_a_late_writer_of_an_overwritten_job_is_not_ours(job):
    """The same configuration over other content: the name of the old unit must not count."""
    embed_here(job)
    folder = output_at(job.output).embeddings
    name = sorted(folder.list())[1]
    old = (folder / name).read()
    with pytest.raises(KeyboardInterrupt):
        embed(replace(job, overwrite=True), execute=stop_after(1))
    (folder / name).put(old)
    assert embed_here(job)["units_done"] == 4
    assert name not in folder.list()
    verify(job.output)


def test_a_unit_that_a_string_column_cannot_hold_is_written_in_chunks(job):
    embed_here(job)
    chunked = replace(job, output=job.output + "-chunked")
    embed(chunked, execute=partial(in_process, chunk_bytes=1000))
    assert read_output(chunked.output).equals(read_output(job.output))


def test_a_step_that_loses_a_row_is_found_out(job, monkeypatch):
    read_span = read_step.read_span
    lossy = lambda *a: ((rows.slice(1), rejected) for rows, rejected in read_span(*a))  # noqa: E731
    monkeypatch.setattr(read_step, "read_span", lossy)
    with pytest.raises(WorkError, match="from row 0: 100 rows in, 99 out and rejected"):
        embed_here(job)


def test_invalid_utf8_in_a_list_of_conditions_rejects_its_row(job, tmp_path):
    lists = pa.array([[b"color"], [b"co\xfflor"]], pa.list_(pa.binary())).view(pa.list_(pa.string()))
    pq.write_table(pa.table({"id": [7, 8], "text": ["a dog"] * 2, "c": lists}), tmp_path / "lists.parquet")
    job = replace(job, input=str(tmp_path / "lists.parquet"), conditions=(), condition_column="c", max_rejected=1)
    assert embed_here(job)["rows_out"] == 1
    [row] = read_rejected(job.output)
    assert (row["id"], row["reason"], json.loads(row["content"])["c"]) == ("8", "invalid UTF-8", ["co\\xfflor"])


@pytest.mark.parametrize("change", ["nothing", "added", "changed", "vanished", "overwrite"])
def test_a_job_stopped_in_the_middle_meets_its_input_again(job, tmp_path, change):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        pd.DataFrame({"text": sentences(60, seed=ord(name[0]))}).to_csv(folder / name, index=False)
    job = replace(job, input=str(folder), unit_rows=20)
    with pytest.raises(KeyboardInterrupt):
        embed(job, execute=stop_after(4))
    before = units(job)
    if change in ("changed", "vanished"):
        (folder / "b.csv").unlink() if change == "vanished" else (folder / "b.csv").write_text("text\na dog\n")
        with pytest.raises(RequestError, match=r"b\.csv"):
            embed_here(job)
        assert units(job) == before
        return
    if change == "added":
        pd.DataFrame({"text": sentences(20, seed=9)}).to_csv(folder / "c.csv", index=False)
    result = embed_here(replace(job, overwrite=change == "overwrite"))
    assert result["units_done"] == {"nothing": 2, "added": 3, "overwrite": 6}[change]
    assert result["rows_out"] == (140 if change == "added" else 120)
    assert (before.items() <= units(job).items()) == (change != "overwrite")
    verify(job.output)


# ------------------------------------------------------------------------------------------------------ the engine


def first_units(job, count):
    """What the reading stage gives of a job, and the encoding stage's arguments."""
    request = check(job)
    opened, done = find_job(request.output, request.config, request.files, overwrite=False)
    tasks = make_plan(request, opened.files, done).tasks()
    task = ReadTask.of(opened.files, next(tasks)).to_arrow()
    read = read_units(task, config=request.model, settings=request.encode_settings)
    settings = {"weights": opened.config["model"]["weights"], "compute": job.compute}
    return list(islice(read, count)), (request.model, request.encode_settings), settings


def test_the_encoder_never_waits_for_tokens(job, monkeypatch):
    """They are made ahead, by the stage that reads."""
    [unit], arguments, options = first_units(job, 1)
    encode = EncodeUnits(*arguments, **options)
    for name in ("__call__", "pairs"):
        monkeypatch.setattr(PromptTokenizer, name, lambda *_: pytest.fail("tokenised beside the encoder"))
    assert EncodedUnit.from_arrow(encode(unit)).stats.work.tokens > 0


def test_prompts_that_share_prefixes_are_encoded_once_and_right(job, tmp_path):
    folder = tmp_path / "causal"
    folder.mkdir()
    tiny.save_encoder(folder, "qwen3-embedding-0.6b")
    conditions = tuple(f"{c} of the {t}" for c in ("color", "number", "place") for t in ("dress", "dog"))
    job = replace(job, model=str(folder), prompt="cond", conditions=conditions, limit=40, unit_rows=20)
    result = embed_here(job)
    assert result["sharing"] > 3
    assert result["tokens_processed"] < result["tokens"] / 3
    plain = raycase.load(str(folder), prompt="cond", pooling="mean", dtype=torch.float32)
    table = read_output(job.output)
    alone = [
        plain.embed([s], [c])[0] for s, c in zip(*(table[n].to_pylist() for n in ("text", "condition")), strict=True)
    ]
    assert cosines(vectors(table), np.stack(alone)).min() > 0.9999
    run = json.loads((Path(job.output) / "manifest.json").read_text())["run"]
    rates = {"tokens_per_second", "processed_per_second", "sharing", "padding", "mfu"}
    assert rates < run.keys() and rates < run["actors"][0].keys()
    assert all(run[name] > 0 for name in rates - {"padding"}) and 0 <= run["padding"] < 0.5


@pytest.mark.parametrize(("flag", "expected", "wanted"), [
    ("auto", 100, [0, 1, 1]), ("auto", 1, [0, 0, 0]), ("on", 1, [1, 1, 1]), ("off", 100, [0, 0, 0])
])  # fmt: skip
def test_a_long_job_is_compiled_after_its_first_unit(job, monkeypatch, flag, expected, wanted):
    compiled = []
    monkeypatch.setattr(Case, "compile", lambda self: compiled.append(self))
    [first, second], arguments, options = first_units(job, 2)
    encode = EncodeUnits(*arguments, compile=flag, compile_repaid=0.0, units=expected, **options)
    counts = [len(compiled)]
    for unit in (first, second):
        encode(unit)
        counts.append(len(compiled))
    assert counts == wanted
