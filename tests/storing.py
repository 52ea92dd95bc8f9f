"""Outputs and indexes with stored tokens, by a tiny model whose head is random."""

from dataclasses import replace

import small
import torch
from helpers import embedded

import raycase
from raycase.heads.condition_head import ConditionHead, HeadConfig
from raycase.index.build import build
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.model_folder import write_folder

ENOUGH = 96  # bytes a word that make rounding small for the 31 numbers of a token
WORDS = ["red", "dress", "woman", "dog", "two", "people", "play", "bar", "color", "number", "a", "with"]


def model_folder(folder, **options):
    """A model folder whose head has a plain part that half of the texts have a share of."""
    config = ConditionPoolingConfig.untrained(small.save_bert(folder / "bert"), layers=(2 / 3, 1.0))
    shape = {"heads": 4, "head_dim": 5, "output_dim": 11, "nested": (6,), "stated": True}
    shape |= {"unconditional_dim": small.DIM, "unconditional_vector_dim": small.DIM}
    head_config = HeadConfig(states_dim=config.states_dim, **shape | options)
    torch.manual_seed(0)
    head = small.disturb(ConditionHead(head_config), scale=0.2)
    head.stated.net[-1].bias.data -= 0.65  # about half of the texts say something
    if head.unconditional is not None:
        train, validation = torch.randn(2, 400, config.states_dim)
        head.unconditional.fit(train, torch.randn(400, small.DIM), validation, torch.randn(400, head_config.output_dim))
    write_folder(folder / "model", replace(config, head=head_config), head.half().float(), {}, "a card")
    if head.unconditional is not None:  # half of the texts are so unlike the others that they have a share
        far = torch.cat([head.unconditional.unfamiliar(m) for m in means(folder / "model", head.unconditional)])
        head.unconditional.scale.mul_(far.median() / head_config.unconditional_from)
        write_folder(folder / "model", replace(config, head=head_config), head.half().float(), {}, "a card")
    return str(folder / "model")


def means(folder, part):
    """m of `raycase.heads.condition_head` of texts, batch after batch."""
    found = []
    model = raycase.load(str(folder), dtype=torch.float32, device="cpu")
    batch = model.config.prepare([row["text"] for row in texts(60)], None).of_sentences[0]
    with torch.inference_mode():
        model.reader.read(batch, lambda rows, states: found.append(part.means(states.states, states.real)))
    return found


def texts(count, first=0):
    """Rows whose texts have 1 to 12 words."""
    rows = []
    for i in range(first, first + count):
        picked = [WORDS[(i * 7 + j * j * (1 + i % 5)) % len(WORDS)] for j in range(1 + i % 12)]
        rows.append({"id": i, "text": " ".join([*picked, str(i)]), "year": 2000 + i % 20})
    return rows


TEACHABLE = {"hidden": 16, "temperature": 60.0, "heads": 1, "head_dim": 32, "output_dim": 31}  # of `model_folder`
LABELS = {"woman": "who", "dress": "who", "dog": "pet", "red": "color"}


def answers(count, first=0):
    """The texts of `texts` and the label of each, of its first word that has one, or None."""
    found = [row["text"] for row in texts(count, first)]
    return found, [next((LABELS[word] for word in text.split() if word in LABELS), None) for text in found]


def stored(folder, model, rows, **options):
    """The output of --any-condition over rows; gives its folder."""
    options = {"any_condition": True, "token_bytes": ENOUGH, "keep_columns": ("text", "year")} | options
    return embedded(folder, model, rows, prompt=None, pooling=None, **options)


def stored_under(folder, model, rows, *conditions, **options):
    """The output of the same model over rows under conditions, without tokens; gives its folder."""
    return stored(folder, model, rows, conditions=conditions, any_condition=False, token_bytes=None, **options)


def words_later_and_out(home, condition):
    """Outputs of one model in this folder: `words` and `later` with stored tokens, `out` of the texts of `words` under
    the condition."""
    model = model_folder(home)
    stored(home / "a", model, texts(250), output=str(home / "words"))
    stored(home / "b", model, texts(40, first=1000), output=str(home / "later"))
    stored_under(home / "c", model, texts(250), condition, output=str(home / "out"))


def indexed(folder, *outputs, **settings):
    """The index of outputs; gives its folder."""
    build(embeddings=tuple(map(str, outputs)), output=str(folder), **settings)
    return str(folder)
