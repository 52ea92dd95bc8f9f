"""Bi-, tri- and cross-encoder by hand, on the library's own model: what they read, leave out, and encode once."""

from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from safetensors.torch import load_file
from small import CONDITIONS, EVERY, SENTENCES, close, system

from raycase.io.schema import Reason
from raycase.papers.baselines import Compose
from raycase.papers.baselines.model import TriEncoderConfig, bi_encoder, cross_encoder


def test_a_bi_encoder_reads_the_condition_then_the_sentence_and_pools_every_token(bert):
    tokens = small.tokenizer(bert).convert_ids_to_tokens(small.ids(bert, "dog: red")[0])
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.index(":") < tokens.index("red")
    wanted = [small.mean(bert, f"{c}: {s}") for s, c in EVERY]
    close(small.vectors(system(bi_encoder(bert))), wanted)


@pytest.mark.parametrize("how", Compose)
def test_a_tri_encoder_composes_two_vectors(bert, how):
    apart = [(small.mean(bert, s), small.mean(bert, c)) for s, c in EVERY]
    wanted = [s * c for s, c in apart] if how is Compose.HADAMARD else [[*s, *c] for s, c in apart]
    config = TriEncoderConfig.untrained(bert, compose=how)
    close(small.vectors(system(config)), wanted)
    assert config.dim == len(wanted[0])
    assert config.unconditional_dim == small.DIM


def triple(config, *texts):
    batch = config.tokenize_pairs(*([text] for text in texts))
    return batch, batch.sequences.take(np.array([0])).flat.tolist()


def test_a_cross_encoder_reads_both_sentences_then_the_condition(bert):
    batch, found = triple(cross_encoder(bert), *SENTENCES[:2], "dog")
    pieces = small.tokenizer(bert)
    parts = [pieces(text, add_special_tokens=False)["input_ids"] for text in (*SENTENCES[:2], "dog")]
    cls, sep = pieces.convert_tokens_to_ids(["[CLS]", "[SEP]"])
    assert found == [cls, *parts[0], sep, *parts[1], sep, *parts[2], sep]
    assert (batch.reasons, batch.truncated.tolist()) == ([None], [False])


def test_a_condition_that_leaves_no_room_for_two_tokens_is_refused(bert):
    config = cross_encoder(bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=7))
    batch, found = triple(config, "red", "dress", "number people")
    assert (batch.reasons, found) == ([Reason.NO_ROOM], [])
    loaded = system(config)
    with pytest.raises(ValueError, match=r"pair 1: condition leaves no room .*'red', 'dress' under 'number people'"):
        loaded.score(["red", "red"], ["dress", "dress"], ["number", "number people"])


def test_a_score_is_a_linear_layer_of_the_first_state(bert, tmp_path):
    """The types of "[CLS] s1 [SEP] s2 [SEP] c [SEP]": 0 to the first [SEP], then 1."""
    config = cross_encoder(bert)
    trained = small.disturb(config.trainable()).eval()
    found, folder = small.figures(trained), tmp_path / "model"
    trained.save(folder)
    head = load_file(folder / "extra.safetensors")
    model, wanted = small.stock(folder / "encoder"), []
    for s in SENTENCES:
        for t in SENTENCES:
            for c in CONDITIONS:
                _, tokens = triple(config, s, t, c)
                types = torch.zeros(1, len(tokens), dtype=torch.long)
                types[0, small.ids(bert, s).shape[1] :] = 1
                with torch.no_grad():
                    states = model(input_ids=torch.tensor([tokens]), token_type_ids=types).last_hidden_state
                cls_D = states[0, 0]
                wanted.append((head["weight"][0] @ cls_D + head["bias"][0]).item())
    close(found, wanted, atol=1e-5)
