"""The benchmark for GPUs on a CPU, with tiny models: every row comes, is right, and is kept when time is up."""

import importlib
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, sentences

RATES = {"tokens_per_s", "effective_tokens_per_s", "sharing", "padding", "tflops", "of_matrix_product", "of_square"}
ENGINE = RATES | {"seconds", "first_seconds", "peak_gib", "graphs", "prompts", "cosine_one_by_one", "cosine_dense"}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


@pytest.fixture
def tiny_run(tmp_path):
    """Arguments of a run in tiny shapes, and what reads its lines."""
    pq.write_table(pa.table({"text": [f"{text} by a river" for text in sentences(300)]}), tmp_path / "texts.parquet")
    output = tmp_path / "lines.jsonl"
    arguments = ["--tiny", "--device", "cpu", "--eager", "--turns", "1", "--tokens", "300", "--output", str(output)]
    arguments += ["--texts", str(tmp_path / "texts.parquet"), "--shape"]
    return arguments, lambda: {line["row"]: line for line in map(json.loads, output.read_text().splitlines())}


@pytest.mark.parametrize("shape", ["qwen3-0.6b", "e5-large"])
def test_every_row_is_there_and_right(gpu, tiny_run, shape):
    arguments, lines = tiny_run
    assert gpu.main([*arguments, shape, "--rows", "product", "flex", "engine", "units", "transformers", "pooling"]) == 0
    found = lines()
    for name, line in found.items():
        assert not {"error", "warnings"} & set(line), line
        if name.startswith(("engine", "units", "condition pooling")):
            assert set(line) >= RATES
            assert line["cosine_one_by_one"] > 0.999
        if name.startswith("engine"):
            assert set(line) >= ENGINE
            assert line["cosine_dense"] > 0.999
    corpora = ("documents, 1", "captions, 8", "captions, 1")
    kinds = ("engine, eager", "engine, padded", "units", "transformers", "sentence-transformers")
    assert {f"{kind}, {corpus}" for kind in kinds for corpus in corpora} <= set(found)
    causal = shape == "qwen3-0.6b"
    assert (found["engine, eager, captions, 8"]["sharing"] > 2) == causal
    assert ("engine, without sharing, captions, 8" in found) == causal
    assert not causal or found["engine, without sharing, captions, 8"]["sharing"] == 1
    pooled = [line["effective_tokens_per_s"] for name, line in found.items() if name.startswith("condition pooling")]
    assert len(pooled) == 3


def test_without_time_on_a_bare_machine_its_file_says_what_was_skipped(tiny_run):
    arguments, lines = tiny_run
    absent = ("ray", "s3fs", "scipy", "sentence_transformers")  # what a machine with torch and transformers may lack
    start = f"import sys, runpy; sys.modules |= dict.fromkeys({absent})"
    start += "; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    script = str(ROOT / "benchmarks" / "gpu.py")
    subprocess.run([sys.executable, "-c", start, script, *arguments, "qwen3-8b", "--limit", "0"], check=True)
    machine, *others = lines().values()
    assert machine["texts"] == 300
    assert len(others) > 10
    assert all(line["skipped"] == "after 0 s" for line in others)
