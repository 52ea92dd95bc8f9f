"""A finished output of the main job, as those who read vectors need it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.dataset as ds

from raycase.finished import UnitFile
from raycase.output import Job, Output, finished_units, output_at, read_job
from raycase.schema import RequestError


@dataclass(frozen=True, kw_only=True)
class Written:
    """A finished output, or some of its units."""

    output: Output
    job: Job
    units: tuple[UnitFile, ...]

    @property
    def unconditional(self) -> bool:
        return bool(self.job.config["unconditional"])

    @property
    def names(self) -> list[str]:
        """Of the files that hold vectors."""
        return [u.name(self.job.print8) for u in self.units if u.rows_out]

    def rows(self) -> ds.Dataset:
        """What the files hold, read in pieces."""
        files = self.output.embeddings
        return ds.dataset([(files / name).path for name in self.names], filesystem=files.fs, format="parquet")


def open_written(uri: str, flag: str) -> Written:
    """The finished output at a URI. Raises RequestError."""
    output = output_at(uri)
    if not output.job.exists():
        raise RequestError(f"{flag}: wanted an output of jobs/embed.py at {output.root.uri}, found no job.json")
    if not output.manifest.exists():
        raise RequestError(
            f"{flag}: wanted a finished output, found no manifest.json in {output.root.uri}; run its job again"
        )
    job = read_job(output)
    units = [UnitFile.parse(name) for name in finished_units(output, job.print8)[0].names]
    return Written(output=output, job=job, units=tuple(unit[1] for unit in units if unit))
