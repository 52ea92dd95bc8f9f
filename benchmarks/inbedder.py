"""Tasks of MTEB whose texts have conditions, over files that the user has: triplets, clusters and rated pairs, in the
form of InBedder's data sets (Peng et al., 2024, arXiv:2402.09642), with its questions as the conditions.

Any model of MTEB runs them: a text's question reaches it as the instruction of a query does, which mteb writes behind
the text. A file is .csv, .jsonl or .parquet, or a folder of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset
from mteb._create_dataloaders import create_dataloader
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata, TaskType
from mteb.types import PromptType
from scipy.stats import spearmanr

from raycase.errors import RequestError
from raycase.io.rated_pairs import read_rated
from raycase.io.reader import read_files
from raycase.io.storage import fingerprint

PAPER = "https://arxiv.org/abs/2402.09642"
QUESTIONS = {
    "intent": "What does the customer need?",
    "emotion": "How does the customer feel?",
    "topic": "What is the topic of news?",
    "location": "Where did the news happen?",
}


class _InstructedTask(AbsTask):
    """Base of the tasks: a subset for each aspect, whose rows have the columns of texts and `instruction`."""

    TYPE: ClassVar[TaskType]
    SCORE: ClassVar[str]

    def __init__(self, name: str, rows: Mapping[str, Mapping[str, Sequence[Any]]], instructed: bool = True) -> None:
        revision = fingerprint({aspect: dict(columns) for aspect, columns in rows.items()})
        # mteb keeps results by the name alone: those of other rows would be taken for these
        name = f"{name}{'' if instructed else 'Plain'}-{revision[:8]}"
        self.metadata = TaskMetadata(
            name=name,
            description=f"{name}: texts under questions, from files of the user",
            reference=PAPER,
            dataset={"path": name, "revision": revision},
            type=self.TYPE,
            category="t2t",
            eval_langs={aspect: ["eng-Latn"] for aspect in rows},
            main_score=self.SCORE,
        )
        super().__init__()
        self.instructed = instructed
        self.rows = rows

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Put the rows where mteb looks for them."""
        self.dataset = cast(
            Any, {aspect: {"test": Dataset.from_dict(dict(columns))} for aspect, columns in self.rows.items()}
        )
        self.data_loaded = True

    def unload_data(self) -> None:
        """Leave the rows; mteb's own would drop the metadata, which here are the instance's."""
        self.dataset, self.data_loaded = None, False

    def _unit_vectors(self, model: Any, rows: Any, column: str, subset: str, encode_kwargs: Any) -> np.ndarray:
        """Vectors of a column's texts, each under its row's instruction, scaled to length 1: (N, D)."""
        columns = {"text": list(rows[column])} | ({"instruction": list(rows["instruction"])} if self.instructed else {})
        where: dict[str, Any] = {"task_metadata": self.metadata, "prompt_type": PromptType.query}
        loader = create_dataloader(Dataset.from_dict(columns), **where, **encode_kwargs)
        vectors_ND = model.encode(loader, hf_split="test", hf_subset=subset, **where, **encode_kwargs)
        vectors_ND = np.asarray(vectors_ND, dtype=np.float32)
        return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True).clip(min=1e-12)

    def _calculate_descriptive_statistics_from_split(self, split: str, **options: Any) -> Any:
        return {"num_samples": sum(len(columns["instruction"]) for columns in self.rows.values())}


class TripletTask(_InstructedTask):
    """How often the anchor is nearer to the positive than to the negative, by cosine."""

    TYPE, SCORE = "PairClassification", "success_rate"

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_subset: str, encode_kwargs: Any, **kwargs: Any
    ) -> dict[str, float]:
        anchor_ND, positive_ND, negative_ND = (
            self._unit_vectors(model, data_split, column, hf_subset, encode_kwargs)
            for column in ("anchor", "positive", "negative")
        )
        nearer_N = (anchor_ND * positive_ND).sum(1) > (anchor_ND * negative_ND).sum(1)
        return {"success_rate": float(nearer_N.mean())}


class ClusterTask(_InstructedTask):
    """The V-measure of k-means, with as many clusters as there are."""

    TYPE, SCORE = "Clustering", "v_measure"

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_subset: str, encode_kwargs: Any, **kwargs: Any
    ) -> dict[str, float]:
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.metrics import v_measure_score

        vectors_ND = self._unit_vectors(model, data_split, "text", hf_subset, encode_kwargs)
        labels = list(data_split["cluster"])
        kmeans = MiniBatchKMeans(len(set(labels)), batch_size=500, n_init="auto", random_state=self.seed)
        return {"v_measure": float(v_measure_score(labels, kmeans.fit_predict(vectors_ND)))}


class InstructedPairTask(_InstructedTask):
    """Spearman of the cosines of pairs with their ratings."""

    TYPE, SCORE = "STS", "cosine_spearman"

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_subset: str, encode_kwargs: Any, **kwargs: Any
    ) -> dict[str, float]:
        first_ND, second_ND = (
            self._unit_vectors(model, data_split, column, hf_subset, encode_kwargs)
            for column in ("sentence1", "sentence2")
        )
        return {"cosine_spearman": float(spearmanr((first_ND * second_ND).sum(1), data_split["score"])[0])}


def intent_emotion(*, intent: str, emotion: str, instructed: bool = True) -> TripletTask:
    """InBedder's IntentEmotion: files with the columns anchor, positive and negative.

    instructed: without, the same texts without their questions. Raises ValueError for files that cannot be read.
    """
    return TripletTask(
        "IntentEmotion", _aspects(("anchor", "positive", "negative"), intent=intent, emotion=emotion), instructed
    )


def nyt_clustering(*, topic: str, location: str, instructed: bool = True) -> ClusterTask:
    """InBedder's NYTClustering: files with the columns text and cluster. See `intent_emotion`."""
    return ClusterTask("NYTClustering", _aspects(("text", "cluster"), topic=topic, location=location), instructed)


def instruct_stsb(file: str, *, instructed: bool = True) -> InstructedPairTask:
    """InBedder's InstructSTSB: the columns sentence1, sentence2, instruction and score. See `intent_emotion`."""
    pairs = read_rated(file, "file", "instruction", "score")
    rows = {"sentence1": pairs.sentences1, "sentence2": pairs.sentences2, "instruction": pairs.conditions}
    return InstructedPairTask("InstructSTSB", {"default": rows | {"score": pairs.ratings.tolist()}}, instructed)


def _aspects(names: Sequence[str], **files: str) -> dict[str, dict[str, list[str]]]:
    """The columns of each aspect's files, and its question as the instruction of every row."""
    found: dict[str, dict[str, list[str]]] = {}
    for aspect, uri in files.items():
        rows: dict[str, list[str]] = {name: [] for name in names}
        for _, columns in read_files(uri, names, aspect, words=names):
            for name in names:
                rows[name] += columns[name]
        count = len(rows[names[0]])
        if not count:
            raise RequestError(f"{aspect}: expected rows in {uri}, got none")
        found[aspect] = rows | {"instruction": [QUESTIONS[aspect]] * count}
    return found
