"""The dry run's estimate against what the job then counts, for every system that embeds."""

from dataclasses import replace

import pytest
import small
from helpers import embed_here

from raycase.commands.embed import check_embed
from raycase.job.runner import Runner
from raycase.job.sample import dry_run
from raycase.models.configs import sentence_encoder
from raycase.papers.baselines.model import bi_encoder
from raycase.papers.dualcse.model import dualcse

UNTRAINED = ("condition-pooling", "csr", "tri-encoder")
TRAINED = {"bi-encoder": bi_encoder, "dualcse": dualcse, "sentence-encoder": sentence_encoder}
THINGS = ("dog", "dress", "people", "bar")
CONDITIONS = tuple(f"{word} of the {thing}" for word in ("color", "number") for thing in THINGS)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("system", ["case", *UNTRAINED, *TRAINED])
def test_it_counts_as_the_job_does(job, system, count, tiny_model, tmp_path):
    job = replace(job, conditions=CONDITIONS[:count])
    if system != "case":
        job = replace(job, prompt=None, pooling=None, model=f"{system}:{tiny_model}")
    if system in TRAINED:
        made = TRAINED[system](str(tiny_model))
        small.disturb(made.trainable(dropout=0.0)).save(tmp_path / "model")
        known = made.known_conditions
        job = replace(job, model=str(tmp_path / "model"), conditions=job.conditions if known is None else known[:count])
        job = replace(job, unconditional=not job.conditions)
    estimate, done = dry_run(check_embed(job), Runner()), embed_here(job)
    assert estimate["pairs"] == done["pairs"]
    assert estimate["tokens"] == pytest.approx(done["tokens"], rel=0.1)
