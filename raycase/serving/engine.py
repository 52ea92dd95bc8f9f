"""How an app reaches what computes: one thread beside its event loop, in which one piece of work runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from raycase.serving.service import EmbeddedText, Service

Answered = TypeVar("Answered")


class Engine:
    """A loaded service behind a thread. What waits and is no longer wanted is not begun."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raycase")

    async def run(self, work: Callable[..., Answered], *arguments: Any) -> Answered:
        """The work's result, or what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def embed(self, texts: Sequence[str], conditions: Sequence[str] | None) -> list[EmbeddedText]:
        """`Service.embed`."""
        return await self.run(self.service.embed, texts, conditions)
