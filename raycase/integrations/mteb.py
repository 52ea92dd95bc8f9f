"""A loaded system as a model of MTEB, with search under the instruction of each query.

Shapes: Q queries, P pairs of a document and an instruction, D dimensions.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from mteb._create_dataloaders import create_dataloader  # how mteb's own models read a corpus
from mteb.models import ModelMeta, SearchEncoderWrapper
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from raycase.encoder.model_files import SHIPPED
from raycase.errors import WorkError, normal_words
from raycase.io.schema import Reason
from raycase.io.storage import fingerprint
from raycase.io.vectors import l2_normalize
from raycase.models.embedder import Embedder

PAIRS_AT_ONCE = 2**15  # of documents and instructions; bounds the memory
SEARCHED = {"Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking"}  # types of tasks
log = logging.getLogger(__name__)


class ConditionalEncoder(AbsEncoder):
    """MTEB's `EncoderProtocol` and `SearchProtocol`: unit vectors under the condition or a text's own instruction.

    A text without words gets zeros and is counted in the log.
    """

    mteb_model_meta: ModelMeta

    def __init__(self, system: Embedder, condition: str | None, pairs_at_once: int = PAIRS_AT_ONCE) -> None:
        self.system, self.pairs_at_once = system, pairs_at_once
        self.condition = condition = None if condition is None else normal_words(condition)
        self.mteb_model_meta = _meta(system, condition)
        self._corpus: Any = None

    def encode(self, inputs: Any, *, task_metadata: Any, **kwargs: Any) -> np.ndarray:
        """Vectors of a loader's texts: (N, D) float32.

        Raises RuntimeError for what cannot be embedded, ValueError for instructed queries of a task that searches.
        """
        texts, own = _read(inputs)
        if own and task_metadata.type in SEARCHED:
            raise ValueError(
                f"{task_metadata.name}: expected mteb to search with this model directly, got a call of encode with "
                "instructed queries; pass the model without a wrapper"
            )
        return self._vectors(texts, own or self.condition)

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Keep the documents for `search`, which knows the instructions."""
        self._corpus = corpus

    def search(
        self, queries: Any, *, top_k: int, top_ranked: dict[str, list[str]] | None = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Cosines of each query's best documents, of `top_ranked` or all, under its instruction, by ids."""
        instructions = queries["instruction"] if "instruction" in queries.column_names else [None] * len(queries)
        instructed = [row for row, instruction in enumerate(instructions) if instruction]
        others = [row for row, instruction in enumerate(instructions) if not instruction]
        found: dict[str, dict[str, float]] = {}
        if others:
            rest = queries.select(others)
            rest = rest.remove_columns([name for name in ("instruction",) if name in rest.column_names])
            by_mteb = SearchEncoderWrapper(self)
            by_mteb.index(self._corpus, **kwargs)
            found |= by_mteb.search(rest, top_k=top_k, top_ranked=top_ranked, **kwargs)
        if instructed:
            reading = {"task_metadata": kwargs["task_metadata"], "num_proc": kwargs.get("num_proc")}
            found |= self._search_instructed(queries.select(instructed), top_k, top_ranked, reading)
        return found

    def _search_instructed(
        self, queries: Any, top_k: int, top_ranked: dict[str, list[str]] | None, reading: dict[str, Any]
    ) -> dict[str, dict[str, float]]:
        """`search` where every query has an instruction. reading: of `create_dataloader`."""
        ids = list(queries["id"])
        texts, instructions = _read(create_dataloader(queries, prompt_type=PromptType.query, **reading))
        vectors_QD = self._vectors(texts, instructions)
        asked: dict[str, list[int]] = defaultdict(list)
        for query, instruction in enumerate(instructions):
            asked[instruction].append(query)
        everything = {*self._corpus["id"]}
        allowed = [everything if top_ranked is None else {*top_ranked.get(query, ())} for query in ids]
        wanted = {under: set().union(*(allowed[query] for query in asking)) for under, asking in asked.items()}
        anywhere = set().union(*wanted.values())
        documents = self._corpus.select([row for row, name in enumerate(self._corpus["id"]) if name in anywhere])
        best: list[dict[str, float]] = [{} for _ in ids]
        at_once = max(1, self.pairs_at_once // len(asked))
        for start in range(0, len(documents), at_once):
            chunk = documents.select(range(start, min(len(documents), start + at_once)))
            names = list(chunk["id"])
            texts, _ = _read(create_dataloader(chunk, prompt_type=PromptType.document, **reading))
            rows = {under: [i for i, name in enumerate(names) if name in wanted[under]] for under in asked}
            pairs = [(texts[i], under) for under, own in rows.items() for i in own]
            # one call: a system that encodes texts alone reads each document once for all instructions
            vectors_PD = self._vectors([text for text, _ in pairs], [under for _, under in pairs])
            end = 0
            for under, own in rows.items():
                begin, end = end, end + len(own)
                cosines_QP = self.system.similarity(vectors_QD[asked[under]], vectors_PD[begin:end])
                for query, cosines_P in zip(asked[under], cosines_QP.tolist(), strict=True):
                    found = zip((names[i] for i in own), cosines_P, strict=True)
                    new = {name: cosine for name, cosine in found if name in allowed[query]}
                    best[query] = dict(nlargest(top_k, (best[query] | new).items(), key=itemgetter(1)))
        return dict(zip(ids, best, strict=True))

    def _vectors(self, texts: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """(N, D) float32, of length 1. Raises WorkError for a pair that cannot be embedded."""
        config = self.system.config
        if not texts:
            return np.empty((0, config.unconditional_dim if conditions is None else config.dim), np.float32)
        if isinstance(conditions, str):
            conditions = [conditions] * len(texts)
        encoded = self.system.encode_prepared(config.prepare(texts, conditions))
        vectors_ND = encoded.vectors.astype(np.float32, copy=False)
        empty = np.array([reason is Reason.EMPTY_TEXT for reason in encoded.refused])
        vectors_ND[empty] = 0
        for row in np.flatnonzero(~np.isfinite(vectors_ND).all(1)).tolist():
            under = f" under {conditions[row]!r}" if conditions else ""
            raise WorkError(f"{encoded.refused[row] or Reason.NOT_FINITE}: {texts[row][:80]!r}{under}")
        if empty.any():
            log.warning("%d of %d texts have no words: their vectors are zeros", empty.sum(), len(texts))
        return l2_normalize(vectors_ND)


def _read(inputs: Any) -> tuple[list[str], list[str]]:
    """The texts of mteb's loader, and the instruction of each, if they have some: mteb writes those behind `text`."""
    texts: list[str] = []
    instructions: list[str] = []
    for batch in inputs:
        texts += batch["query" if "instruction" in batch else "text"]
        instructions += map(normal_words, batch.get("instruction", ()))
    return texts, instructions


def _meta(system: Embedder, condition: str | None) -> ModelMeta:
    """What is known of a model; the rest is None. The revision is a hash of all that determines the vectors."""
    config = system.config
    ships = config.name in SHIPPED
    name = Path(config.name.partition("@")[0]).name.replace(":", "-")
    own = {"languages": ["eng-Latn"], "license": "apache-2.0", "open_weights": True} if ships else {}
    return ModelMeta.create_empty(
        own
        | {
            "name": f"raycase/{name}",
            "revision": fingerprint([config.describe(), condition])[:40],
            "max_tokens": config.encoder.max_tokens,
            "embed_dim": config.unconditional_dim if condition is None else config.dim,
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": True,
            "experiment_kwargs": None if condition is None else {"condition": condition},
        }
    )
