"""Bi-, tri- and cross-encoders by hand, on the library's own model; what every fine-tuned system's folder keeps."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small
import tiny
import torch
from safetensors.torch import load_file
from small import CONDITIONS, EVERY, SENTENCES, close, system

import raycase
from raycase.data.schema import Reason
from raycase.encoder.pooling import Compose, Pooling
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.systems.baselines import bi_encoder, cross_encoder, tri_encoder
from raycase.systems.contracts import Encoder, PairScorer
from raycase.systems.csr import Form, Router, Weight, csr
from raycase.systems.lora import lora
from raycase.systems.registry import resolve

CONCAT = {"prompt": "concat-cs", "pooling": Pooling.MEAN}
EMBED = {
    "bi": bi_encoder,
    "bi of the condition": lambda model: bi_encoder(model, prompt="concat-sc:condition"),
    "tri": tri_encoder,
    "tri concat": lambda model: tri_encoder(model, compose=Compose.CONCAT, pooling=Pooling.CLS),
    "csr": csr,
    "csr in two layers": lambda model: csr(model, routed=2, weight=Weight.ONLY),
    "csr heavy": lambda model: csr(model, router=Router.HEAVY),
    "csr hidden concat": lambda model: csr(model, router=Router.HIDDEN, compose=Compose.CONCAT),
    "csr random": lambda model: csr(model, router=Router.RANDOM, routed=3),
    "csr without routing": lambda model: csr(model, routed=0, compose=Compose.HADAMARD),
    "csr bi": lambda model: csr(model, form=Form.BI, routed=2),
    "lora": lambda model: lora(model, rank=4, **CONCAT),
    "lora adapter": lambda model: lora(model, rank=4, merged=False, **CONCAT),
}
SYSTEMS = EMBED | {"cross": cross_encoder}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small.save_bert(tmp_path_factory.mktemp("bert"))


def figures(loaded):
    """Vectors or scores of a few pairs."""
    if isinstance(loaded, Encoder):
        return small.vectors(loaded)
    return loaded.score(*zip(*[(s, t, c) for s in SENTENCES for t in SENTENCES for c in CONDITIONS], strict=True))


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """By name: the figures of a system whose weights were changed, and the folder that it was saved in."""
    made = {}

    def save(name, seed=0):
        if (name, seed) not in made:
            module = small.disturb(SYSTEMS[name](bert).trainable(), seed).eval()
            found = figures(module.system)
            folder = tmp_path_factory.mktemp("trained") / "model"
            module.system.save(folder)
            made[name, seed] = found, folder
        return made[name, seed]

    return save


# --------------------------------------------------------------------------------------------------------- bi-encoder


def test_a_bi_encoder_reads_the_condition_then_the_sentence_and_pools_every_token(bert):
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "dog: red")[0])
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.index(":") < tokens.index("red")
    wanted = [small.mean(bert, f"{c}: {s}") for s, c in EVERY]
    close(small.vectors(system(bi_encoder(bert))), wanted)


def test_a_bi_encoder_of_another_prompt_pools_what_it_names(bert):
    """Four tokens of "a dog": [CLS] a dog : people [SEP] -> people alone."""
    [found] = system(bi_encoder(bert, prompt="concat-cs:sentence")).embed(["people"], ["a dog"])
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "a dog: people")[0])
    [place] = [i for i, token in enumerate(tokens) if token == "people"]
    close(found, small.states(bert, "a dog: people")[place])


# -------------------------------------------------------------------------------------------------------- tri-encoder


@pytest.mark.parametrize("how", Compose)
def test_a_tri_encoder_composes_two_vectors(bert, how):
    apart = [(small.mean(bert, s), small.mean(bert, c)) for s, c in EVERY]
    wanted = [s * c for s, c in apart] if how is Compose.HADAMARD else [[*s, *c] for s, c in apart]
    config = tri_encoder(bert, compose=how)
    close(small.vectors(system(config)), wanted)
    assert config.dim == len(wanted[0])
    assert config.plain_dim == small.DIM


def test_a_tri_encoder_by_cls_takes_the_first_state(bert):
    s, c = (small.states(bert, text)[0].numpy() for text in EVERY[1])
    close(small.vectors(system(tri_encoder(bert, pooling=Pooling.CLS)), EVERY[1:2]), [s * c])


def encoded_tokens(loaded, monkeypatch):
    """Tokens of each batch that the encoder is given."""
    tokens, original = [], loaded.encoder.encode

    def encode(batch):
        tokens.append(int(batch.lengths.sum()))
        return original(batch)

    monkeypatch.setattr(loaded.encoder, "encode", encode)
    return tokens


def length(bert, texts):
    return sum(small.ids(bert, text).shape[1] for text in texts)


def test_a_tri_encoder_encodes_each_text_once_and_remembers_conditions(bert, monkeypatch):
    loaded = system(tri_encoder(bert))
    tokens = encoded_tokens(loaded, monkeypatch)
    first = small.vectors(loaded)
    assert tokens == [length(bert, SENTENCES), length(bert, CONDITIONS)]
    tokens.clear()
    again = loaded.embed([SENTENCES[0], *SENTENCES[:2]], [CONDITIONS[0], CONDITIONS[1], "people"])
    assert tokens == [length(bert, SENTENCES[:2]), length(bert, ["people"])]
    np.testing.assert_allclose(again[:2], first[:2], atol=2e-6)
    tokens.clear()
    loaded.embed(SENTENCES, "people")
    assert tokens == [length(bert, SENTENCES)]


def test_the_memory_of_conditions_is_bounded(bert, monkeypatch):
    """Room for four: one more begins anew, and every vector is right."""
    monkeypatch.setattr("raycase.systems.pairs.MEMORY_BYTES", 4 * small.DIM * 4)
    fresh = small.vectors(system(tri_encoder(bert)))
    loaded = system(tri_encoder(bert))
    loaded.embed(SENTENCES[:3], ["people", "red", "woman"])
    assert list(loaded._memory.vectors) == ["people", "red", "woman"]
    loaded.embed(SENTENCES[:1], "people")
    assert len(loaded._memory.vectors) == 3
    close(small.vectors(loaded), fresh)
    assert list(loaded._memory.vectors) == CONDITIONS


def test_training_encodes_each_text_once(bert, monkeypatch):
    config = tri_encoder(bert)
    module = config.trainable(dropout=0.0)
    tokens = small.seen(module.system.encoder, monkeypatch)
    rated = small.rated(rows=12)
    rows = np.array([0, 1, 4, 7])
    module(config.rated(rated).take(rows))
    sentences = {texts[row] for row in rows for texts in (rated.sentences1, rated.sentences2)}
    assert len(sentences) < 8
    assert sum(tokens) == length(bert, sentences) + length(bert, {rated.conditions[row] for row in rows})


@pytest.mark.parametrize("name", ["tri", "tri concat"])
def test_where_every_pair_is_refused_vectors_have_their_width(bert, name):
    config = EMBED[name](bert)
    loaded = system(config)
    found = loaded.encode_prepared(config.prepare(["\u200b", " "], ["dog", "dog"]))
    assert found.refused == [Reason.EMPTY_TEXT] * 2
    assert found.vectors.shape == (2, config.dim)
    assert np.isnan(found.vectors).all()


def test_a_pair_that_is_refused_leaves_the_others(bert):
    config = tri_encoder(bert, compose=Compose.CONCAT)
    loaded = system(config)
    found = loaded.encode_prepared(
        config.prepare([SENTENCES[0], "\u200b", *SENTENCES[1:3]], ["dog", "red", " ", "red"])
    )
    assert found.refused == [None, Reason.EMPTY_TEXT, Reason.EMPTY_CONDITION, None]
    close(found.vectors[[0, 3]], system(config).embed([SENTENCES[0], SENTENCES[2]], ["dog", "red"]))
    assert np.isnan(found.vectors[[1, 2]]).all()


# ------------------------------------------------------------------------------------------------------ cross-encoder


def triple(config, *texts):
    batch = config.tokens(*([text] for text in texts))
    return batch, batch.ids(np.array([0])).flat.tolist()


def test_a_cross_encoder_reads_both_sentences_then_the_condition(bert):
    batch, found = triple(cross_encoder(bert), *SENTENCES[:2], "dog")
    pieces = small.tokenizer(bert)
    parts = [pieces(text, add_special_tokens=False)["input_ids"] for text in (*SENTENCES[:2], "dog")]
    cls, sep = pieces.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    assert found == [cls, *parts[0], sep, *parts[1], sep, *parts[2], sep]
    assert (batch.reasons, batch.truncated.tolist()) == ([None], [False])


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 3, 6, (3, 3)),
        (10, 10, 6, (3, 3)),
        (10, 10, 7, (4, 3)),
        (10, 2, 6, (4, 2)),  # what the other leaves
        (2, 10, 6, (2, 4)),
        (10, 3, 7, (4, 3)),
        (4, 10, 7, (4, 3)),
        (9, 9, 2, (1, 1)),
    ],
)
def test_a_long_triple_loses_the_ends_of_its_sentences(bert, first, second, room, kept):
    """Besides the sentences: [CLS], three [SEP], two tokens of the condition."""
    config = cross_encoder(bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=room + 6))
    words = ["red dress . " * 5, "dog at " * 8]
    tokens = small.tokenizer(bert)
    parts = [tokens(text, add_special_tokens=False)["input_ids"] for text in (*words, "number people")]
    texts = [tokens.decode(ids[:n]) for ids, n in zip(parts[:2], (first, second), strict=True)]
    batch, found = triple(config, *texts, "number people")
    cls, sep = tokens.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    assert len(parts[2]) == 2
    assert found == [cls, *parts[0][: kept[0]], sep, *parts[1][: kept[1]], sep, *parts[2], sep]
    assert batch.truncated.tolist() == [kept != (first, second)]
    assert len(found) <= config.encoder.max_tokens


def test_a_condition_that_leaves_no_room_for_two_tokens_is_refused(bert):
    config = cross_encoder(bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=7))
    batch, found = triple(config, "red", "dress", "number people")
    assert (batch.reasons, found) == ([Reason.NO_ROOM], [])
    loaded = system(config)
    with pytest.raises(ValueError, match=r"pair 1: condition leaves no room .*'red', 'dress', 'number people'"):
        loaded.score(["red", "red"], ["dress", "dress"], ["number", "number people"])


@pytest.mark.parametrize(
    ("texts", "reason"),
    [(("\u200b", "red", "dog"), "empty text"), (("red", " ", "dog"), "empty text"), (("red", "red", ""), "empty cond")],
)
def test_a_text_without_tokens_is_refused_by_its_pair(bert, texts, reason):
    both = [[good, bad] for good, bad in zip(("a", "dog", "color"), texts, strict=True)]
    with pytest.raises(ValueError, match=f"pair 1: {reason}"):
        system(cross_encoder(bert)).score(*both)
    rated = small.rated(rows=2)
    changed = {
        f: [getattr(rated, f)[0], t] for f, t in zip(("sentences1", "sentences2", "conditions"), texts, strict=True)
    }
    with pytest.raises(RequestError, match=f"rated-0, row 1: expected texts that can be encoded, got: {reason}"):
        cross_encoder(bert).rated(replace(rated, **changed))


def test_lists_of_different_length_are_refused(bert):
    with pytest.raises(ValueError):
        system(cross_encoder(bert)).score(["a", "dog"], ["a", "dog"], ["color"])
    with pytest.raises(ValueError, match="as many conditions as sentences"):
        system(tri_encoder(bert)).embed(["a", "dog"], ["color"])


def test_a_score_is_a_linear_layer_of_the_first_state(trained, bert):
    found, folder = trained("cross")
    head = load_file(folder / "extra.safetensors")
    model, wanted = small.stock(folder / "encoder"), []
    for s in SENTENCES:
        for t in SENTENCES:
            for c in CONDITIONS:
                _, tokens = triple(cross_encoder(bert), s, t, c)
                with torch.no_grad():
                    cls_D = model(input_ids=torch.tensor([tokens])).last_hidden_state[0, 0]
                wanted.append((head["weight"][0] @ cls_D + head["bias"][0]).item())
    close(found, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3-embedding-0.6b", "gte-qwen2-7b"])
def test_a_cross_encoder_needs_a_first_token_that_sees_all(tmp_path, monkeypatch, kind):
    tiny.save_encoder(tmp_path, kind)
    monkeypatch.setitem(ENCODERS, kind, replace(ENCODERS[kind], source=str(tmp_path)))
    with pytest.raises(RequestError, match=rf"--model: expected an encoder whose first token, \[CLS\].* got {kind}"):
        cross_encoder(kind)


def test_a_cross_encoder_ranks_and_gives_no_vectors(bert):
    cross, tri = system(cross_encoder(bert)), system(tri_encoder(bert))
    assert isinstance(cross, PairScorer) and not isinstance(cross, Encoder)
    assert isinstance(tri, Encoder) and not isinstance(tri, PairScorer)


def test_the_scores_of_training_are_those_that_are_given(bert):
    config = cross_encoder(bert)
    module = config.trainable(dropout=0.5)
    batch = config.rated(small.rated())
    close(module.eval()(batch).detach(), module.scores(batch))
    assert not np.allclose(module.train()(batch).detach(), module.scores(batch), atol=1e-2)


# -------------------------------------------------------------------------------------- what all that embed must do


@pytest.mark.parametrize("name", EMBED)
def test_the_vectors_of_training_are_those_that_are_given(bert, name):
    config = EMBED[name](bert)
    module = small.disturb(config.trainable(), scale=0.02)
    prepared = config.rated(small.rated()).take(np.arange(24))
    close(module.eval().system(prepared).detach(), module.system.encode_prepared(prepared).vectors)
    assert isinstance(module.system, Encoder)


@pytest.mark.parametrize("name", EMBED)
def test_a_score_of_training_is_the_cosine_under_the_condition(bert, name):
    config, rated = EMBED[name](bert), small.rated()
    module = small.disturb(config.trainable(dropout=0.0), scale=0.02).eval()
    first, second = (module.system.embed(s, rated.conditions) for s in (rated.sentences1, rated.sentences2))
    wanted = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    texts = config.rated(rated)
    close(module.scores(texts), wanted)
    rows = np.array([5, 0, 5, 17])
    close(module(texts.take(rows)).detach(), wanted[rows])


@pytest.mark.parametrize("name", EMBED)
def test_one_condition_one_pair_and_no_condition(bert, name):
    loaded = system(EMBED[name](bert))
    both = loaded.embed(SENTENCES, CONDITIONS[:1] * len(SENTENCES))
    close(loaded.embed(SENTENCES, CONDITIONS[0]), both)
    close(loaded.embed(SENTENCES[2:3], CONDITIONS[0]), both[2:3])
    other = np.allclose(loaded.embed(SENTENCES, CONDITIONS[1]), both, atol=1e-3)
    assert other == (name == "csr random")
    plain = loaded.embed(SENTENCES, None)
    pooled = (lambda s: small.states(bert, s)[0].numpy()) if name == "tri concat" else lambda s: small.mean(bert, s)
    close(plain, [pooled(s) for s in SENTENCES])


@pytest.mark.parametrize("name", EMBED)
def test_tokens_are_counted_without_the_weights(bert, name):
    config = EMBED[name](bert)
    counts = config.count_tokens(["A woman", "\u200b", "people"], ["dog", "dog", " "])
    apart = name.startswith("tri") or (name.startswith("csr") and name != "csr bi")
    texts = {"bi of the condition": ["A woman: dog"], "bi": ["dog: A woman"], "csr bi": ["dog: A woman"]}
    wanted = ["A woman", "dog"] if apart else texts.get(name, ["dog A woman"])
    assert counts.tolist() == [length(bert, wanted), 0, 0]
    assert config.count_tokens(["A woman"], None).tolist() == [length(bert, ["A woman"])]


# ---------------------------------------------------------------------------------------------------------- the folder


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_saved_system_is_what_it_was(trained, bert, name):
    wanted, folder = trained(name)
    loaded = raycase.load(str(folder), dtype=torch.float32)
    close(figures(loaded), wanted, atol=5e-6)
    assert not np.allclose(figures(system(SYSTEMS[name](bert))), wanted, atol=1e-3)
    kept = SYSTEMS[name](bert)
    assert (loaded.config.SYSTEM, loaded.config.own) == (kept.SYSTEM, kept.own)
    assert json.loads((folder / "raycase.json").read_text())["system"] == kept.SYSTEM


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_description_goes_with_the_weights_and_not_with_the_place(trained, bert, name, tmp_path):
    _, folder = trained(name)
    described = resolve(str(folder)).describe()
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert resolve(str(tmp_path / "elsewhere")).describe() == described
    assert resolve(str(trained(name, seed=1)[1])).describe() != described
    assert SYSTEMS[name](bert).describe() != described
    assert str(folder) not in json.dumps(described)
    json.dumps(described)


@pytest.mark.parametrize("name", ["cross", "csr heavy"])
def test_weights_beside_the_encoder_are_part_of_the_description(trained, name, tmp_path):
    shutil.copytree(trained(name)[1], tmp_path / "model")
    described = resolve(str(tmp_path / "model")).describe()
    shutil.copyfile(trained(name, seed=1)[1] / "extra.safetensors", tmp_path / "model" / "extra.safetensors")
    assert resolve(str(tmp_path / "model")).describe() != described


def test_choices_are_part_of_the_description(bert):
    made = [make(bert).describe() for make in SYSTEMS.values()]
    assert all(a != b for i, a in enumerate(made) for b in made[:i])


def test_a_trained_model_is_no_encoder_to_begin_with_but_its_encoder_is(trained):
    _, folder = trained("tri")
    for begin in (bi_encoder, tri_encoder, cross_encoder, csr):
        with pytest.raises(RequestError, match=f"got the trained model {folder}; its encoder is {folder}/encoder$"):
            begin(str(folder))
        begin(str(folder / "encoder"))
    _, adapter = trained("lora adapter")
    with pytest.raises(RequestError, match=f"got the trained model {adapter}$"):
        lora(str(adapter), **CONCAT)
