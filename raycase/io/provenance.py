"""The origin of a result: command, commit, versions, machine, date."""

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raycase.errors import command_line


def provenance() -> dict[str, Any]:
    """The origin of a result as JSON: `command`, `commit`, `versions`, `machine`, `date` (UTC)."""
    return {
        "command": command_line(sys.argv),
        "commit": commit(),
        "versions": {name: version(name) for name in ("raycase", "ray", "torch", "transformers", "numpy")},
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the working tree that raycase runs from, with + if it has changes; None outside of a tree."""
    here = Path(__file__)
    if _git(here, "ls-files", "--error-unmatch", here.name) is None:  # installed in the tree of another project
        return None
    head, changes = _git(here, "rev-parse", "--short=7", "HEAD"), _git(here, "status", "--porcelain")
    return head and head + ("+" if changes else "")


def _git(here: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(here.parent), *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def machine() -> str:
    """Processor, cores and memory of this machine, in one line."""
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    described = Path("/proc/cpuinfo")
    found = re.search("(?m)^model name.*: (.+)$", described.read_text(encoding="utf-8") if described.exists() else "")
    return f"{found[1].strip() if found else platform.processor()}, {os.cpu_count()} cores, {memory} GiB"
