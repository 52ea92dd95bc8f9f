"""Tiny BERT encoders in folders, what the library itself makes of a text, and rated pairs, for fine-tuned systems."""

import unicodedata
from copy import deepcopy
from functools import cache

import numpy as np
import tiny
import torch
from helpers import fit_by
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from raycase.io.rated_pairs import RatedPairs

DIM = 32
SENTENCES = [
    "A woman in a red dress",
    "two people play with a dog at the bar",
    "color of the dress",
    "people",
    "0123456789 a dog - a woman . two people given the Sentence",
]
CONDITIONS = ["color of the dress", "number of people", "dog", "the Condition : a Sentence"]
EVERY = [(s, c) for s in SENTENCES for c in CONDITIONS]


def words():
    """BERT's tokenizer over the words and letters of the texts above, and the options that it is saved with."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789:.,-"
    whole = sorted({word.lower() for text in SENTENCES + CONDITIONS for word in text.split() if word.isalpha()})
    return tiny.wordpiece([*letters, *(f"##{c}" for c in letters), *whole])


def save_bert(folder, layers=3, seed=0):
    """Save a random BERT whose every token changes every other one; gives the folder's name."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = tiny.save_tokenizer(folder, words())
    torch.manual_seed(seed)
    sizes = tiny.SIZES | {"num_hidden_layers": layers}
    BertModel(BertConfig(vocab_size=vocab_size, max_position_embeddings=512, **sizes)).save_pretrained(folder)
    return str(folder)


@cache
def tokenizer(folder):
    """The library's."""
    return AutoTokenizer.from_pretrained(folder)


def stock(folder):
    """The library's model, anew."""
    return AutoModel.from_pretrained(folder).eval()


_shared = cache(stock)


def ids(folder, text):
    """The library's tokens of one text: (1, T)."""
    return torch.tensor([tokenizer(folder)(text)["input_ids"]])


def pair(folder, first, second):
    """The library's tokens of two texts, with their types: arguments of its model."""
    return tokenizer(folder)(first, second, return_tensors="pt")


@torch.no_grad()
def states(folder, text):
    """Last states of one text, alone: (T, D)."""
    return _shared(folder)(input_ids=ids(folder, text)).last_hidden_state[0]


def mean(folder, text):
    """Their mean: (D,)."""
    return states(folder, text).mean(0).numpy()


@torch.no_grad()
def token_states(folder, text, layers, *, whole=False):
    """States of one text alone after these layers, side by side, without special tokens unless `whole`: (T, W)."""
    made = tokenizer(folder)(text, return_special_tokens_mask=True, truncation=True, max_length=512)
    out = _shared(folder)(input_ids=torch.tensor([made["input_ids"]]), output_hidden_states=True)
    words = [whole or not special for special in made["special_tokens_mask"]]
    every = (*out.hidden_states[:-1], out.last_hidden_state)
    return np.concatenate([every[layer][0].numpy() for layer in layers], axis=1)[words]


def close(found, wanted, atol=2e-6):
    """Whether two arrays are equal but for rounding, and no constant."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert wanted.std() > 0.01
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=atol)


def system(config, **options):
    """Loaded in 32 bits."""
    return config.load(dtype=torch.float32, **options)


def vectors(loaded, pairs=EVERY):
    """Of (sentence, condition) pairs, or of sentences alone."""
    sentences, conditions = map(list, zip(*pairs, strict=True))
    return loaded.embed(sentences, None if conditions[0] is None else conditions)


def figures(loaded):
    """Vectors of `SENTENCES` under `CONDITIONS` or those that it knows, or scores of all their pairs."""
    if hasattr(loaded, "embed"):
        known = loaded.config.known_conditions
        return vectors(loaded, EVERY if known is None else [(s, c) for s in SENTENCES for c in known or (None,)])
    return loaded.score(*zip(*[(s, t, c) for s in SENTENCES for t in SENTENCES for c in CONDITIONS], strict=True))


def disturb(module, seed=0, scale=0.05):
    """Change everything that is trained, as training would; gives the module."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn(parameter.shape, generator=random)
    return module


def kept(states):
    """Copies of a fit's states, each of which is good until the next epoch."""
    return [deepcopy(state) for state in states]


def rated(rows=24, seed=0):
    """Pairs of `SENTENCES` under two conditions each, one row rated -1."""
    random = np.random.default_rng(seed)
    first = [SENTENCES[i] for i in random.integers(0, len(SENTENCES), rows)]
    second = [f"{SENTENCES[i]} {n}" for n, i in enumerate(random.integers(0, len(SENTENCES), rows))]
    ratings = random.integers(1, 6, rows).astype(np.float32)
    ratings[1] = -1
    return RatedPairs(
        uri=f"rated-{seed}",
        sentences1=[first[n - n % 2] for n in range(rows)],
        sentences2=[second[n - n % 2] for n in range(rows)],
        conditions=[CONDITIONS[i] for i in random.integers(0, len(CONDITIONS), rows)],
        ratings=ratings,
    )


def job(kind, model="", **flags):
    """A training job of this kind, whose data nothing reads."""
    return kind(model=str(model), train="train", validation="validation", output="out", compute="float32", **flags)


def fit(job, parts, **options):
    """The states of the fit on these parts."""
    return fit_by(job, *job.training().data(parts), **options)


def no_signs(text):
    """The text without white space and punctuation."""
    return "".join(c for c in text if not (c.isspace() or unicodedata.category(c).startswith("P")))


def pooled(head, states, real, conditions, plain=None):
    """Vectors of a head of condition pooling: one condition for each sentence."""
    questions = head.ask(conditions).take(torch.arange(len(conditions))[:, None])
    return head.pool(head.read(states, real, plain), questions)[:, 0]
