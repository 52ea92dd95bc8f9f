"""raycase as one step of somebody's pipeline of Ray Data, in the form of `ray.data.llm.build_processor`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from raycase import Embed, Pool, ProcessorConfig
from raycase.errors import RequestError, expecting, names_arguments

RowFunction = Callable[[dict[str, Any]], dict[str, Any]]


@names_arguments
def build_processor(
    config: ProcessorConfig, preprocess: RowFunction | None = None, postprocess: RowFunction | None = None
) -> Callable[[Dataset], Dataset]:
    """A function from a dataset of Ray Data to one with vectors: for your own pipeline, between your steps.

    preprocess: from a row to one with the text; postprocess: from a row with its vector to what goes on. Both take and
    give dictionaries. Columns whose values still fit keep their types. A row without a vector stays, with the reason in
    the column `rejected` and None in `embedding`. Raises ValueError.

    Examples:
        >>> processor = raycase.build_processor(raycase.ProcessorConfig(conditions=["mood"]))
        >>> vectors = processor(ray.data.read_parquet("s3://bucket/texts/"))  # doctest: +SKIP
    """
    least, most = config.concurrency if isinstance(config.concurrency, tuple) else (config.concurrency,) * 2
    if not 1 <= least <= most:
        raise RequestError(f"concurrency: expected a number, or (MIN, MAX), from 1 on, got {config.concurrency}")
    names = ("model", "conditions", "condition_column", "text_column", "tokens", "chunk")
    given = {name: value for name in names if (value := getattr(config, name)) not in (None, ())}
    given |= config.options or {}
    of_actor = ("num_cpus", "num_gpus", "accelerator_type")
    resources = {name: value for name in of_actor if (value := getattr(config, name)) is not None}
    step = Embed if config.tokens is None else Pool
    with expecting(f"expected a configuration that {step.__name__} takes", TypeError):
        signature(step).bind(**given)

    def process(dataset: Dataset) -> Dataset:
        if preprocess:
            dataset = dataset.map_batches(partial(_mapped, function=preprocess), batch_format="pyarrow")
        dataset = dataset.map_batches(
            step,
            fn_constructor_kwargs=given,
            compute=ActorPoolStrategy(min_size=least, max_size=most),
            batch_format="pyarrow",
            batch_size=config.batch_size,
            **resources,
        )
        if postprocess:
            dataset = dataset.map_batches(partial(_mapped, function=postprocess), batch_format="pyarrow")
        return dataset

    return process


def _mapped(table: pa.Table, function: RowFunction) -> pa.Table:
    """The rows after a function; columns of the same name have the same type where they can: vectors stay float32."""
    rows = [function(row) for row in table.to_pylist()]
    types, columns = {entry.name: entry.type for entry in table.schema}, {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values, types.get(name))
        except pa.ArrowException:
            columns[name] = pa.array(values)
    return pa.table(columns)
