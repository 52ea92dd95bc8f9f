"""The HTTP service without Ray, for tests: its app behind a client."""

from fastapi.testclient import TestClient

from raycase.serve.app import make_app
from raycase.serve.service import Engine
from raycase.serve.settings import ServeFlags, check_serve

TOKEN = "0123456789abcdef" * 2


def app_of(service, **flags):
    """The app by the flags of `raycase serve`, and what it counted."""
    settings, counted = check_serve(ServeFlags(**flags)), []
    observe = lambda route, status, _, **more: counted.append((route, status, more))  # noqa: E731 said in one line
    return make_app(Engine(service), settings, observe), counted


def client_of(service, *, base_url="http://127.0.0.1:8000", **flags):
    """A client of the app, and what the app counted."""
    app, counted = app_of(service, **flags)
    return TestClient(app, base_url=base_url, raise_server_exceptions=False), counted


def refusal(answer, status):
    """The message of an answer that refuses, in one line."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and "\n" not in error["message"]
    assert len(answer.content) < 2000
    return error["message"]
