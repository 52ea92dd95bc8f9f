"""Condition pooling: its heads over the library's states; what is computed once; bad input."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from scipy.special import softmax
from small import CONDITIONS, EVERY, SENTENCES, close, system

import raycase
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionHead, HeadConfig
from raycase.io.schema import Reason
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.model_folder import write_folder
from raycase.models.registry import resolve

KINDS = {"bert": (0.0, 2 / 3, 1.0), "qwen": (0.5, 1.0)}  # depths
LAYERS = {"bert": [0, 2, 3], "qwen": [1, 2]}
HEAD = {"activation": "gelu", "heads": 3, "head_dim": 5, "output_dim": 7}


@pytest.fixture(scope="module")
def encoders(bert, qwen):
    return {"bert": bert, "qwen": qwen}


def save_head(folder, config, **options):
    """A model folder with a random head, whose numbers are far from those of its start."""
    shape = HeadConfig(states_dim=config.states_dim, **HEAD | options)
    torch.manual_seed(0)
    head = small.disturb(ConditionHead(shape), scale=0.2).half().float()
    write_folder(folder, replace(config, head=shape), head, {}, "a card")
    return str(folder)


@pytest.fixture(scope="module")
def trained(encoders, tmp_path_factory):
    """The folders of trained systems by encoder."""
    return {
        kind: save_head(
            tmp_path_factory.mktemp(f"head-{kind}"), ConditionPoolingConfig.untrained(encoders[kind], layers=depths)
        )
        for kind, depths in KINDS.items()
    }


def opened(folder, **options):
    return raycase.load(folder, dtype=torch.float32, device="cpu", **options)


def texts(encoder, layers):
    """H of each pair's sentence and e of its condition, in float64."""
    for sentence, condition in EVERY:
        yield (
            small.token_states(encoder, sentence, layers).astype(np.float64),
            small.token_states(encoder, condition, layers).astype(np.float64).mean(0),
        )


def cosines(rows, vector):
    return rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)


def zero_shot(encoder, last):
    return [softmax(cosines(H, e) / 0.05) @ H for H, e in texts(encoder, [last])]


@torch.no_grad()
def with_head(folder, encoder, layers):
    """The head, whose formula `test_condition_head.py` has, of the library's states of each pair alone."""
    head = opened(folder).head
    for H, e in texts(encoder, layers):
        H, e = torch.from_numpy(H).float()[None], torch.from_numpy(e).float()[None]
        yield small.pooled(head, H, torch.ones(H.shape[:2], dtype=torch.bool), e)[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_without_training_words_weigh_by_their_cosine(encoders, kind):
    wanted = zero_shot(encoders[kind], LAYERS[kind][-1])
    loaded = system(ConditionPoolingConfig.untrained(encoders[kind], layers=KINDS[kind]), batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    close(small.vectors(opened(f"condition-pooling:{encoders[kind]}")), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_weighs_the_librarys_states(trained, encoders, kind):
    wanted = list(with_head(trained[kind], encoders[kind], LAYERS[kind]))
    loaded = system(resolve(trained[kind]), batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    assert loaded.dim == 7 and np.std(wanted, axis=0).min() > 1e-3


def test_the_vector_is_the_sum_of_the_words(encoders):
    """Without training: sum_t w_t(c) h_t over the tokens of the text."""
    loaded, text = system(ConditionPoolingConfig.untrained(encoders["bert"])), SENTENCES[0]
    states_TD = small.states(encoders["bert"], text)[1:-1].numpy()
    for condition in CONDITIONS:
        (words,) = loaded.word_weights([text], condition)
        close(np.array([w.weight for w in words]) @ states_TD, loaded.embed([text], condition)[0], atol=1e-5)


def test_without_a_condition_it_is_the_encoder(encoders, trained):
    wanted = [small.mean(encoders["bert"], text) for text in SENTENCES]
    close(opened(trained["bert"]).embed(SENTENCES, None), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_what_else_is_embedded_does_not_matter(trained, kind):
    config = resolve(trained[kind])
    wanted = np.concatenate([small.vectors(system(config), [pair]) for pair in EVERY[::3]])
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(wanted)), 2))  # not every sentence by each
    for batch_tokens in (1, 45):
        loaded = system(config, batch_tokens=batch_tokens)
        close(small.vectors(loaded, [EVERY[::3][i] for i in order]), wanted[order], atol=1e-5)


def test_a_long_sentence_is_cut_and_a_long_condition_is_refused(encoders):
    loaded, long = opened(f"condition-pooling:{encoders['bert']}"), "two people play " * 200
    H, e = (small.token_states(encoders["bert"], text, [3]).astype(np.float64) for text in (long, "dog"))
    close(loaded.embed([long], "dog")[0], softmax(cosines(H, e.mean(0)) / 0.05) @ H, atol=1e-5)
    assert len(H) == 510
    with pytest.raises(ValueError, match="pair 0: "):
        loaded.embed(["dog"], long)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_that_is_refused_leaves_the_others(trained, kind):
    loaded = opened(trained[kind])
    pairs = [EVERY[0], ("", "dog"), EVERY[5], (SENTENCES[0], " "), EVERY[0], ("", CONDITIONS[1])]
    found = loaded.encode_prepared(loaded.config.prepare(*map(list, zip(*pairs, strict=True))))
    empty = Reason.EMPTY_TEXT
    assert found.refused == [None, empty, None, Reason.EMPTY_CONDITION, None, empty]
    assert np.isnan(found.vectors[[1, 3, 5]]).all()
    close(found.vectors[[0, 2, 4]], small.vectors(loaded, [EVERY[0], EVERY[5], EVERY[0]]), atol=1e-5)
    none = loaded.encode_prepared(loaded.config.prepare(["", " "], ["dog", "red"]))
    assert none.refused == [empty] * 2 and none.vectors.shape == (2, 7)
    assert loaded.embed([], []).shape == (0, 7)


def test_what_it_does_not_have_is_refused(encoders, trained):
    name = f"condition-pooling:{encoders['bert']}"
    assert resolve(name).name == name
    assert resolve(name, pooling="cls").encoder.pooling == (Pooling.CLS,)
    for choices, said in (({"prompt": "cond"}, r"--prompt: .* has none"), ({"subtract": True}, "--subtract: ")):
        with pytest.raises(RequestError, match=said):
            resolve(name, **choices)
    with pytest.raises(RequestError, match=r"--pooling: .* was trained with mean-all, got cls"):
        resolve(trained["bert"], pooling="cls")
    with pytest.raises(RequestError, match="--model: expected an encoder to fine-tune, got the trained model"):
        resolve(f"condition-pooling:{trained['bert']}")
    with pytest.raises(RequestError, match="--model: expected one of "):
        resolve("condition-pooling:nothing")
