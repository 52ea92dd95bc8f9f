"""A system is a folder with its configuration and weights and a training job, and a line in the table of papers.

Here one that the package does not have, f(s) + f(c), embeds, trains, sweeps and evaluates with nothing else touched.
"""

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import small
import torch
from helpers import cosines, embed_here, read_output, vectors

import raycase
from raycase.cli import main, parse
from raycase.commands.embed import EmbedFlags
from raycase.commands.systems import RatedFlags
from raycase.commands.tune import changed
from raycase.encoder.loading import load_encoder
from raycase.models.configs import EmbedderConfig
from raycase.models.fine_tuned import FineTunedEmbedder, starting_encoder
from raycase.models.pairs import accepted_pairs, encoded
from raycase.papers import PAPERS, Adds

# ------------------------------------------------------------------------------- what stands in papers/sum/model.py


@dataclass(frozen=True, kw_only=True)
class SumConfig(EmbedderConfig):
    SYSTEM: ClassVar[str] = "sum"

    def load(self, **options):
        return Sum(self, load_encoder(self.encoder, **options))


class Sum(FineTunedEmbedder):
    def forward(self, prepared):
        texts = [(prepared.of_sentences, prepared.sentence)]
        texts += [] if prepared.conditions is None else [(prepared.of_conditions, prepared.condition)]
        return sum(self.encoder.pooled(kind[0])[torch.from_numpy(index[prepared.rows])] for kind, index in texts)

    def encode_prepared(self, prepared):
        accepted = accepted_pairs(prepared)
        vectors, work = self.encoder.encode(prepared.of_sentences[0])
        found = vectors[prepared.sentence[accepted]]
        if prepared.conditions is not None:
            others, more = self.encoder.encode(prepared.of_conditions[0])
            found, work = found + others[prepared.condition[accepted]], work + more
        return encoded(prepared, accepted, found, work)


# ------------------------------------------------------------------------------- what stands in papers/sum/train.py


@dataclass(frozen=True, kw_only=True)
class SumFlags(RatedFlags):
    """The sum of both vectors."""

    SYSTEM = "sum"

    def config(self):
        spec = starting_encoder(self.model, prompt="concat-cs", pooling="mean")
        return SumConfig(name=self.model, encoder=spec)


@pytest.fixture
def flags(monkeypatch, rated, tmp_path):
    """The line of the table, and the words that train it."""
    monkeypatch.setitem(PAPERS, "sum", Adds("sum", "sum"))
    monkeypatch.setitem(sys.modules, "raycase.papers.sum.model", SimpleNamespace(SYSTEMS={"sum": SumConfig}))
    monkeypatch.setitem(sys.modules, "raycase.papers.sum.train", SimpleNamespace(FLAGS={"sum": SumFlags}))
    files = ["--train", f"{rated}/train.csv", "--validation", f"{rated}/validation.csv"]
    options = ["--model", small.save_bert(tmp_path / "encoder"), "--compute", "float32", "--epochs", "2", "--no-ray"]
    return ["sum", *files, *options, "--learning-rate", "1e-3"]


def test_a_system_of_ones_own_needs_nothing_else(flags, rated, job, tmp_path, capsys):
    folder = str(tmp_path / "model")
    main(["train", *flags, "--output", folder])
    *epochs, line = capsys.readouterr().out.splitlines()
    trained = json.loads(line)["validation"]
    assert sum("Spearman" in line for line in epochs) == 2
    system = raycase.load(folder, dtype=torch.float32)
    plain, both = system.embed(["a red dress"], None), system.embed(["a red dress"], ["color"])
    assert both == pytest.approx(plain + system.embed(["color"], None), abs=1e-5)

    report = ["--model", folder, "--data", f"{rated}/validation.csv", "--output", f"{tmp_path}/r", "--no-ray"]
    main(["evaluate", *report, "--compute", "float32", "--resamples", "100"])
    systems = json.loads(capsys.readouterr().out.splitlines()[-1])["systems"]
    assert systems["model"]["all"]["spearman"]["value"] == pytest.approx(trained["spearman"], abs=0.1)

    asked = EmbedFlags(input=job.input, conditions=("color",), output=str(tmp_path / "out"), model=folder)
    embed_here(asked)
    found = read_output(asked.output)
    wanted = system.embed(found["text"].to_pylist(), found["condition"].to_pylist())
    assert len(found) == 500 and np.min(cosines(vectors(found), wanted)) > 0.999

    (tmp_path / "grid.json").write_text('{"batch_size": [16, 32]}')
    words = ["tune", "--grid", f"{tmp_path}/grid.json", "--seeds", "1", "--", *flags, "--output", f"{tmp_path}/sweep"]
    sweep = parse(words)
    assert [changed(sweep.training, cell).batch_size for cell in sweep.cells()] == [16, 32]
