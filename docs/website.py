"""Build the website from README.md, docs/ and results/: python docs/website.py writes out/site.

python docs/website.py            with the map of the sample on its first page (extras docs, minilm, search, explore)
python docs/website.py --check    without the map (`make lint`)

Pages keep their places, so a link that works in the repository works here. Zensical's strict build finds links, anchors
and pages that are not there; what mkdocstrings prints it does not count, so its lines are looked for.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, SITE, CONFIG = ROOT / "out" / "site-source", ROOT / "out" / "site", ROOT / "zensical.toml"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "results/*.md")
FILES = ("NOTICE", "CITATION.cff", "docs/*.svg", "docs/*.png", "docs/*.webp", "templates/*/*.*", "results/*.png")
ELSEWHERE = {"README.md": "index.md", "NOTICE": "NOTICE.txt", "CITATION.cff": "CITATION.txt"}  # a browser shows these
AS_TEXT = {"results/hostile.md"}  # whose tables quote tags and brackets
CONDITIONS = ("the place", "the activity", "the animal", "number of people", "color of the clothes")
MAP = """<iframe src="map.html" title="300 sentences under several conditions" style="width:100%;height:36rem;border:0">
</iframe>

*300 sentences that ship with raycase: choose a condition and the points move; click one for its neighbours under each.
`raycase explore` [made this page](docs/explore.md).*"""
WIDE = "---\nhide:\n  - toc\n---\n"
FAULT = re.compile(r"mkdocstrings|griffe|autoref|warning|error|traceback", re.IGNORECASE)


def files(patterns: tuple[str, ...]) -> list[Path]:
    """The files of the patterns, relative to the repository, in order. Raises FileNotFoundError for one without any."""
    found = {pattern: sorted(ROOT.glob(pattern)) for pattern in patterns}
    if missing := [pattern for pattern, those in found.items() if not those]:
        raise FileNotFoundError(f"expected files {missing[0]}, got none")
    return [file.relative_to(ROOT) for those in found.values() for file in those]


def place(file: Path) -> Path:
    """Where a file of the repository is in the source of the site."""
    return Path(ELSEWHERE.get(str(file), file))


def page(file: Path, *, has_map: bool) -> str:
    """The text of a page: links to files that have another place, and paths of pages in code as links to them."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if str(file) in AS_TEXT:
        text = re.sub(r"^\|.*$", lambda row: html.escape(row[0], quote=False).replace("[", "\\["), text, flags=re.M)
    for name, new in ELSEWHERE.items():
        text = re.sub(rf"(\]\((?:\.\./)*){re.escape(name)}(?=[)#])", rf"\g<1>{new}", text)
    lines, is_code = [], False
    for line in text.split("\n"):
        is_code ^= line.lstrip().startswith("```")
        lines.append(line if is_code or line.startswith("    ") else linked(line, file))
    if str(file) == "README.md" and has_map:
        picture = next(number for number, line in enumerate(lines) if line.startswith("!["))
        lines[picture] = MAP  # the map itself, in place of its picture
        lines.insert(0, WIDE)
    return "\n".join(lines)


def linked(line: str, file: Path) -> str:
    """A line with links where it names a page: `results/search.md`."""

    def link(match: re.Match[str]) -> str:
        target = ROOT / match[1]
        return f"[{match[0]}]({os.path.relpath(target, (ROOT / file).parent)})" if target.is_file() else match[0]

    return re.sub(r"(?<!\[)`((?:docs|results)/\w+\.md)`", link, line)


def assemble(*, has_map: bool) -> list[Path]:
    """Write the source of the site; gives its pages."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = files(PAGES)
    for file in pages + files(FILES):
        target = SOURCE / place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file in pages:
            target.write_text(page(file, has_map=has_map), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / file, target)
    return [place(file) for file in pages]


def check_navigation(pages: list[Path]) -> None:
    """Raise SystemExit where a page is not in the navigation, once, or is no page."""
    listed = re.findall(r'"([\w/-]+\.md)"', CONFIG.read_text(encoding="utf-8"))
    tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    wanted = sorted(map(str, pages))
    if sorted(listed) != wanted:
        wrong = {*listed} ^ {*wanted} or {name for name in listed if listed.count(name) > 1}
        sys.exit(f"zensical.toml: expected every page once in nav, got not so: {', '.join(sorted(wrong))}")


def write_map() -> None:
    """The page of `raycase explore` with the sample, beside the first page. Exits where a package is lacking."""
    from raycase.cli import main as raycase

    with tempfile.TemporaryDirectory() as folder:
        words, index = f"{folder}/words", f"{folder}/300 sentences.lance"
        raycase(["embed", "--any-condition", "--output", words, "--no-ray"])
        raycase(["index", "--embeddings", words, "--output", index])
        raycase(["explore", "--index", index, "--conditions", *CONDITIONS, "--output", str(SOURCE / "map.html")])


def build() -> None:
    """Run the strict build. Exits where it, or mkdocstrings, finds a fault."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(CONFIG)]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode or FAULT.search(done.stdout):
        sys.exit(f"{done.stdout}\nzensical.toml: expected a site without faults, got those above")


def main() -> None:
    """Assemble, check and build."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    has_map = not sys.argv[1:]
    check_navigation(assemble(has_map=has_map))
    if has_map:
        write_map()
    build()
    print(f"the site is in {SITE.relative_to(ROOT)}{'' if has_map else ', without its map'}")


if __name__ == "__main__":
    main()
