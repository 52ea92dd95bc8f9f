"""CSR (section 2): eq. 1 against the library's own BERT with hooks, one pair at a time; what is computed once."""

import json
import math
import shutil

import numpy as np
import pytest
import small
import tiny
import torch
from architectures import save_random
from safetensors.torch import load_file, save_file
from small import DIM, EVERY, SENTENCES, close, system

import raycase
from raycase.errors import RequestError
from raycase.models.registry import resolve
from raycase.papers.csr import Asks, Router
from raycase.papers.csr.model import csr


def attention(layer):
    """Query, key and dense projection of a layer of the library's."""
    if hasattr(layer.attention, "attn"):  # MPNet's
        return layer.attention.attn.q, layer.attention.attn.k, layer.attention.attn.o
    return layer.attention.self.query, layer.attention.self.key, layer.attention.output.dense


class Reference:
    """Eq. 1 in the library's model, by hooks; one text at a time, so that nothing is padded."""

    def __init__(self, folder, *, routed=1, router=Router.QUERY, asks=Asks.CLS):
        self.folder, self.model = folder, small.stock(folder)
        self.router, self.asks = router, asks
        self.w = []  # of the last pair, a layer each
        self.layers = list(self.model.encoder.layer)
        self.routed = self.layers[len(self.layers) - routed :]

    def run(self, text):
        return self.model(input_ids=small.ids(self.folder, text)).last_hidden_state[0]

    def hooked(self, text, hooks):
        """The mean state of a text, with hooks (module, what to do with inputs and output) for this once."""
        handles = [
            part.register_forward_hook(lambda _, given, made, act=act: act(given[0], made)) for part, act in hooks
        ]
        try:
            return self.run(text).mean(0)
        finally:
            for handle in handles:
                handle.remove()

    def weighted(self, held):
        """What is done to the attention's output: times 1 + w, or w times the number of words."""

        def weighted(_, made):
            factor = held["w"] * (len(held["w"]) - 2) if self.asks is Asks.WORDS else held["w"] + 1
            return made * factor[None, :, None]

        return weighted

    def ask(self, condition):
        """The query of [CLS] in the last layer, or what it is made from; or the mean of those of its words."""
        held = []
        self.hooked(condition, [(attention(self.layers[-1])[0], lambda x, q: held.append((x[0], q[0])))])
        hidden, query = (t[1:-1].mean(0) if self.asks is Asks.WORDS else t[0] for t in held[0])
        return hidden if self.router is Router.HIDDEN else query

    def vector(self, sentence, condition):
        asked, held, hooks, self.w = self.ask(condition), {}, [], []

        def score(hidden, key):
            keys = hidden[0] if self.router is Router.HIDDEN else key[0]
            scores = torch.stack([asked @ k for k in keys]) / math.sqrt(DIM)
            shares = scores.exp()
            if self.asks is Asks.WORDS:
                shares[[0, -1]] = 0
            held["w"] = shares / shares.sum()
            self.w.append(held["w"])

        for layer in self.routed:
            _, key, dense = attention(layer)
            hooks += [(key, lambda x, k: score(x, k)), (dense, self.weighted(held))]
        return self.hooked(sentence, hooks)

    @torch.no_grad()
    def vectors(self):
        return torch.stack([self.vector(s, c) for s, c in EVERY])


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """A random MPNet whose relative positions matter."""
    folder = save_random(tmp_path_factory.mktemp("mpnet"), "mpnet")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.relative_attention_bias.weight"] *= 5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("encoder", ["bert", "mpnet"])  # MPNet's relative positions are not in the router's scores
@pytest.mark.parametrize(
    ("routed", "asks", "router"),
    [(1, Asks.CLS, Router.QUERY), (3, Asks.CLS, Router.HIDDEN), (1, Asks.WORDS, Router.HIDDEN)],
)
def test_eq_1(request, encoder, routed, asks, router):
    folder, options = request.getfixturevalue(encoder), {"routed": routed, "asks": asks, "router": router}
    close(small.vectors(system(csr(folder, **options))), Reference(folder, **options).vectors(), atol=5e-6)


def test_gradients_are_those_of_eq_1(bert):
    """Of every parameter, those of the condition's side among them."""
    config = csr(bert, routed=2)
    module = config.trainable(dropout=0.0)
    weights_ND = torch.randn(len(EVERY), DIM, generator=torch.Generator().manual_seed(1))
    (module(config.prepare(*map(list, zip(*EVERY, strict=True)))) * weights_ND).sum().backward()
    reference = Reference(bert, routed=2)
    wanted = torch.stack([reference.vector(s, c) for s, c in EVERY])
    (wanted * weights_ND).sum().backward()
    found = {name: p.grad for name, p in module.whole().named_parameters() if not name.startswith("pooler")}
    assert len(found) == 5 + 3 * 16
    for name, parameter in reference.model.named_parameters():
        if not name.startswith("pooler"):
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(("routed", "asks"), [(1, Asks.CLS), (3, Asks.WORDS)])
@torch.no_grad()
def test_a_word_weighs_what_the_router_gives_its_tokens(bert, routed, asks):
    """The mean of w over the layers, as shares of what the words have together."""
    reference = Reference(bert, routed=routed, asks=asks)
    loaded = system(csr(bert, routed=routed, asks=asks))
    weights = loaded.token_weights(loaded.config.prepare(*map(list, zip(*EVERY, strict=True))))
    for pair, found in zip(EVERY, weights, strict=True):
        reference.vector(*pair)
        assert len(reference.w) == routed
        of_words = (sum(reference.w) / routed)[1:-1]
        np.testing.assert_allclose(found, of_words / of_words.sum(), atol=5e-6)
    (words,) = loaded.word_weights([SENTENCES[0]], "dog")
    assert [SENTENCES[0][word.start : word.end] for word in words] == SENTENCES[0].split()
    assert sum(word.weight for word in words) == pytest.approx(1, abs=1e-6)


def test_without_training_it_is_named_by_its_encoder(bert):
    config = resolve(f"csr:{bert}")
    assert config.name == f"csr:{bert}" and config.describe() == csr(bert).describe(), "the paper's router"
    close(small.vectors(raycase.load(f"csr:{bert}", dtype=torch.float32)), Reference(bert).vectors(), atol=5e-6)
    averaged = resolve("csr:minilm")
    assert (averaged.router, averaged.asks, averaged.routed) == (Router.HIDDEN, Asks.WORDS, 3)
    first, second = averaged.load().encode(["two dogs run"] * 2, ["color", "animal"], normalize=True)
    assert first @ second < 0.995, "it sees the condition"


@pytest.mark.parametrize(("pooling", "asks"), [("mean", Asks.WORDS), ("cls", Asks.CLS)])
def test_the_default_router_is_by_what_was_published_with_an_encoder(mpnet, tmp_path, pooling, asks):
    assert resolve(f"csr:{mpnet}").asks is Asks.CLS, "nothing was"
    folder = shutil.copytree(mpnet, tmp_path / "published")
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling, "embedding_dimension": 32}))
    config = resolve(f"csr:{folder}")
    assert (config.router, config.asks, config.routed) == (Router.QUERY, asks, 3 if asks is Asks.WORDS else 1)


def test_what_it_cannot_be_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"^--model: expected one of minilm.*, got 'nope'"):
        resolve("csr:nope")
    with pytest.raises(RequestError, match=r"^--subtract: tri-encoder:minilm was trained with False, got True"):
        resolve("tri-encoder:minilm", subtract=True)
    with pytest.raises(RequestError, match="--model: expected an encoder like bert, roberta, xlm-roberta, mpnet, got"):
        csr(str(tiny.save_encoder(tmp_path, "qwen3-embedding-0.6b")))
