"""raycase as one step of somebody's pipeline of Ray Data, in the form of `ray.data.llm.build_processor`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from raycase import Embed, Pool, ProcessorConfig
from raycase.errors import names_arguments

OF_ACTORS = ("concurrency", "batch_size", "num_cpus", "num_gpus", "accelerator_type")
RowFunction = Callable[[dict[str, Any]], dict[str, Any]]


@names_arguments
def build_processor(
    config: ProcessorConfig, preprocess: RowFunction | None = None, postprocess: RowFunction | None = None
) -> Callable[[Dataset], Dataset]:
    """A function from a dataset of Ray Data to one with vectors: for your own pipeline, between your steps.

    preprocess: from a row to one with the text; postprocess: from a row with its vector to what goes on. Both take and
    give dictionaries. A column keeps its type where its values still fit. A row without a vector stays, with the reason
    in the column `rejected` and None in `embedding`. Raises ValueError.

    Examples:
        >>> processor = raycase.build_processor(raycase.ProcessorConfig(conditions=["mood"]))
        >>> vectors = processor(ray.data.read_parquet("s3://bucket/texts/"))  # doctest: +SKIP
    """
    given = {name: value for name, value in vars(config).items() if value is not None}
    of_actors = {name: given.pop(name) for name in OF_ACTORS if name in given}
    count = of_actors.pop("concurrency")
    least, most = (1, count) if isinstance(count, int) else count
    of_actors["compute"] = ActorPoolStrategy(min_size=least, max_size=most)
    given |= given.pop("options", {})
    step = Embed if config.tokens is None else Pool
    before, after = ([partial(_mapped, function=each)] if each else [] for each in (preprocess, postprocess))

    def process(dataset: Dataset) -> Dataset:
        for each in (*before, step, *after):
            options = {"fn_constructor_kwargs": given, **of_actors} if each is step else {}
            dataset = dataset.map_batches(each, batch_format="pyarrow", **options)
        return dataset

    return process


def _mapped(table: pa.Table, function: RowFunction) -> pa.Table:
    """The rows after a function."""
    rows = [function(row) for row in table.to_pylist()]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [_column(name, [row.get(name) for row in rows], table.schema) for name in names]
    return pa.table([column for _, column in columns], schema=pa.schema([field for field, _ in columns]))


def _column(name: str, values: list[Any], before: pa.Schema) -> tuple[pa.Field, pa.Array]:
    """With the field that it was before, where this changes no value but by rounding a float: vectors stay float32."""
    if name in before.names:
        field = before.field(name)
        with suppress(pa.ArrowException, OverflowError):
            column = pa.array(values, field.type)
            nulls = column.null_count * getattr(field.type, "list_size", 0)
            if nulls and not field.type.value_field.nullable and not column.flatten().null_count:
                filled = column.values.fill_null(0)  # Lance takes no null inside a null vector
                column = pa.FixedSizeListArray.from_arrays(filled, type=field.type, mask=column.is_null())
            if re.search("float|double", str(field.type)) or str(column.to_pylist()) == str(values):
                return field, column
    column = pa.array(values)
    return pa.field(name, column.type), column
