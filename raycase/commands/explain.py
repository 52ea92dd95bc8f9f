"""The command explain: which words of a text a condition looked at, in bold in a terminal, as figures elsewhere; or how
wordings differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raycase.errors import MOST_LABEL, MOST_SHOWN, RequestError, check_problems, check_ranges, normal_words, visible
from raycase.names import DEFAULT_MODEL

if TYPE_CHECKING:
    from raycase.models.configs import EmbedderConfig

EXAMPLE = 'raycase explain --text "Two girls in red play soccer." --condition "color of the clothes"'


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    """Show which words of a text a condition looks at: each word's share of the text's vector (CSR: of its router). Or
    compare wordings of a condition on your texts."""

    condition: tuple[str, ...]
    """Conditions; each sentence is shown under each. With --input: two wordings or more."""
    text: tuple[str, ...] = ()
    """Sentences."""
    input: str | None = None
    """Instead of --text: a file, folder or glob of your texts; .parquet, .csv or .jsonl. A sample of 500 shows which
    words each wording looks at, and how many of the ten nearest texts two wordings have in common."""
    text_column: str = "text"
    """Column of the texts of --input."""
    model: str = DEFAULT_MODEL
    """A model that weighs words: a trained folder (condition-pooling, csr), or "condition-pooling:" or "csr:" and the
    name of an encoder."""


def explain(flags: ExplainFlags) -> dict[str, Any]:
    """Show which words of a text a condition looks at."""
    from raycase.encoder.model_files import model_folder
    from raycase.index.answers import has_styles, in_bold, in_words, looked_at
    from raycase.io.places import check_paths
    from raycase.io.reader import check_no_file
    from raycase.models.pairs import check_accepted
    from raycase.models.registry import resolve_embedder

    check_paths(reads={"--input": flags.input}, opens={"--model": model_folder(flags.model)})
    check_ranges(flags, {"condition": (bool(flags.condition), "at least one")})
    check_no_file("--condition", flags.condition)
    check_no_file("--text", flags.text, "; --input reads files")
    asked = list(dict.fromkeys(map(normal_words, flags.condition)))
    both = f"expected one of --text or --input, got {'both' if flags.text else 'none'}"
    few = f"--condition: expected two wordings or more beside --input, got {visible(asked[0], MOST_LABEL)!r} alone"
    check_problems({both: bool(flags.text) == bool(flags.input), few: flags.input and len(asked) < 2})
    pairs = [(text, condition) for text in dict.fromkeys(flags.text) for condition in asked]
    config = resolve_embedder(flags.model)
    if not config.weighs_words:
        raise RequestError(
            f"--model: expected a model that weighs words (as condition-pooling:minilm), got {flags.model}"
        )
    if flags.input:
        return {"model": flags.model} | _compare(flags.input, flags.text_column, config, asked)
    texts, conditions = map(list, zip(*pairs, strict=True))
    refused = config.prepare(texts, conditions).refused
    check_accepted(refused, texts, conditions=conditions, source="--text, --condition")
    weights = config.load().word_weights(texts, conditions)
    styles, shown, explained = has_styles(sys.stdout), None, []
    for (text, condition), words in zip(pairs, weights, strict=True):
        rounded = [word._replace(weight=round(word.weight, 4))._asdict() for word in words]
        explained.append({"text": text, "condition": condition, "words": rounded})
        if text != shown:
            shown = text
            print(f'\n"{visible(text, MOST_SHOWN)}"')
        marked = in_bold(text, looked_at(text, words), len(text)) if styles else in_words(text, words)
        print(f"  {visible(condition, MOST_LABEL)}: {marked}")
    print()
    return {"model": flags.model, "weights": explained}


def _compare(uri: str, column: str, config: EmbedderConfig, wordings: Sequence[str]) -> dict[str, Any]:
    """Print what each wording looks at, and which share of the nearest texts it has in common with each other one and
    with the unconditional vectors; the same for the last line."""
    from raycase.explore.wordings import NEAREST, heaviest, same_nearest, sample_texts
    from raycase.models.configs import check_room

    check_room(config, wordings, "--condition")
    texts = sample_texts(uri, column, config, wordings)
    model, count = config.load(), len(texts)
    ways = [model.encode(texts, condition, normalize=True) for condition in (None, *wordings)]
    same_CC = same_nearest(ways).round(4).tolist()
    words = [heaviest(texts, model.word_weights(texts, [wording] * count)) for wording in wordings]
    print(f"\n{count} texts: the share of the {NEAREST} nearest that are the same, and the heaviest words\n")
    print("        0", *(f"{number:4}" for number in range(1, len(ways))), sep="  ")
    for number, (name, row) in enumerate(zip(["unconditional", *wordings], same_CC, strict=True)):
        looks = ", ".join(f"{visible(each.word)} {each.score:.3f}" for each in words[number - 1]) if number else ""
        figures = "  ".join(f"{share:.2f}" for share in row)
        print(f"{number:>3}  {figures}  {visible(name, MOST_LABEL)}{': ' * bool(looks)}{looks}")
    print()
    found = [
        {"condition": wording, "words": {each.word: round(each.score, 4) for each in of_wording}, "same": row}
        for wording, of_wording, row in zip([None, *wordings], [[], *words], same_CC, strict=True)
    ]
    return {"texts": count, "nearest": NEAREST, "wordings": found}
