"""A tiny model and an index of its stored tokens, behind the app without Ray."""

import pytest
import storing
from served import client_of

import raycase
from raycase.serve.service import Service
from raycase.serve.settings import ServeFlags, check_serve


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """`model`: unconditional vectors of 32 dimensions, conditional ones of 11 or 6; `i.lance`: 60 rows."""
    home = tmp_path_factory.mktemp("served")
    storing.stored(home / "a", storing.model_folder(home), storing.texts(60), output=str(home / "words"))
    storing.indexed(home / "i.lance", home / "words", text_index=True)
    return home


@pytest.fixture(scope="session")
def model(home):
    return raycase.load(home / "model")


@pytest.fixture(scope="session")
def service(home):
    return Service.load(check_serve(ServeFlags(index=str(home / "i.lance"))))


@pytest.fixture(scope="session")
def client(service):
    return client_of(service)[0]
