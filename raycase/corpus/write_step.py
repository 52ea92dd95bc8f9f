"""The write step: an encoded unit -> its files in the output folder. It knows nothing of what runs it.

It imports neither torch nor transformers: a process that only writes need not wait for them.
"""

from __future__ import annotations

import os
import time

from raycase.corpus.output import EMBEDDINGS, output_at
from raycase.corpus.records import EncodedUnit, WrittenUnit, naming
from raycase.corpus.unit_files import write_unit


def write_encoded(encoded: EncodedUnit, *, output: str, print8: str, results: str = EMBEDDINGS) -> WrittenUnit:
    """Write a unit; `print8`: first 8 digits of the job's fingerprint; `results`: the folder of units in the output."""
    with naming(f"writing input file {encoded.file}, from row {encoded.start}, to {output}"):
        line = write_unit(
            output_at(output, results),
            print8,
            (encoded.file, encoded.start),
            encoded.table,
            encoded.rejected,
            rows_in=encoded.rows_in,
            distinct_pairs=encoded.distinct_pairs,
            rows_truncated=encoded.rows_truncated,
        )
    return WrittenUnit(line=line, stats=encoded.stats, ended=time.time(), write_pid=os.getpid())
