"""What the page of `raycase explore` asks of a service: the rows on its map, a map under any condition, marked words.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
from starlette.exceptions import HTTPException

from raycase.encoder.words import Word
from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.explore.aside import Aside
from raycase.explore.condition_map import ConditionMap, every_word, facet_words
from raycase.explore.explore_job import MOST_MAPS
from raycase.explore.grouping import Groups, MapSettings
from raycase.explore.map_rows import MapRows, choose_rows
from raycase.explore.page import ends_of, numbers_of, texts_of_rows
from raycase.search.facet_words import near_and_far
from raycase.search.index import Index
from raycase.search.marks import looked_at
from raycase.search.weighed import text_column, why_unweighed
from raycase.serving.engine import Engine
from raycase.serving.schema import MarksRequest

SETTINGS = MapSettings(neighbours=8, clusters=8, seed=0)
MOST_INDEXED = 10_000_000  # rows of an index, whose ids are read: a GiB
MOST_KEPT = 64  # conditions whose maps are remembered, beside the first map
MOST_WAITING = 8  # maps that are asked for while one is made
MAP_SECONDS = 300.0  # that a map may take
AT_ONCE = 64  # texts whose words are weighed at a time, between which other requests are answered
RETRY_SECONDS = 5

T = TypeVar("T")


@dataclass(kw_only=True)
class _Shown:
    """What is on the pages of one version of an index. maps: as pages get them; places: of the first one's
    points, (N, 2)."""

    version: int
    rows: MapRows
    title: str
    conditions: list[str | None]
    any_condition: bool
    weighs: bool
    maps: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    places: np.ndarray | None = None


class Explorer:
    """The maps of a service's index, of the newest version alone. One is made at a time: vectors and words, in pieces,
    by the model's thread, the rest aside."""

    def __init__(self, engine: Engine, most_rows: int) -> None:
        """most_rows: on a map; of more a sample."""
        self.engine, self.most_rows = engine, most_rows
        self.aside = Aside(MAP_SECONDS)
        self._making = asyncio.Lock()
        self._waiting = 0
        self._shown: _Shown | None = None

    async def rows(self) -> dict[str, Any]:
        """The texts on the map of the newest version, and the conditions of the index. Raises RequestError, WorkError
        and HTTPException."""
        shown = await self._on_index(self._newest)
        summary = shown.rows.summary(None, SETTINGS.seed)
        texts = texts_of_rows(shown.rows.texts, shown.rows.ids, shown.title, summary)
        return texts | {
            "version": shown.version,
            "neighbours": min(SETTINGS.neighbours, len(shown.rows.texts) - 1),
            "conditions": shown.conditions,
            "any": shown.any_condition,
            "weighs": shown.weighs,
        }

    async def map(self, version: int, condition: str | None) -> dict[str, Any]:
        """The map under a condition (None: by plain vectors) of the rows of a version. Raises RequestError, WorkError,
        and HTTPException for another version than the newest, and where too many wait."""
        shown = await self._of(version)
        if condition not in shown.maps:
            if self._waiting >= MOST_WAITING:
                raise HTTPException(
                    429,
                    f"expected at most {MOST_WAITING} maps that wait for another, got more; try again",
                    headers={"Retry-After": str(RETRY_SECONDS)},
                )
            self._waiting += 1
            try:
                await self._making.acquire()
            finally:
                self._waiting -= 1
            making = asyncio.ensure_future(self._make(shown, condition))
            making.add_done_callback(lambda _: self._making.release())
            await asyncio.shield(making)  # whoever hangs up, the next one has it
        return shown.maps[condition]

    async def marks(self, asked: MarksRequest) -> dict[str, Any]:
        """Starts and ends of the words of some rows at which a condition looks. Raises RequestError, WorkError and
        HTTPException."""
        shown = await self._of(asked.version)
        texts = shown.rows.texts
        if not shown.weighs or max(asked.rows) >= len(texts):
            got = "a row beyond them" if shown.weighs else "a model that weighs no words"
            raise RequestError(f"rows: expected some of the {len(texts):,} on the map, got {got}")
        words = await self._weigh(shown, [texts[row] for row in asked.rows], asked.condition)
        return {"words": [ends_of(each) for each in words]}

    # ------------------------------------------------------------------------------------------------------- a map

    async def _make(self, shown: _Shown, condition: str | None) -> None:
        """Make the map, if nobody did meanwhile; the first one before any other, whose points start where its are."""
        first = shown.conditions[0]
        if condition != first and first not in shown.maps:
            await self._make(shown, first)
        if condition in shown.maps:
            return
        vectors_ND = await self._on_index(partial(_vectors, shown, condition))
        settings = vars(SETTINGS)
        groups = Groups(**await asyncio.to_thread(partial(self.aside.do, "group", vectors=vectors_ND, **settings)))
        before = {} if condition == first else {"before": shown.places}
        arranging = partial(self.aside.do, "arrange", vectors=vectors_ND, seed=SETTINGS.seed, **before, **vars(groups))
        words, placed = await asyncio.gather(self._facet_words(shown, groups, condition), asyncio.to_thread(arranging))
        made = ConditionMap(
            condition=condition,
            positions=placed["positions"],
            rows=groups.rows[:, : SETTINGS.neighbours],
            cosines=groups.cosines[:, : SETTINGS.neighbours],
            facet=groups.facet,
            facet_words=words,
            words=None,  # weighed when they are seen
        )
        while len(shown.maps) > MOST_KEPT:
            shown.maps.pop(next(name for name in shown.maps if name != first))
        if condition == first:
            shown.places = made.positions
        shown.maps[condition] = numbers_of(made)

    async def _facet_words(self, shown: _Shown, groups: Groups, condition: str | None) -> list[list[str]]:
        """The words that carry each facet: those that the condition weighs most, of a sample of its texts."""
        members, texts = groups.clusters().members(), shown.rows.texts
        if condition is None or not shown.weighs:
            words = [[(texts[row], every_word(texts[row])) for row in of] for of in members]
            return await asyncio.to_thread(facet_words, words)
        chosen = near_and_far(members, SETTINGS.seed)
        sampled = [texts[row] for of in chosen for row in of]
        weighed: list[list[Word]] = []
        for start in range(0, len(sampled), AT_ONCE):
            weighed += await self._weigh(shown, sampled[start : start + AT_ONCE], condition)
        found = iter(zip(sampled, weighed, strict=True))
        return facet_words([[next(found) for _ in of] for of in chosen])

    async def _weigh(self, shown: _Shown, texts: Sequence[str], condition: str) -> list[list[Word]]:
        """The words of each text at which the condition looks."""
        model: Any = self.engine.service.encoder
        words = await self.engine.run(model.word_weights, texts, condition)
        return [looked_at(each) for each in words]

    # ----------------------------------------------------------------------------------------------------- the index

    async def _on_index(self, work: Callable[[Index], T]) -> T:
        live = self.engine.service.live
        assert live is not None, "the app asks nothing of an index that is not there"
        return await self.engine.run(live.on, work)

    def _newest(self, index: Index) -> _Shown:
        """What is shown of the version that is open."""
        version, metadata = index.dataset.version, index.metadata
        if self._shown is not None and self._shown.version == version:
            return self._shown
        if metadata.rows > MOST_INDEXED:
            raise RequestError(
                f"expected an index of at most {MOST_INDEXED:,} rows for maps, got {metadata.rows:,}; write a page of "
                "some by `raycase explore --where`"
            )
        conditions = [*([None] if metadata.plain else []), *metadata.conditions][:MOST_MAPS]
        text = text_column(index, None)
        rows = choose_rows(
            index, conditions, text=text, most=self.most_rows, seed=SETTINGS.seed, words=bool(metadata.words)
        )
        self._shown = _Shown(
            version=version,
            rows=rows,
            title=visible(index.root.uri.rstrip("/").rsplit("/", 1)[-1], MOST_LABEL),
            conditions=conditions,
            any_condition=bool(metadata.words),
            weighs=why_unweighed(index, None, None) is None,
        )
        return self._shown

    async def _of(self, version: int) -> _Shown:
        """What a page shows, which another replica may have given it: that of a version is the same everywhere. Raises
        RequestError, WorkError, and HTTPException for another version than the newest."""
        shown = self._shown
        if shown is None or shown.version != version:
            shown = await self._on_index(self._newest)
        if shown.version != version:
            raise _moved()
        return shown


def lacks_explore() -> bool:
    """Whether the packages of the extra `explore` are not installed; they are imported aside, which takes seconds."""
    return find_spec("umap") is None or find_spec("sklearn") is None


def _vectors(shown: _Shown, condition: str | None, index: Index) -> np.ndarray:
    """The vectors of the rows on the map: (N, D)."""
    if index.dataset.version != shown.version:
        raise _moved()
    if condition not in shown.conditions and not index.is_pooled(condition):
        names = ", ".join(repr(name) for name in shown.conditions if name is not None)
        raise RequestError(f"condition: expected one of the map's ({names}), got {condition!r}")
    index.blocks(condition)  # checks it
    return index.vectors_at(condition, shown.rows.under(index, condition))


def _moved() -> HTTPException:
    return HTTPException(409, "the index has a new version: load the page again")
