"""Tiny encoders of the kinds in the table."""

import shutil
from functools import cache

import pytest
import tiny


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """The folder of a tiny encoder of the same kind as one in the table."""
    return cache(lambda name: tiny.save_encoder(tmp_path_factory.mktemp(name), name))


@pytest.fixture
def copied(folder_of, tmp_path):
    """A copy of a tiny encoder to spoil: name -> folder."""
    return lambda name: shutil.copytree(folder_of(name), tmp_path / name)
