"""Condition pooling's head as a job in one process: a planted rule is learned, stopped fits resume, what is refused."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers import rated_rows, read_output, read_rejected, sentences, to_csv, train_here, vectors

import raycase
from raycase.commands.embed import EmbedFlags, check_embed
from raycase.commands.train import ConditionPoolingFlags
from raycase.errors import RequestError
from raycase.evaluation.metrics import correlations
from raycase.io.rated_pairs import read_rated
from raycase.io.vectors import pair_cosines
from raycase.job.run import run
from raycase.job.runner import Runner
from raycase.job.verify import verify
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.tokens.stored import STATES, StoredStates
from raycase.training.vector_cache import StateResult

RECIPE = {"layers": (0.0, 1.0), "heads": 4, "head_dim": 16, "hidden": 16, "dim": 32, "epochs": 8, "batch_size": 32}
RECIPE |= {"dropout": 0.1, "learning_rate": 1e-2, "nested": (16, 8)}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    return {
        "train": to_csv(rated_rows(400, 0), folder / "train.csv"),
        "validation": to_csv(rated_rows(100, 1), folder / "validation.csv"),
    }


@pytest.fixture(scope="module")
def job(planted, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling")
    return ConditionPoolingFlags(
        **planted, **RECIPE, model=str(tiny_model), compute="float32", output=str(folder / "a")
    )


@pytest.fixture(scope="module")
def metrics(job):
    return train_here(job)


def test_a_planted_rule_is_learned(job, metrics):
    assert metrics["zero_shot"]["spearman"] < 60
    assert metrics["validation"]["spearman"] > metrics["zero_shot"]["spearman"] + 20
    assert {"spearman_8", "spearman_16"} <= set(metrics["validation"])
    assert "spearman_32" not in metrics["validation"]
    assert train_here(job) == json.loads(json.dumps(metrics)), "it runs once"
    assert "cut to 8 dimensions" in (job.folder / "README.md").read_text()


def test_the_saved_head_gives_the_reported_figures(job, metrics):
    loaded = raycase.load(job.output, dtype=torch.float32, device="cpu")
    rated = read_rated(job.validation, "")
    both = [*rated.sentences1, *rated.sentences2]
    found = loaded.embed(both, [*rated.conditions] * 2)
    index = np.arange(len(both)).reshape(2, -1).T
    wanted = metrics["validation"]["spearman"]
    assert correlations(pair_cosines(found, index), rated.ratings)["spearman"] == pytest.approx(wanted, abs=0.3)
    assert found.shape == (len(both), 32)


def test_unfamiliar_sentences_have_a_share_of_the_unconditional_vector(job, metrics, tmp_path):
    """No training sentence has one letter alone."""
    other = replace(job, output=str(tmp_path / "out"), unconditional_share=0.0)
    without = train_here(other)
    assert without["validation"] == without["without_unconditional_part"] == metrics["without_unconditional_part"]
    loaded, alone = (raycase.load(j.output, dtype=torch.float32, device="cpu") for j in (job, other))
    known, new = job.training().read()[0].sentences1[0], "a"
    for text, same in ((known, True), (new, False)):
        found, wanted = (model.embed([text], "number")[0] for model in (loaded, alone))
        assert np.allclose(found, wanted, atol=1e-6) == same
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(wanted), rel=0.2)


BAD = {"heads": [0], "head_dim": [0], "dim": [0], "batch_size": [0], "epochs": [0], "hidden": [-1], "seed": [-1]}
BAD |= {"dropout": [1.0, -0.1, math.nan], "nested": [(0,), (32,), (8, 64)]}
BAD |= {"learning_rate": [0.0, math.inf], "unconditional_share": [1.0, -0.1, math.nan]}
BAD |= {
    "unconditional_rise": [(2.0, 1.4, 3.0, 4.0), (1.0, 2.0, 4.0, 4.0), (-1.0, 2.0, 3.0, 4.0), (0.0, math.nan, 3.0, 4.0)]
}
BAD |= {"layers": [(), (1.5,), (1.0, 0.99)]}


@pytest.mark.parametrize("name", BAD)
def test_values_out_of_range_are_refused(job, tmp_path, name):
    checked = {*ConditionPoolingFlags.SETTINGS} - {"activation", "gate", "loss"}
    assert checked <= set(BAD)
    for value in BAD[name]:
        with pytest.raises(RequestError, match=f"--{name.replace('_', '-')}: expected"):
            train_here(replace(job, **{name: value}, output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_the_embedding_job_writes_states(tiny_model, tmp_path):
    texts = [*sentences(30), "dog", "poison dog", ""]
    config = ConditionPoolingConfig.untrained(str(tiny_model), layers=(0.5, 1.0))
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), tmp_path / "in.parquet")
    settings = {"input": str(tmp_path / "in.parquet"), "model": str(tiny_model), "unconditional": True}
    settings |= {"compute": "float32", "dtype": "float32", "unit_rows": 10, "max_rejected": 0.1}
    job = EmbedFlags(output=str(tmp_path / "out"), **settings)
    request = check_embed(job)
    encoding = replace(request.encoding, model=config, result=StateResult())
    run(replace(request, encoding=encoding), Runner())
    table, texts = read_output(job.output), texts[:-2]
    assert table["id"].to_pylist() == list(range(len(texts)))
    assert [row["reason"] for row in read_rejected(job.output)] == ["vector not finite", "empty text"]
    assert verify(job.output)["rows_out"] == len(texts)
    found = StoredStates.read(table[STATES], config.states_dim)
    encoded = config.load(dtype=torch.float32).tokens(config.prepare(texts, None))
    wanted, unconditional_ND = encoded.kept, encoded.vectors
    np.testing.assert_array_equal(found.offsets, wanted.offsets)
    np.testing.assert_allclose(found.flat.astype(np.float32), wanted.flat.astype(np.float32), atol=2e-3)
    np.testing.assert_allclose(vectors(table), unconditional_ND, atol=1e-5)
