"""The command demo: the sample that ships, embedded once for any condition, indexed, and searched."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLE = "raycase demo"
FOLDER = Path.home() / "raycase" / "demo"
WORDS, INDEX = str(FOLDER / "words"), str(FOLDER / "index.lance")
SENTENCE = "Three women in green jackets ride bicycles along the beach."
CONDITIONS = ("number of people", "color of the clothes", "type of activity", "place")


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """Embed the 300 sample sentences for any condition into ~/raycase/demo, index them, and search them with and
    without conditions."""


def demo(flags: DemoFlags) -> dict[str, Any]:
    """Embed a sample that ships, index it and search it, in a few seconds."""
    from raycase.commands.embed import EmbedFlags, check_embed
    from raycase.job.run import run
    from raycase.job.runner import Runner

    run(check_embed(EmbedFlags(any_condition=True, output=WORDS, overwrite=True)), Runner())
    return ask()


def ask(raycase: str = "raycase") -> dict[str, Any]:
    """Index the stored tokens, and print what is nearest to the sentence. raycase: the command as it is called."""
    from raycase.commands.search import SearchFlags, search
    from raycase.index.build import build

    build(INDEX, [WORDS], overwrite=True)
    search(SearchFlags(index=INDEX, query=(SENTENCE,), k=3))
    search(SearchFlags(index=INDEX, query=(SENTENCE,), k=3, condition=CONDITIONS, explain=True))
    print(f'ask it what nobody asked: {raycase} search --index {INDEX} --query "..." --condition "..."')
    named = " ".join(f'"{condition}"' for condition in CONDITIONS)
    print(f"see it as a map (extra: explore): {raycase} explore --index {INDEX} --conditions {named} --output map.html")
    return {"words": WORDS, "index": INDEX}
