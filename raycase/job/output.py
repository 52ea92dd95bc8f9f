"""The output folder of a job: where its files are."""

from __future__ import annotations

from raycase.io.places import Folder, clear
from raycase.io.storage import Location, locate

JOB = "job.json"
EMBEDDINGS, SCORES = "embeddings", "scores"  # folders of units: of `raycase embed`, of `raycase score`


class Output:
    """Locations of the files in an output folder."""

    def __init__(self, root: Location, results: str) -> None:
        """results: name of the folder of units."""
        self.root, self.results = root, results
        self.job = root / JOB
        self.units = root / results
        self.rejected = root / "rejected"
        self.spans = root / "spans.parquet"  # those of the input, so that a resumed job need not read it to plan
        self.basis = root / "word_basis.safetensors"  # of stored tokens, chosen before the first unit
        self.lines = root / "manifest_lines"  # of the manifest, so that a resumed job need not read units for checksums
        self.manifest = root / "manifest.json"
        self.manifest_files = root / "manifest_files.parquet"

    @property
    def embeddings(self) -> Location:
        """The units, of an output that has vectors."""
        assert self.results == EMBEDDINGS
        return self.units

    @property
    def parts(self) -> tuple[Location, ...]:
        """Everything that a job of either kind writes besides job.json."""
        units = self.root / EMBEDDINGS, self.root / SCORES
        return self.rejected, *units, self.basis, self.spans, self.lines, self.manifest_files, self.manifest

    def clear(self) -> None:
        """Remove what a job wrote: the manifest first, job.json last. Other files in the folder stay."""
        clear(self.root, self.job.name, [part.name for part in self.parts[::-1]])


def output_at(uri: str, results: str = EMBEDDINGS) -> Output:
    """The output folder at a URI."""
    return Output(locate(uri), results)


def output_folder(uri: str | None, results: str = EMBEDDINGS) -> Folder:
    """The folder as a place that is written."""
    return Folder(uri, (JOB, *(part.name for part in output_at("/", results).parts)))
