"""jobs/embed.py with an encoder that notes each unit when it begins it, in the folder `COUNTED`."""

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# raycase is imported by the driver alone: each worker imports this module


@dataclass(frozen=True)
class Counted:
    """A system's configuration, whose encoder notes what it encodes."""

    inner: Any
    folder: str

    def __getattr__(self, name):
        if name.startswith("__") or name in ("inner", "folder"):  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def load(self, **options):
        return CountedEncoder(self.inner.load(**options), self.folder)


class CountedEncoder:
    """The encoder itself; one line a unit (process, unit), appended at once."""

    def __init__(self, inner, folder):
        self.inner, self.folder = inner, folder

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode_prepared(self, prepared):
        unit = hashlib.sha256(prepared.to_bytes()).hexdigest()
        with open(Path(self.folder) / "units", "a") as file:
            file.write(f"{os.getpid()} {unit}\n")
        return self.inner.encode_prepared(prepared)


def counted(folder):
    """The units as often as an encoder began them."""
    file = Path(folder) / "units"
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


def work(job):
    from helpers import embed_on_ray

    from raycase.models.registry import resolve

    model = resolve(job.model, prompt=job.prompt, pooling=job.pooling, subtract=job.subtract)
    return embed_on_ray(job, model=Counted(model, os.environ["COUNTED"]))


if __name__ == "__main__":
    import counted as importable  # whose classes the workers find by name

    from raycase.cli import main

    main(["embed", *sys.argv[1:]], work=importable.work)
