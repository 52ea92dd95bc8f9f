"""The command `raycase`: read the flags, do the work, print the result, exit.

Exit status: 0 done, 1 the work failed, 2 the request was wrong. The last line of standard output is the result as one
JSON object; errors go to standard error.
"""

import atexit
import gc
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import tyro
from tyro.extras import SubcommandApp

from raycase import __version__
from raycase.commands import COMMANDS, Command, Result
from raycase.commands.reading import read_in_groups
from raycase.errors import RequestError, WorkError, command_line, first_line, note, visible
from raycase.io.json_values import finite

DESCRIPTION = "Condition-aware sentence embeddings for whole corpora, on Ray. `raycase --version` prints the version."
HELP_ALL, CONFIG = "--help-all", "--config"  # of every command, as the next
LOUDNESS = {"--quiet": {"RAYCASE_QUIET": "1", "TQDM_DISABLE": "1"}, "--verbose": {"RAYCASE_VERBOSE": "1"}}
OVERWRITE, AGAIN = "--overwrite", "run the same command again"  # of those that have it; what errors advise
RESUME = {"embed", "score", "join", "train", "tune"}  # commands that keep what is finished; others begin again
SETTINGS = (
    tyro.conf.DisallowNone,  # `bool | None` is --flag, --no-flag or unset, and "None" is a string
    tyro.conf.EnumChoicesFromValues,
    tyro.conf.PositionalMetavarFromFieldName,
)


def console(arguments: Sequence[str] | None = None) -> None:
    """`main` as a process of its own, which ends at once when its work is done and what others registered has run.

    Python's own way out takes half a second with torch, and threads of libraries that still run can abort it.
    """
    status: Any = 1

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(end)  # before the work imports anything, for the first one registered is the last to run
    try:
        main(arguments)
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
        raise


def main(arguments: Sequence[str] | None = None, work: Callable[[Any], Result] | None = None) -> None:
    """Run the subcommand that the arguments name (default: those of the process); `work` replaces what it does.

    SIGINT (Ctrl-C) and SIGTERM (`ray job stop`) drop the units in flight and print how to resume.
    """
    gc.set_threshold(50_000)  # imports make objects that stay; to look for garbage among them takes a tenth of a start
    words = sys.argv[1:] if arguments is None else list(arguments)
    loudness, words = LOUDNESS.keys() & words, [word for word in words if word not in LOUDNESS]
    with _printing():
        if words == ["--version"]:
            print(f"raycase {__version__}")
            return
        flags, name = parse(words), words[0]
        for each in loudness:
            os.environ |= LOUDNESS[each]
        resumes = name in RESUME and getattr(flags, "resumes", True)
        with stopping_at_once(resumes=resumes):
            result = _run(work or COMMANDS[name].work, flags, resumes=resumes)
        _print_result(result)


def with_config(words: Sequence[str]) -> Sequence[str]:
    """A command's flags with those of --config FILE first, a YAML file of flags; flags given beside it win."""
    if CONFIG not in words:
        return words
    import yaml

    at = words.index(CONFIG)
    file = "".join(words[at + 1 : at + 2])
    given: list[str] = []
    try:
        text = Path(file).read_text(encoding="utf-8")
        for name, value in yaml.load(text, yaml.BaseLoader).items():  # noqa: S506 which reads every value as a string
            flag = str(name).replace("_", "-")
            values = value if isinstance(value, list) else [value]
            if wrong := [each for each in values if not isinstance(each, str) or not each]:
                raise ValueError(f"{wrong[0] or 'nothing'} for {name}; quote it if it is a text")
            if value in ("true", "false"):
                given.append(f"--{flag}" if value == "true" else f"--no-{flag}")
            else:
                given += [f"--{flag}", *values]
    except (AttributeError, OSError, ValueError, yaml.YAMLError) as error:
        _fail(f"{CONFIG}: expected a YAML file of flags, as `conditions: [place, people]`, got {first_line(error)}", 2)
    return [*given, *words[:at], *words[at + 2 :]]


class _Printed(io.FileIO):
    """A stream of this process: what it refuses is dropped, and ends no work."""

    refused: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.refused = error
            return memoryview(data).nbytes


@contextmanager
def _printing() -> Iterator[None]:
    """Letters that a terminal's encoding has not become escapes. Exits with 1 where standard output had no room."""
    printed: dict[str, _Printed] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # not closed, nor captured
            raw = printed[name] = _Printed(stream.fileno(), "w", closefd=False)
            settings: Any = {"encoding": stream.encoding, "line_buffering": stream.line_buffering}
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", **settings))
    try:
        yield
    finally:
        if out := printed.get("stdout"):
            sys.stdout.flush()
            if out.refused and not isinstance(out.refused, BrokenPipeError):
                _fail(f"standard output: expected room, got: {out.refused}; what was written to files is whole", 1)


def parse(arguments: Sequence[str]) -> Any:
    """A subcommand's flags, `over` those of another whose words follow --. Prints help or errors and exits."""
    command = COMMANDS.get(arguments[0]) if arguments else None
    if command is None or not command.over:
        return _parse(arguments)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, follows = arguments[:at], arguments[at + 1 :]
    if not follows and not {"-h", "--help", HELP_ALL} & {*own}:
        wanted = f"expected -- and the words of `raycase {command.over}` after the command's own"
        _fail(f"{command.name}: {wanted}, as: {command.file.EXAMPLE}", 2)
    return _parse(own, **({"training": _parse([command.over, *follows])} if follows else {}))


def _parse(arguments: Sequence[str], **more_fields: Any) -> Any:
    """`parse` of one command's words: its name, perhaps a system's, and flags; and fields that are no words of it."""
    words, prog, line, example = [*arguments], "raycase", DESCRIPTION, ""
    flags: Any = COMMANDS
    while words and isinstance(flags, Mapping) and (name := words[0].replace("_", "-")) in flags:
        flags, prog, words = flags[name], f"{prog} {name}", words[1:]
        if isinstance(flags, Command):
            flags, line, example = flags.flags, flags.line, flags.file.EXAMPLE
        example = example.replace("SYSTEM", name) if isinstance(flags, type) else example
    _check_lists(flags, words)
    words = [*with_config(words)]
    is_short = bool({"-h", "--help"} & {*words})  # the flags that people use; --help-all: all
    words = ["--help" if word == HELP_ALL else word for word in words]
    wrong = io.StringIO()  # what is wrong with the flags, which quotes them
    try:
        with redirect_stderr(wrong):
            if isinstance(flags, Mapping):
                return _list(flags, words).cli(prog=prog, args=words, description=line, config=SETTINGS)
            read = read_in_groups(flags, short=prog if is_short else "", **more_fields)
            return tyro.cli(read, prog=prog, args=words, config=SETTINGS)
    except SystemExit as stop:
        if example and not stop.code:
            print(f"Example: {example}")
        raise
    finally:
        for text in wrong.getvalue().splitlines():
            note(text)


def _check_lists(flags: Any, words: Sequence[str]) -> None:
    """Exit where a flag that takes several values is there twice, for of those the last alone would be read."""
    given = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    for field in fields(flags) if isinstance(flags, type) else ():
        flag = f"--{field.name.replace('_', '-')}"
        if "tuple" in str(field.type) and given.count(flag) > 1:
            _fail(f"{flag}: expected it once, with all its values, got it {given.count(flag)} times", 2)


def _list(several: Mapping[str, Any], words: Sequence[str]) -> SubcommandApp:
    """The subcommands, each with its line; for a shell's completions with all flags."""
    app = SubcommandApp()
    completion = bool(words) and words[0].startswith("--tyro-")
    for name, each in several.items():
        is_command = isinstance(each, Command)
        line = each.line if is_command else str(inspect.getdoc(each)).splitlines()[0]
        flags = (each.flags if is_command else each) if completion else None
        if isinstance(flags, Mapping):
            app.command(_list(flags, words), name=name, help=line)
        else:
            app.command(name=name, help=line)(read_in_groups(flags) if flags else lambda: None)  # never chosen
    return app


def _run(work: Callable[[Any], Result], flags: Any, *, resumes: bool) -> Result:
    try:
        return work(flags)
    except RequestError as error:
        _fail(error, 2)
    except WorkError as error:
        if hasattr(error, "result"):  # the output is there, and its counts are worth knowing
            _print_result(error.result)
        message = str(error)
    except OSError as error:
        message = f"{type(error).__name__}: {error}; run the same command again{' to resume' if resumes else ''}"
    if resumes and getattr(flags, "overwrite", False):
        message = message.replace(AGAIN, f"{AGAIN} without {OVERWRITE}")
    _fail(message, 1)


def _print_result(result: Result) -> None:
    print(json.dumps(finite(result), allow_nan=False), flush=True)


@contextmanager
def stopping_at_once(*, resumes: bool) -> Iterator[None]:
    """SIGINT and SIGTERM print how to go on and end the process: `ray job stop` gives 3 s, Ray's shutdown takes more.

    Ray drops the units in flight when its driver is gone; files that are written are whole.
    """

    def stop(number: int, frame: Any) -> NoReturn:
        next_run = "to resume" if resumes else "to run it again"
        command = visible(resume_command(resumes=resumes))
        print(f"error: stopped; {next_run}: {command}", file=sys.stderr, flush=True)
        os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resume_command(*, resumes: bool = True) -> str:
    """This process's command as it goes on: where it resumes, without --overwrite, which would begin again."""
    where = f"RAY_ADDRESS={address} " if (address := os.environ.get("RAY_ADDRESS")) else ""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:  # which sets an address of its own
        where = "ray job submit --working-dir . -- "
    return where + command_line([word for word in sys.argv if word != OVERWRITE or not resumes])


def _fail(error: Exception | str, status: int) -> NoReturn:
    note(f"error: {error}", always=True)
    sys.exit(status)
