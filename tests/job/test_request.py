"""A request is checked before anything is written: clear answers to wrong ones."""

import time
from dataclasses import replace

import pytest
from helpers import embed_here
from s3_proxy import Proxy

from raycase.cli import main
from raycase.errors import RequestError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--conditions": "missing.txt"}, "missing.txt: expected a readable txt file"),
        ({"--conditions": "\ufeff"}, "beside them and the prompt, got '\\ufeff': empty condition"),
        ({"--conditions": None}, "--condition-column, --unconditional or --any-condition, got none"),
        ({"--condition-column": "text"}, "got --conditions and --condition-column"),
        ({"--model": "minilm9"}, "expected one of minilm-conditional-v3, mpnet-conditional-v3, minilm, simcse"),
        ({"--output": "s3://no-such-bucket/out"}, "--output: expected a place to write at s3://no-such-bucket/out,"),
        ({"--dim": "4"}, "--dim: expected a dimension that"),
        ({"--actors": "3:1"}, "--actors: expected MIN:MAX with 1 <= MIN <= MAX, got 3:1"),
        ({"--output": "foreign"}, "got embeddings without job.json"),
        ({"--output": "in.parquet/out"}, "got in.parquet/out, which would be read as input"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line(job, change, words, tmp_path, monkeypatch, capsys, s3_server):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign" / "embeddings").mkdir(parents=True)
    (tmp_path / "foreign" / "embeddings" / "x.parquet").write_text("")
    flags = {"--input": "in.parquet", "--output": "out", "--conditions": "color", "--model": job.model}
    flags |= {"--prompt": "concat-sc", "--pooling": "mean"} | change
    given = [part for flag, value in flags.items() if value is not None for part in (flag, value)]
    with pytest.raises(SystemExit) as stop:
        main(["embed", *given], work=embed_here)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert words in err and err.count("\n") == 1
    assert not (tmp_path / "out" / "job.json").exists()


def test_the_default_output_may_be_given_for_an_own_input(job, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(RequestError, match="--output: expected a folder for the vectors, got none"):
        embed_here(replace(job, output=None))
    assert embed_here(replace(job, output="~/raycase/out", limit=5))["rows_in"] == 5
    assert (tmp_path / "home" / "raycase" / "out" / "manifest.json").is_file()


def test_a_submitted_job_wants_absolute_paths(job, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(RequestError, match="--output: expected an absolute path or a URI, got 'out'"):
        embed_here(replace(job, output="out"))
    with pytest.raises(RequestError, match="--input: expected an absolute path or a URI"):
        embed_here(replace(job, input="in.parquet"))
    assert embed_here(job)["rows_in"] == 500


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("input", "--input: expected to list .*, got: on purpose"),
        ("output", "--output: expected a readable folder at s3://.*: on purpose"),
    ],
)
def test_what_no_retry_helps_is_said_early_in_one_line(job, through, s3_server, flag, wanted):
    with Proxy(s3_server, failing=1.0, faults=((403, "AccessDenied"),)) as proxy:
        through(proxy.url)
        began = time.monotonic()
        with pytest.raises(RequestError, match=wanted) as error:
            embed_here(replace(job, **{flag: f"s3://corpus/store-faults/{flag}/"}))
        assert time.monotonic() - began < 5 and "\n" not in str(error.value)
