"""A tiny BERT that the tests of several systems read."""

import pytest
import small


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Its folder's name."""
    return small.save_bert(tmp_path_factory.mktemp("bert"))
