"""What every job's script does around its work: parse, call, print, exit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

import tyro

from raycase.data.storage import STORE_ERRORS
from raycase.errors import RequestError, WorkError

Config = TypeVar("Config")


def parse(config: type[Config] | Mapping[str, type[Config]], arguments: list[str]) -> Config:
    """Read the flags of a dataclass, or of the one of several that the first argument names.

    `--flag` and `--no-flag` both work for a flag that is on, off or left open. Raises RequestError, in one line, for
    what cannot be read.
    """
    if isinstance(config, Mapping):
        names, name = ", ".join(config), arguments[0] if arguments else "nothing"
        if name in ("-h", "--help"):
            print(f"expected one of {names} first; each has its own --help")
            raise SystemExit(0)
        if name not in config:
            raise RequestError(f"expected one of {names} first, got {name}")
        config = config[name]
    open_flags = {f"--{f.name.replace('_', '-')}" for f in fields(config) if f.type == "bool | None"}  # type: ignore[arg-type]
    on = {f"--{f.name.replace('_', '-')}": f.default for f in fields(config) if f.type == "bool"}  # type: ignore[arg-type]
    given = []
    for argument in arguments:
        positive = argument.replace("--no-", "--", 1)
        if positive in on and on[positive] is (argument == positive):
            continue  # says the default
        given += [positive, str(argument == positive)] if positive in open_flags else [argument]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(config, args=given, config=(tyro.conf.FlagCreatePairsOff, tyro.conf.EnumChoicesFromValues))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        words = re.sub(r"[\u2500-\u257f]+|-{4,}|\x1b\[[0-9;]*m", " ", said.getvalue()).split()
        raise RequestError(" ".join(words)) from None


def main(config: type[Config] | Mapping[str, type[Config]], work: Callable[[Config], dict[str, Any]]) -> None:
    """Run a job: its result as one JSON object in the last line of standard output; exit status 0, 1 or 2.

    SIGINT (Ctrl-C) and SIGTERM (`ray job stop`) drop the units in flight and say how to go on.
    """
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = work(parse(config, sys.argv[1:]))
    except RequestError as error:
        _fail(error, 2)
    except WorkError as error:
        if hasattr(error, "result"):  # the output is there, and its counts are worth knowing
            print(json.dumps(error.result), flush=True)
        _fail(error, 1)
    except STORE_ERRORS as error:
        _fail(f"{type(error).__name__}: {error}; run the same command again to resume", 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print(json.dumps(result), flush=True)


def _stop(number: int, frame: Any) -> NoReturn:
    """Say how to go on, and end at once: letting go of Ray and of threads takes seconds, and `ray job stop` gives 3.

    Ray drops what is in hand when its driver is gone; what is written is whole.
    """
    print(f"error: stopped; to go on where it was (a sweep: with --resume): {_command()}", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _command() -> str:
    """This command, as it would be given again to go on; with --overwrite it would begin anew."""
    submit = "ray job submit --working-dir . -- " if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
    return submit + shlex.join(["python", *(word for word in sys.argv if word != "--overwrite")])


def _fail(error: Exception | str, status: int) -> NoReturn:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    sys.exit(status)
