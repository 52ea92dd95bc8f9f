"""The page as a file: what it holds, and that no text of a corpus becomes HTML or code in it."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
from mapped import FACETS, HOSTILE, some_maps, unpacked, write_page

from raycase.explore.page import MOST_CHARACTERS


class Page(HTMLParser):
    """The tags of a page, and the content of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.attributes = [], [], []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag == "script"
        self.scripts += [""] if self.inside else []

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def read_page(path):
    page = Page(path.read_bytes().decode())
    return page, unpacked(json.loads(page.scripts[0]))


def test_hostile_texts_come_back_as_they_were_and_add_no_tag(tmp_path):
    write_page(tmp_path / "a.html", HOSTILE)
    page, data = read_page(tmp_path / "a.html")
    assert data["texts"] == HOSTILE and data["maps"][1]["condition"] == 'the "animal" </script>'
    write_page(tmp_path / "b.html", ["harmless text"] * len(HOSTILE))
    harmless, _ = read_page(tmp_path / "b.html")
    assert page.tags == harmless.tags and [name for name, _ in page.attributes] == [n for n, _ in harmless.attributes]


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_loaded(tmp_path):
    write_page(tmp_path / "a.html", HOSTILE)
    page, _ = read_page(tmp_path / "a.html")
    policy = next(value for name, value in page.attributes if name == "content" and value.startswith("default-src"))
    allowed = re.findall(r"sha256-([^']+)", policy)
    assert allowed == [b64encode(sha256(script.encode()).digest()).decode() for script in page.scripts[1:]]
    assert policy.startswith("default-src 'none'; ") and "http" not in policy
    assert not [name for name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]


def test_numbers_come_back_as_they_were(tmp_path):
    texts = [f"a dog {i}" for i in range(30)]
    maps = some_maps(texts)
    write_page(tmp_path / "a.html", texts, maps)
    _, data = read_page(tmp_path / "a.html")
    for wanted, found in zip(maps, data["maps"], strict=True):
        np.testing.assert_allclose(found["positions"] / 65535 * 2 - 1, wanted.positions, atol=1 / 65535)
        assert (found["rows"] == wanted.rows).all() and data["neighbours"] == 4
        np.testing.assert_allclose(found["cosines"] / 100, wanted.cosines, atol=0.0051)
        assert found["facet"].tolist() == wanted.facet.tolist()
        assert [(facet["words"], facet["rows"]) for facet in found["facets"]] == [(words, 10) for words in FACETS]
        for i, facet in enumerate(found["facets"]):
            far = np.linalg.norm(wanted.positions[i::3] - np.median(wanted.positions[i::3], axis=0), axis=1)
            assert facet["point"] == i + 3 * far.argmin()
    assert data["maps"][0]["words"] is None and data["maps"][1]["words"][0] == [2, 5]


def test_long_texts_are_cut_and_so_are_the_words_behind_the_cut(tmp_path):
    texts = ["x" * MOST_CHARACTERS, "y" * (MOST_CHARACTERS + 1), "z" * MOST_CHARACTERS + " dog", "short dog", "b c"]
    write_page(tmp_path / "a.html", texts)
    _, data = read_page(tmp_path / "a.html")
    assert data["texts"] == [texts[0], "y" * MOST_CHARACTERS + "…", "z" * MOST_CHARACTERS + "…", *texts[3:]]
    assert data["maps"][1]["words"][2:4] == [[], [6, 9]]
