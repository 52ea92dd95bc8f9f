"""The commands, a file each: to add a command is to add its file.

The file of NAME has `NameFlags`, the dataclass of its flags, or `NAME_FLAGS`, one for each name of a second subcommand;
the function `NAME`, which does the work, and whose first line is that of `raycase --help`; and `EXAMPLE`, the last line
of its own help. `OVER` names another command, whose words follow --, and whose flags are the field `training`. Nothing
slow is imported at the top of a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

FIRST = ("demo", "embed", "verify", "index", "search")  # in the help; the others by the alphabet
SHARED = ("flags", "place", "reading", "systems")  # files that are no command

Result = dict[str, Any]  # what the last line of standard output holds


@dataclass(frozen=True)
class Command:
    """A command by its name; its file is imported when it is looked at."""

    name: str

    @property
    def file(self) -> Any:
        return import_module(f"{__name__}.{self.name}")

    @property
    def flags(self) -> type | Mapping[str, type]:
        """The dataclass, or those of the second subcommands by name."""
        several = getattr(self.file, f"{self.name.upper()}_FLAGS", None)
        return several or getattr(self.file, f"{self.name.title()}Flags")

    @property
    def work(self) -> Callable[..., Result]:
        return getattr(self.file, self.name)

    @property
    def line(self) -> str:
        return str(self.work.__doc__).partition("\n")[0]

    @property
    def over(self) -> str:
        return getattr(self.file, "OVER", "")


FILES = [file.name for file in iter_modules(__path__) if file.name not in SHARED]
COMMANDS = {name: Command(name) for name in dict.fromkeys((*FIRST, *sorted(FILES)))}
