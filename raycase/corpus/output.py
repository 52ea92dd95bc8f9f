"""The output folder of a job: where its files are."""

from __future__ import annotations

from dataclasses import dataclass

from raycase.data.storage import Location, locate


@dataclass(frozen=True)
class Output:
    """Where the files of an output folder are."""

    root: Location

    @property
    def job(self) -> Location:
        return self.root / "job.json"

    @property
    def embeddings(self) -> Location:
        return self.root / "embeddings"

    @property
    def rejected(self) -> Location:
        return self.root / "rejected"

    @property
    def spans(self) -> Location:
        """How the input is cut, so that a resume need not find out again."""
        return self.root / "spans.parquet"

    @property
    def lines(self) -> Location:
        """Lines of the manifest while a run goes on, so that a resume need not read the units for their checksums."""
        return self.root / "manifest_lines"

    @property
    def manifest(self) -> Location:
        return self.root / "manifest.json"

    @property
    def manifest_files(self) -> Location:
        return self.root / "manifest_files.parquet"

    def clear(self) -> None:
        """Remove what a job wrote, the manifest first and job.json last; other files in the folder stay."""
        for part in (*self.parts[::-1], self.job):
            part.remove()

    @property
    def parts(self) -> tuple[Location, ...]:
        """All that a job writes beside job.json."""
        return self.rejected, self.embeddings, self.spans, self.lines, self.manifest_files, self.manifest


def output_at(uri: str) -> Output:
    """The output folder at a URI."""
    return Output(locate(uri))
