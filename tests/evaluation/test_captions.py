"""Captions that share an attribute: neighbours and shares by hand, the data's refusals, the report."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import sentences

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.captions import (
    Captions,
    attribute_under,
    chance_share,
    find_attributes,
    nearest,
    neighbour_share,
    read_captions,
)
from raycase.evaluation.tasks.catalogue import evaluate


def test_neighbours_are_of_other_images_and_shares_are_counted_by_hand():
    captions = Captions(
        uri="", texts=["a dog", "a dog", "a dog runs", "a cat", "a bird"], images=np.array([0, 0, 1, 2, 3])
    )
    vectors = np.array([[1, 0], [1, 0], [1, 0.1], [1, 0.2], [0, 1]], dtype=np.float32)
    found = nearest(vectors, captions)
    assert found.shape == (4, 10)
    assert found[0, :4].tolist() == [2, 3, 4, -1]
    animals = attribute_under(captions, "animal")
    assert animals.query_index.tolist() == [0, 1, 2, 3]
    assert neighbour_share(found, animals).tolist() == [1 / 3, 2 / 4, 0, 0]
    assert chance_share(captions, animals).tolist() == [1 / 3, 2 / 4, 0, 0]
    assert attribute_under(captions, "type of sport").query_index.size == 0
    assert list(find_attributes(captions)) == ["animal"]


def test_captions_without_attributes_are_refused():
    captions = Captions(uri="captions.parquet", texts=["a house", "a tree"], images=np.array([0, 1]))
    with pytest.raises(RequestError, match=r"expected captions that name number of people, .*got none in captions"):
        find_attributes(captions)


def test_the_report_of_captions(tmp_path):
    texts = [f"a {animal} in the street with two children {i}" for i in range(20) for animal in ("dog", "cat")]
    rows = {"image": [f"{i}.jpg" for i in range(40)], "text": texts}
    pq.write_table(pa.table(rows), tmp_path / "captions.parquet")

    def vectors_of(texts, config, **_):
        """Plain vectors are random, conditional ones know the animal."""
        if isinstance(texts[0], str):
            return np.random.default_rng(0).standard_normal((len(texts), 3)).astype(np.float32)
        return np.array([["dog" in t, "cat" in t, 0.1] for t, _ in texts], dtype=np.float32)

    job = EvaluateJob(
        task="caption-attributes", model=("minilm",), data=str(tmp_path), output=str(tmp_path / "r"), resamples=100
    )
    metrics = evaluate(job, vectors_of=vectors_of)
    plain, conditional = metrics["systems"]
    assert conditional["figures"]["animal"]["share@10"]["value"] == 100
    assert plain["figures"]["animal"]["share@10"]["value"] < 80
    group = next(g for g in metrics["groups"] if g["name"] == "animal")
    assert group == {"name": "animal", "queries": 40, "chance": pytest.approx(100 * 19 / 39)}
    assert conditional["against"]["animal"]["share@10"]["low"] > 0
    report = (tmp_path / "r" / "report.md").read_text()
    assert "| chance |" in report and "A measure of ours" in report


def test_captions_of_one_image_are_no_corpus(tmp_path):
    pq.write_table(pa.table({"image": ["a", "a"], "text": sentences(2)}), tmp_path / "captions.parquet")
    with pytest.raises(RequestError, match="expected captions of several images"):
        read_captions(str(tmp_path))


def test_the_captions_of_the_data_folder_are_read(data):
    captions = read_captions(str(data / "flickr30k"))
    assert len(captions.texts) == 20_000 and len(captions.queries) == 4000
