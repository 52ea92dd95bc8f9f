"""The command explain: which words of a text a condition looked at, in bold in a terminal, as figures elsewhere."""

import sys
from dataclasses import dataclass
from typing import Any

from raycase.errors import MOST_LABEL, MOST_SHOWN, RequestError, check_ranges, normal_words, visible
from raycase.names import DEFAULT_MODEL

EXAMPLE = 'raycase explain --text "Two girls in red play soccer." --condition "color of the clothes"'


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    """Show which words of a text a condition looks at: each word's share of the text's vector (CSR: of its router)."""

    text: tuple[str, ...]
    """Sentences."""
    condition: tuple[str, ...]
    """Conditions; each sentence is shown under each."""
    model: str = DEFAULT_MODEL
    """A model that weighs words: a trained folder (condition-pooling, csr), or "condition-pooling:" or "csr:" and the
    name of an encoder."""


def explain(flags: ExplainFlags) -> dict[str, Any]:
    """Show which words of a text a condition looks at."""
    from raycase.encoder.model_files import model_folder
    from raycase.index.answers import has_styles, in_bold, in_words, looked_at
    from raycase.io.places import check_paths
    from raycase.models.pairs import check_accepted
    from raycase.models.registry import resolve_embedder

    check_paths(opens={"--model": model_folder(flags.model)})
    check_ranges(flags, {name: (bool(getattr(flags, name)), "at least one") for name in ("text", "condition")})
    asked = dict.fromkeys(map(normal_words, flags.condition))
    pairs = [(text, condition) for text in dict.fromkeys(flags.text) for condition in asked]
    config = resolve_embedder(flags.model)
    if not config.weighs_words:
        raise RequestError(
            f"--model: expected a model that weighs words (as condition-pooling:minilm), got {flags.model}"
        )
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
