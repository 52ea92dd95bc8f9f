"""Which encoder a name or folder stands for, and what identifies its weights."""

import pytest
from helpers import change_json
from tokenizers import Tokenizer

from raycase.encoder.choices import find_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import weights_identity
from raycase.errors import RequestError
from raycase.names import PromptStyle


def test_an_unknown_encoder_or_pooling_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match=r"--model: expected one of .*minilm, .*got 'minilmm'"):
        find_encoder("minilmm")
    with pytest.raises(RequestError, match="--pooling: expected one of mean, last for sfr-mistral, got cls"):
        find_encoder("sfr-mistral", pooling=Pooling.CLS)


def test_under_a_prompt_an_encoder_outside_the_table_needs_both(folder_of):
    folder = str(folder_of("minilm"))
    for choice in ({}, {"pooling": Pooling.MEAN}):
        with pytest.raises(RequestError, match="not in the table of encoders; pass --prompt"):
            find_encoder(folder, **choice)
    with pytest.raises(RequestError, match=r"not in the table of encoders, .*pass --pooling"):
        find_encoder(folder, prompt=PromptStyle.COND)


@pytest.mark.parametrize(
    ("name", "causal", "max_tokens"), [("simcse-roberta-large", False, 512), ("qwen3-embedding-0.6b", True, 512)]
)
def test_an_encoder_outside_the_table_is_read_from_its_folder(folder_of, copied, name, causal, max_tokens):
    """Its direction and length; and a tokenizer that says a shorter one is heeded."""
    choices = {"prompt": PromptStyle.CONCAT_SC, "pooling": Pooling.MEAN}
    spec = find_encoder(str(folder_of(name)), **choices)
    assert (spec.causal, spec.max_tokens) == (causal, max_tokens)
    file = copied(name) / "tokenizer_config.json"
    change_json(file, model_max_length=64)
    assert find_encoder(str(file.parent), **choices).max_tokens == 64


@pytest.mark.parametrize(
    ("files", "change", "said"),
    [
        ("config.json", {}, "readable encoder"),
        ("config.json", {"hidden_size": "x"}, "readable encoder"),
        ("config.json", {"vocab_size": []}, "readable encoder"),
        ("tokenizer*", {}, ".*tokenizer.*"),
    ],
)
def test_a_folder_whose_files_are_missing_or_nonsense_is_refused(copied, files, change, said):
    folder = copied("minilm")
    for file in folder.glob(files):
        change_json(file, **change) if change else file.unlink()
    with pytest.raises(RequestError, match=f"--model: expected a {said} at {folder}, got"):
        find_encoder(str(folder), prompt=PromptStyle.COND, pooling=Pooling.MEAN)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_the_identity_of_weights_follows_what_the_tokenizer_is_made_from(copied, name):
    """Vocabularies beside tokenizer.json, which holds them, do not count."""
    folder = copied("simcse-roberta-large")
    beside = weights_identity(str(folder))
    Tokenizer.from_file(str(folder / "tokenizer.json")).model.save(str(folder))
    assert weights_identity(str(folder)) == beside
    (folder / "tokenizer.json").unlink()
    before = weights_identity(str(folder))
    with (folder / name).open("a") as file:
        file.write("\n")
    assert len({beside, before, weights_identity(str(folder))}) == 3
