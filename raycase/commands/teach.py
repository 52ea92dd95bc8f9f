"""The command teach: answers of some rows of an index teach it a condition."""

import time
from dataclasses import dataclass
from typing import Any

from raycase.errors import MOST_LABEL, check_problems, check_ranges, is_words, visible
from raycase.names import Advanced

EXAMPLE = 'raycase teach --index tickets.lance --condition "reason for the complaint" --answers answers.csv'


@dataclass(frozen=True, kw_only=True)
class TeachFlags:
    """Teach an index what a condition means by answers of some of its rows: from then on, every search and view of it
    under this condition has rows of one label nearer to each other. No text is read again. Where cross-validation on
    the answers shows no gain, nothing changes."""

    index: str
    """Output of `raycase index` with stored tokens (`raycase embed --any-condition`), local or on object storage."""
    condition: str
    """The condition that the answers are of."""
    answers: str | None = None
    """A .csv, .jsonl or .parquet file with the columns `id` or `text`, and `label`, which is empty where the text does
    not state the condition, and ? where nobody has answered yet. At least two labels with two rows each."""
    output: str | None = None
    """Also write the taught condition into a file .taught, for `raycase embed --conditions`."""
    forget: bool = False
    """Instead of --answers: take the condition by its words again."""
    model: Advanced[str | None] = None
    """Folder of the index's model, if it has moved."""


def teach(flags: TeachFlags) -> dict[str, Any]:
    """Teach an index a condition by answers of some of its rows."""
    from raycase.encoder.model_files import model_folder
    from raycase.index.index import Index
    from raycase.index.teach import forget
    from raycase.index.teach import teach as teach_index
    from raycase.io.places import File, check_paths
    from raycase.io.reader import check_no_file
    from raycase.io.row_labels import read_row_labels
    from raycase.models.taught import TAUGHT

    began = time.time()
    check_paths(
        reads={"--answers": flags.answers},
        opens={"--index": flags.index, "--model": model_folder(flags.model)},
        writes={"--output": File(flags.output, (TAUGHT,))},
    )
    check_ranges(flags)
    got = "both" if flags.answers and flags.forget else "none"
    problems = {
        f"--answers: expected them, or --forget, got {got}": bool(flags.answers) == flags.forget,
        "--output: expected --answers, got --forget": bool(flags.output and flags.forget),
        f"--condition: expected words, got {flags.condition!r}": not is_words(flags.condition),
    }
    check_problems(problems)
    check_no_file("--condition", [] if flags.forget else [flags.condition])
    index = Index.open(flags.index, model=flags.model)
    condition = str(index.query_encoder.spelled(flags.condition))
    result: dict[str, Any] = {"condition": condition, "index": index.root.uri}
    shown = f'"{visible(condition, MOST_LABEL)}"'
    if flags.forget or not flags.answers:
        forget(index, condition, flags.model)
        print(f"{shown} is what its words mean again")
        return result | {"forgotten": True, "seconds": round(time.time() - began, 3)}
    taught = teach_index(index, condition, read_row_labels([flags.answers]), flags.model)
    if flags.output and taught.gained:
        taught.save(flags.output)
    figures = taught.figures._asdict()
    print(f"\n{taught.answers:,} answers, by cross-validation: same label among the nearest, and macro F1\n")
    for name, of in figures.items():
        print(f"  {name:<15}{of.share:>6.1f} %{of.f1:>7.1f}")
    print(f"\n{shown}: " + ("taught" if taught.gained else "nothing gained; the index is as it was") + "\n")
    return result | {
        "answers": taught.answers,
        "gained": taught.gained,
        **{name: of._asdict() for name, of in figures.items()},
        "seconds": round(time.time() - began, 3),
        "output": flags.output if taught.gained else None,
    }
