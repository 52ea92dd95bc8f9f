"""What the prompts say, character by character (CASE, section 3.1 and section 4)."""

import pytest

from raycase.encoder.prompts import BUILT_IN, PromptStyle, TokenSpan, parse_views, prompt_set
from raycase.errors import RequestError

QWEN = "Instruct: {instruction}\nQuery:{text}"
SENTENCE, CONDITION = "A woman in a red dress", "color of the dress"


def texts(style, **options):
    prompts = prompt_set(style, **options)
    return [template.render(SENTENCE, CONDITION).text for template in (prompts.pair, prompts.base, prompts.plain)]


def pooled(template, sentence, condition):
    """The pooled text of a prompt, None where all of it is."""
    found = template.render(sentence, condition)
    return found.pooled and found.text[slice(*found.pooled)]


def test_cond_asks_for_the_condition_given_the_sentence():
    assert texts(PromptStyle.COND) == [
        "Instruct: Retrieve semantically similar texts to a given Condition, given the Sentence : "
        "A woman in a red dress\nQuery: color of the dress",
        "Instruct: Retrieve semantically similar texts\nQuery: color of the dress",
        "A woman in a red dress",
    ]


def test_sent_asks_for_the_sentence_given_the_condition():
    assert texts(PromptStyle.SENT) == [
        "Instruct: Retrieve semantically similar texts to a given Sentence, given the Condition : "
        "color of the dress\nQuery: A woman in a red dress",
        "Instruct: Retrieve semantically similar texts\nQuery: color of the dress",
        "A woman in a red dress",
    ]


def test_another_template():
    pair, base, _ = texts(PromptStyle.COND, template=QWEN)
    assert pair.endswith("A woman in a red dress\nQuery:color of the dress")
    assert base == "Instruct: Retrieve semantically similar texts\nQuery:color of the dress"


def test_concatenations_follow_the_order_and_the_separator():
    both = [CONDITION, SENTENCE]
    assert texts(PromptStyle.CONCAT_CS)[0] == " ".join(both)
    assert texts(PromptStyle.CONCAT_SC)[0] == " ".join(both[::-1])
    assert texts(PromptStyle.CONCAT_CS, separator=": ") == [": ".join(both), CONDITION, SENTENCE]


@pytest.mark.parametrize("style", BUILT_IN)
@pytest.mark.parametrize("span", TokenSpan)
def test_what_is_pooled(style, span):
    prompts = prompt_set(style, span=span)
    of_style = {PromptStyle.COND: CONDITION, PromptStyle.SENT: SENTENCE}
    of_span = {TokenSpan.CONDITION: CONDITION, TokenSpan.SENTENCE: SENTENCE, TokenSpan.ALL: None}
    assert pooled(prompts.pair, SENTENCE, CONDITION) == of_style.get(style, of_span[span])
    assert pooled(prompts.base, "", CONDITION) == (
        None if style not in of_style and span is TokenSpan.ALL else CONDITION
    )
    assert pooled(prompts.plain, SENTENCE, "") is None


@pytest.mark.parametrize("style", BUILT_IN)
def test_the_place_of_both_texts_is_known(style):
    found = prompt_set(style).pair.render(SENTENCE, CONDITION)
    assert found.text[slice(*found.sentence)] == SENTENCE
    assert prompt_set(style).base.render(SENTENCE, CONDITION).sentence is None


@pytest.mark.parametrize("style", BUILT_IN)
def test_braces_in_a_text_are_text(style):
    sentence, condition = "{condition} {sentence} {instruction}", "{sentence} {text} {0} %s"
    found = prompt_set(style, span=TokenSpan.CONDITION).pair.render(sentence, condition)
    assert found.text[slice(*found.sentence)] == sentence
    assert found.text.count(condition) == 1
    assert found.text[slice(*found.pooled)] == (sentence if style is PromptStyle.SENT else condition)


def test_outer_white_space_is_taken_off():
    pair = prompt_set(PromptStyle.COND).pair
    assert pair.render("  a\n", "\tb \n") == pair.render("a", "b")
    assert pooled(pair, " a  b ", "  c  d ") == "c  d"


# ---------------------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize("style", PromptStyle)
def test_a_style_alone_is_one_view(style):
    assert parse_views(style.value) == [(style, None)]


@pytest.mark.parametrize("style", [PromptStyle.CONCAT_CS, PromptStyle.CONCAT_SC])
@pytest.mark.parametrize("span", TokenSpan)
def test_a_concatenation_may_say_what_is_pooled(style, span):
    assert parse_views(f"{style}:{span}") == [(style, span)]


def test_views_stand_in_the_order_asked_for():
    assert parse_views("sent+concat-sc:all+cond+concat-sc:sentence+concat-sc") == [
        (PromptStyle.SENT, None),
        (PromptStyle.CONCAT_SC, TokenSpan.ALL),
        (PromptStyle.COND, None),
        (PromptStyle.CONCAT_SC, TokenSpan.SENTENCE),
        (PromptStyle.CONCAT_SC, None),
    ]


@pytest.mark.parametrize("prompt", ["", "+", "cond+", "+cond", "other", "cond+other", "Cond", " cond", "cond + sent"])
def test_what_is_no_style_is_refused(prompt):
    with pytest.raises(RequestError) as caught:
        parse_views(prompt)
    wrong = next(view for view in prompt.split("+") if view not in list(PromptStyle))
    styles = ", ".join(PromptStyle)
    assert str(caught.value) == f"--prompt: expected {styles}, or several joined by +, got {wrong!r}"


@pytest.mark.parametrize(
    "view", ["cond:all", "sent:sentence", "concat-sc:", "concat-sc:other", "concat-cs:all:all", "concat-sc: all"]
)
def test_what_is_no_span_is_refused(view):
    wanted = f"^--prompt: expected a span for .*concat-sc.* with :sentence, :condition, :all, got '{view}'$"
    with pytest.raises(RequestError, match=wanted):
        parse_views(f"sent+{view}")


@pytest.mark.parametrize("prompt", ["cond+cond", "cond+sent+cond", "concat-sc:all+concat-sc:all"])
def test_a_view_that_stands_twice_is_refused(prompt):
    with pytest.raises(RequestError, match="--prompt: expected each view once, got "):
        parse_views(prompt)
