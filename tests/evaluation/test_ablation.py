"""The ablation of appendix D: its systems, and the paper's figures beside ours."""

import json
from dataclasses import replace

import numpy as np

from raycase.encoder.prompts import TokenSpan
from raycase.evaluation.ablation import ablation, ablation_configs
from raycase.systems.registry import resolve


def random_vectors(rated_pairs):
    random = np.random.default_rng(0)
    return lambda config: random.normal(size=(len(rated_pairs.distinct), 4))


def test_the_ablation_stands_beside_the_papers_figures(rated_pairs):
    found = ablation(resolve("simcse-bert-base"), rated_pairs, random_vectors(rated_pairs))
    assert found["encoder"] == "simcse-bert-base"
    published = {(r["pooling"], r["setting"]): r["published"] for r in found["rows"] if r["published"] is not None}
    assert published == {
        ("last", "CONC(s + c)"): 4.37,
        ("last", "CONC(c + s)"): 1.25,
        ("last", "CONC(s + c) - c"): 7.05,
        ("last", "CONC(c + s) - c"): 6.00,
    }
    settings = {(row["pooling"], row["setting"]) for row in found["rows"]}
    assert len(settings) == len(found["rows"]) == 4 * 4 * 2 + 2 * 2  # two prompts of ours, over a span only


def test_concatenations_over_the_condition_are_ablated_over_everything_too(encoder):
    config = resolve(str(encoder), prompt="concat-sc", pooling="mean")
    config = replace(config, encoder=replace(config.encoder, span=TokenSpan.CONDITION))
    configs = ablation_configs(config)
    prompts = {c.encoder.prompt for c in configs}
    everything = {"concat-sc:all", "concat-cs:all"}
    assert prompts == {"sent", "cond", "concat-sc", "concat-cs", "question", "statement"} | everything
    assert len({json.dumps(c.describe()) for c in configs}) == len(configs) == 16
    assert config in configs  # so its vectors are in the cache already
