"""raycase as one step of somebody's pipeline of Ray Data, in the form of `ray.data.llm.build_processor`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ray.data import ActorPoolStrategy, Dataset

from raycase import Embed, Pool, ProcessorConfig
from raycase.errors import names_arguments
from raycase.io.schema import RowFunction, mapped

OF_ACTORS = ("concurrency", "batch_size", "num_cpus", "num_gpus", "accelerator_type")


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
    before, after = ([partial(mapped, function=each)] if each else [] for each in (preprocess, postprocess))

    def process(dataset: Dataset) -> Dataset:
        for each in (*before, step, *after):
            options = {"fn_constructor_kwargs": given, **of_actors} if each is step else {}
            dataset = dataset.map_batches(each, batch_format="pyarrow", **options)
        return dataset

    return process
