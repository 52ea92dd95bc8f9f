"""A checkpoint for other people's pipelines of Ray Data: `CheckpointConfig` with intervals in place of one id a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs
import ray
from ray.data import DataContext, Dataset
from ray.data.block import BlockMetadata
from ray.data.checkpoint import CheckpointConfig, CheckpointFilter, CheckpointManager
from ray.data.datasource import Datasource, ReadTask

from raycase.io.inputs import find_input, peek
from raycase.io.row_ids import Intervals, RowsLeft, committed, numbered, rows_left
from raycase.io.schema import check_once
from raycase.io.storage import locate

FILTER_BYTES = 2**26  # of memory that an actor of the filter reserves; Ray's own value is a GiB


class RowCheckpoint(CheckpointConfig):
    """Which rows of a pipeline are written: state that Ray keeps at `path`, by numbers in an int64 column.

    path: a URI, or a path that every node sees. rows_per_id: how many rows of the output one number has, at most, as
    with conditions; None: unknown, as with chunks. The state outlives a pipeline that ends well.
    """

    def __init__(self, path: str, *, id_column: str = "row_id", rows_per_id: int | None = 1) -> None:
        classes = {"checkpoint_manager_cls": IntervalManager, "checkpoint_filter_cls": IntervalFilter}
        super().__init__(id_column, path, delete_checkpoint_on_success=False, **classes)
        self.checkpoint_actor_memory_bytes = FILTER_BYTES
        self.rows_per_id = rows_per_id
        self.is_read = False  # whether the rows come by `read_rows`, which leaves out what is done by itself
        self.done = Intervals()  # as of the last plan


class IntervalManager(CheckpointManager):
    """Loads a `RowCheckpoint`."""

    def load_checkpoint(
        self, data_file_dir: str | None = None, data_file_filesystem: pyarrow.fs.FileSystem | None = None
    ) -> tuple[ray.ObjectRef | None, int]:
        """What is written, once what a killed writer left is removed; None where no filter is needed."""
        self._clean_pending_checkpoints(data_file_dir, data_file_filesystem)
        config = self._data_context.checkpoint_config
        done = committed(self.filesystem, self.checkpoint_path_unwrapped, self.id_column, config.rows_per_id)
        config.done = done
        return (None, 0) if config.is_read or not done.nbytes else (ray.put(done), done.nbytes)


class IntervalFilter(CheckpointFilter):
    """Leaves out the rows that are written."""

    def __init__(self, config: RowCheckpoint, checkpoint_ref: ray.ObjectRef) -> None:
        super().__init__(config, checkpoint_ref)
        self.done: Intervals = ray.get(checkpoint_ref)

    def filter_rows_for_block(self, block: pa.Table) -> pa.Table:
        """The rows of a block that are left."""
        return block.filter(pa.array(~self.done.holds(block[self.id_column].to_numpy())))


def read_rows(uri: str, columns: Sequence[str], checkpoint: RowCheckpoint, **options: Any) -> Dataset:
    """Columns of Parquet or Lance as a dataset with numbers of the rows, without those that a checkpoint has.

    The pipeline behind it must keep the column of the numbers and end with a write to files. options: of
    `ray.data.read_datasource`. Raises RequestError.
    """
    files = numbered(find_input(uri, "uri"), locate(checkpoint.checkpoint_path))
    checkpoint.is_read = True
    context = DataContext.get_current().copy()
    context.checkpoint_config = checkpoint
    if checkpoint.rows_per_id != 1:
        context.target_max_block_size = None  # a block that is cut could have some of the rows of one number
    with DataContext.current(context):
        return ray.data.read_datasource(RowSource(files, columns, checkpoint.id_column), **options)


class RowSource(Datasource):
    """The rows of files that are not in the checkpoint of the pipeline's context."""

    def __init__(self, files: list[Any], columns: Sequence[str], id_column: str) -> None:
        super().__init__()
        self.files, self.columns, self.id_column = files, list(columns), id_column
        first = peek(files[0])
        for name in columns:
            check_once(name, first.names, files[0].uri)
        self.schema = pa.schema([*(first.field(name) for name in columns), (id_column, pa.int64())])

    def estimate_inmemory_data_size(self) -> int:
        return sum(file.size for file in self.files)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Tasks of about as many spans each; of one, where a task gives one block that is not cut."""
        config = data_context and data_context.checkpoint_config
        parts = [*rows_left(self.files, self.columns, config.done if config else Intervals())]
        whole = data_context is not None and data_context.target_max_block_size is None
        each = 1 if whole else max(1, len(parts) // parallelism)
        return [self._task(parts[i : i + each], per_task_row_limit) for i in range(0, max(1, len(parts)), each)]

    def _task(self, parts: list[RowsLeft], limit: int | None) -> ReadTask:
        names, id_column, schema = self.columns, self.id_column, self.schema

        def read() -> Iterator[pa.Table]:
            yield schema.empty_table()  # for a task without rows
            for part in parts:
                yield from part.read(names, id_column)

        size, files = sum(part.span.bytes for part in parts), tuple(part.file.uri for part in parts)
        metadata = BlockMetadata(num_rows=None, size_bytes=size, exec_stats=None, input_files=files)
        return ReadTask(read, metadata, schema, limit)
