"""Outputs that a stranger altered, with checksums, sizes and totals that fit what is there now."""

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.io.schema import parquet_bytes
from raycase.job.manifest import read_lines, totals
from raycase.job.output import Output, read_job
from raycase.job.results import result_of


def alter(uri, change):
    """Change the table of each unit, and write the manifest that fits."""
    output = Output(str(uri), result_of(read_job(Output(str(uri))).config).FOLDER)
    for name in output.units.list():
        file = output.units / name
        table = pq.read_table(io.BytesIO(file.read()))
        file.put(parquet_bytes(change(table).replace_schema_metadata(table.schema.metadata)))
    rows = read_lines(output.manifest_files).to_pylist()
    for row in rows:
        data = (output.units / row["name"]).read()
        row.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    lines = pa.Table.from_pylist(rows, schema=read_lines(output.manifest_files).schema)
    data = parquet_bytes(lines)
    manifest = output.manifest.read_json() | totals(lines)
    output.manifest_files.put(data)
    output.manifest.put_json(manifest | {"manifest_files_sha256": hashlib.sha256(data).hexdigest()})


def with_column(name, values):
    """A change: another column of this name, by a function of the table."""

    def change(table):
        place = table.schema.get_field_index(name)
        column = values(table)
        field = pa.field(name, column.type, metadata=table.schema.field(place).metadata)
        return table.set_column(place, field, column)

    return change
