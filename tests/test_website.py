"""The website in a browser: its search answers, the map moves in its frame, and nothing is asked of another host."""

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import CHROMIUM, Browser
from helpers import ROOT

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    """The address of the site, served on this machine."""
    subprocess.run([sys.executable, "docs/website.py"], cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=ROOT / "out" / "site"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser(site, tmp_path):
    """A browser, which has asked the site alone when the test ends."""
    browser = Browser(tmp_path)
    yield browser
    browser.close()
    shutil.rmtree(tmp_path, ignore_errors=True)
    assert {uri for uri in browser.requests if not uri.startswith((site, "data:", "blob:"))} == set()


def test_the_search_finds_a_page_and_asks_no_other_host(site, browser):
    browser.open(f"{site}/docs/tutorials/captions/")
    browser.wait("!!document.querySelector('.md-search__button')")
    inside = "[...document.querySelectorAll('*')].find(each => each.shadowRoot)?.shadowRoot"
    browser.ask("document.querySelector('.md-search__button').click()")
    browser.wait(f"!!{inside}?.querySelector('input')")
    browser.ask(f"{inside}.querySelector('input').focus()")
    browser.type("got no finished one")
    links = f"[...({inside}?.querySelectorAll('a') ?? [])].map(each => new URL(each.href).pathname)"
    assert "/docs/troubleshooting/" in browser.wait(f"({links}).length ? {links} : null")


def test_the_first_page_has_the_map_and_a_condition_moves_it(site, browser):
    browser.open(f"{site}/")
    frame = "document.querySelector('iframe')"
    browser.wait(f"{frame}.contentDocument?.documentElement.dataset.ready === 'true'")
    assert "300" in browser.ask(f"{frame}.contentDocument.querySelector('#summary').textContent")
    browser.ask(f"[...{frame}.contentDocument.querySelectorAll('#conditions input')].pop().click()")
    browser.wait(f"decodeURIComponent({frame}.contentWindow.location.hash).includes('clothes')")
    assert [said for said in browser.console if "Content Security Policy" in str(said)] == []


def test_the_reference_has_what_the_docstrings_say(site, browser):
    browser.open(f"{site}/docs/api/")
    said = browser.ask("document.querySelector('article').innerText")
    assert "Two girls in red dresses play soccer." in said and "encode_grid" in said and ":::" not in said
