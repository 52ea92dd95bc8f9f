"""Flags with words that are no number."""

from hostile_cases.case import Case

from raycase.corpus.run import run, run_checked
from raycase.corpus.score_request import check_score
from raycase.errors import WorkError

WORDS = ["nan", "inf", "-1", "0", "1e400", "9" * 30, "²", "", "x", "\udcff", "None", "[1]"]


def stopped(*_, **__):
    """In place of what runs the work: everything before it was checked."""
    raise WorkError("the work begins")


def flag_cases(home, model):
    """Each number of `embed` and of other commands with words that are none."""
    (home / "flags.csv").write_text("text\na dog\n")
    embed = ["embed", "--input", home / "flags.csv", "--output", home / "flags", "--model", model]
    embed += ["--conditions", "color"]
    work = lambda job: run(job, prepare=stopped)  # noqa: E731
    for flag in (
        "batch-tokens",
        "unit-rows",
        "actors",
        "gpus-per-actor",
        "stall-timeout",
        "limit",
        "max-rejected",
        "dim",
    ):
        for word in WORDS:
            yield Case("flags", f"embed --{flag} {word!r}", [*embed, f"--{flag}={word}"], work)
    (home / "pairs.csv").write_text("sentence1,sentence2,condition\na dog,a cat,color\n")
    score = ["score", "--input", home / "pairs.csv", "--output", home / "flags-score", "--model", model]
    score += ["--prompt", "concat-sc", "--pooling", "mean"]
    begin = lambda job: run_checked(check_score(job), 0.0, prepare=stopped)  # noqa: E731
    for flag in ("sentence1-column", "sentence2-column", "condition-column", "score-column", "id-column", "unit-rows"):
        for word in WORDS:
            yield Case("flags", f"score --{flag} {word!r}", [*score, f"--{flag}={word}"], begin)
    others = {
        "search --index x --query a": ("k", "candidates", "memory"),
        "facets --index x --condition c": ("clusters", "memory"),
        "explore --index x --output y.html": ("clusters", "most-rows", "neighbours", "seed"),
        "join --query-vectors a --vectors b --output c": ("k", "stall-timeout"),
    }
    for command, flags in others.items():
        for flag in flags:
            dashes = "-" if len(flag) == 1 else "--"
            for word in ("nan", "-1", "²", "9" * 30, ""):
                name = f"{command.split()[0]} {dashes}{flag} {word!r}"
                yield Case("flags", name, [*command.split(), dashes + flag, word])
    for words in ("", "embeds", "embed --nope", "--version", "train", "embed --input", "tune nope"):
        yield Case("flags", f"raycase {words}", words.split())
