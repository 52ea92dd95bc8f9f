"""The page in a browser: it asks for nothing, moves, answers, and shows any text as text."""

import shutil
import tempfile

import pytest
from browser import CHROMIUM, Browser
from mapped import HOSTILE, some_maps, write_page

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium")]

TEXTS = [*HOSTILE, *(f"a {'dog' if i % 3 else 'cat'} on beach {i}" for i in range(60))]
STALL = "GPU stall due to ReadPixels"  # what the driver of software rendering says when a test looks at the canvas


@pytest.fixture(scope="module")
def browser():
    folder = tempfile.mkdtemp()
    browser = Browser(folder)
    yield browser
    browser.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("page") / "map.html", TEXTS)


@pytest.fixture
def page(browser, uri):
    """The page, newly opened, which is quiet when the test ends."""
    yield opened(browser, uri)
    check_quiet(browser, uri)


def check_quiet(browser, uri):
    """Nothing was asked for and nothing was logged since the page was opened."""
    assert set(browser.requests) <= {uri, *(r for r in browser.requests if r.startswith(f"{uri}#"))}
    assert [line for line in browser.console if STALL not in str(line)] == []
    assert browser.ask("typeof failed") == "undefined"


def opened(browser, uri, width=1200, height=800):
    browser.size(width, height)
    browser.open("about:blank")
    browser.requests.clear()
    browser.console.clear()
    browser.open(uri)
    browser.wait("document.documentElement.dataset.ready === 'true'")
    return browser


def text_of(page, selector):
    return page.ask(f"document.querySelector({selector!r}).textContent")


def middle_of(page, selector):
    box = f"document.querySelector({selector!r}).getBoundingClientRect()"
    return page.ask(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")


def place_of(page, point):
    """A point's place in the window."""
    return page.ask(f"(([x, y], b) => [b.x + x, b.y + y])(plot.position({point}), canvas.getBoundingClientRect())")


def drawn(page):
    """How many pixels of the map are drawn, and the first and last line of them."""
    return page.ask(
        """(async () => {
            await plot.redraw();
            const { width, height } = canvas;
            const pen = new OffscreenCanvas(width, height).getContext("2d");
            pen.drawImage(canvas, 0, 0);
            const { data } = pen.getImageData(0, 0, width, height);
            const lines = [];
            for (let i = 3; i < data.length; i += 4) if (data[i] > 0) lines.push(Math.floor(i / 4 / width));
            return [lines.length, lines[0], lines[lines.length - 1]];
        })()"""
    )


def test_a_condition_is_switched_and_the_points_are_where_its_map_has_them(page):
    assert text_of(page, "#title") == "a <title>" and text_of(page, "#summary") == f"{len(TEXTS)} rows"
    assert drawn(page)[0] > len(TEXTS)
    before, wanted = (
        place_of(page, 20),
        page.ask("[40, 41].map((i) => (maps[1].positions[i] - maps[0].positions[i]) / 32767.5)"),
    )
    page.click(*middle_of(page, "#conditions label:last-child span"))
    page.wait("state.map === 1 && !('moving' in document.documentElement.dataset)")
    moved = [after - earlier for after, earlier in zip(place_of(page, 20), before, strict=True)]
    unit = page.ask("canvas.clientHeight / 2 / plot.view()[2]")
    assert moved == pytest.approx([unit * wanted[0], -unit * wanted[1]], abs=1)
    assert page.ask("new URLSearchParams(location.hash.slice(1)).get('condition')") == 'the "animal" </script>'
    assert 'under the "animal" </script>' in text_of(page, "#status")


def test_a_click_shows_the_neighbours_on_every_map(page):
    page.ask("show(1)")
    page.click(*place_of(page, 30))
    page.wait("state.point === 30")
    assert text_of(page, "#text") == TEXTS[30] and text_of(page, "#text mark") == TEXTS[30].split(" ")[1]
    near = "(column) => [...column.querySelectorAll('li button')].map((button) => button.textContent)"
    columns = page.ask(f"[...document.querySelectorAll('#columns section')].map({near})")
    wanted = [[TEXTS[row] for row in each.rows[30]] for each in some_maps(TEXTS)]
    safe = page.ask("data.texts.map(seen)")
    assert columns == [[safe[TEXTS.index(text)] for text in column] for column in wanted]
    page.click(*middle_of(page, "#columns section:first-child li:first-child button"))
    page.wait(f"state.point === {TEXTS.index(wanted[0][0])}")
    page.key("Escape")
    page.wait("state.point === -1 && document.getElementById('details').hidden")


def test_every_row_is_drawn_and_has_its_own_text(browser, tmp_path):
    texts = [*HOSTILE, *(f"row {i} \u05d0\u05d1 \U0001f436" for i in range(10, 3000))]
    page = opened(browser, many := write_page(tmp_path / "many.html", texts))
    assert page.ask(
        """(async () => {
            await plot.redraw();
            const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            pen.drawImage(canvas, 0, 0);
            const { data: pixels } = pen.getImageData(0, 0, canvas.width, canvas.height);
            const at = ([x, y]) => 4 * (Math.floor(y) * canvas.width + Math.floor(x)) + 3;
            return Array.from({ length: count }, (_, i) => pixels[at(plot.position(i))]).filter(Boolean).length;
        })()"""
    ) == len(texts)
    assert page.ask("data.texts.slice(10)") == texts[10:]
    page.ask("choose(2999)")
    assert text_of(page, "#text") == texts[2999] and "by its nearest in the sample" in text_of(page, "#which")
    page.ask("choose(7)")
    assert text_of(page, "#text") == r"bell \u0007 escape \u001b[31m null \u0000"
    check_quiet(browser, many)


def test_hovering_shows_the_text_with_its_words(page):
    page.ask("show(1)")
    x, y = place_of(page, 40)
    page.mouse("mouseMoved", x - 2, y)
    page.mouse("mouseMoved", x, y)
    page.wait("!document.getElementById('tip').hidden")
    assert text_of(page, "#tip p") == TEXTS[40] and text_of(page, "#tip mark") == TEXTS[40].split(" ")[1]
    page.mouse("mouseMoved", 2, 2)
    page.wait("document.getElementById('tip').hidden")


def test_a_search_and_a_facet_leave_the_others_faint(page):
    everything = drawn(page)[0]
    page.key("/")
    page.type("DOG beach")
    wanted = sum("dog" in text and "beach" in text for text in TEXTS)
    page.wait(f"document.getElementById('count').textContent === '{wanted} of {len(TEXTS)} texts'")
    assert page.ask("document.querySelectorAll('#hits button').length") == wanted
    page.click(*middle_of(page, "#legend li:nth-child(3) button"))
    both = [i for i, text in enumerate(TEXTS) if "dog" in text and "beach" in text and i % 3 == 2]
    page.wait(f"document.querySelectorAll('#hits button').length === {len(both)}")
    assert page.ask("Array.from({ length: count }, (_, i) => i).filter(isActive)") == both
    assert page.ask("document.querySelector('#legend li:nth-child(3) button').ariaPressed") == "true"
    assert 0 < drawn(page)[0] < 1.2 * everything
    page.click(*middle_of(page, "#hits li:first-child button"))
    page.wait(f"state.point === {both[0]}")


def test_what_is_asked_for_while_points_are_drawn_is_drawn_next(page):
    colors = "[true, false].map((all) => plot.color(colored().facet, Array(count).fill(all)))"
    page.ask(f"Promise.all({colors}).then(() => true)")
    faint = drawn(page)[0]
    page.ask("plot.color(colored().facet, Array(count).fill(true))")
    assert 0 < faint < drawn(page)[0]


def test_a_link_shows_the_same_again(page, uri):
    page.ask("show(1)")
    page.ask("choose(12)")
    page.ask("at('search').value = 'cat', at('search').dispatchEvent(new Event('input'))")
    page.wait("state.words === 'cat'")
    page.ask("plot.look([0.25, -0.5, 0.4]).then(remember)")
    fragment = page.wait("location.hash.includes('0.4') && location.hash")
    view = "plot.view().map((each) => Number(each.toFixed(3)))"
    seen = f"[state.map, state.point, state.words, {view}, at('count').textContent]"
    wanted = page.ask(seen)
    opened(page, uri + fragment)
    assert page.ask(seen) == wanted and wanted[:4] == [1, 12, "cat", [0.25, -0.5, 0.4]]


def test_a_wrong_fragment_shows_the_page(page, uri):
    html = "search=%3Cimg src=x onerror=failed=1%3E"
    for fragment in ("point=99999&condition=none", "view=NaN,1,2&facets=9,-1,x", "%E0%A4%A", html):
        opened(page, f"{uri}#{fragment}")
        assert page.ask("[state.map, state.point, state.facets.size]") == [0, -1, 0]
        check_quiet(page, uri)


def test_hostile_texts_are_shown_as_text(page):
    for point in range(len(HOSTILE)):
        page.ask(f"choose({point})")
        shown = text_of(page, "#text")
        assert page.ask("document.querySelectorAll('#text :not(mark)').length") == 0
        assert not set(shown) & set("\u202e\u2066\u2028\u2029\x07\x1b\x00")
    page.ask("choose(0)")
    assert text_of(page, "#text") == HOSTILE[0]
    page.ask("choose(6)")
    assert text_of(page, "#text") == r"\u202edrawkcab \u2066 isolated"
    page.ask("choose(5)")
    assert text_of(page, "#text").endswith(r"\udc00")


def test_all_that_can_be_used_has_a_name(page):
    page.ask("choose(30)")
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "radio", "searchbox", "combobox", "application"}
    found = [node for node in tree if node.get("role", {}).get("value") in roles]
    assert roles == {node["role"]["value"] for node in found}
    assert [node for node in found if not node["name"]["value"].strip()] == []


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1200, 1100)])
def test_nothing_is_wider_than_the_window_and_all_points_are_in_it(browser, uri, width, height):
    page = opened(browser, uri, width, height)
    page.ask("choose(30)")
    assert page.ask("document.documentElement.scrollWidth") <= width
    page.ask("choose(-1)")
    page.wait("document.getElementById('details').hidden")
    inside = "data.texts.every((_, i) => (([x, y]) => x >= 0 && x <= canvas.clientWidth && y >= 0)(plot.position(i)))"
    assert page.ask(inside)
    heights = page.ask("data.texts.map((_, i) => plot.position(i)[1])")
    _, first, last = drawn(page)
    assert first == pytest.approx(min(heights), abs=8) and last == pytest.approx(max(heights), abs=8)
