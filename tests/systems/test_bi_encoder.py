"""The bi-encoder by hand, on the library's own model."""

import small
from small import EVERY, close, system

from raycase.systems.baselines import bi_encoder


def test_a_bi_encoder_reads_the_condition_then_the_sentence_and_pools_every_token(bert):
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "dog: red")[0])
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.index(":") < tokens.index("red")
    wanted = [small.mean(bert, f"{c}: {s}") for s, c in EVERY]
    close(small.vectors(system(bi_encoder(bert))), wanted)


def test_a_bi_encoder_of_another_prompt_pools_what_it_names(bert):
    """Four tokens of "a dog": [CLS] a dog : people [SEP] -> people alone."""
    [found] = system(bi_encoder(bert, prompt="concat-cs:sentence")).embed(["people"], ["a dog"])
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "a dog: people")[0])
    [place] = [i for i, token in enumerate(tokens) if token == "people"]
    close(found, small.states(bert, "a dog: people")[place])
