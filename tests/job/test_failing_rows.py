"""Rows at which the encoder or the tokenizer fails are rejected; the others are embedded."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
import pytest
import tiny
from helpers import embed_here, read_output, read_rejected
from tokenizers import Tokenizer, models, pre_tokenizers

from raycase.commands.embed import check_embed
from raycase.errors import RequestError, WorkError
from raycase.models.case import Case, CaseConfig


class Failing(Case):
    """Raises at the word "poison", whose vectors are not finite."""

    def encode_prepared(self, prepared):
        encoded = super().encode_prepared(prepared)
        if not np.isfinite(encoded.vectors).all():
            raise IndexError("index out of range in self\nand more")
        return encoded


@dataclass(frozen=True, kw_only=True)
class FailingConfig(CaseConfig):
    error: str = ""  # at every text

    def load(self, **options):
        kind = Broken if self.error else Failing
        return kind(config=self, encoder=super().load(**options).encoder)


class Broken(Case):
    def encode_prepared(self, prepared):
        raise RuntimeError(self.config.error)


def failing(job, texts, tmp_path, **options):
    """Run the job over texts with an encoder that fails at some."""
    pd.DataFrame({"id": range(len(texts)), "text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    config = check_embed(job).encoding.model
    config = FailingConfig(**{f.name: getattr(config, f.name) for f in fields(config)}, **options)
    return embed_here(replace(job, input=str(tmp_path / "rows.csv"), max_rejected=1), model=config)


def test_a_row_at_which_the_encoder_fails_is_rejected_with_the_error(job, tmp_path):
    texts = [f"a red dog {i}" for i in range(21)]
    texts[4], texts[13], texts[17] = "poison dog", "", "a poison ball"
    result = failing(job, texts, tmp_path)
    assert (result["rows_out"], result["rows_rejected"]) == (18, 3)
    rejected = [(r["row"], r["reason"], r["detail"]) for r in read_rejected(job.output)]
    why = "IndexError: index out of range in self"
    assert rejected == [(4, "the encoder failed", why), (13, "empty text", ""), (17, "the encoder failed", why)]
    good = [str(i) for i in range(21) if i not in (4, 13, 17) for _ in job.conditions]
    assert read_output(job.output)["id"].to_pylist() == good
    every = replace(job, output=f"{job.output}-every", conditions=(), condition_column="text")
    result = failing(every, ["poison", "poison dog"], tmp_path)
    assert (result["rows_out"], result["rows_rejected"]) == (0, 2), "expected a unit that fails as a whole rejected"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("no kernel\nhere", r"^encoding rows from 0 of .*rows.csv: .* at any text: RuntimeError: no kernel$"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", "; try fewer --batch-tokens or --act"),
    ],
)
def test_what_fails_at_any_text_ends_the_job_without_the_advice_to_resume(job, tmp_path, error, said):
    with pytest.raises(WorkError, match=said) as raised:
        failing(job, ["a dog", "a cat"], tmp_path, error=error)
    assert "resume" not in str(raised.value)


def test_a_row_at_which_the_tokenizer_fails_is_rejected(tmp_path, job):
    """As one of words alone, without a token for what is none of them."""
    texts = ["a red dog", "a zebra", "a cat", "zebra"]
    words = {word: i for i, word in enumerate(["a", "red", "dog", "cat", "color"])}
    made = Tokenizer(models.WordLevel(words))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "words"
    folder.mkdir()
    tiny.save_model(folder, "bert", tiny.save_tokenizer(folder, (made, {"tokenizer_class": "PreTrainedTokenizerFast"})))
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    job = replace(job, model=str(folder), input=str(tmp_path / "rows.csv"), conditions=("color",), max_rejected=1)
    assert embed_here(job)["rows_out"] == 2
    rejected = [(r["row"], r["reason"], r["detail"]) for r in read_rejected(job.output)]
    why = "Exception: WordLevel error: Missing [UNK] token from the vocabulary"
    assert rejected == [(1, "the encoder failed", why), (3, "the encoder failed", why)]
    with pytest.raises(RequestError, match=r"--model: expected a tokenizer that reads any text at .*, got: Exception"):
        embed_here(replace(job, conditions=("zebra",), overwrite=True))
    pd.DataFrame({"text": texts, "under": "zebra"}).to_csv(tmp_path / "rows.csv", index=False)
    assert embed_here(replace(job, conditions=(), condition_column="under", overwrite=True))["rows_rejected"] == 4
