"""CSR (section 2): eq. 1 against the library's own BERT with hooks, one pair at a time; what is computed once."""

import json
import math
import shutil

import numpy as np
import pytest
import small
import tiny
import torch
from safetensors.torch import load_file
from small import CONDITIONS, DIM, EVERY, SENTENCES, close, system
from torch import nn
from transformers import AutoModel, MPNetConfig, MPNetModel

import raycase
from raycase.encoder.pooling import Compose, Pooling
from raycase.errors import RequestError
from raycase.systems.baselines import bi_encoder, tri_encoder
from raycase.systems.csr import LEAST_COSINE, csr, least_cosine
from raycase.systems.csr_router import Asks, CsrForm, Router, Weight, cls_attention, router_weights
from raycase.systems.registry import resolve, weighs_words


def attention(layer):
    """Query, key and dense projection of a layer of the library's."""
    if hasattr(layer.attention, "attn"):  # MPNet's
        return layer.attention.attn.q, layer.attention.attn.k, layer.attention.attn.o
    return layer.attention.self.query, layer.attention.self.key, layer.attention.output.dense


class Reference:
    """Eq. 1 in the library's model, by hooks; one text at a time, so that nothing is padded."""

    def __init__(self, folder, *, routed=1, router=Router.QUERY, asks=Asks.CLS, weight=Weight.ADDED, heavy=None):
        self.folder, self.model = folder, small.stock(folder)
        self.router, self.asks, self.weight, self.heavy = router, asks, weight, heavy
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
        """What is done to the attention's output: times 1 + w, w, or w times the number of tokens that share it."""

        def weighted(_, made):
            among = held["w"].shape[0] - (2 if self.asks is Asks.WORDS else 0)
            factor = {Weight.ADDED: held["w"] + 1, Weight.ONLY: held["w"], Weight.EVEN: held["w"] * among}
            return made * factor[self.weight][None, :, None]

        return weighted

    def ask(self, condition):
        """The query of [CLS] in the last layer, or what it is made from; or the mean of those of its words."""
        held = []
        self.hooked(condition, [(attention(self.layers[-1])[0], lambda x, q: held.append((x[0], q[0])))])
        hidden, query = (t[1:-1].mean(0) if self.asks is Asks.WORDS else t[0] for t in held[0])
        if self.router is Router.HEAVY:
            return self.heavy["0.weight"] @ hidden
        return hidden if self.router is Router.HIDDEN else query

    def tri(self, sentence, condition):
        asked, held, hooks, self.w = self.ask(condition), {}, [], []

        def score(hidden, key):
            if self.router is Router.RANDOM:
                scores = torch.randn(512, generator=torch.Generator().manual_seed(0))[: key.shape[1]]
            else:
                heavy = hidden[0] @ self.heavy["1.weight"].T if self.heavy else None
                keys = {Router.HIDDEN: hidden[0], Router.HEAVY: heavy}.get(self.router, key[0])
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

    def bi(self, sentence, condition):
        """w: what [CLS] pays attention to, a head at a time, at the sentence's tokens."""
        held, hooks = {}, []
        whole, before = (small.ids(self.folder, t).shape[1] for t in (f"{condition}: {sentence}", f"{condition}:"))
        in_sentence = (torch.arange(whole) >= before - 1) & (torch.arange(whole) < whole - 1)

        def looked_at(_, key):
            heads = []
            for h in range(4):
                at = slice(h * 8, h * 8 + 8)
                scores = key[0, :, at] @ held["q"][0, 0, at] / math.sqrt(8)
                if bias := getattr(self.model.encoder, "compute_position_bias", None):
                    scores = scores + bias(key)[0, h, 0]
                heads.append(scores.softmax(0))
            held["w"] = sum(heads) / 4 * in_sentence

        for layer in self.routed:
            query, key, dense = attention(layer)
            hooks += [(query, lambda _, q: held.update(q=q)), (key, looked_at), (dense, self.weighted(held))]
        return self.hooked(f"{condition}: {sentence}", hooks)

    @torch.no_grad()
    def vectors(self, form="tri"):
        return torch.stack([getattr(self, form)(s, c) for s, c in EVERY])


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    """A random MPNet whose relative positions matter."""
    folder = tmp_path_factory.mktemp("mpnet")
    vocab_size = tiny.save_tokenizer(folder, small.words())
    torch.manual_seed(0)
    sizes = tiny.SIZES | {"num_hidden_layers": 3, "pad_token_id": 1}  # its code knows no other
    model = MPNetModel(MPNetConfig(vocab_size=vocab_size, max_position_embeddings=512, **sizes))
    nn.init.normal_(model.encoder.relative_attention_bias.weight)
    model.save_pretrained(folder)
    return str(folder)


def test_the_weights_of_a_router_by_hand():
    """Scores over the root of 4 are 0, ln 3, and what is padding."""
    ask = torch.tensor([[2.0, 0, 0, 7], [0, 0, 4.0, 0]])
    keys = torch.tensor([[[0, 1.0, 2, 0], [math.log(3), 9, 9, 0], [100, 0, 0, 0]]]).expand(2, -1, -1)
    real = torch.tensor([[True, True, False], [True, True, True]])
    scores = [4.0, 18.0, 0.0]  # of the second: 4 times the third number, over 2
    wanted = [[1 / 4, 3 / 4, 0], [math.exp(s - 18) / sum(math.exp(t - 18) for t in scores) for s in scores]]
    torch.testing.assert_close(router_weights(ask, keys, real), torch.tensor(wanted))


def test_what_cls_pays_attention_to_by_hand():
    """Two heads of one number. The first asks with 1 and finds 0 and ln 3; the second asks with 0: all are alike."""
    query = torch.tensor([[[1.0, 0.0], [50, 60], [70, 80]]])
    key = torch.tensor([[[0.0, 5.0], [math.log(3), -2], [90, 90]]])
    found = cls_attention(query, key, torch.tensor([[True, True, False]]), 1)
    torch.testing.assert_close(found, torch.tensor([[3 / 8, 5 / 8, 0]]))
    # one head of two numbers, over the root of 2
    found = cls_attention(query, key / torch.tensor([1 / math.sqrt(2), 1]), torch.tensor([[True, True, False]]), 2)
    torch.testing.assert_close(found, torch.tensor([[1 / 4, 3 / 4, 0]]))


ADDED, CLS = Weight.ADDED, Asks.CLS


@pytest.mark.parametrize(
    ("routed", "weight", "asks"),
    [(1, ADDED, CLS), *((2, weight, asks) for weight in Weight for asks in Asks), (3, ADDED, CLS)],
)
def test_eq_1(bert, routed, weight, asks):
    wanted = Reference(bert, routed=routed, weight=weight, asks=asks).vectors()
    close(small.vectors(system(csr(bert, routed=routed, weight=weight, asks=asks))), wanted, atol=5e-6)


@pytest.mark.parametrize(("routed", "weight"), [(1, ADDED), *((2, weight) for weight in Weight), (3, ADDED)])
def test_eq_1_in_bi_form(bert, routed, weight):
    wanted = Reference(bert, routed=routed, weight=weight).vectors("bi")
    close(small.vectors(system(csr(bert, form=CsrForm.BI, routed=routed, weight=weight))), wanted, atol=5e-6)


@pytest.mark.parametrize("routed", [1, 2])
@pytest.mark.parametrize("router", [Router.HIDDEN, Router.RANDOM, Router.HEAVY])
def test_other_routers(bert, router, routed):
    loaded = system(csr(bert, router=router, routed=routed))
    heavy = None
    if router is Router.HEAVY:
        with torch.no_grad():
            for part in loaded.heavy.parameters():  # larger, so that w is not the same everywhere
                part.mul_(4)
        heavy = loaded.heavy.state_dict()
    wanted = Reference(bert, routed=routed, router=router, heavy=heavy).vectors()
    close(small.vectors(loaded), wanted, atol=5e-6)


@pytest.mark.parametrize("how", Compose)
@pytest.mark.parametrize("routed", [1, 2])
def test_composed_with_the_conditions_own_vector(bert, how, routed):
    sentences = Reference(bert, routed=routed).vectors().numpy()
    conditions = np.array([small.mean(bert, c) for _, c in EVERY])
    wanted = np.hstack([sentences, conditions]) if how is Compose.CONCAT else sentences * conditions
    close(small.vectors(system(csr(bert, routed=routed, compose=how))), wanted, atol=1e-5)


@pytest.mark.parametrize("how", Compose)
def test_without_routed_layers_it_is_a_tri_encoder_or_a_bi_encoder(bert, how):
    pairs = [(csr(bert, routed=0, compose=how), tri_encoder(bert, compose=how))]
    pairs += [(csr(bert, form=CsrForm.BI, routed=0), bi_encoder(bert))]
    for found, wanted in pairs:
        close(small.vectors(system(found)), small.vectors(system(wanted)))


def test_random_weights_are_those_of_the_places_whatever_the_condition(bert, tmp_path):
    loaded = system(csr(bert, router=Router.RANDOM, routed=2))
    first = loaded.embed(SENTENCES, CONDITIONS[0])
    for condition in CONDITIONS[1:]:
        close(loaded.embed(SENTENCES, condition), first)
    torch.manual_seed(7)
    loaded.save(tmp_path / "model")
    close(raycase.load(str(tmp_path / "model"), dtype=torch.float32).embed(SENTENCES, CONDITIONS[1]), first)


ALONE = {"one": {}, "two composed": {"routed": 2, "compose": Compose.CONCAT}, "bi": {"form": CsrForm.BI, "routed": 2}}


@pytest.fixture(scope="module")
def alone(bert):
    """Of each system of `ALONE`, every pair embedded alone."""
    loaded = {name: system(csr(bert, **options)) for name, options in ALONE.items()}
    return {name: np.concatenate([small.vectors(some, [pair]) for pair in EVERY]) for name, some in loaded.items()}


@pytest.mark.parametrize("batch_tokens", [1, 20, 45, 4096])
@pytest.mark.parametrize("name", ALONE)
def test_all_pairs_at_once_equal_each_alone(bert, alone, monkeypatch, name, batch_tokens):
    config, wanted = csr(bert, **ALONE[name]), alone[name]
    loaded, chunks = system(config, batch_tokens=batch_tokens), []
    original = loaded.pair_vectors
    monkeypatch.setattr(loaded, "pair_vectors", lambda c, *rest: chunks.append(len(c)) or original(c, *rest))
    close(small.vectors(loaded), wanted, atol=5e-6)
    order = np.random.default_rng(0).permutation(np.tile(np.arange(len(EVERY)), 2))
    chunks.clear()
    close(small.vectors(loaded, [EVERY[i] for i in order]), wanted[order], atol=5e-6)
    if name != "bi":
        assert sum(chunks) == len(EVERY)
        assert set(chunks) == {1} if batch_tokens == 1 else max(chunks) > 1
        assert (len(chunks) == 1) == (batch_tokens == 4096)


@pytest.mark.parametrize("batch_tokens", [20, 4096])
@pytest.mark.parametrize("routed", [1, 2])
def test_the_first_layers_see_each_text_once_and_conditions_are_remembered(bert, monkeypatch, routed, batch_tokens):
    loaded = system(csr(bert, routed=routed), batch_tokens=batch_tokens)
    tokens = small.seen(loaded.encoder, monkeypatch)
    small.vectors(loaded)
    sentences, conditions = (sum(small.ids(bert, t).shape[1] for t in texts) for texts in (SENTENCES, CONDITIONS))
    assert sum(tokens) == sentences + conditions
    tokens.clear()
    small.vectors(loaded)
    assert sum(tokens) == sentences
    tokens.clear()
    loaded.embed(SENTENCES[:1] * 2, [CONDITIONS[0], "people"])
    assert sum(tokens) == sum(small.ids(bert, t).shape[1] for t in (SENTENCES[0], "people"))


def test_what_was_computed_is_counted(bert):
    config = csr(bert)
    loaded = system(config)
    sentences, conditions = (sum(small.ids(bert, t).shape[1] for t in texts) for texts in (SENTENCES, CONDITIONS))
    prepared = config.prepare(*map(list, zip(*EVERY * 2, strict=True)))
    for known in (0, conditions):
        found = loaded.encode_prepared(prepared)
        assert found.distinct == len(EVERY)
        assert found.work.processed == sentences + conditions - known
        assert found.work.tokens == len(CONDITIONS) * sentences + len(SENTENCES) * conditions, "each pair alone"
    # a layer of 32 dimensions: four projections, and up to 64 and back, which alone is done for each pair
    attention, rest = 4 * DIM * DIM, 2 * DIM * 2 * DIM
    once = 3 * attention + 2 * rest
    assert found.work.flops == 2 * (once * sentences + rest * len(CONDITIONS) * sentences)


@pytest.mark.parametrize("form", CsrForm)
@pytest.mark.parametrize("routed", [1, 2])
def test_gradients_are_those_of_eq_1(bert, form, routed):
    """Of every parameter, those of the condition's side among them."""
    config = csr(bert, form=form, routed=routed)
    module = config.trainable(dropout=0.0)
    weights_ND = torch.randn(len(EVERY), DIM, generator=torch.Generator().manual_seed(1))
    (module(config.prepare(*map(list, zip(*EVERY, strict=True)))) * weights_ND).sum().backward()
    reference = Reference(bert, routed=routed)
    wanted = torch.stack([getattr(reference, form)(s, c) for s, c in EVERY])
    (wanted * weights_ND).sum().backward()
    found = {name: p.grad for name, p in module.whole().named_parameters() if not name.startswith("pooler")}
    assert len(found) == 5 + 3 * 16
    for name, parameter in reference.model.named_parameters():
        if not name.startswith("pooler"):
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=2e-4)


def test_dropout_acts_in_routed_layers_too(bert):
    config = csr(bert, routed=3)
    assert [p.p for p in config.trainable(0.3).modules() if isinstance(p, nn.Dropout)] == [0.3] * 10
    module = config.trainable(dropout=0.3).train()
    module.encoder.model.embeddings.dropout.p = 0.0  # all layers are routed: what is left is theirs
    prepared = config.prepare(["A woman"], ["dog"])
    assert not torch.allclose(module(prepared), module(prepared), atol=1e-3)
    module.eval()
    assert torch.equal(module(prepared), module(prepared))


@pytest.mark.parametrize("options", [{"routed": 2}, {"form": CsrForm.BI, "routed": 3}, {"router": Router.HEAVY}])
def test_the_saved_encoder_is_the_librarys_with_all_its_layers(bert, tmp_path, options):
    module = csr(bert, **options).trainable()
    wanted = module.embed(SENTENCES, None)
    module.save(tmp_path / "model")
    encoder = tmp_path / "model" / "encoder"
    found, source = small.stock(encoder), small.stock(bert)
    assert len(found.encoder.layer) == found.config.num_hidden_layers == 3
    assert found.state_dict().keys() == source.state_dict().keys()
    assert all(torch.equal(t, source.state_dict()[name]) for name, t in found.state_dict().items())
    close(wanted, [small.mean(encoder, s) for s in SENTENCES])
    extra = tmp_path / "model" / "extra.safetensors"
    assert extra.is_file() == (options.get("router") is Router.HEAVY)
    if extra.is_file():
        assert {name: tuple(t.shape) for name, t in load_file(extra).items()} == dict.fromkeys(
            ("0.weight", "1.weight"), (DIM, DIM)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routed": 4}, "--routed: expected 0 to 3 layers of .*, got 4"),
        ({"routed": 0}, "--routed 0: expected --compose, got none"),
        ({"form": CsrForm.BI, "router": Router.HIDDEN}, "--form bi: expected no --router"),
        ({"form": CsrForm.BI, "compose": Compose.CONCAT}, "--form bi: expected .* no --compose"),
        ({"form": CsrForm.BI, "asks": Asks.WORDS}, "--form bi: "),
    ],
)
def test_choices_that_do_not_go_together_are_refused(bert, options, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        csr(bert, **options)


def test_an_encoder_that_is_no_bert_is_refused(tmp_path):
    tiny.save_encoder(tmp_path, "qwen3-embedding-0.6b")
    message = "--model: expected an encoder like bert, roberta, xlm-roberta, mpnet, got qwen3"
    with pytest.raises(RequestError, match=message):
        csr(str(tmp_path))


def test_it_runs_on_roberta(tmp_path):
    tiny.save_encoder(tmp_path, "simcse-roberta-large")
    found = small.vectors(system(csr(str(tmp_path), routed=1)))
    close(found, Reference(str(tmp_path)).vectors(), atol=5e-6)
    assert csr(str(tmp_path)).encoder.pooling == (Pooling.MEAN,)


@pytest.mark.parametrize("asks", Asks)
@pytest.mark.parametrize("routed", [1, 3])
@torch.no_grad()
def test_a_word_weighs_what_the_router_gives_its_tokens(bert, routed, asks):
    """The mean of w over the layers, as shares of what the words have together."""
    reference = Reference(bert, routed=routed, asks=asks)
    loaded = system(csr(bert, routed=routed, asks=asks))
    weights = loaded.token_weights(loaded.config.prepare(*map(list, zip(*EVERY, strict=True))))
    for pair, found in zip(EVERY, weights, strict=True):
        reference.tri(*pair)
        assert len(reference.w) == routed
        of_words = (sum(reference.w) / routed)[1:-1]
        np.testing.assert_allclose(found, of_words / of_words.sum(), atol=5e-6)
    (words,) = loaded.word_weights([SENTENCES[0]], "dog")
    assert [SENTENCES[0][word.start : word.end] for word in words] == SENTENCES[0].split()
    assert sum(word.weight for word in words) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("routed", [1, 2])
def test_without_a_condition_a_word_weighs_what_cls_pays_attention_to(bert, routed):
    """Figure 5, against the library's own attention: the mean over heads and layers, from the first token."""
    loaded = system(csr(bert, routed=routed))
    model = AutoModel.from_pretrained(bert, attn_implementation="eager").eval()
    for sentence, words in zip(SENTENCES, loaded.word_weights(SENTENCES, None), strict=True):
        with torch.no_grad():
            layers = model(input_ids=small.ids(bert, sentence), output_attentions=True).attentions[-routed:]
        of_tokens = torch.stack([layer[0, :, 0, 1:-1].mean(0) for layer in layers]).mean(0)
        (found,) = loaded.token_weights(loaded.config.prepare([sentence], None))
        np.testing.assert_allclose(found, of_tokens / of_tokens.sum(), atol=5e-6)
        assert sum(word.weight for word in words) == pytest.approx(1, abs=1e-6)


def test_where_all_weight_is_on_special_tokens_words_are_alike(bert, monkeypatch):
    loaded = system(csr(bert))
    monkeypatch.setattr(loaded, "_weights", lambda *states: torch.eye(1, states[-1].shape[1]))
    (found,) = loaded.token_weights(loaded.config.prepare(["A woman"], ["dog"]))
    assert found.tolist() == [0.5, 0.5]


def test_which_csr_weighs_words(bert):
    chosen = ({}, {"routed": 0, "compose": Compose.CONCAT}, {"form": CsrForm.BI})
    assert [weighs_words(csr(bert, **options)) for options in chosen] == [True, False, False]


def test_without_training_it_is_named_by_its_encoder(bert):
    config = resolve(f"csr:{bert}")
    assert config.model == f"csr:{bert}" and config.describe() == csr(bert).describe(), "the paper's router"
    close(small.vectors(raycase.load(f"csr:{bert}", dtype=torch.float32)), Reference(bert).vectors(), atol=5e-6)
    close(
        small.vectors(raycase.load(f"tri-encoder:{bert}", dtype=torch.float32)),
        small.vectors(system(tri_encoder(bert))),
    )
    averaged = resolve("csr:minilm")
    assert (averaged.router, averaged.asks, averaged.routed) == (Router.HIDDEN, Asks.WORDS, 3)
    assert least_cosine(averaged) < LEAST_COSINE, "it sees the condition"


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
    (folder / "modules.json").write_text(json.dumps([*modules, modules[1] | {"type": "mine.Custom"}]))
    assert resolve(f"csr:{folder}").asks is Asks.CLS, "what follows the encoder is not used"


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("csr:nope", {}, "--model: expected one of minilm.*, got 'nope'"),
        ("csr:minilm", {"prompt": "cond"}, "--prompt: csr:minilm has none to choose, got cond"),
        ("csr:minilm", {"pooling": "last"}, "--pooling: expected mean, the pooling of csr, got last"),
        ("csr:minilm", {"dim": 8}, "--dim: expected a model that was trained with nested dimensions"),
        ("csr:minilm-conditional", {}, "--model: expected an encoder to fine-tune, got the trained model"),
        ("tri-encoder:minilm", {"subtract": True}, "--subtract: tri-encoder:minilm was trained with False, got True"),
    ],
)
def test_a_wrong_name_without_training_is_refused(name, choices, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        resolve(name, **choices)


@pytest.mark.parametrize(("routed", "weight", "asks"), [(1, ADDED, CLS), (2, Weight.EVEN, Asks.WORDS), (3, ADDED, CLS)])
def test_it_runs_on_mpnet(mpnet, routed, weight, asks):
    """Whose relative positions are in the scores of attention, not in the router's."""
    reference = Reference(mpnet, routed=routed, weight=weight, asks=asks)
    loaded = system(csr(mpnet, routed=routed, weight=weight, asks=asks))
    close(small.vectors(loaded), reference.vectors(), atol=5e-6)
    close(loaded.embed(SENTENCES, None), [small.mean(mpnet, s) for s in SENTENCES], atol=5e-6)
    if asks is CLS:
        loaded = system(csr(mpnet, form=CsrForm.BI, routed=routed, weight=weight))
        close(small.vectors(loaded), reference.vectors("bi"), atol=5e-6)


def test_mpnets_relative_positions_are_trained_and_saved(mpnet, tmp_path):
    config = csr(mpnet, routed=3)
    module = config.trainable()
    table = module.encoder.model.encoder.relative_attention_bias.weight
    module(config.prepare(SENTENCES, CONDITIONS[:1] * len(SENTENCES))).square().sum().backward()
    assert table.grad.abs().sum() > 0, "all layers are routed: it is read there alone"
    with torch.no_grad():
        table += torch.randn(table.shape, generator=torch.Generator().manual_seed(3))
    module = module.eval()
    wanted = small.vectors(module)
    module.save(tmp_path / "model")
    close(small.vectors(raycase.load(str(tmp_path / "model"), dtype=torch.float32)), wanted)
