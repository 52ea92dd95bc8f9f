"""Captions that share an attribute: neighbours and shares by hand, the data's refusals, the report."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from captions import (
    DEFAULT,
    Captions,
    attribute_under,
    chance_share,
    find_attributes,
    measure,
    nearest,
    neighbour_share,
    read,
    read_captions,
    render,
)
from helpers import write_csv

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.procedure import Task, run_task
from raycase.evaluation.report import ranked_values


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
    assert list(find_attributes(captions, DEFAULT)) == ["animal"]


def caption_job(folder, images, texts, **options):
    """A job on captions of these images."""
    (folder / "data").mkdir()
    pq.write_table(pa.table({"image": images, "text": texts}), folder / "data" / "captions.parquet")
    defaults = {"model": ("minilm",), "data": str(folder / "data"), "output": str(folder / "report"), "resamples": 100}
    return EvaluateJob(task="captions", **defaults | options)


def evaluate(job, vectors_of, **reading):
    task = Task(read=partial(read, **reading), measure=measure, values=ranked_values, render=render)
    return run_task(job, task, vectors_of=vectors_of)


def training_file(folder, *rows):
    columns = ["sentence1", "sentence2", "condition", "label"]
    return write_csv(folder / "train.csv", columns, rows)


def test_the_report_says_what_training_had(tmp_path):
    train = training_file(tmp_path, ["a dog 0", "x", " Animal", 1], ["y", "z", "type of animal", 2])
    texts = [f"a {animal} {i}" for i in range(10) for animal in ("dog", "cat", "beer", "cake")]
    asked = []

    def vectors_of(texts, config, **_):
        """Under each condition the vectors know its two values, and of other captions nothing."""
        asked.append(texts)
        if isinstance(texts[0], str):
            return np.random.default_rng(0).standard_normal((len(texts), 2)).astype(np.float32)
        values = {"animal": ("dog", "cat"), "food or drink": ("beer", "cake")}
        return np.array([[*(value in t for value in values[c]), 0.1] for t, c in texts], dtype=np.float32)

    job = caption_job(tmp_path, list(map(str, range(40))), texts)
    metrics = evaluate(job, vectors_of, train_file=train, attributes=("food or drink", "animal"))
    assert [len(part) for part in asked] == [39, 78], "plain vectors, then all conditions in one call"
    assert asked[1][:2] == [("a cat 0", "animal"), ("a cat 0", "food or drink")]
    assert metrics["data"]["captions"] == 39 and metrics["data"]["images"] == 39
    training = metrics["data"]["training"]
    assert (training["rows"], training["captions_left_out"], training["images_left_out"]) == (2, 1, 1)
    groups = {group["name"]: group for group in metrics["groups"]}
    found = {name: (group["queries"], group["seen"]) for name, group in groups.items()}
    assert found == {"animal": (19, True), "food or drink": (20, False)}
    figures = metrics["systems"][1]["figures"]
    # each of 9 dogs has 8 others among 10 neighbours, each of 10 cats (beers, cakes) 9
    assert figures["animal"]["share@10"]["value"] == pytest.approx(100 * (9 * 8 + 10 * 9) / (19 * 10))
    assert figures["food or drink"]["share@10"]["value"] == pytest.approx(90)
    report = (tmp_path / "report" / "report.md").read_text()
    assert "| condition seen in training | yes | no |" in report
    assert "1 captions of 1 images are left out everywhere: train.csv has" in report


def test_the_captions_of_the_data_folder_are_read(data):
    captions = read_captions(str(data / "flickr30k"))
    assert len(captions.texts) == 20_000 and len(captions.queries) == 4000
