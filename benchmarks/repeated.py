"""A finished output several times over, each time with other ids: an index of a size that would take hours to embed.

    .venv/bin/python benchmarks/repeated.py --output-of words/ --times 10 --output many/

For seconds and bytes alone: each text is there so many times, so recall means nothing.
"""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.corpus.written import open_written
from raycase.data.schema import ID


def main(arguments):
    written = open_written(arguments.output_of, "--output-of")
    source, target = Path(arguments.output_of), Path(arguments.output)
    (target / "embeddings").mkdir(parents=True)
    for beside in source.iterdir():
        if beside.is_file():
            (target / beside.name).write_bytes(beside.read_bytes())
    lines = pq.read_table(source / "manifest_files.parquet")
    rows, made = sum(unit.rows for unit in written.units), []
    for unit, line in zip(written.units, lines.to_pylist(), strict=True):
        name = unit.name(written.job.print8)
        assert name == line["name"], "the manifest has the order of the listing"
        table = pq.read_table(source / "embeddings" / name)
        for time in range(arguments.times):
            moved = replace(unit, start=unit.start + time * rows)
            place = target / "embeddings" / moved.name(written.job.print8)
            ids = pc.binary_join_element_wise(table[ID].cast(pa.string()), str(time), "/")
            pq.write_table(table.set_column(table.column_names.index(ID), ID, ids), place, compression="zstd")
            data = place.read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            made.append(line | {"name": place.name, "start": moved.start, "bytes": len(data), "sha256": sha256})
    made.sort(key=lambda line: line["start"])
    pq.write_table(pa.Table.from_pylist(made, schema=lines.schema), target / "manifest_files.parquet")
    manifest = json.loads((source / "manifest.json").read_text())
    for name in ("rows_in", "rows_out", "pairs", "units"):
        manifest[name] *= arguments.times
    manifest["manifest_files_sha256"] = hashlib.sha256((target / "manifest_files.parquet").read_bytes()).hexdigest()
    manifest["bytes"] = sum(line["bytes"] for line in made)
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2))
    print(json.dumps({"rows": manifest["rows_out"], "bytes": manifest["bytes"], "output": str(target)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-of", required=True, help="the folder that a job wrote, of one input file")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--output", required=True, help="a new folder")
    main(parser.parse_args())
