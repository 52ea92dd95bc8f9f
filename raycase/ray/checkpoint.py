"""A checkpoint for other people's pipelines of Ray Data: `CheckpointConfig` with intervals in place of one id a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs
import ray
from ray.data import DataContext, Dataset
from ray.data.block import BlockMetadata
from ray.data.checkpoint import CheckpointConfig, CheckpointFilter, CheckpointManager
from ray.data.checkpoint.checkpoint_writer import CheckpointWriter
from ray.data.datasource import Datasource, ReadTask

from raycase.io.inputs import find_input, peek
from raycase.io.row_ids import NONE, committed, holds, left_of, numbered, numbers_of, read_left, spans_of
from raycase.io.schema import check_once
from raycase.io.source import InputFile
from raycase.io.storage import locate

FILTER_BYTES = 2**26  # of memory that an actor of the filter reserves; Ray's own value is a GiB


class RowCheckpoint(CheckpointConfig):
    """Which rows of a pipeline are written: state that Ray keeps at `path`, by numbers in an int64 column.

    path: a URI, or a path that every node sees. rows_per_id: how many rows of the output one number has, at most, as
    with conditions; None: unknown, as with chunks, which takes longer to resume. The state outlives a pipeline that
    ends well.
    """

    def __init__(self, path: str, *, id_column: str = "row_id", rows_per_id: int | None = None) -> None:
        classes = {"checkpoint_manager_cls": IntervalManager, "checkpoint_filter_cls": IntervalFilter}
        super().__init__(id_column, path, delete_checkpoint_on_success=False, **classes)
        self.checkpoint_actor_memory_bytes = FILTER_BYTES
        self.rows_per_id = rows_per_id
        self.is_read = False  # whether the rows come by `read_rows`, which leaves out what is done by itself
        self.done = NONE  # as of the last plan
        CheckpointWriter.create(self)  # makes the folder; where there is none, Ray asks no manager


class IntervalManager(CheckpointManager):
    """Loads a `RowCheckpoint`."""

    def load_checkpoint(
        self, data_file_dir: str | None = None, data_file_filesystem: pyarrow.fs.FileSystem | None = None
    ) -> tuple[ray.ObjectRef | None, int]:
        """What is written, once what a killed writer left is removed; None where no filter is needed."""
        self._clean_pending_checkpoints(data_file_dir, data_file_filesystem)
        config = self._data_context.checkpoint_config
        if config.rows_per_id != 1:  # a block that is cut by a later step could have some of the rows of one number
            self._data_context.target_max_block_size = None
        folder, column = self.checkpoint_path_unwrapped, self.id_column
        config.done = done = committed(self.filesystem, folder, column, config.rows_per_id)
        return (None, 0) if config.is_read or not len(done) else (ray.put(done), done.nbytes)


class IntervalFilter(CheckpointFilter):
    """Leaves out the rows that are written."""

    def filter_rows_for_block(self, block: pa.Table) -> pa.Table:
        """The rows of a block that are left."""
        return block.filter(pa.array(~holds(ray.get(self.checkpoint_ref), numbers_of(block[self.id_column]))))


def read_rows(uri: str, columns: Sequence[str], checkpoint: RowCheckpoint, **options: Any) -> Dataset:
    """Columns of Parquet or Lance as a dataset with numbers of the rows, without those that a checkpoint has.

    The pipeline behind it must keep the column of the numbers, and all rows of one number together, and end with a
    write to files, without `materialize` before it. options: of `ray.data.read_datasource`. Raises RequestError.
    """
    files = numbered(find_input(uri, "uri"), locate(checkpoint.checkpoint_path))
    checkpoint.is_read = True
    context = DataContext.get_current().copy()
    context.checkpoint_config = checkpoint
    with DataContext.current(context):
        return ray.data.read_datasource(RowSource(files, columns, checkpoint.id_column), **options)


class RowSource(Datasource):
    """The rows of files that are not in the checkpoint of the pipeline's context."""

    def __init__(self, files: list[InputFile], columns: Sequence[str], id_column: str) -> None:
        super().__init__()
        first = peek(files[0])
        for name in columns:
            check_once(name, [*first.names, id_column], files[0].uri)
        self.spans = spans_of(files, columns)
        self.schema = pa.schema([*(first.field(name) for name in columns), (id_column, pa.int64())])

    def estimate_inmemory_data_size(self) -> int:
        return sum(span.bytes for _, span in self.spans)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Tasks of about as many spans each; of one, where a task gives one block that is not cut."""
        config = data_context and data_context.checkpoint_config
        lefts = [(file, span, left_of(span, config.done if config else NONE)) for file, span in self.spans]
        parts = [(file, span, edges) for file, span, edges in lefts if edges is not None]
        each = max(1, len(parts) // parallelism) if config and config.rows_per_id == 1 else 1
        tasks = []
        for some in (parts[i : i + each] for i in range(0, max(1, len(parts)), each)):
            size, files = sum(span.bytes for _, span, _ in some), tuple(file.uri for file, _, _ in some)
            metadata = BlockMetadata(num_rows=None, size_bytes=size, exec_stats=None, input_files=files)
            tasks.append(ReadTask(partial(read_left, some, self.schema), metadata, self.schema, per_task_row_limit))
        return tasks
