"""Attributes of captions: values by hand, and word lists that are refused."""

import json

import pytest

from raycase.evaluation.tasks.attributes import attributes_of, compile_patterns


@pytest.mark.parametrize(
    ("caption", "condition", "values"),
    [
        ("A man in a blue shirt standing in a garden.", "color of the clothes", {"blue"}),
        ("Two girls in red dresses and a white cotton hat", "color of the clothes", {"white"}),
        ("A white dog runs past a woman in a black leather jacket", "color of the clothes", {"black"}),
        ("A red car", "color of the clothes", set()),
        ("A young man walks his dog.", "number of people", {"one"}),
        ("Two men and three women talk.", "number of people", {"two", "three"}),
        ("A man and a woman talk.", "number of people", set()),
        ("The crowd cheers.", "number of people", {"many"}),
        ("A golfer swings.", "type of sport", {"golf"}),
        ("People go skiing.", "type of sport", {"skiing"}),
        ("A dogged man fishes in a catamaran.", "animal", set()),
        ("Puppies and a cat.", "animal", {"dog", "cat"}),
    ],
)
def test_attributes_are_found_by_words(caption, condition, values):
    assert attributes_of(caption, condition) == values


def word_lists(**changes):
    words = {"lists": {"animal": ["dog", "c.t"]}, "conditions": {"animal": {"pet": ["a {animal}", "fish"]}}}
    return json.dumps(words | changes)


def test_a_list_stands_for_any_of_its_words():
    pattern = compile_patterns(word_lists())["animal"]["pet"]
    assert pattern.search("a dog runs") and pattern.search("two fish") and pattern.search("a c.t")
    assert not pattern.search("the dog") and not pattern.search("a cat") and not pattern.search("catfish")


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"animal": {"pet": ["a {colour}"]}}, "expected one of animal in braces, got 'colour'"),
        ({"animal": {"pet": []}}, "expected values with patterns under 'animal'"),
        ({"animal": {}}, "expected values with patterns under 'animal'"),
        ({"animal": {"pet": ["a ("]}}, "expected patterns of 'pet'"),
    ],
)
def test_broken_word_lists_are_refused(conditions, message):
    with pytest.raises(ValueError, match=message):
        compile_patterns(word_lists(conditions=conditions))
