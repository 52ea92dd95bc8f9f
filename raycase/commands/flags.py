"""Flags that several commands have."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from raycase.encoder.pooling import Pooling
from raycase.errors import at_least, check_ranges
from raycase.names import STALL_TIMEOUT, Advanced, Compile, Compute, OnLong, OnUnknown

if TYPE_CHECKING:
    import pyarrow as pa

    from raycase.index.index import Index
    from raycase.index.topk import Blocks
    from raycase.io.inputs import Listing
    from raycase.io.places import Folder, Paths
    from raycase.job.output import JobFile

T = TypeVar("T")
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class RayFlag:
    """Where a command runs."""

    ray: Advanced[bool | None] = None
    """Run on Ray; --no-ray: in this process. Default: in this process, unless RAY_ADDRESS or a Ray job names a cluster,
    or several encoders or workers are requested or worth starting."""


@dataclass(frozen=True, kw_only=True)
class TextFlags:
    """How sentence and condition become one text, and how that text becomes one vector."""

    prompt: str | None = None
    """Prompt of sentence and condition: a name, several as views side by side (a+b), or a file NAME.json with your own
    template (docs/encoders.md). Default: the encoder's."""
    pooling: Advanced[Pooling | None] = None
    """How token states become one vector. Default: the encoder's pooling that fits the prompt."""

    @property
    def text_choices(self) -> dict[str, Any]:
        """These flags for `raycase.encoder.choices.find_encoder`. Raises RequestError."""
        from raycase.encoder.prompts import read_prompt

        views, own = read_prompt(self.prompt)
        return {"prompt": views, "pooling": self.pooling, "own": own}


@dataclass(frozen=True, kw_only=True)
class PromptFlags(TextFlags):
    """How a frozen encoder embeds a sentence under a condition (eq. 1)."""

    subtract: Advanced[bool | None] = None
    """Subtract the condition's own vector. Default: the encoder's; with a template
    only where it has a base_template."""

    @property
    def prompt_choices(self) -> dict[str, Any]:
        """These flags for `raycase.models.registry.resolve`."""
        return {"prompt": self.prompt, "pooling": self.pooling, "subtract": self.subtract}


@dataclass(frozen=True, kw_only=True)
class RunFlags(RayFlag, PromptFlags):
    """By which model, and how the rows of a corpus go through it."""

    input: str
    output: str | None
    unconditional: bool = False
    model: str | None = None
    """Name in the table of encoders, Hugging Face id, or a model folder, local or on object storage (fetched once).
    Default: the model that started the job in --output, else minilm-conditional-v3."""
    dim: Advanced[int | None] = None
    """Keep only the first dimensions of each vector: one of those of --nested in training. Default: all."""
    compute: Advanced[Compute | None] = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it. int8: of BERT and its
    like on a processor."""
    compile: Advanced[Compile] = "auto"
    """Compile the encoder's layers, but of BERT and its like on a processor. auto: after the first unit, if enough work
    is left."""
    on_long: Advanced[OnLong] = "truncate"
    """What to do with texts longer than the encoder's maximum."""
    on_unknown: Advanced[OnUnknown] = "reject"
    """What to do with texts without a token that the encoder knows, such as emoji: their vectors mean nothing."""
    batch_tokens: Advanced[int | None] = None
    """Tokens in a batch, with padding. Default: 32768 on a GPU; on a CPU 512 to 4096, fewer for wide encoders."""
    unit_rows: Advanced[int | None] = None
    """Rows of a unit, the least that a job finishes. Default: 4096, or 256 with --chunk; fewer with many
    conditions."""
    actors: Advanced[str | None] = None
    """Number of encoders, or MIN:MAX to let the job wait for machines. Default: one per GPU of the running machines,
    else one per four CPUs."""
    gpus_per_actor: Advanced[float | None] = None
    """GPUs of each encoder. Default: 1 if a running machine has GPUs, else 0."""
    stall_timeout: Advanced[float] = STALL_TIMEOUT
    """Minutes without a finished unit after which the job gives up, for example when no machine is available."""
    limit: int | None = None
    """Read only the first N rows."""
    max_rejected: Advanced[float] = 0.01
    """Largest share of rejected rows; above it the exit status is 1."""
    overwrite: bool = False
    """Remove an earlier output in the folder first."""

    def open_places(
        self, results: str, reads: Paths = NONE, writes: Mapping[str, Folder] = NONE
    ) -> tuple[dict[str, Any], Listing, JobFile | None]:
        """What these flags give a `Request`, with the output; the files of the input; and the job that began it, if it
        goes on. reads, writes: further places, which are checked with its own and with the flags."""
        from raycase.encoder.model_files import model_folder
        from raycase.encoder.prompts import prompt_file
        from raycase.io.places import check_paths
        from raycase.job.output import Output, output_folder
        from raycase.job.request import Actors, list_job

        began, count = time.time(), None
        if self.actors is not None:  # one number is both, anything but MIN:MAX 0
            numbers = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", self.actors)
            count = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
        least, most = count or (1, 1)
        cut = self.dim is not None and self.unconditional
        ranges = {
            **at_least(1, self, "batch_tokens", "unit_rows", "limit"),
            "max_rejected": (0 <= self.max_rejected <= 1, "a share between 0 and 1"),
            **at_least(0, self, "gpus_per_actor"),
            "stall_timeout": (self.stall_timeout > 0, "minutes above 0"),
            "actors": (1 <= least <= most, "MIN:MAX with 1 <= MIN <= MAX"),
            "dim": (not cut, "none beside --unconditional, which writes the encoder's vectors whole"),
        }
        check_ranges(self, ranges)
        check_paths(
            reads={"--input": self.input, "--prompt": prompt_file(self.prompt), **reads},
            opens={"--model": model_folder(self.model)},
            writes={"--output": output_folder(self.output, results), **writes},
        )
        output = Output(str(self.output), results)
        given: dict[str, Any] = {name: getattr(self, name) for name in ("limit", "overwrite", "max_rejected")}
        actors = Actors(count=count, gpus=self.gpus_per_actor, stall_timeout=self.stall_timeout)
        given |= {"name": self.model, "actors": actors, "began": began, "output": output}
        return given, *list_job(self.input, output, overwrite=self.overwrite)


@dataclass(frozen=True, kw_only=True)
class OfIndex:
    """An index and which of its rows are looked at, under which condition; what the commands over its rows share."""

    index: str
    """Output of `raycase index`, local or on object storage."""
    where: str | None = None
    """A filter on id and the kept columns, in SQL: "year > 2010 AND source = 'news'"."""
    exact_condition: Advanced[bool] = False
    """Refuse a condition that the index lacks. Default: pool stored tokens, or note and use the nearest condition."""
    model: Advanced[str | None] = None
    """Folder of the index's model, if it has moved."""

    def open(self) -> Index:
        """The index, opened. Raises RequestError."""
        from raycase.index.index import Index

        return Index.open(self.index, model=self.model)

    def check(
        self,
        ranges: Mapping[str, tuple[bool, str]] = NONE,
        *,
        reads: Paths = NONE,
        opens: Paths = NONE,
        writes: Mapping[str, tuple[str, ...]],
    ) -> float:
        """Check the ranges and the places: what is read besides, by flag, and what is written, by field with the
        endings of its format. Returns when the work begins. Raises RequestError."""
        from raycase.encoder.model_files import model_folder
        from raycase.io.places import File, check_paths

        began = time.time()
        opens = {"--index": self.index, "--model": model_folder(self.model), **opens}
        files = {f"--{name}": File(getattr(self, name), endings) for name, endings in writes.items()}
        check_paths(reads=reads, opens=opens, writes=files)
        check_ranges(self, ranges)
        return began

    def on_rows(self, asked: str | None, work: Callable[[Index, str | None, Blocks], T]) -> tuple[Index, str | None, T]:
        """Open the index, and work on its rows that pass the filter under its condition for the one asked (None:
        unconditional): the index, that condition, what the work gives. Notes name what was replaced and left out."""
        from raycase.index.index import note_searched, on_index
        from raycase.io.reader import check_no_file

        check_no_file("--condition", [] if asked is None else [asked])

        def on(index: Index) -> tuple[str | None, T]:
            condition, blocks = index.blocks(asked, self.where, exact_condition=self.exact_condition)
            note_searched(index, {asked: condition}, self.where)
            return condition, work(index, condition, blocks)

        index, (condition, found) = on_index(self.open, on)
        return index, condition, found

    def finish(self, began: float, files: Mapping[str, pa.Table | bytes | None], **counts: Any) -> dict[str, Any]:
        """Write the files, by field, a table as Parquet; the result: the counts, the seconds, and the place of each
        file, None where none was asked for."""
        from raycase.io.schema import parquet_bytes
        from raycase.io.storage import locate

        places = {name: locate(uri) if (uri := getattr(self, name)) else None for name in files}
        for place, content in zip(places.values(), files.values(), strict=True):
            if place:
                place.put(content if isinstance(content, bytes) else parquet_bytes(content))
        uris = {name: place and place.uri for name, place in places.items()}
        return counts | {"seconds": round(time.time() - began, 3)} | uris
