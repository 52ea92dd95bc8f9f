"""Several texts in one sequence: tokens and types are those of transformers' own tokenizer for a pair."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
from tokenizers import processors
from transformers import AutoTokenizer

from raycase.encoder.prompts import prompt_set
from raycase.encoder.sources import load_tokenizer, weights_folder
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import NEVER
from raycase.encoder.tokenizer import MOST_CHARACTERS, frame, separated
from raycase.errors import RequestError
from raycase.io.schema import Reason
from raycase.names import PromptStyle

TEXTS = ["A woman in a red dress", "color of the dress", "café naïve.", "two people 7", "😀", "[SEP] dress </s>"]
PAIRS = [(a, b) for a in TEXTS for b in TEXTS]
TYPED = {"wordpiece": True, "minilm": True, "byte-level": False, "unigram": False}


@pytest.fixture
def made(tmp_path):
    """Our tokenizer of a family, and the library's."""

    def load(family, end=None, **options):
        source = ENCODERS["minilm"].source
        if family != "minilm":
            tiny.save_tokenizer(tmp_path, tiny.TOKENIZERS[family](**options))
            source = str(tmp_path)
        spec = replace(ENCODERS["minilm"], source=source, end_token=end)
        return load_tokenizer(spec), AutoTokenizer.from_pretrained(weights_folder(source))

    return load


def rows_of(batch):
    """Ids and types of each sequence."""
    for row in range(len(batch)):
        ids = batch.sequences.take(np.array([row])).flat.tolist()
        second = NEVER if batch.second is None else batch.second[row]
        yield ids, [int(place >= second) for place in range(len(ids))]


@pytest.mark.parametrize("family", TYPED)
def test_a_pair_is_the_tokenizers_own(made, family):
    ours, librarys = made(family)
    pairs = [p for p in PAIRS if family != "unigram" or TEXTS[-1] not in p]  # the library's reads its </s> in a text
    found = separated(ours, pairs, shortened=2)
    assert (found.second is not None) == TYPED[family]
    for (ids, types), pair in zip(rows_of(found), pairs, strict=True):
        wanted = librarys(*pair, return_token_type_ids=True, split_special_tokens=True)
        assert (ids, types) == (wanted["input_ids"], wanted["token_type_ids"])


@pytest.mark.parametrize("family", TYPED)
@pytest.mark.parametrize("max_tokens", [9, 12, 15])
def test_a_long_pair_stays_a_pair(made, family, max_tokens):
    """As the library's own steps make one of the tokens that are kept."""
    ours, _ = made(family)
    fast = ours.tokenizer
    pairs = [("the word " * 9, "of a dress " * 9), ("a", "of a dress " * 9), ("the word " * 9, "a")]
    found = separated(replace(ours, max_tokens=max_tokens), pairs, shortened=2, apart=2)
    assert found.lengths.tolist() == [max_tokens] * 3 and found.truncated.all()
    for row, (ids, types) in enumerate(rows_of(found)):
        kept = [fast.encode(text.strip(), add_special_tokens=False) for text in pairs[row]]
        for encoding, length in zip(kept, found.end[row, 1:] - found.start[row, 1:], strict=True):
            encoding.truncate(int(length))
        wanted = fast.post_process(*kept)
        assert (ids, types) == (wanted.ids, wanted.type_ids)


@pytest.mark.parametrize(
    ("family", "wanted", "ones"),
    [
        ("wordpiece", "[CLS] a [SEP] b [SEP] c [SEP]", 4),
        ("byte-level", "<s> a </s> </s> b </s> </s> c </s>", 0),
        ("unigram", "<s> a </s> </s> b </s> </s> c </s>", 0),
    ],
)
def test_a_third_text_follows_the_second_as_it_follows_the_first(made, family, wanted, ones):
    ours, _ = made(family)
    texts = [f"{letter} dress" for letter in "abc"]
    [(ids, types)] = rows_of(separated(ours, [tuple(texts)], shortened=2))
    parts = dict(zip("abc", ours.parts(texts), strict=True))
    pieces = [parts.get(name) or [ours.tokenizer.token_to_id(name)] for name in wanted.split()]
    assert ids == [token for piece in pieces for token in piece]
    assert sum(types) == (sum(map(len, pieces[-ones:])) if ones else 0)


@pytest.mark.parametrize(("family", "end"), [("qwen", "<|endoftext|>"), ("mistral", "</s>")])
def test_texts_that_a_tokenizer_does_not_tell_apart_are_ended(made, family, end):
    ours, librarys = made(family, end)
    assert librarys(*TEXTS[:2], add_special_tokens=True)["input_ids"].count(librarys.convert_tokens_to_ids(end)) == 0
    batch = separated(ours, PAIRS, shortened=2)
    before, after = ours.special_tokens
    wanted = [before + first + after + second + after for first, second in map(ours.parts, PAIRS)]
    assert batch.sequences.take(np.arange(len(PAIRS))).flat.tolist() == [token for ids in wanted for token in ids]
    assert batch.second is None
    with pytest.raises(RequestError, match="expected an encoder whose texts end with a token, got one without"):
        separated(made(family)[0], PAIRS, shortened=2)


def test_types_of_another_order_are_refused(made):
    ours, _ = made("wordpiece")
    special = [(name, ours.tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    ours.tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS]:2 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=special
    )
    with pytest.raises(RequestError, match=r"expected an encoder with tokens of types 0, then 1, of a pair, got \[2, "):
        frame(ours)


def test_a_text_that_is_far_too_long_to_be_tokenised_is_refused_alone(made):
    """Fifty million letters without a blank would take a minute and gigabytes."""
    ours, _ = made("wordpiece")
    far = "a" * (MOST_CHARACTERS + 1)
    rows = [(TEXTS[0], TEXTS[1]), (far, TEXTS[1]), (TEXTS[0], far)]
    batch = separated(ours, rows, shortened=1)
    assert batch.reasons == [None, Reason.TOO_MANY_CHARACTERS, Reason.TOO_MANY_CHARACTERS]
    templates = [prompt_set(PromptStyle.CONCAT_SC).pair]
    assert ours.pairs(templates, rows[:3]).reasons == [None, Reason.TOO_MANY_CHARACTERS, Reason.TOO_MANY_CHARACTERS]
