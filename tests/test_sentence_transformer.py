"""A model of raycase as one of sentence-transformers: the same vectors, whatever way a condition is given."""

import numpy as np
import pytest
from helpers import Later

import raycase

library = Later("sentence_transformers")
TEXTS = ["a red dog runs in the park", "two girls", "a man in a blue shirt plays the guitar beside a small dog"]
CONDITIONS = ["color", "number of people", "animal"]


@pytest.fixture(scope="module")
def models():
    model = raycase.load()
    return model, raycase.to_sentence_transformer(model)


def test_vectors_are_those_of_the_model(models):
    model, converted = models
    color = model.encode(TEXTS, "color")
    one_each = model.encode(TEXTS, CONDITIONS)
    pairs = list(zip(TEXTS, CONDITIONS, strict=True))
    for found, wanted in (
        (converted.encode(TEXTS), model.encode(TEXTS)),
        (converted.encode(TEXTS, condition="color"), color),
        (converted.encode(TEXTS, prompt="color"), color),
        (converted.encode(TEXTS[0], condition="color"), color[0]),
        (converted.encode(pairs), one_each),
        (converted.similarity(color, color), model.similarity(color, color)),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert len(converted.encode([])) == 0
    assert converted.get_embedding_dimension() == model.dim


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        (TEXTS, {"condition": "color", "prompt": "animal"}, "got 'color', 'animal'"),
        ([("a dog", "color"), "two girls"], {}, "for each text or for none"),
        ([("a dog", "color")], {"condition": "animal"}, "got both: 'animal'"),
        ([{"text": "a dog"}], {}, "got {'text': 'a dog'}"),
    ],
)
def test_what_is_no_text_under_a_condition_is_refused(models, inputs, options, said):
    with pytest.raises(ValueError, match=said):
        models[1].encode(inputs, **options)


def test_a_saved_model_has_its_weights_beside_it_and_asks_for_trust(models, tmp_path):
    models[1].save(str(tmp_path / "default"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        library.SentenceTransformer(str(tmp_path / "default"))
    again = library.SentenceTransformer(str(tmp_path / "default"), trust_remote_code=True)
    np.testing.assert_array_equal(again.encode(TEXTS, condition="color"), models[0].encode(TEXTS, "color"))


def test_a_trained_folder_is_copied_when_saved(tiny_model, rated, tmp_path):
    folder = tmp_path / "trained"
    options = {"model": tiny_model, "prompt": "concat-sc", "pooling": "mean", "epochs": 1, "dim": 8, "ray": False}
    data = {"train": rated / "train.csv", "validation": rated / "validation.csv"}
    raycase.train("case", output=folder, **data, **options)
    model = raycase.load(folder)
    raycase.to_sentence_transformer(model).save(str(tmp_path / "saved"))
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "saved").rename(tmp_path / "moved")
    again = library.SentenceTransformer(str(tmp_path / "moved"), trust_remote_code=True)
    np.testing.assert_array_equal(again.encode(TEXTS, condition="color"), model.encode(TEXTS, "color"))
    again.save(str(tmp_path / "twice"))
    assert (tmp_path / "twice" / "model" / "raycase.json").exists()


def test_a_system_that_scores_pairs_and_a_name_have_no_vectors():
    for model in (object(), "minilm-conditional-v3"):
        with pytest.raises(ValueError, match=r"expected a model from raycase.load that embeds"):
            raycase.to_sentence_transformer(model)
