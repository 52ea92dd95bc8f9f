"""Find sentences that one has to read twice in README.md, CONTRIBUTING.md, docs/ and, by docs/flags.md, the help.

python docs/prose.py    print each with its page and line; exit with 1 where there is one (`make lint`)

Code and the targets of links are no prose. A phrase in backticks is quoted, and passes.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 35
REFUSED = {
    r"(?:^|[.;:] )(?:Refused|Not [a-z]+|Left out|Ignored|Measured|Missing) (?:is|are|was|were)\b": "subject first",
    r"\bOf (?:these|those|them),? [^.]* (?:is|are)\b": "subject first",
    r"\b(?:asked|waited|looked) for (?:is|are|was|were)\b": "active voice",
    r"\bwhat (?:is|are) \w+ (?:is|are)\b": "name the subject",
    r"\bof which\b": "begin another sentence",
    r"\bfor there (?:is|are)\b": "because",
    r"\bwhere there (?:is|are) (?:none|some)\b": "if",
    r"\bby its name\b": "by name",
    r"\bof one's own\b": "your own",
    r"\bin vain\b": "what happened?",
    r"\bplain vectors?\b|\bf\(s\)": "unconditional vector",
    r"\bstored words\b": "stored tokens",
}
BREAKS = re.compile(r"(\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.) )|\||(?<=[.!?])[*)\]\"]*\s+(?=[\w*\"(\[]))")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence of a page of Markdown, and the number of its first line; each line keeps its number."""
    text = re.sub(r"```.*?```|<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"``.+?``|`[^`]*`", lambda code: "C" + "\n" * code[0].count("\n"), text)
    number = 1
    for part in BREAKS.split(re.sub(r"\]\([^)]*\)", "]", text)):
        if re.search(r"\w", part):
            yield number + len(part) - len(part.lstrip("\n")), " ".join(part.split())
        number += part.count("\n")


def main() -> int:
    """Print what is wrong."""
    wrong = 0
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, sentence in sentences(page.read_text(encoding="utf-8")):
            advice = [advice for pattern, advice in REFUSED.items() if re.search(pattern, sentence)]
            words = len(re.findall(r"\w[\w'-]*", sentence))
            advice += [f"{words} words, more than {MOST_WORDS}"] if words > MOST_WORDS else []
            wrong += len(advice)
            print(
                *(f"{page.relative_to(ROOT)}:{number}: {each}: {sentence[:100]}\n" for each in advice), sep="", end=""
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
