"""Tiny encoders of the kinds in the table."""

import shutil
from dataclasses import replace
from functools import cache

import pytest
import tiny

from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """The folder of a tiny encoder of the same kind as one in the table."""
    return cache(lambda name: tiny.save_encoder(tmp_path_factory.mktemp(name), name))


@pytest.fixture
def copied(folder_of, tmp_path):
    """A copy of a tiny encoder to spoil: name -> folder."""
    return lambda name: shutil.copytree(folder_of(name), tmp_path / name)


@pytest.fixture(scope="session")
def tokenizer_of(tmp_path_factory):
    """A tokenizer by family."""

    def load(family, max_tokens=120, **options):
        folder = tmp_path_factory.mktemp(family)
        tiny.save_tokenizer(folder, tiny.TOKENIZERS[family](**options))
        end = {"qwen": "<|endoftext|>", "mistral": "</s>"}.get(family)
        return load_tokenizer(replace(ENCODERS["minilm"], source=str(folder), max_tokens=max_tokens, end_token=end))

    return load
