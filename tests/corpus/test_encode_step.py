"""The encode step: pairs become vectors; each row without a good vector is rejected; long jobs are compiled."""

import json
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from helpers import cosines, embed_here, in_process, read_output, read_rejected, vectors

import raycase
from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.plan import make_plan
from raycase.corpus.read_step import read_units
from raycase.corpus.records import ReadTask
from raycase.corpus.request import check_embed
from raycase.corpus.run import run_checked
from raycase.encoder.tokenizer import PromptTokenizer
from raycase.systems.case import Case


def test_unconditional_writes_the_plain_vector(job, tiny_model):
    job = replace(job, conditions=(), unconditional=True, limit=50)
    embed_here(job)
    table = read_output(job.output)
    plain = raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean", dtype=torch.float32)
    assert table["condition"].null_count == 50
    assert cosines(vectors(table), plain.embed(table["text"].to_pylist(), None)).min() > 0.999


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


def test_a_unit_that_a_string_column_cannot_hold_is_written_in_chunks(job):
    embed_here(job)
    chunked = replace(job, output=job.output + "-chunked")
    request = check_embed(chunked)
    request = replace(request, kind=replace(request.kind, chunk_bytes=1000))
    run_checked(request, time.time(), prepare=lambda *_: in_process)
    assert read_output(chunked.output).equals(read_output(job.output))


def first_units(job, count):
    """What the reading stage gives of a job, and the encoding stage's arguments."""
    request = check_embed(job)
    opened, done = request.find_job()
    tasks = make_plan(request, opened.files, done).tasks()
    task = ReadTask.of(opened.files, next(tasks))
    read = read_units(task, config=request.model, kind=request.kind)
    settings = {"weights": opened.config["model"]["weights"], "compute": job.compute}
    return list(islice(read, count)), (request.model, request.kind), settings


def test_the_encoder_never_waits_for_tokens(job, monkeypatch):
    """They are made ahead, by the stage that reads."""
    [unit], arguments, options = first_units(job, 1)
    encode = EncodeUnits(*arguments, **options)
    for name in ("__call__", "pairs"):
        monkeypatch.setattr(PromptTokenizer, name, lambda *_: pytest.fail("tokenised beside the encoder"))
    assert encode(unit).stats.work.tokens > 0


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
    pairs = zip(table["text"].to_pylist(), table["condition"].to_pylist(), strict=True)
    alone = [plain.embed([s], [c])[0] for s, c in pairs]
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
