"""`raycase check-model` shows what an encoder does, and finds one that is wrong."""

import json
from dataclasses import replace

import pytest
import tiny

from raycase.cli import main
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError, WorkError
from raycase.evaluation.check_model import CONDITIONS, SENTENCES, CheckJob, check_config, check_model
from raycase.systems.registry import resolve


@pytest.fixture
def job(tmp_path):
    folder = tiny.save_encoder(tmp_path, "qwen3-embedding-0.6b")
    return CheckJob(model=str(folder), prompt="concat-sc", pooling="mean", compute="float32")


def test_the_tokens_are_shown_with_the_pooled_ones_marked(job, capsys):
    figures = check_model(job)
    printed = capsys.readouterr().out
    assert figures["finite"] and figures["least_cosine_to_alone"] > 0.9999 and figures["golden"] is None
    pair, base, plain = (line.strip() for line in printed.splitlines()[4:7])
    assert pair.startswith(">> ") and plain.startswith(">> ")  # a concatenation of an unknown encoder pools all
    assert len(base) < len(pair)
    assert "color of the clothes: norms" in printed and "sentences alone: norms" in printed


def test_a_prompt_of_ones_own_is_shown_as_its_file_has_it(job, capsys):
    template = 'Express this text "{sentence}" in one word in terms of {condition}: '
    prompt = {"template": template, "base_template": "{condition}:\n", "pool": "condition"}
    own = replace(job, prompt=prompt, pooling=None)
    check_model(replace(own, save_golden=True))
    printed = capsys.readouterr().out.splitlines()
    assert printed[3:7] == [
        f"template: {template!r}",
        "base_template: '{condition}:\\n'",
        "pool: 'condition'",
        "template, its base, and the sentence alone (pooled tokens between >> and <<):",
    ]
    pair, base, _ = (line.split(">>")[1].split("<<")[0] for line in printed[7:10])
    for pooled in (pair, base):
        assert "".join(pooled.split()).replace("Ġ", " ").strip() == "color of the clothes"
    assert check_model(own)["golden"] == 1.0
    for change in ({"template": f"{template} "}, {"base_template": None}, {"pool": "all"}):
        assert check_model(replace(own, prompt=prompt | change))["golden"] is None
    assert "template, and the sentence alone" in capsys.readouterr().out  # where there is no base


def test_golden_vectors_are_kept_and_compared(job, tmp_path):
    assert check_model(replace(job, save_golden=True))["golden"] == 1.0
    assert check_model(job)["golden"] == 1.0
    golden = json.loads((tmp_path / "golden.json").read_text())
    assert len(golden["vectors"]) == 9 and len(golden["vectors"][0]["vector"]) == 32
    other = check_model(replace(job, subtract=False))
    assert other["golden"] is None, "expected no comparison with vectors made in another way"
    good = golden["vectors"][4]["vector"]
    golden["vectors"][4]["vector"] = good[::-1]
    (tmp_path / "golden.json").write_text(json.dumps(golden))
    with pytest.raises(WorkError, match=r"expected the vectors of golden.json, got cosine -?0\.\d"):
        check_model(job)
    golden["vectors"][4]["vector"] = good[:3]
    (tmp_path / "golden.json").write_text(json.dumps(golden))
    with pytest.raises(RequestError, match=r"golden.json: expected vectors of 32 dimensions, got \(3,\)"):
        check_model(job)
    (tmp_path / "golden.json").write_text("[{}]")
    with pytest.raises(RequestError, match=r"golden.json: expected a label, and sentence, condition and vector"):
        check_model(job)


def test_vectors_of_nv_embeds_authors_are_compared_with_ours(tmp_path, monkeypatch):
    """Their span is --pooling latent-end; under CASE's the vectors are not theirs."""
    (tmp_path / "nv").mkdir()
    folder = tiny.save_encoder(tmp_path / "nv", "nv-embed-v2")
    row = replace(ENCODERS["nv-embed-v2"], source=str(folder), max_tokens=300)
    monkeypatch.setitem(ENCODERS, "nv-embed-v2", row)
    instruction = "Instruct: Retrieve semantically similar texts to a given Condition, given the Sentence : {}\nQuery: "
    vectors = [
        {"sentence": s, "condition": c, "vector": tiny.nv_embed(folder, *both).tolist()}
        for s in SENTENCES
        for c in CONDITIONS
        for both in [(instruction.format(s), c) if c else ("", s)]
    ]
    golden = tmp_path / "authors.json"
    golden.write_text(json.dumps({"label": "cond, latent-end, as it is", "vectors": vectors}))
    job = CheckJob(model="nv-embed-v2", subtract=False, compute="float32", golden=str(golden))
    assert check_model(replace(job, pooling="latent-end"))["golden"] > 0.9999
    assert check_model(job)["golden"] is None, "expected no comparison with vectors of another span"
    golden.write_text(json.dumps({"label": "cond, latent, as it is", "vectors": vectors}))
    with pytest.raises(WorkError, match=r"expected the vectors of authors.json, got cosine 0"):
        check_model(job)
    with pytest.raises(RequestError, match=r"--golden: expected a file of vectors, got none at .*nowhere"):
        check_model(replace(job, golden=str(tmp_path / "nowhere.json")))
    with pytest.raises(RequestError, match="--golden: expected a file, got the folder "):
        check_model(replace(job, golden=str(tmp_path), save_golden=True))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RequestError, match=r"--golden: expected a new file or one of vectors, got .*config\.json"):
        check_model(replace(job, golden=str(tmp_path / "config.json"), save_golden=True))
    assert (tmp_path / "config.json").read_text() == "{}"
    other = replace(job, golden=str(tmp_path / "ours.json"), save_golden=True)
    assert check_model(other)["golden"] == check_model(replace(other, save_golden=False))["golden"] == 1.0


def test_an_encoder_with_the_wrong_direction_of_attention_is_found(tmp_path):
    """Without a mask, a bidirectional encoder attends to padding."""
    folder = tiny.save_encoder(tmp_path, "minilm")
    job = CheckJob(model=str(folder), prompt="concat-sc", pooling="mean", compute="float32")
    config = resolve(job.model, prompt=job.prompt, pooling=job.pooling)
    assert check_config(job, config)["least_cosine_to_alone"] > 0.9999
    wrong = replace(config, encoder=replace(config.encoder, causal=True))
    with pytest.raises(WorkError, match="the direction of its attention may be wrong"):
        check_config(job, wrong)


def test_the_flags_and_the_last_line(job, capsys):
    main(["check-model", job.model, "--prompt", "cond", "--pooling", "last"])
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1])["dim"] == 32
    assert "Instruct" in printed and ">>" in printed
