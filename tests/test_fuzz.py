"""No input ends in a traceback: mutations of valid files, names and flags through the command line.

The examples are the same in every run. RAYCASE_FUZZ=20 tries twenty times as many, others in each run.
"""

import contextlib
import copy
import io
import json
import os
import shutil
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import small
import storing
import torch
from helpers import embed_here, write_csv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raycase.cli import main, parse
from raycase.corpus.materialize import check_materialize
from raycase.corpus.run import run, run_checked
from raycase.corpus.score_request import check_score
from raycase.data.inferences import KINDS
from raycase.data.parquet import parquet_bytes
from raycase.encoder.prompts import OwnPrompt, PooledPart
from raycase.errors import RequestError, WorkError
from raycase.evaluation.tasks import catalogue as tasks
from raycase.search.search_job import search
from raycase.serving.serve_job import check_serve
from raycase.systems.baselines import sentence_encoder
from raycase.systems.case import resolve as resolve_case
from raycase.systems.case import save as save_case
from raycase.systems.csr import csr
from raycase.systems.projector import Projector, ProjectorConfig
from raycase.systems.registry import resolve
from raycase.training import catalogue as training
from raycase.training import job as jobs
from raycase.training.sweep import tune

TIMES = int(os.environ.get("RAYCASE_FUZZ", "0"))
ODD_NUMBERS = [-1, 0, 1, 2, 0.5, 2**31, 2**62, 2**63, -(10**30), 1e308, 1e-320, float("nan"), float("inf")]
ODD_VALUES = [None, True, "", "x", "7", "\0", "\ud800", "../x", [], [[]], ["x"], [-1], {}, {"x": 1}, *ODD_NUMBERS]
ODD_FILES = [b"", b"\0", b"\xff", b"[", b"null", b"7", b"{}", b"[]", b"[" * 100_000, b"1" * 5000]
ODD_WORDS = ["nan", "inf", "-1", "0", "1e308", "1e-320", "9" * 30, "2", "0.5", "²", "", " ", "\udcff", "x", "a b"]
ODD_WORDS += [
    "{sentence}",
    "{condition}",
    "{sentence}\n{condition}",
    "{sentence} \udcff{condition}",
    "template",
    "none.json",
]


def examples(count):
    """Hypothesis's settings for so many examples."""
    checks = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=count * max(1, TIMES), derandomize=not TIMES, database=None, **checks)


def paths_of(value):
    """Where values are inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [()] + [(key, *path) for key, each in inside for path in paths_of(each)]


@st.composite
def mutated(draw, document):
    """The bytes of a JSON file with one to three values replaced or removed, or of one that is nonsense altogether."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(ODD_FILES))
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from([path for path in paths_of(document) if path] or [("x",)]))
        place = document
        for key in path:
            place = place[key]
        if draw(st.integers(0, 4)) == 0 and last != "x":
            del place[last]
        else:
            place[last] = copy.deepcopy(draw(st.sampled_from(ODD_VALUES)))
    return json.dumps(document).encode()


def answer(*arguments, work=None):
    """Run the command. It may end in 0, in 1 or 2 with one line on standard error, or in the parser's explanation of a
    flag; gives the status."""
    said, status = io.StringIO(), 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(list(arguments), work=work)
        except SystemExit as stop:
            status = stop.code or 0
    lines = said.getvalue().splitlines()
    errors = sum(line.startswith("error: ") for line in lines)
    explained = status == 2 and not errors and "For full helptext" in said.getvalue()
    assert status == 0 or explained or (status in (1, 2) and errors == 1), (status, lines)
    return status


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Model folders: an encoder, and systems of every kind that is saved in a way of its own."""
    folder = tmp_path_factory.mktemp("models")
    pooled = storing.model_folder(folder)
    encoder = str(folder / "bert")
    config = resolve_case(encoder, prompt="concat-sc", pooling="mean")
    shape = ProjectorConfig(input_dim=small.DIM, output_dim=8, nested=(4,))
    save_case(folder / "case", replace(config, projector=shape), Projector(shape))
    csr(encoder).trainable().save(folder / "csr")
    own = OwnPrompt(template="{sentence}: {condition}", base_template="{condition}", pool=PooledPart.CONDITION)
    save_case(folder / "own", resolve_case(encoder, own=own), None)
    saved = {name: str(folder / name) for name in ("case", "csr", "own")}
    return {"encoder": encoder, "condition-pooling": pooled, **saved}


@cache
def document_in(file):
    with open(file, encoding="utf-8") as handle:
        return json.load(handle)


def damaged(folder, source, name, content):
    """A copy of a folder by links, with other content in one file."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, copy_function=os.link)
    os.remove(folder / name)
    (folder / name).write_bytes(content)
    return str(folder)


def embed_two(model, **choices):
    """What a job does with a model: look at it, tokenise, load it and embed."""

    def work(job):
        config = resolve(model, **choices)
        config.describe()
        texts = (["a dog", "two people"], ["color", "number"])
        if not config.count_tokens(*texts).all():  # as a job looks for room before its first row
            raise RequestError("--conditions: expected room for a sentence")
        vectors = config.load(device="cpu", dtype=torch.float32).embed(*texts)
        return {"rows": len(np.asarray(vectors))}

    return work


@examples(30)
@given(data=st.data())
def test_an_encoder_with_nonsense_in_its_configuration_is_refused(data, models, tmp_path):
    name = data.draw(st.sampled_from(["config.json", "config.json", "tokenizer_config.json", "tokenizer.json"]))
    content = data.draw(mutated(document_in(f"{models['encoder']}/{name}")))
    folder = damaged(tmp_path / "model", models["encoder"], name, content)
    answer("explain", "--text", "a", "--condition", "b", work=embed_two(folder, prompt="concat-sc", pooling="mean"))


PROMPT = {"template": "{sentence}: {condition}", "base_template": "{condition}", "pool": "all", "views": ["template"]}


@examples(30)
@given(data=st.data())
def test_a_prompt_with_nonsense_in_its_file_is_refused(data, models, tmp_path):
    file = tmp_path / "prompt.json"
    file.write_bytes(data.draw(mutated(PROMPT)))
    answer("explain", "--text", "a", "--condition", "b", work=embed_two(models["encoder"], prompt=str(file)))


@examples(30)
@given(data=st.data())
def test_a_model_folder_with_nonsense_is_refused(data, models, tmp_path):
    source = models[data.draw(st.sampled_from(["condition-pooling", "case", "csr", "own"]))]
    content = data.draw(mutated(document_in(f"{source}/raycase.json")))
    folder = damaged(tmp_path / "m", source, "raycase.json", content)
    answer("explain", "--text", "a", "--condition", "b", work=embed_two(folder))


@pytest.fixture(scope="module")
def output(models, tmp_path_factory):
    """An output of stored words: its folder."""
    folder = tmp_path_factory.mktemp("output")
    return storing.stored(folder, models["condition-pooling"], storing.texts(12), unit_rows=5)


LINES = pa.table({"name": ["x"], "file": [2**62], "reasons": ["["]})
ODD_LINES = st.sampled_from([*ODD_FILES, parquet_bytes(LINES), parquet_bytes(LINES.slice(0, 0))])


@examples(30)
@given(data=st.data())
def test_an_output_with_nonsense_in_its_records_is_refused(data, output, models, tmp_path):
    name = data.draw(st.sampled_from(["job.json", "manifest.json", "manifest_files.parquet", "spans.parquet", "unit"]))
    content = data.draw(mutated(document_in(f"{output}/{name}")) if name.endswith(".json") else ODD_LINES)
    if name == "unit":
        name = f"embeddings/{min(os.listdir(f'{output}/embeddings'))}"
    _use(damaged(tmp_path / "out", output, name, content), output, models)


@pytest.mark.cluster
@examples(30)
@given(data=st.data())
def test_made_up_names_among_the_units_are_refused(data, output, models, tmp_path):
    folder = tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(output, folder)
    print8 = min(os.listdir(folder / "embeddings"))[:8]
    digits = st.text("0123456789²٣", min_size=1, max_size=25) | st.sampled_from(["00000", "000000000000", "5", "00001"])
    of_unit = st.tuples(st.sampled_from([print8, "0" * 8, "x"]), digits, digits, digits, digits).map("-".join)
    stem = of_unit | st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=40)
    name = data.draw(stem) + data.draw(st.sampled_from([".parquet", "", ".PARQUET"]))
    part = data.draw(st.sampled_from(["embeddings", "embeddings", "rejected", "manifest_lines"]))
    (folder / part).mkdir(exist_ok=True)
    with contextlib.suppress(OSError, UnicodeEncodeError):  # a name that no file can have
        (folder / part / name).write_bytes(data.draw(st.sampled_from([b"", b"PAR1"])))
    if data.draw(st.booleans()):
        os.remove(folder / "manifest.json")
    _use(str(folder), output, models)


def _use(folder, output, models):
    """Everything that reads an output, on one that may be damaged."""
    answer("verify", folder)
    job = ["--input", f"{os.path.dirname(output)}/in.parquet", "--output", folder, "--any-condition", "--word-bytes"]
    job += [str(storing.ENOUGH), "--model", models["condition-pooling"], "--compute", "float32", "--unit-rows", "5"]
    answer("embed", *job, "--dtype", "float32", "--keep-columns", "text", "year", work=embed_here)
    new = ["--words", folder, "--conditions", "color", "--output", f"{folder}-new"]
    answer("materialize", *new, work=lambda job: {"conditions": len(check_materialize(job)[1])})


CANDIDATES = {"query": "a dog", "positive": ["a red dog"], "negative": ["two people", "a dress"]}
TRAINED = {"unseeded": "a", "seed": 0, "validation": {"threshold": 0.5}, "data": {"validation": {"sha256": "b"}}}


def any_vectors(texts, config, **_):
    """In place of the embedding job."""
    return np.random.default_rng(0).normal(size=(len(texts), 4))


def evaluated(*flags):
    """A report on vectors that do not matter; gives the status."""
    work = lambda job: tasks.evaluate(job, vectors_of=any_vectors)  # noqa: E731
    return answer("evaluate", *flags, "--resamples", "100", work=work)


@examples(20)
@given(data=st.data())
def test_records_of_training_with_nonsense_are_refused_or_of_no_use(data, models, tmp_path):
    folder = tmp_path / "trained"
    if not folder.exists():
        sentence_encoder(models["encoder"]).trainable().save(folder)
        write_csv(tmp_path / "premises.csv", KINDS, [("p", "a", "b", "c", "d"), ("q", "a", "b", "c", "e")])
    (folder / "metrics.json").write_bytes(data.draw(mutated(TRAINED)))
    flags = ["--task", "rte", "--model", str(folder), "--data", f"{tmp_path}/premises.csv", "--output"]
    evaluated(*flags, f"{tmp_path}/new", "--threshold-from", "model")
    assert evaluated(*flags, f"{tmp_path}/new") == 0


@examples(30)
@given(data=st.data())
def test_candidates_with_nonsense_are_refused(data, models, tmp_path):
    rows = [json.dumps(CANDIDATES).encode(), data.draw(mutated(CANDIDATES))]
    (tmp_path / "sets.jsonl").write_bytes(b"\n".join(rows))
    flags = ["--task", "rerank", "--model", models["case"], "--data", f"{tmp_path}/sets.jsonl"]
    evaluated(*flags, "--output", f"{tmp_path}/new")


def stopped(*_, **__):
    """In place of what runs the work: everything before it was checked."""
    raise WorkError("the work begins")


WORK = {
    "embed": lambda job: run(job, prepare=stopped),
    "score": lambda job: run_checked(check_score(job), 0.0, prepare=stopped),
    "train": lambda job: jobs.train(job, stopped),
    "tune": lambda job: tune(job, stopped),
    "evaluate": lambda job: tasks.evaluate(job, vectors_of=stopped),
    "serve": lambda job: stopped(check_serve(job)),
    "search": search,  # in this process, however many replicas are asked for
}


@pytest.fixture(scope="module")
def commands(models, output, rated, tmp_path_factory):
    """Valid flags of every subcommand; of those that would run on Ray, what they read is not there."""
    index = storing.indexed(tmp_path_factory.mktemp("index"), output)
    pairs = ["--train", f"{rated}/train.csv", "--validation", f"{rated}/validation.csv", "--output", "new"]
    frozen = [*pairs, "--model", models["encoder"], "--prompt", "concat-sc", "--pooling", "mean"]
    source = ["--input", f"{os.path.dirname(output)}/in.parquet"]
    fine_tuned = [*pairs, "--model", models["encoder"]]
    folder = tmp_path_factory.mktemp("judged")
    premises = [write_csv(folder / f"{name}.csv", KINDS, [(f"{name}{n}", *"abcd") for n in "12"]) for name in "xz"]
    (folder / "sets.jsonl").write_text(json.dumps(CANDIDATES))
    judged = {
        "rte": ["--model", models["csr"], "--data", premises[0], "--threshold-from", premises[1]],
        "rerank": ["--model", models["case"], "--data", f"{folder}/sets.jsonl"],
    }
    return {
        "embed": [*source, "--output", "new", "--unconditional", "--model", models["condition-pooling"]],
        "score": ["--input", f"{rated}/validation.csv", "--output", "new", "--model", models["case"]],
        "materialize": ["--words", "none", "--conditions", "color", "--output", "new"],
        "index": ["--embeddings", output, "--output", "new"],
        "search": ["--index", index, "--query", "a red dress", "--condition", "color"],
        "facets": ["--index", index, "--condition", "color", "--clusters", "2"],
        "serve": ["--index", index, "--port", "0"],
        "explore": ["--index", index, "--conditions", "color", "--output", "new"],
        "join": ["--query-vectors", "none", "--vectors", "none", "--output", "new"],
        "evaluate": ["--model", models["case"], "--data", f"{rated}/validation.csv", "--output", "new"],
        **{f"evaluate --task {task}": [*judged[task], "--output", "new"] for task in judged},
        "explain": ["--text", "a dog", "--condition", "color", "--model", models["condition-pooling"]],
        **{f"train {name}": fine_tuned for name in training.TRAIN_JOBS},
        "explain ": ["--text", "a dog", "--unconditional", "--model", f"csr:{models['encoder']}"],
        "train case": frozen,
        "tune": ["--seeds", "1", "--", "case", *frozen],
    }


@examples(60)
@given(data=st.data())
def test_flags_with_nonsense_are_refused(data, commands, tmp_path, monkeypatch):
    shutil.rmtree(tmp_path / "here", ignore_errors=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    command = data.draw(st.sampled_from(sorted(commands)))
    given = [*command.split(), *commands[command]]
    for name in data.draw(st.lists(st.sampled_from(_flags(tuple(given))), min_size=1, max_size=2)):
        dashes = "-" if len(name) == 1 else "--"
        at = given.index("--") if "--" in given else len(given)
        odd = [dashes + name.replace("_", "-"), data.draw(st.sampled_from(ODD_WORDS))]
        given = [*given[:at], *odd, *given[at:]]
    answer(*given, work=WORK.get(command.split()[0]))


@cache
def _flags(given):
    """The flags of a command that have a value, but for the output."""
    job, own = parse(given), ("output", "training")
    return [f.name for f in fields(job) if not isinstance(getattr(job, f.name), bool) and f.name not in own]
