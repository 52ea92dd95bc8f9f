"""Condition pooling: both formulas in plain numpy over the library's states; what is computed once; bad input."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small
import tiny
import torch
from safetensors.torch import load_file, save_file
from scipy.special import erf, expit, softmax
from small import CONDITIONS, DIM, EVERY, SENTENCES, close, system

import raycase
from raycase.data.schema import Reason
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import TokenSpan
from raycase.encoder.sources import load_tokenizer
from raycase.errors import RequestError
from raycase.systems.condition_head import WEIGHTS, ConditionHead, HeadConfig
from raycase.systems.condition_pooling import condition_pooling, write_head_folder
from raycase.systems.registry import resolve

KINDS = {"bert": (0.0, 2 / 3, 1.0), "qwen": (0.5, 1.0)}  # depths
LAYERS = {"bert": [0, 2, 3], "qwen": [1, 2]}
HEAD = {"heads": 3, "head_dim": 5, "output_dim": 7}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    qwen = tiny.save_encoder(tmp_path_factory.mktemp("qwen"), "qwen3-embedding-0.6b")
    return {"bert": small.save_bert(tmp_path_factory.mktemp("bert")), "qwen": str(qwen)}


def save_head(folder, config, **options):
    """A model folder with a random head, whose numbers are far from those of its start."""
    shape = HeadConfig(states_dim=config.states_dim, **HEAD | options)
    torch.manual_seed(0)
    head = small.disturb(ConditionHead(shape), scale=0.2).half().float()
    write_head_folder(folder, replace(config, head=shape), head, {}, "a card")
    return str(folder)


@pytest.fixture(scope="module")
def trained(encoders, tmp_path_factory):
    """The folders of trained systems by encoder."""
    return {
        kind: save_head(tmp_path_factory.mktemp(f"head-{kind}"), condition_pooling(encoders[kind], layers=depths))
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


def with_head(folder, encoder, layers):
    """sigmoid(G e) * sum_t w_t GELU(V H_t), w = sum_k softmax(M e)_k softmax_t(tau_k cos(Q_k e, K_k H_t))."""
    t = {name: value.numpy().astype(np.float64) for name, value in load_file(f"{folder}/{WEIGHTS}").items()}
    for H, e in texts(encoder, layers):
        w = np.zeros(len(H))
        for k, share in enumerate(softmax(t["mix.weight"] @ e + t["mix.bias"])):
            rows = slice(5 * k, 5 * k + 5)
            w += share * softmax(t["tau"][k] * cosines(H @ t["keys.weight"][rows].T, t["queries.weight"][rows] @ e))
        np.testing.assert_allclose(w.sum(), 1)
        value = H @ t["values.0.weight"].T + t["values.0.bias"]
        value *= (1 + erf(value / np.sqrt(2))) / 2
        yield expit(t["gate.weight"] @ e + t["gate.bias"]) * (w @ value)


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_without_training_words_weigh_by_their_cosine(encoders, kind, unpadded):
    wanted = zero_shot(encoders[kind], LAYERS[kind][-1])
    loaded = system(condition_pooling(encoders[kind], layers=KINDS[kind]), unpadded=unpadded, batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    close(small.vectors(opened(f"condition-pooling:{encoders[kind]}")), wanted, atol=1e-5)


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_in_plain_numpy(trained, encoders, kind, unpadded):
    wanted = list(with_head(trained[kind], encoders[kind], LAYERS[kind]))
    loaded = system(resolve(trained[kind]), unpadded=unpadded, batch_tokens=60)
    close(small.vectors(loaded), wanted, atol=1e-5)
    assert loaded.dim == 7 and np.std(wanted, axis=0).min() > 1e-3


@pytest.mark.parametrize("some", [EVERY, EVERY[:7], EVERY[:1] * 2])
def test_vectors_are_rounded_where_they_are_computed(trained, some):
    """Also where a sentence has not all conditions of its batch."""
    loaded = opened(trained["bert"])
    prepared = loaded.config.prepare(*map(list, zip(*some, strict=True)))
    exact = loaded.encode_prepared(prepared).vectors
    loaded.round_to("float16")
    found = loaded.encode_prepared(prepared).vectors
    assert (exact.dtype, found.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(found, exact.astype(np.float16))


def test_without_a_condition_it_is_the_encoder(encoders, trained):
    wanted = [small.mean(encoders["bert"], text) for text in SENTENCES]
    close(opened(trained["bert"]).embed(SENTENCES, None), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unpadded", [False, True])
def test_what_else_is_embedded_does_not_matter(trained, kind, unpadded):
    config = resolve(trained[kind])
    wanted = np.concatenate([small.vectors(system(config, unpadded=False), [pair]) for pair in EVERY[::3]])
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(wanted)), 2))  # not every sentence by each
    for batch_tokens in (1, 45):
        loaded = system(config, unpadded=unpadded, batch_tokens=batch_tokens)
        close(small.vectors(loaded, [EVERY[::3][i] for i in order]), wanted[order], atol=1e-5)


def test_each_sentence_and_each_new_condition_is_one_pass(trained):
    loaded, passes = opened(trained["bert"]), []
    loaded.encoder.layers[0].register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    first = small.vectors(loaded, EVERY * 2)
    assert sum(passes) == len(SENTENCES) + len(CONDITIONS)
    passes.clear()
    np.testing.assert_allclose(small.vectors(loaded), first[: len(EVERY)], atol=1e-5)
    assert sum(passes) == len(SENTENCES)
    passes.clear()
    loaded.embed(SENTENCES[:1] * 2, [CONDITIONS[0], "a dog"])
    assert sum(passes) == 2


def spoiled(folder, to, content=None, **changes):
    """A copy of a model folder with other weights of its head, or other bytes in their place."""
    shutil.copytree(folder, to)
    if content is None:
        save_file(load_file(to / WEIGHTS) | changes, to / WEIGHTS)
    else:
        (to / WEIGHTS).write_bytes(content)
    return str(to)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tau": torch.ones(2)}, "got: size mismatch for tau: "),
        ({"other": torch.ones(2)}, 'got: Unexpected key.*"other"'),
        ({"tau": torch.tensor([1, float("nan"), 1])}, "expected finite weights"),
        ({"content": b"nothing"}, "expected weights of"),
    ],
)
def test_weights_that_do_not_fit_are_refused(trained, tmp_path, changes, said):
    with pytest.raises(RequestError, match=said):
        opened(spoiled(trained["bert"], tmp_path / "copy", **changes))


def test_a_head_of_version_0_2_with_a_whole_condition_is_refused(trained, tmp_path):
    folder = spoiled(trained["bert"], tmp_path / "copy")
    file = tmp_path / "copy" / "raycase.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"whole_condition": True}))
    with pytest.raises(RequestError, match="whole_condition: expected no such name"):
        resolve(folder)


def test_a_folder_without_its_head_or_with_one_for_other_layers_is_refused(trained, tmp_path):
    folder = spoiled(trained["bert"], tmp_path / "copy")
    file = tmp_path / "copy" / "raycase.json"
    whole = file.read_text()
    file.write_text(whole.replace(f'"states_dim": {3 * DIM}', f'"states_dim": {DIM}'))
    with pytest.raises(RequestError, match="expected weights of "):
        opened(folder)
    file.write_text(whole)
    (tmp_path / "copy" / WEIGHTS).unlink()
    with pytest.raises(RequestError, match=WEIGHTS):
        opened(folder)


@pytest.mark.parametrize("text", ["  ", "\ufffd"])  # BERT drops the last
def test_a_text_without_words_is_refused(trained, text):
    loaded = opened(trained["bert"])
    for pair, said in (((text, "dog"), "empty text"), (("a dog", text), "empty condition")):
        with pytest.raises(ValueError, match=f"pair 1: {said}"):
            small.vectors(loaded, [("a dog", "dog"), pair])


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_never_words(encoders, kind):
    """Those around a text are masked out, and those written in it are text."""
    config = condition_pooling(encoders[kind])
    added = load_tokenizer(config.encoder).tokenizer.get_added_tokens_decoder()
    special = {i: token.content for i, token in added.items() if token.special and token.content != "[UNK]"}
    batch = config.prepare([" ".join(special.values())], ["dog"]).alone[0]
    read = batch.ids(np.arange(1)).flat[batch.start[0, -1] : batch.end[0, -1]]
    assert len(special) and len(read) and special.keys().isdisjoint(read.tolist())


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


@pytest.mark.parametrize("unpadded", [False, True])
def test_what_was_computed_is_counted(trained, encoders, unpadded):
    loaded, folder = system(resolve(trained["bert"]), unpadded=unpadded), encoders["bert"]
    prepared = loaded.config.prepare(*map(list, zip(*EVERY * 2, strict=True)))
    for new in (small.length(folder, CONDITIONS), 0):  # conditions are remembered
        found = loaded.encode_prepared(prepared)
        assert found.distinct == len(EVERY)
        assert found.work.processed == small.length(folder, SENTENCES) + new
    counted = loaded.config.count_tokens(*map(list, zip(*EVERY, strict=True)))
    assert counted.tolist() == [small.length(folder, pair) for pair in EVERY]


def test_every_choice_is_another_system(encoders):
    config = condition_pooling(encoders["bert"])
    made = [
        config,
        condition_pooling(encoders["bert"], layers=(0.0, 1.0)),
        condition_pooling(encoders["bert"], pooling=Pooling.CLS),
        *(replace(config, keep=keep) for keep in (TokenSpan.ALL, TokenSpan.SENTENCE)),
    ]
    assert len({json.dumps(some.describe()) for some in made}) == len(made)
    assert condition_pooling(encoders["bert"], layers=(0.99,)).describe() == config.describe(), "the same layer"


def test_the_pooling_is_that_of_the_vector_without_condition(encoders):
    mean, cls = (
        system(condition_pooling(encoders["bert"], layers=(1.0, 0.0), pooling=p)) for p in (Pooling.MEAN, Pooling.CLS)
    )
    close(cls.embed(SENTENCES, None), [small.states(encoders["bert"], text)[0] for text in SENTENCES], atol=1e-5)
    close(small.vectors(cls), small.vectors(mean), atol=1e-5)


def test_what_it_does_not_have_is_refused(encoders, trained):
    name = f"condition-pooling:{encoders['bert']}"
    assert resolve(name).model == name
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
