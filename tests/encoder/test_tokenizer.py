"""Token ids and pooled tokens of complete prompts, by tokenizers of every family."""

import re
import unicodedata
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import tiny
from tokenizers import Tokenizer, models

from raycase.encoder.prompts import OwnPrompt, PooledPart, TokenSpan, prompt_set
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import TokenBatch
from raycase.io.schema import Reason
from raycase.models.pairs import SENTENCE as UNCONDITIONAL
from raycase.names import PromptStyle

SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"
END_TOKENS = {"qwen": "<|endoftext|>", "mistral": "</s>"}
FAMILIES = [*tiny.TOKENIZERS, "minilm"]
STYLES = [(PromptStyle.COND, TokenSpan.CONDITION), (PromptStyle.SENT, TokenSpan.SENTENCE)]
STYLES += product((PromptStyle.CONCAT_CS, PromptStyle.CONCAT_SC), (TokenSpan.CONDITION, TokenSpan.SENTENCE))
TEXTS = [
    "color of the dress",
    "  color of the dress \n",
    "a",
    "café naïve Łódź Straße",
    "cafe\u0301 of the bar",  # the accent is a character of its own, and the last of its word
    "the cafe\u0301",
    "北京 東京",
    "привет",
    "😀",
    "dress 😀 dress",
    "😀 color 👩‍👩‍👧",
    "{condition} {sentence}",
    "[SEP] dress [CLS]",
    "the </s> of <s> the </s>",
    "<pad> <|endoftext|>",
    "two\n people  play",
    "- people -",
]


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """A tokenizer by family: made in `tiny`, or MiniLM's own."""

    @cache
    def folder(family):
        if family == "minilm":
            return ENCODERS["minilm"].source
        made = tmp_path_factory.mktemp(family)
        tiny.save_tokenizer(made, tiny.TOKENIZERS[family]())
        return str(made)

    def load(family, max_tokens=10_000):
        spec = replace(ENCODERS["minilm"], source=folder(family), max_tokens=max_tokens)
        return load_tokenizer(replace(spec, end_token=END_TOKENS.get(family)))

    return load


def template_of(family):
    """The instruction template of the encoders with this tokenizer."""
    return ENCODERS["qwen3-embedding-0.6b"].template if family == "qwen" else ENCODERS["sfr-mistral"].template


def as_decoded(family, text):
    """A text as its tokens decode."""
    if family in ("wordpiece", "minilm"):  # lower case, without accents and joiners
        letters = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in letters if unicodedata.category(c) not in ("Mn", "Cf"))
    if family == "minilm":
        text = re.sub("[😀👩👧]+", "[UNK]", text)
    if family == "qwen":
        text = unicodedata.normalize("NFC", text)
    return text


def decoded(tokenize, ids):
    return tokenize.tokenizer.decode(ids, skip_special_tokens=False)


def without_space(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(("style", "span"), STYLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_pooled_tokens_are_the_text(tokenizer_of, family, style, span):
    tokenize = tokenizer_of(family)
    pair = prompt_set(style, template=template_of(family), span=span).pair
    for text in TEXTS:
        prompt = pair.render(SENTENCE, text) if span is TokenSpan.CONDITION else pair.render(text, CONDITION)
        (found,) = tiny.tokens(tokenize, [prompt])
        pooled = decoded(tokenize, found.ids[found.start : found.end])
        if family == "qwen" and style in (PromptStyle.COND, PromptStyle.SENT):
            pooled = pooled.removeprefix(":")  # "Query:color" may share a token with its colon
        assert without_space(pooled) == without_space(as_decoded(family, text))
        if family in ("byte-level", "mistral", "qwen"):  # these keep white space
            assert pooled.strip() == as_decoded(family, text).strip()


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_written_in_a_text_are_text(tokenizer_of, family):
    tokenize = tokenizer_of(family)
    pair = prompt_set(PromptStyle.COND, template=template_of(family)).pair
    special = {i for i, token in tokenize.tokenizer.get_added_tokens_decoder().items() if token.special}
    special -= {tokenize.tokenizer.token_to_id(unknown) for unknown in ("[UNK]", "<unk>")}
    written = pair.render("a [SEP] b </s>c<s> <pad> <mask>", "</s> [CLS] <|endoftext|>")
    harmless, harmful = tiny.tokens(tokenize, [pair.render(SENTENCE, "dress"), written])
    assert [i for i in harmful.ids if i in special] == [i for i in harmless.ids if i in special]


@pytest.mark.parametrize(("family", "end"), END_TOKENS.items())
def test_the_end_token_stands_once_at_the_end(tmp_path, family, end):
    """Appended where the tokenizer does not, not doubled where it does, even after a text that ends with it."""
    ids = {}
    for ends in (False, True):
        folder = tmp_path / str(ends)
        folder.mkdir()
        tiny.save_tokenizer(folder, tiny.TOKENIZERS[family](ends=ends))
        spec = replace(ENCODERS["minilm"], source=str(folder), end_token=end)
        tokenize = load_tokenizer(spec)
        pair = prompt_set(PromptStyle.COND).pair
        prompts = [pair.render(SENTENCE, c) for c in (CONDITION, f"dress {end}")]
        ids[ends] = [t.ids for t in tiny.tokens(tokenize, prompts)]
        end_id = tokenize.tokenizer.token_to_id(end)
        assert all(i[-1] == end_id and i.count(end_id) == 1 for i in ids[ends])
    assert ids[False] == ids[True]


PRINTED = [chr(i) for i in range(32, 127)]
LONG = "the woman with a dog at the bar and two people play with a red dress " * 3


def _pooled(tokens):
    return tokens.ids[tokens.start : tokens.end]


def tokens_in(tokenize, rendered, span):
    """Positions of the tokens with a character of the span, by their offsets."""
    offsets = tokenize.tokenizer.encode(rendered.text).offsets
    held = [i for i, (a, b) in enumerate(offsets) if a < span[1] and b > span[0]]
    return held[0], held[-1] + 1


@pytest.mark.parametrize(("style", "span"), [*STYLES[::2], (PromptStyle.CONCAT_CS, TokenSpan.ALL)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_prompt_loses_the_end_of_its_sentence_alone(tokenizer_of, family, style, span):
    pair = prompt_set(style, template=template_of(family), span=span).pair
    rendered = pair.render(LONG, CONDITION)
    (full,) = tiny.tokens(tokenizer_of(family), [rendered])
    first, last = tokens_in(tokenizer_of(family), rendered, rendered.sentence)
    for over in (1, 5, last - first - 1):
        tokenize = tokenizer_of(family, max_tokens=len(full.ids) - over)
        (found,) = tiny.tokens(tokenize, [rendered])
        assert found.truncated
        assert not full.truncated
        assert found.ids == full.ids[: last - over] + full.ids[last:]
        pooled = _pooled(found)
        if pair.span is TokenSpan.CONDITION:
            assert pooled == _pooled(full)
            assert without_space(CONDITION) in without_space(decoded(tokenize, pooled))
        elif pair.span is TokenSpan.SENTENCE:
            assert pooled == full.ids[first : last - over]
        else:
            assert pooled == found.ids


@pytest.mark.parametrize(
    ("template", "shared"), [('Say "{sentence}" in terms of {condition}: ', 'ss"'), ("{sentence}{condition}.", "sc")]
)
def test_a_token_of_the_sentences_end_and_of_what_follows_stays(tmp_path, template, shared):
    """As `."` is one token of Qwen's: without it the prompt would lose a part of the template, or of the condition."""
    made = Tokenizer(models.BPE({"[UNK]": 0, **{c: i for i, c in enumerate(PRINTED, 1)}}, [], unk_token="[UNK]"))
    made.add_tokens([shared])
    tiny.save_tokenizer(tmp_path, (made, {"tokenizer_class": "PreTrainedTokenizerFast"}))
    spec = replace(ENCODERS["minilm"], source=str(tmp_path), max_tokens=1000)
    own = OwnPrompt(template=template, pool=PooledPart.CONDITION)
    rendered = own.prompts.pair.render("a red dress", "color")
    (full,) = tiny.tokens(load_tokenizer(spec), [rendered])
    for over in (1, 4):
        tokenize = load_tokenizer(replace(spec, max_tokens=len(full.ids) - over))
        (found,) = tiny.tokens(tokenize, [rendered])
        written, pooled = ("".join(map(tokenize.tokenizer.id_to_token, ids)) for ids in (found.ids, _pooled(found)))
        stays = "s" * shared.count("s")
        sentence = "a red dress"[: -len(stays) - over] + stays
        assert written == template.replace("{condition}", "color").replace("{sentence}", sentence)
        assert pooled == ("sc" if shared == "sc" else "c") + "olor"


def test_the_length_is_the_tables_not_the_tokenizers_own(tokenizer_of):
    """MiniLM's file cuts and pads to 128."""
    found = tiny.tokens(tokenizer_of("minilm", 256), [UNCONDITIONAL.render("dress " * n, "") for n in (10, 150, 300)])
    assert [len(t.ids) for t in found] == [12, 152, 256]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_condition_that_leaves_no_room_is_refused(tokenizer_of, family):
    rendered = prompt_set(PromptStyle.COND, template=template_of(family)).pair.render("dress", LONG)
    (full,) = tiny.tokens(tokenizer_of(family), [rendered])
    first, last = tokens_in(tokenizer_of(family), rendered, rendered.sentence)
    without_sentence = len(full.ids) - (last - first)
    (found,) = tiny.tokens(tokenizer_of(family, max_tokens=without_sentence), [rendered])
    assert (found.refused, found.ids) == (Reason.NO_ROOM, [])
    (found,) = tiny.tokens(tokenizer_of(family, max_tokens=without_sentence + 1), [rendered])
    assert (found.refused, len(found.ids)) == (None, without_sentence + 1)
    base = prompt_set(PromptStyle.CONCAT_SC).base.render("", LONG)
    assert tiny.tokens(tokenizer_of(family, max_tokens=8), [base])[0].refused is Reason.NO_ROOM


VERY_LONG = {
    "words": "the color of a red dress " * 100,
    "few spaces between letters": "a b " + "dress, - (people) 😀 " * 100 + "c d",
    "Chinese": "北京\uff0c東京\u3002" * 500,
    "other scripts": "北京 東京 привет cafe\u0301 naïve 👩‍👩‍👧 " * 80,
    "white space inside": "a b" + " \n" * 1000 + "color of the dress 7 8",
    "characters without tokens": "a b" + "\u200b" * 2000 + " dress of the bar",
}


@pytest.mark.parametrize("text", VERY_LONG.values(), ids=VERY_LONG)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_very_long_text_gives_the_tokens_that_it_gives_uncut(tokenizer_of, family, text):
    cutting = replace(tokenizer_of(family), max_tokens=24)
    pairs = [(text, CONDITION), (SENTENCE, text), (text, "color"), (SENTENCE, CONDITION)]
    for style, span in STYLES[1:6:3]:
        pair = prompt_set(style, span=span).pair
        uncut = tiny.tokens(cutting, [pair.render(*p) for p in pairs])
        tiny.batches_equal(cutting.pairs([pair], pairs), TokenBatch.of(uncut))


def test_a_text_is_unknown_if_all_of_its_tokens_are(tokenizer_of):
    odd, dna = "\u16a0\u16a1 \u16a2", "acgt" * 40
    texts = [odd, dna, f"a {odd}", f"{odd}.", "a", odd * 300 + " a"]
    unknown = {"wordpiece": [True, True, False, False, False, True], "minilm": [True, True, False, False, False, True]}
    unknown["unigram"] = [True, False, False, False, False, True]
    for family in FAMILIES:
        found = tokenizer_of(family, max_tokens=200).pairs([UNCONDITIONAL], [(text, "") for text in texts]).unknown
        assert found.tolist() == unknown.get(family, [False] * 6), family
