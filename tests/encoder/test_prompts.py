"""What the prompts say, character by character (CASE, section 3.1 and section 4)."""

import pytest

from raycase.encoder.prompts import BUILT_IN, TokenSpan, parse_views, prompt_set
from raycase.errors import RequestError
from raycase.names import PromptStyle

QWEN = "Instruct: {instruction}\nQuery:{text}"
SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def texts(style, **options):
    prompts = prompt_set(style, **options)
    return [template.render(SENTENCE, CONDITION).text for template in (prompts.pair, prompts.base)]


def pooled(template, sentence, condition):
    """The pooled text of a prompt, None where all of it is."""
    found = template.render(sentence, condition)
    return found.pooled and found.text[slice(*found.pooled)]


RETRIEVE = "Instruct: Retrieve semantically similar texts"
TO_CONDITION = f"{RETRIEVE} to a given Condition, given the Sentence : A woman in a red dress\n"
TO_SENTENCE = f"{RETRIEVE} to a given Sentence, given the Condition : color of the dress\n"


@pytest.mark.parametrize(
    ("style", "options", "pair", "base"),
    [
        (PromptStyle.COND, {}, TO_CONDITION + "Query: " + CONDITION, f"{RETRIEVE}\nQuery: {CONDITION}"),
        (PromptStyle.SENT, {}, TO_SENTENCE + "Query: " + SENTENCE, f"{RETRIEVE}\nQuery: {CONDITION}"),
        (PromptStyle.COND, {"template": QWEN}, TO_CONDITION + "Query:" + CONDITION, f"{RETRIEVE}\nQuery:{CONDITION}"),
        (PromptStyle.CONCAT_CS, {}, f"{CONDITION} {SENTENCE}", CONDITION),
        (PromptStyle.CONCAT_CS, {"separator": ": "}, f"{CONDITION}: {SENTENCE}", CONDITION),
        (PromptStyle.CONCAT_SC, {}, f"{SENTENCE} {CONDITION}", CONDITION),
    ],
)
def test_the_texts_of_a_style(style, options, pair, base):
    assert texts(style, **options) == [pair, base]


@pytest.mark.parametrize("style", BUILT_IN)
@pytest.mark.parametrize("span", TokenSpan)
def test_what_is_pooled(style, span):
    prompts = prompt_set(style, span=span)
    of_style = {PromptStyle.COND: CONDITION, PromptStyle.SENT: SENTENCE}
    of_span = {TokenSpan.CONDITION: CONDITION, TokenSpan.SENTENCE: SENTENCE, TokenSpan.ALL: None}
    assert pooled(prompts.pair, SENTENCE, CONDITION) == of_style.get(style, of_span[span])
    wanted = None if style not in of_style and span is TokenSpan.ALL else CONDITION
    assert pooled(prompts.base, "", CONDITION) == wanted


NO_STYLES = ["", "+", "cond+", "+cond", "other", "cond+other", "Cond", " cond", "cond + sent"]
NO_SPANS = ["cond:all", "sent:sentence", "concat-sc:", "concat-sc:other", "concat-cs:all:all", "concat-sc: all"]
TWICE = ["cond+cond", "cond+sent+cond", "concat-sc:all+concat-sc:all"]


@pytest.mark.parametrize(
    ("prompts", "said"), [(NO_STYLES, "cond, sent"), (NO_SPANS, "a span for .*concat-sc"), (TWICE, "each view once")]
)
def test_what_is_no_view_is_refused(prompts, said):
    for prompt in prompts:
        with pytest.raises(RequestError, match=f"^--prompt: expected {said}.*, got '"):
            parse_views(prompt)
