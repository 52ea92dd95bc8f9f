"""The output folder of a job: where its files are."""

from __future__ import annotations

from dataclasses import dataclass

from raycase.io.claim import clear
from raycase.io.places import JOB, Folder
from raycase.io.storage import Location, locate

EMBEDDINGS, SCORES = "embeddings", "scores"  # folders of units: of `raycase embed`, of `raycase score`


@dataclass(frozen=True, kw_only=True)
class Output:
    """Locations of the files in an output folder.

    results, units: name and place of the folder of units. spans: those of the input, so that a resumed job need not
    read it to plan. basis: of stored tokens (`raycase.heads.token_codes`), chosen before the first unit. lines: of the
    manifest while a job runs, so that a resumed one need not read the units for their checksums.
    """

    root: Location
    results: str
    job: Location
    units: Location
    rejected: Location
    spans: Location
    basis: Location
    lines: Location
    manifest: Location
    manifest_files: Location

    @property
    def embeddings(self) -> Location:
        """The units, of an output that has vectors."""
        assert self.results == EMBEDDINGS
        return self.units

    @property
    def parts(self) -> tuple[Location, ...]:
        """Everything that a job writes besides job.json."""
        return self.rejected, self.units, self.basis, self.spans, self.lines, self.manifest_files, self.manifest

    def clear(self) -> None:
        """Remove what a job wrote: the manifest first, job.json last. Other files in the folder stay."""
        clear(self.root, self.job.name, [part.name for part in self.parts[::-1]])


def output_at(uri: str, results: str = EMBEDDINGS) -> Output:
    """The output folder at a URI."""
    root = locate(uri)
    return Output(
        root=root,
        results=results,
        job=root / JOB,
        units=root / results,
        rejected=root / "rejected",
        spans=root / "spans.parquet",
        basis=root / "word_basis.safetensors",
        lines=root / "manifest_lines",
        manifest=root / "manifest.json",
        manifest_files=root / "manifest_files.parquet",
    )


def output_folder(uri: str | None, results: str = EMBEDDINGS) -> Folder:
    """The folder as a place that is written."""
    return Folder(uri, (JOB, *(part.name for part in output_at("/", results).parts)), mark=JOB)
