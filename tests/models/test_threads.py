"""Threads that share a model get what one alone gets, and a forked child computes."""

import os

import numpy as np
import pytest
import small
import torch
from helpers import in_threads, wait_for

from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.embedder import Embedder
from raycase.models.registry import resolve
from raycase.papers.baselines.model import bi_encoder, cross_encoder
from raycase.papers.csr.model import csr

MAKE = {
    "bi-encoder": bi_encoder,
    "csr": csr,
    "cross-encoder": cross_encoder,
    "condition-pooling": ConditionPoolingConfig.untrained,
    "case": lambda folder: resolve(folder, prompt="concat-cs+cond", pooling="mean"),
}
TEXTS = [f"{a} {b} {c}" for a, b in (("red", "people"), ("a dog", "dress")) for c in ("0", "1 2 3")]


def calls(model):
    """Every way to ask a model about a text."""
    under = small.CONDITIONS[:2]
    if not isinstance(model, Embedder):
        return [lambda text: model.score([text], [TEXTS[0]], under[:1])]
    asked = [lambda text: model.encode(text, under[0]), model.encode]
    asked.append(lambda text: model.encode_grid([text, text[::-1]], under))
    if model.config.weighs_words:
        asked.append(lambda text: [word.weight for word in model.word_weights([text], under[0])[0]])
    if hasattr(model, "embed_phrases"):
        asked.append(lambda text: model.embed_phrases([text], under[1]))
    return asked


@pytest.mark.parametrize("name", MAKE)
def test_eight_threads_get_what_one_gets(name, bert):
    model = MAKE[name](bert).load(dtype=torch.float32)
    asked = [(call, text) for text in TEXTS for call in calls(model)]
    found = in_threads(lambda each: each[0](each[1]), asked * 2)
    for (call, text), one, again in zip(asked, found, found[len(asked) :], strict=False):
        wanted = call(text)
        np.testing.assert_allclose(one, wanted, atol=1e-6)
        np.testing.assert_allclose(again, wanted, atol=1e-6)


def test_a_child_that_was_forked_computes(bert):
    """With OpenMP's threads, which do not survive a fork, the child would wait for ever."""
    torch.set_num_threads(2)
    model = ConditionPoolingConfig.untrained(bert).load(dtype=torch.float32)
    wanted = model.encode(TEXTS, small.CONDITIONS[0])
    child = os.fork()
    if not child:
        same = np.allclose(model.encode(TEXTS, small.CONDITIONS[0]), wanted, atol=1e-6)
        os._exit(0 if same else 1)
    ended = []
    wait_for(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], 60)
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
