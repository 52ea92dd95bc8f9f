"""The encode step: pairs become vectors; each row without a good vector is rejected; long jobs are compiled."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import tiny
import torch
from helpers import cosines, embed_here, read_output, vectors

import raycase
from raycase.job import encode_step


def test_unconditional_writes_the_plain_vector(job, tiny_model):
    job = replace(job, conditions=(), unconditional=True, limit=50)
    embed_here(job)
    table = read_output(job.output)
    plain = raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean", dtype=torch.float32)
    assert table["condition"].null_count == 50
    assert cosines(vectors(table), plain.embed(table["text"].to_pylist(), None)).min() > 0.999


def test_a_unit_that_a_string_column_cannot_hold_is_written_in_chunks(job, monkeypatch):
    embed_here(job)
    chunked = replace(job, output=job.output + "-chunked")
    monkeypatch.setattr(encode_step, "TABLE_BYTES", 1000)
    embed_here(chunked)
    assert read_output(chunked.output).equals(read_output(job.output))


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
    rates = {"tokens_per_second", "processed_per_second", "sharing", "padding"}
    assert rates < run.keys()
    assert all(run[name] > 0 for name in rates - {"padding"}) and 0 <= run["padding"] < 0.5
