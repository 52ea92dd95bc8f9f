"""The exceptions of every room, how these and all lines for people are shown, and the ranges of flags that are checked
alike everywhere."""

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from unicodedata import normalize

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Args = ParamSpec("Args")
Given = TypeVar("Given")


class RequestError(ValueError):
    """The request was wrong (exit status 2). The message names what was expected, what was given, and what to do."""


class WorkError(RuntimeError):
    """The work failed or the output does not add up (exit status 1)."""


def lacks_package(package: str, extra: str, purpose: str = "") -> RequestError:
    """What to raise where a package of an extra is not installed; purpose: such as "for facets"."""
    wanted = f"{package} {purpose}".rstrip()
    return RequestError(f"expected the package {wanted}, got none; install it with: pip install 'raycase[{extra}]'")


@contextmanager
def needs_package(package: str, extra: str, purpose: str = "") -> Iterator[None]:
    """Turn the ImportError of a package into `lacks_package`."""
    try:
        yield
    except ImportError as error:
        raise lacks_package(package, extra, purpose) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def named(error: BaseException) -> str:
    """An error of code that is not ours, as a message quotes it: its type and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def expecting(
    expected: str,
    *errors: type[Exception],
    why: Callable[[Any], str] = first_line,
    advice: str = "",
    raises: type[Exception] = RequestError,
) -> Iterator[None]:
    """Turn errors of these types into one for people: what was expected, why it is not so, and what to do."""
    try:
        yield
    except errors as error:
        raise raises(f"{expected}, got: {why(error)}{advice}") from error


def visible(value: object, most: int | None = None) -> str:
    """A value in one line for a terminal: no control characters or credentials; past `most`, its head and its end."""
    text = _BREAKS.sub(" ", str(value))
    text = _CREDENTIALS.sub("://...@", text) if "://" in text else text
    text = _KEYS.sub(r"\1...", text) if "?" in text else text
    if most is not None and len(text) > most:
        text = f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def note(message: object, *, always: bool = False) -> None:
    """Print a line on standard error, for people; results go to standard output. After --quiet: only `always`."""
    if always or "RAYCASE_QUIET" not in os.environ:
        print(visible(message, MOST_SHOWN), file=sys.stderr, flush=True)


note_once = cache(note)  # in a process


def is_verbose() -> bool:
    """Whether Ray's logs, progress bars and dashboard are wanted: after --verbose."""
    return "RAYCASE_VERBOSE" in os.environ


_BREAKS = re.compile("\\s*[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+\\s*")
_UNSEEN = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CREDENTIALS = re.compile(r"(?<=s3|3a|gs|cs|tp|ps)://[^/\s@]+@|://[^/\s@:]*:[^/\s@]*@")
_FLAGS = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")  # and commands, whose flags stay
_KEYS = re.compile(r"(\?[^\s?]*?(?:sig|signature|token|key|secret|password)=)[^\s'\"]+", re.IGNORECASE)

_CLASSES = {"bool": bool, "int": int, "float": (int, float), "str": str, "None": NoneType}
TO_UTF8 = "text is read as UTF-8, convert another encoding, as: iconv -f LATIN1 -t UTF-8"
MOST_SHOWN, MOST_LABEL = 1000, 200  # characters of a line for people, and of a condition or a name in one
MOST_WORDS = 10  # of a condition that reads as a phrase
MOST = 2**63 - 1  # of a whole number: what a file and a store of columns hold
MOST_SEED = 2**32 - 1  # of scikit-learn's and Optuna's seeds


def with_arguments(message: str) -> str:
    """A message with max_rejected in place of --max-rejected; commands, in backticks, stay."""
    return _FLAGS.sub(lambda found: found[1].replace("-", "_") if found[1] else found[0], message)


def checks_types(function: Callable[Args, Given]) -> Callable[Args, Given]:
    """Raise RequestError for an argument unlike its hint, where that names classes. A bool is no number."""

    @wraps(function)
    def call(*args: Args.args, **options: Args.kwargs) -> Given:
        with expecting("expected other arguments", TypeError):
            given = signature(function).bind(*args, **options).arguments
        for name, value in given.items():
            hint = function.__annotations__.get(name, "Any").replace("Place", "str | PathLike")
            names = [part.partition("[")[0] for part in hint.split(" | ")]
            known = vars(sys.modules[function.__module__])
            classes: list[Any] = [_CLASSES.get(name) or known.get(name) for name in names]
            own = value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value
            are_known = all(isinstance(each, (type, tuple)) and each is not Any for each in classes)
            if are_known and not any(isinstance(own, of) and isinstance(own, bool) == (of is bool) for of in classes):
                raise RequestError(f"{name}: expected {hint}, got {visible(repr(value), MOST_LABEL)}")
        return function(*args, **options)

    return call


def names_arguments(function: Callable[Args, Given]) -> Callable[Args, Given]:
    """`checks_types`, and name arguments, not flags, in what the function raises."""
    checked = checks_types(function)

    @wraps(function)
    def call(*args: Args.args, **options: Args.kwargs) -> Given:
        try:
            return checked(*args, **options)
        except (RequestError, WorkError) as error:
            error.args = tuple(with_arguments(str(arg)) for arg in error.args)
            raise

    return call


def command_line(words: Sequence[str]) -> str:
    """A process's arguments (`sys.argv`) as a command that can be given again."""
    program = Path(words[0])
    is_raycase = program.name == "raycase" or program.parts[-2:] == ("raycase", "__main__.py")
    return shlex.join([*(["raycase"] if is_raycase else ["python", words[0]]), *words[1:]])


def check_problems(problems: Mapping[str, object]) -> None:
    """Raise RequestError for the first problem that there is; `problems`: message -> is it there?"""
    for message, is_there in problems.items():
        if is_there:
            raise RequestError(message)


def check_ranges(flags: "DataclassInstance", ranges: Mapping[str, tuple[bool, str]] = MappingProxyType({})) -> None:
    """Raise RequestError for the first flag out of range; `ranges`: flag -> (in range?, what is expected).

    Whatever the ranges, numbers are finite and within 64 bits, and texts are UTF-8. Every command calls this.
    """
    for name, (fits, expected) in ranges.items():
        if not fits:
            raise RequestError(f"{_flag(name)}: expected {expected}, got {visible(getattr(flags, name), MOST_LABEL)}")
    for field in fields(flags):
        values = getattr(flags, field.name)
        for value in values if isinstance(values, tuple) else (values,):
            problem = ""
            if isinstance(value, float) and not math.isfinite(value):
                problem = f"expected a finite number, got {value}"
            elif isinstance(value, int) and abs(value) > MOST:
                problem = f"expected a number of at most 64 bits, got one of {value.bit_length()}"
            elif isinstance(value, str) and not is_utf8(value):
                problem = f"expected text in UTF-8, got {visible(repr(value), MOST_LABEL)}"
            if problem:
                raise RequestError(f"{_flag(field.name)}: {problem}")


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode a text: no half of a surrogate pair, as bytes of another encoding become."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def is_words(value: object) -> bool:
    """Whether a value is a text that `is_utf8`, and not white space alone."""
    return isinstance(value, str) and bool(value.strip()) and is_utf8(value)


def normal_words(text: str) -> str:
    """A condition, label or phrase as it is compared and stored: in NFC, stripped, one blank for all white space."""
    return " ".join(normalize("NFC", text).split())


def note_sentences(conditions: Iterable[str | None]) -> None:
    """Note the conditions that read as sentences."""
    for condition in conditions:
        if condition and (condition.endswith((".", "!")) or condition.count(" ") >= MOST_WORDS):
            shown = visible(condition, MOST_LABEL)
            note(f"{shown!r} reads as a sentence, but a condition names what to look at, in one to five words: 'place'")


def at_least(least: int, flags: object, *names: str, most: int | None = None) -> dict[str, tuple[bool, str]]:
    """For `check_ranges`: flags that are unset, or a number not below `least` or above `most`."""
    values = {name: getattr(flags, name) for name in names}
    expected = f"at least {least}" if most is None else f"{least} to {most:,}"
    return {name: (value is None or least <= value <= (most or value), expected) for name, value in values.items()}


def _flag(name: str) -> str:
    """A field as a flag: `-k`, `--unit-rows`."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
