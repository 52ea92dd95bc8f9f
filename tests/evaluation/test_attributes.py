"""Attributes of captions: values by hand, and word lists that are refused."""

import json

import pytest
from attributes import attribute_patterns, attributes_of, compile_patterns
from captions import DEFAULT


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


OTHER_SENSES = """
kind of vehicle:
Two bikes lean on a parked car. = bicycle, car
He jumps his dirt bike over a hill. = motorcycle
A girl in a bike helmet sits in her car seat. =
She trains her dog near the train tracks and the bus stop. =
A rail car behind a bicycle taxi. = bicycle, train
A toddler plays with a toy truck. =
food or drink:
A boy eats a hot dog. = meat
An orange shirt hangs beside the oranges. = fruit
She stands by the ice cream truck with a beer. = beer
A hot dog stand outside a wine shop. =
kind of musical instrument:
Three guitarists and a drummer perform. = drums, guitar
A woman blows a long horn. = horn
A bull lowers its horns. =
She fiddles with a flute glass while he plays air guitar. =
what is worn on the head:
Workers in hard hats. = hard hat
He wears a knit hat. = knit hat
A man in a hat stands by the hat rack. = hat
He opens a bottle cap below the ice cap. =
furniture to sit or lie on:
An old man in a wheel chair under a chair lift. =
He does a bench press by the flower bed. =
A cat on a bar stool, a dog on the bed. = bed, stool
kind of body of water:
Men at a pool table. =
Children in a wading pool. = pool
A sea lion and a drinking fountain. =
A stream of water hits a child. =
Two dogs cross the stream. = river
the ground underfoot:
A rock band with a street performer. =
A sailor with dirt on his hands waits to dock. =
A beach ball rolls on the grass. = grass
A boy eats ice cream on the sidewalk. = sidewalk
room or building:
Children on a jungle gym behind a bounce house. =
A kitchen knife. =
A barber shop next to the church. = church, store
Boys get off the school bus. =
color of the hair:
A blond boy with a dark-haired friend. = blond, dark
A woman with long dark brown hair. = brown
A brown haired dog and a man in a blond wig. =
A cook in a white hair net. =
A man with thick, white hair. = gray
pattern of the clothes:
A striped umbrella over a plaid blanket. =
A flower girl in a white dress. =
A woman in a floral print summer dress. = floral
A dress with white polka dots. = polka dots
tool or device:
She smiles at the camera by a phone booth. =
He saw a drill sergeant. =
He cuts a board with a hand saw. = saw
"""


def test_words_that_mean_something_else_are_not_taken():
    condition = ""
    for line in OTHER_SENSES.strip().splitlines():
        if line.endswith(":"):
            condition = line.removesuffix(":")
        else:
            caption, values = line.split("=")
            assert attributes_of(caption, condition) == set(filter(None, values.strip().split(", "))), caption


def test_the_first_four_attributes_come_first():
    assert tuple(attribute_patterns())[: len(DEFAULT)] == DEFAULT


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
