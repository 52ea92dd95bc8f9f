"""The read and the encode step: every bad row is kept with its reason, and each good pair gets its vector."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from helpers import cosines, embed_here, read_output, read_rejected, vectors
from tokenizers import Tokenizer, models, pre_tokenizers

import raycase
from raycase.commands.embed import check_embed
from raycase.errors import RequestError, WorkError
from raycase.job import steps
from raycase.job.verify import verify
from raycase.models.case import Case, CaseConfig


class Failing(Case):
    """Raises at the word "poison", whose vectors are not finite, or at every text the error of its configuration."""

    def encode_prepared(self, prepared):
        if self.config.error:
            raise RuntimeError(self.config.error)
        encoded = super().encode_prepared(prepared)
        if not np.isfinite(encoded.vectors).all():
            raise IndexError("index out of range in self\nand more")
        return encoded


@dataclass(frozen=True, kw_only=True)
class FailingConfig(CaseConfig):
    error: str = ""  # at every text

    def load(self, **options):
        return Failing(config=self, encoder=super().load(**options).encoder)


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


# ------------------------------------------------------------------------------------------------------------ good rows


def test_a_unit_that_a_string_column_cannot_hold_is_written_in_chunks(job, monkeypatch):
    embed_here(job)
    chunked = replace(job, output=job.output + "-chunked")
    monkeypatch.setattr(steps, "TABLE_BYTES", 1000)
    embed_here(chunked)
    assert read_output(chunked.output).equals(read_output(job.output))


def test_prompts_that_share_prefixes_are_encoded_once_and_right(job, tmp_path):
    folder = tmp_path / "causal"
    folder.mkdir()
    tiny.save_encoder(folder, "qwen3-embedding-0.6b")
    conditions = tuple(f"{c} of the {t}" for c in ("color", "number", "place") for t in ("dress", "dog"))
    job = replace(job, model=str(folder), prompt="cond", conditions=conditions, limit=40, unit_rows=20)
    result = embed_here(job)
    assert result["sharing"] > 3
    assert result["tokens_processed"] < result["tokens"] / 3
    plain = raycase.load(str(folder), prompt="cond", pooling="mean", dtype=torch.float32)
    table = read_output(job.output)
    pairs = zip(table["text"].to_pylist(), table["condition"].to_pylist(), strict=True)
    alone = [plain.embed([s], [c])[0] for s, c in pairs]
    assert cosines(vectors(table), np.stack(alone)).min() > 0.9999


# ----------------------------------------------------------------------------------------------------------------- read


SMILE = "\U0001f642"  # the tiny model does not know it


def test_every_bad_row_is_kept_with_its_reason_and_place(job, tmp_path):
    texts = [b"a red dress", None, b"", b" \t ", b"a \xff dog", b"poison dog", b"a blue dog", b"cat " * 99, b"man"]
    ids = ["a", "b", "c", "d", "e", "f", "g", "h", None]
    pq.write_table(pa.table({"id": ids, "text": pa.array(texts).view(pa.string())}), tmp_path / "bad.parquet")
    job = replace(job, input=str(tmp_path / "bad.parquet"), max_rejected=1, on_long="reject")
    result = embed_here(job)
    wanted = ["null text", "empty text", "empty text", "invalid UTF-8"]
    wanted += ["vector not finite", None, "text too long", "null id"]
    reasons = {row: reason for row, reason in enumerate(wanted, 1) if reason}
    assert {r["row"]: r["reason"] for r in read_rejected(job.output)} == reasons
    assert read_output(job.output)["text"].to_pylist() == ["a red dress"] * 2 + ["a blue dog"] * 2
    assert all(r["file"] == job.input for r in read_rejected(job.output))
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (9, 2, 7)
    verify(job.output)


def test_a_document_is_rejected_where_no_chunk_has_a_known_token(job, tmp_path):
    pytest.importorskip("semantic_text_splitter")
    smiles = f"{SMILE} " * 9
    texts = [smiles, f"a red dog.\n\n{smiles}", f"{smiles}\n\na red dog."]
    pq.write_table(pa.table({"text": texts}), tmp_path / "long.parquet")
    job = replace(job, input=str(tmp_path / "long.parquet"), max_rejected=1, chunk=5)
    assert embed_here(job)["rows_out"] == 2
    assert [r["row"] for r in read_rejected(job.output)] == [0]
    verify(job.output)


def test_a_step_that_loses_a_row_is_found_out(job, monkeypatch):
    read_span = steps.read_span
    lossy = lambda *a: ((rows.slice(1), rejected) for rows, rejected in read_span(*a))  # noqa: E731
    monkeypatch.setattr(steps, "read_span", lossy)
    with pytest.raises(WorkError, match="from row 0: 100 rows in, 99 out and rejected"):
        embed_here(job)
