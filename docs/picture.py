"""Draw docs/map.webp: the sample that ships, as `raycase explore` shows it, moving from one map to another.

raycase demo
python docs/picture.py
"""

from __future__ import annotations

import sys
import tempfile
from base64 import b64decode
from io import BytesIO
from pathlib import Path

from PIL import Image

from raycase.commands.demo import INDEX
from raycase.commands.explore import ExploreFlags, explore

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from browser import Browser  # noqa: E402 the tests' own

CONDITIONS = ("the animal", "the place")
COLORS = 1  # by the facets of the first of them, on every map
WIDTH, HEIGHT = 1100, 560
STEPS, STEP_MS, REST_MS = 14, 60, 2600  # frames from one map to the next, and how long each and a map are seen
MOST_BYTES = 600_000
BETWEEN = """(async () => {{
    const positions = maps[{a}].positions.map((from, i) => from + {share} * (maps[{b}].positions[i] - from));
    await plot.move({{ positions }});
    at("labels").classList.add("hidden");
}})()"""


def frames(page: Browser, folder: Path) -> list[tuple[Image.Image, int]]:
    """Pictures, and how many milliseconds each is seen."""

    def seen(milliseconds: int) -> tuple[Image.Image, int]:
        page.ask("plot.redraw()")
        picture = b64decode(page.send("Page.captureScreenshot")["data"])
        return Image.open(BytesIO(picture)).convert("RGB"), milliseconds

    page.size(WIDTH, HEIGHT)
    wanted = {"prefers-color-scheme": "light", "prefers-reduced-motion": "reduce"}  # each frame is drawn at its place
    page.send("Emulation.setEmulatedMedia", features=[{"name": key, "value": value} for key, value in wanted.items()])
    page.open((folder / "map.html").as_uri())
    page.wait("document.documentElement.dataset.ready === 'true'")
    page.ask(f"at('color').value = {COLORS}, at('color').dispatchEvent(new Event('change'))")
    count = page.ask("maps.length")
    pictures = [seen(REST_MS)]
    for a in range(count):
        b = (a + 1) % count
        for step in range(1, STEPS):
            share = step / STEPS
            page.ask(BETWEEN.format(a=a, b=b, share=share * share * (3 - 2 * share)))
            pictures.append(seen(STEP_MS))
        page.ask(f"show({b})")
        page.wait("!('moving' in document.documentElement.dataset)")
        pictures.append(seen(REST_MS))
    return pictures[:-1]  # the last is the first


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        explore(ExploreFlags(index=INDEX, conditions=CONDITIONS, output=str(folder / "map.html")))
        page = Browser(name)
        try:
            (first, _), *others = pictures = frames(page, folder)
        finally:
            page.close()
    file = HERE / "map.webp"
    first.save(
        file,
        save_all=True,
        append_images=[picture for picture, _ in others],
        duration=[milliseconds for _, milliseconds in pictures],
        loop=0,
        quality=50,
        method=4,
    )
    print(f"{file}: {len(pictures)} frames, {file.stat().st_size:,} bytes")
    if file.stat().st_size > MOST_BYTES:
        sys.exit(f"expected at most {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
