"""The output folder of a job: where its files are."""

from __future__ import annotations

from dataclasses import dataclass

from raycase.data.claim import clear
from raycase.data.places import JOB, Folder
from raycase.data.storage import Location, locate

EMBEDDINGS, SCORES = "embeddings", "scores"  # folders of units: of `raycase embed`, of `raycase score`


@dataclass(frozen=True)
class Output:
    """Locations of the files in an output folder; `results`: the folder of its units."""

    root: Location
    results: str = EMBEDDINGS

    @property
    def job(self) -> Location:
        return self.root / JOB

    @property
    def units(self) -> Location:
        return self.root / self.results

    @property
    def embeddings(self) -> Location:
        """The units, of an output that has vectors."""
        assert self.results == EMBEDDINGS
        return self.units

    @property
    def rejected(self) -> Location:
        return self.root / "rejected"

    @property
    def spans(self) -> Location:
        """The spans of the input, so that a resumed job need not read the input to plan."""
        return self.root / "spans.parquet"

    @property
    def basis(self) -> Location:
        """The basis of stored words (`raycase.systems.word_codes`), chosen before the first unit."""
        return self.root / "word_basis.safetensors"

    @property
    def lines(self) -> Location:
        """Lines of the manifest while a job runs, so that a resumed one need not read the units for their checksums."""
        return self.root / "manifest_lines"

    @property
    def manifest(self) -> Location:
        return self.root / "manifest.json"

    @property
    def manifest_files(self) -> Location:
        return self.root / "manifest_files.parquet"

    def clear(self) -> None:
        """Remove what a job wrote: the manifest first, job.json last. Other files in the folder stay."""
        clear(self.root, self.job.name, [part.name for part in self.parts[::-1]])

    @property
    def parts(self) -> tuple[Location, ...]:
        """Everything that a job writes besides job.json."""
        return self.rejected, self.units, self.basis, self.spans, self.lines, self.manifest_files, self.manifest


def output_at(uri: str, results: str = EMBEDDINGS) -> Output:
    """The output folder at a URI."""
    return Output(locate(uri), results)


def output_folder(uri: str | None, results: str = EMBEDDINGS) -> Folder:
    """The folder as a place that is written."""
    parts = Output(locate("/"), results).parts
    return Folder(uri, (JOB, *(part.name for part in parts)), mark=JOB)
