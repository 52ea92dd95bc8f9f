"""What the Hugging Face hub, and without it its cache, say about a file: here it is, there is none, or nothing."""

import pytest
from fake_hub import COMMIT, fake_hub

from raycase.encoder.model_files import file_of, pinned_uri
from raycase.errors import RequestError

RESOLVE = "/{repo_id}/resolve/{revision}/{filename}"
OFFLINE = r"^--model: expected b.json of me/x on the .* hub .*, got: .*: run this once with the network, or pass"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder to be served as `me/x`; this process asks the hub, and keeps what comes in a cache of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    pinned_uri.cache_clear()
    (tmp_path / "x").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "x" / name).write_text("{}")
    return tmp_path / "x"


@pytest.fixture
def answer(repository, monkeypatch):
    """`file_of`, from a hub that refuses `b.json`, or offline."""

    def found(*arguments, online=True, **options):
        if not online:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            return file_of("me/x", *arguments, **options)
        with fake_hub({"me/x": repository}, refused={"b.json"}) as (endpoint, _):
            monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + RESOLVE)
            return file_of("me/x", *arguments, **options)

    return found


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_hub_that_does_not_answer_is_none_without_the_file(answer, revision):
    assert answer("a.json", revision).read_text() == "{}"
    assert answer("none.json", revision) is None
    with pytest.raises(RequestError, match=r"expected b.json of me/x on .*, got: .*403.*HF_HUB_OFFLINE=1"):
        answer("b.json", revision)


def test_offline_the_cache_says_what_was_asked_for_in_vain(answer):
    answer("a.json", None), answer("none.json", None)
    assert answer("a.json", COMMIT, online=False, sure=True)
    assert answer("none.json", COMMIT, online=False, sure=True) is None
    assert answer("b.json", COMMIT, online=False) is None
    with pytest.raises(RequestError, match=OFFLINE):
        answer("b.json", COMMIT, online=False, sure=True)


def test_without_a_network_the_cache_is_asked_too(answer, monkeypatch):
    """A closed port, not the flag: what is known to be absent is, what is not known is an error."""
    answer("a.json", None), answer("none.json", None)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", f"http://127.0.0.1:1{RESOLVE}")
    monkeypatch.setattr("huggingface_hub.file_download._get_metadata_or_catch_error", _not_reached)
    assert file_of("me/x", "a.json", None).read_text() == "{}"
    assert file_of("me/x", "none.json", None) is None
    with pytest.raises(RequestError, match=r"b.json of me/x on .*, got: .*; try again, or set HF_HUB_OFFLINE=1"):
        file_of("me/x", "b.json", None)


def _not_reached(**arguments):
    return None, None, None, None, None, ConnectionError("not reached")  # at once, not after retries
