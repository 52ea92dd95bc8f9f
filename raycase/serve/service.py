"""What requests ask of a loaded model and of an index. Knows no HTTP, and is for one thread at a time.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from raycase.encoder.model_files import model_folder
from raycase.errors import MOST_SHOWN, RequestError, WorkError, first_line, note, visible, with_arguments
from raycase.explore.facets import find_facets
from raycase.index.answers import ASKED, PARTS, POOLED, QUERY, TEXT_RANK, VECTOR_RANK
from raycase.index.index import Index, on_index
from raycase.index.lance_files import READY, lance_errors
from raycase.index.options import EFFORTS, Limits
from raycase.index.query_encoder import resolve_query_encoder
from raycase.io.schema import CONDITION, RANK, SCORE, Reason
from raycase.models.configs import check_conditions
from raycase.models.embedder import Embedder
from raycase.models.pairs import check_accepted, tokens_of_pairs
from raycase.models.registry import resolve_embedder
from raycase.serve.schema import ExplainRequest, FacetsRequest, SearchRequest
from raycase.serve.settings import ServeFlags

Answered = TypeVar("Answered")
CHECKED = 1.0  # seconds for which the version that is open is taken for the newest
STUCK = 600.0  # seconds after which some work will never end
OPTIONS = ("unconditional", "exact_condition", "match", "hybrid", "per")  # of a search, as the request names them
# of a message: what stands between names and slashes, with two or more names; a scheme before it
_PATH = re.compile(r"(?:\w+:/{1,2})?(?:~|\.{1,2})?/[\w.@%+~=-]+(?:/[\w.@%+~=-]*)+")


class EmbeddedText(NamedTuple):
    """The vector of a text, (D,) float32, or the reason why it has none; its tokens, and whether some were left out."""

    vector: np.ndarray
    refused: str | None
    tokens: int
    truncated: bool


class LiveIndex:
    """An open index that takes each new version as it is published; requests that have begun end on theirs."""

    def __init__(self, open_index: Callable[[], Index]) -> None:
        self.open = open_index
        self.index, self.checked = self.open(), time.monotonic()

    def on(self, work: Callable[[Index], Answered]) -> Answered:
        """Do some work on the newest version; once more where builds removed it meanwhile."""
        return on_index(self.newest, work)[1]

    def newest(self) -> Index:
        """The newest version, with the model that is loaded; the one that is open where another cannot be opened."""
        if time.monotonic() - self.checked > CHECKED:
            self.checked = time.monotonic()
            try:
                with lance_errors(self.index.root):
                    ready = self.index.dataset.tags.list().get(READY)  # None: an overwrite is at work
                if ready is not None and ready["version"] != self.index.dataset.version:
                    newest, own = self.open(), self.index.metadata
                    if newest.metadata.model != own.model:
                        got = newest.metadata.name
                        raise RequestError(f"expected an index of {own.name}, got one of {got}; restart the service")
                    newest.query_encoder.take_model(self.index.query_encoder)
                    self.index = newest
            except (RequestError, WorkError) as error:
                note(f"still using the open version of the index: {first_line(error)}")
        return self.index


@dataclass(frozen=True, kw_only=True)
class Service:
    """A loaded model, by the name that strangers know it by, and an open index of it."""

    name: str
    loaded: Embedder
    live: LiveIndex | None
    hidden: Mapping[str, str] = field(default_factory=dict)  # a path that no message shows -> what stands there instead

    @classmethod
    def load(cls, settings: ServeFlags, shard: Callable[[Index], Index] | None = None) -> Service:
        """Load the model and open the index; shard: makes of it one whose shards processes of their own search."""
        if settings.index is None:
            assert settings.model is not None, "check_serve gives the default"
            name, encoder = public_name(settings.model), resolve_embedder(settings.model).load()
            return cls(name=name, loaded=encoder, live=None, hidden={settings.model: name})
        limits = Limits(token_memory=int(settings.memory * 2**30))

        def opened() -> Index:
            index = Index.open(str(settings.index), model=settings.model, limits=limits)
            return shard(index) if shard else index

        live = LiveIndex(opened)
        index, name = live.index, public_name(live.index.metadata.name)
        hidden = dict.fromkeys((index.root.uri, index.root.path, settings.index), "the index") | {index.model: name}
        return cls(name=name, loaded=index.encoder, live=live, hidden=hidden)

    @staticmethod
    def model_of(settings: ServeFlags) -> str:
        """The model's name. Raises RequestError for a model or an index that `load` could not load."""
        if settings.index is None:
            assert settings.model is not None, "check_serve gives the default"
            return resolve_embedder(settings.model).name
        index = Index.open(settings.index, model=settings.model)
        resolve_query_encoder(index.metadata, index.model)
        return index.model

    @property
    def encoder(self) -> Embedder:
        """The model, with what the newest index was taught."""
        return self.live.newest().encoder if self.live else self.loaded

    # --------------------------------------------------------------------------------------------------- embeddings

    def check(self, conditions: Sequence[str] | None, dimensions: int | None) -> None:
        """Raise RequestError for conditions and dimensions that the model does not have."""
        config = self.encoder.config
        check_conditions(config, conditions)
        fits, how = [config.unconditional_dim], "without a condition"
        if conditions is not None:
            fits, how = sorted({*(n for n in config.nested if n <= config.dim), config.dim}), "under a condition"
        if dimensions not in (None, *fits):
            expected = " or ".join(map(str, fits))
            raise RequestError(f"dimensions: expected {expected} for vectors {how}, got {dimensions}")

    def embed(self, texts: Sequence[str], conditions: Sequence[str] | None) -> list[EmbeddedText]:
        """The vector of each text under its condition (None: unconditional), those of `model.encode`: N of them."""
        prepared = self.encoder.config.prepare(texts, conditions)
        encoded = self.encoder.encode_prepared(prepared)
        tokens_N = tokens_of_pairs(prepared, np.arange(len(prepared.condition)))[prepared.rows]
        pairs = zip(encoded.finite, encoded.refused, strict=True)
        reasons = [None if is_finite else why or Reason.NOT_FINITE for is_finite, why in pairs]
        vectors_ND = encoded.vectors.astype(np.float32, copy=False)
        return [*map(EmbeddedText, vectors_ND, reasons, tokens_N.tolist(), encoded.truncated.tolist())]

    # -------------------------------------------------------------------------------------------------------- index

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """`Index.search`: for each query its answers, best first."""
        assert self.live is not None, "the app asks nothing of an index that is not there"
        conditions, options = asked.asked, asked.model_dump(include={*OPTIONS}) | EFFORTS[asked.effort]
        table = self.live.on(lambda index: index.search(asked.queries, conditions, asked.k, asked.where, **options))
        answers: list[list[dict[str, Any]]] = [[] for _ in asked.queries]
        own = (ASKED, CONDITION, POOLED, RANK, SCORE, *[PARTS] * (asked.conditions is not None))
        own += (VECTOR_RANK, TEXT_RANK) * asked.hybrid
        for row in table.to_pylist():
            answer = {name: row.pop(name) for name in own}
            answers[row.pop(QUERY)].append(answer | {"row": row})
        return {"answers": answers}

    def facets(self, asked: FacetsRequest) -> dict[str, Any]:
        """`raycase facets`."""

        def work(index: Index) -> dict[str, Any]:
            condition, blocks = index.blocks(asked.condition, asked.where, exact_condition=asked.exact_condition)
            rows = find_facets(index, condition, blocks, clusters=asked.clusters).table.to_pylist()
            count = sum(row["rows"] for row in rows)
            return {ASKED: asked.condition, CONDITION: condition, "rows": count, "clusters": rows}

        assert self.live is not None, "the app asks nothing of an index that is not there"
        return self.live.on(work)

    def conditions(self) -> dict[str, Any]:
        """The conditions of the index with their rows, or those that the model knows (None: any)."""
        if self.live is None:
            known = self.encoder.config.known_conditions
            return {"conditions": None if known is None else list(known)}
        own = self.live.newest().metadata
        return {"conditions": own.conditions, "unconditional": own.unconditional, "any": bool(own.with_tokens)}

    def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """The words of each text under each condition with their weights."""
        pairs = [(text, condition) for text in asked.texts for condition in asked.conditions]
        texts, conditions = ([*each] for each in zip(*pairs, strict=True))
        refused = self.encoder.config.prepare(texts, conditions).refused
        check_accepted(refused, texts, conditions=conditions, numbered=False)
        weights = []
        for (text, condition), found in zip(pairs, self.encoder.word_weights(texts, conditions), strict=True):
            words = [word._asdict() | {"word": text[word.start : word.end]} for word in found]
            weights.append({"text": text, CONDITION: condition, "words": words})
        return {"weights": weights}


class Engine:
    """A loaded service behind a thread. What waits and is no longer wanted is not begun."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests, self.closed = 0, False  # how many are under way; whether new ones are refused
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raycase")
        self._began = math.inf  # of the work that the thread is at: time.monotonic()

    async def run(self, work: Callable[..., Answered], *arguments: Any) -> Answered:
        """The work's result, or what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work, *arguments)

    def _do(self, work: Callable[..., Answered], *arguments: Any) -> Answered:
        self._began = time.monotonic()
        try:
            return work(*arguments)
        finally:
            self._began = math.inf

    def stuck(self) -> bool:
        """Whether the thread hangs, such as in a library."""
        return time.monotonic() - self._began > STUCK

    async def close(self, seconds: float) -> None:
        """Let nothing more in; return when all that is under way is answered, or after so many seconds."""
        self.closed, end = True, time.monotonic() + seconds
        while self.requests and time.monotonic() < end:
            await asyncio.sleep(0.05)

    async def embed(self, texts: Sequence[str], conditions: Sequence[str] | None) -> list[EmbeddedText]:
        """`Service.embed`."""
        return await self.run(self.service.embed, texts, conditions)


def for_strangers(error: BaseException, hidden: Mapping[str, str]) -> str:
    """An error's message in one line, without paths of this machine and of its stores. hidden: of `Service`."""
    message = with_arguments(str(error))
    for path in sorted(hidden, key=len, reverse=True):
        message = message.replace(path, hidden[path])
    return visible(_PATH.sub("...", message), MOST_SHOWN)


def public_name(model: str) -> str:
    """A model's name for strangers: of a folder or a URI its last part, for its place is nobody's business."""
    if model_folder(model) or model.startswith(("/", "~", ".")) or model.count("/") > 1:
        return model.rstrip("/").rpartition("/")[2]
    return model
