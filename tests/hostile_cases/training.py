"""Training, projections and sweeps with hostile flags, data, grids and folders, in this process."""

import json
from functools import partial
from pathlib import Path

from helpers import rated_rows
from hostile_cases.case import Case
from uncached import LocalRunner, open_local_runner, open_local_trials

from raycase.data.inferences import KINDS
from raycase.evaluation.tasks import catalogue as tasks
from raycase.training import job as jobs
from raycase.training import sweep

CASE = ["--prompt", "concat-sc", "--pooling", "mean", "--epochs", "2", "--compute", "float32"]
WORDS = ["nan", "inf", "-inf", "-1", "0", "1e400", "1e30", "1e-45", "9" * 30, "²", "", "x", "None"]
FLAGS = {
    "case": "learning-rate weight-decay epochs batch-size dropout dim hidden patience seed layers nested workers",
    "condition-pooling": "learning-rate heads head-dim temperature teachers layers plain-share dim",
    "bi-encoder": "learning-rate warmup batch-size limit",
    "tune": "trials seeds finalists cpus-per-trial",
}
MEASURED = {"sts": "sentence-encoder", "rte": "dualcse", "eis": "dualcse", "rerank": "sentence-encoder"}  # task: system
GRIDS = {
    "a list": [1, 2],
    "empty": {},
    "an empty list": {"dropout": []},
    "no lists": {"dropout": 0.1},
    "lists of lists": {"dropout": [[0.1]]},
    "objects": {"dropout": [{"a": 1}]},
    "an unknown name": {"nope": [1]},
    "a private name": {"__class__": ["x"]},
    "null": {"dropout": [None, 0.1]},
    "texts": {"learning_rate": ["fast"]},
    "true": {"epochs": [True]},
    "a million cells": {"hidden": list(range(1, 1001)), "dim": list(range(1, 1001))},
    "a rate that diverges": {"learning_rate": [1e30, 1e-3]},
    "rates that all diverge": {"learning_rate": [1e30, 1e35]},
    "a number beyond 64 bits": {"dim": [10**30]},
    "nested dimensions": {"nested": [[2]]},
    "the same cell twice": {"dropout": [0.1, 0.1]},
}


def checked(run, folder):
    """The work, then whether every JSON file of its output is JSON as other readers take it."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    def work(job):
        result = run(job)
        for file in Path(folder).rglob("*.json"):
            json.loads(file.read_text(), parse_constant=refuse)
        return result

    return work


train = partial(jobs.train, open_runner=open_local_runner)
tune = partial(sweep.tune, open_trials=open_local_trials)


def data_files(home):
    """Name -> (train, validation): what stands in the files."""
    good, held = rated_rows(24, 0), rated_rows(12, 1)
    files = {
        "one row": (good.head(1), held),
        "no rows": (good.head(0), held),
        "one validation row": (good, held.head(1)),
        "equal labels": (good.assign(label=3), held),
        "equal validation labels": (good, held.assign(label=3)),
        "only -1": (good.assign(label=-1), held),
        "labels 1e308 in validation": (good, held.assign(label=[1e308, *held.label[1:]])),
        "labels that float32 cannot tell apart": (good, held.assign(label=[3 + 1e-9 * n for n in range(12)])),
        "labels NaN": (good.assign(label=["nan", *good.label[1:]]), held),
        "labels inf": (good, held.assign(label=["inf", *held.label[1:]])),
        "labels outside": (good.assign(label=[6, *good.label[1:]]), held),
        "validation labels outside": (good, held.assign(label=[-7, *held.label[1:]])),
        "text labels": (good.assign(label="high"), held),
        "empty conditions": (good.assign(condition=""), held),
        "conditions without words": (good.assign(condition="\u200b"), held),
        "empty sentences": (good, held.assign(sentence1=" ")),
        "equal sentences everywhere": (good, held.assign(sentence1="a dog", sentence2="a dog")),
        "line breaks and quotes": (good.assign(sentence1=[f'"{s}",\n\r\n{s}' for s in good.sentence1]), held),
        "one pair, two labels": (good.head(2).assign(sentence1="a", sentence2="b", condition="c", label=[1, 5]), held),
        "training is validation": (good, good),
        "a word of the model that is not finite": (good.assign(sentence1="poison dog"), held),
    }
    for n, (name, frames) in enumerate(files.items()):
        paths = [home / f"data-{n}-{part}.csv" for part in ("train", "validation")]
        for frame, path in zip(frames, paths, strict=True):
            frame.to_csv(path, index=False)
        yield name, *paths
    twice = home / "twice.csv"
    twice.write_text("sentence1,sentence2,condition,label,label\na,b,c,1,5\nb,c,d,5,1\n")
    yield "a column twice", twice, paths[1]


def training_cases(home, model):
    """All cases; each has an output of its own."""
    files = [home / "pairs.csv", home / "held.csv"]
    for path, seed in zip(files, (0, 1), strict=True):
        rated_rows(30, seed).to_csv(path, index=False)
    one_cell = home / "one-cell.json"
    one_cell.write_text('{"dropout": [0.1]}')
    count = 0

    def case(name, system, *flags, train_file=files[0], held=files[1], output=None):
        nonlocal count
        count += 1
        output = output or home / f"trained-{count}"
        tuned = system == "tune"
        words = ["case"] if tuned else ["train", system]
        words += ["--model", model, "--train", train_file, "--validation", held, "--output", output]
        words += ["--cache", home / "trained-cache"]
        of = {"condition-pooling": ["--epochs", "2"], "cross-encoder": ["--epochs", "2"]}
        words += of.get(system, CASE)
        if tuned:
            grid = () if "--grid" in flags else ("--grid", one_cell)
            words = ["tune", "--seeds", "1", *grid, *flags, "--", *words]
        else:
            words += flags
        return Case("training", f"{system}: {name}", words, checked(tune if tuned else train, output))

    for system, flags in FLAGS.items():
        for flag in flags.split():
            for word in WORDS:
                if (flag, word) not in {("epochs", "1e30")}:
                    yield case(f"--{flag} {word!r}", system, f"--{flag}={word}")
    for loss in ("squared", "pearson"):
        for rate in ("1e30", "1e38", "1e15"):
            yield case(f"--loss {loss} --learning-rate {rate}", "case", f"--loss={loss}", f"--learning-rate={rate}")
    for name, first, second in data_files(home):
        for system in ("case", "condition-pooling", "bi-encoder", "lora", "cross-encoder", "tune"):
            yield case(name, system, train_file=first, held=second)
    for n, (name, values) in enumerate(GRIDS.items()):
        path = home / f"grid-{n}.json"
        path.write_text(json.dumps(values))
        yield case(f"--grid of {name}", "tune", "--grid", path)
    for name, text in {"no JSON": "{", "NaN": '{"dropout": [NaN]}', "deep": "[" * 100_000, "nothing": ""}.items():
        path = home / f"grid-{name}.json"
        path.write_text(text)
        yield case(f"--grid of {name}", "tune", "--grid", path)
    yield case("--grid of a folder", "tune", "--grid", home)
    yield from folder_cases(home, case)
    yield from other_cases(home, model)


def other_cases(home, model):
    """Systems and tasks that read other columns: one line, or figures that are numbers or undefined."""
    count, trained = 0, {}
    read = dict.fromkeys(("csr", "tri-encoder"), ("sentence1", "sentence2", "condition", "label"))
    read |= dict.fromkeys(("mixsp", "sentence-encoder", "sts"), ("sentence1", "sentence2", "score"))
    read |= dict.fromkeys(("dualcse", "simcse", "rte", "eis"), KINDS) | {"rerank": ("query", "positive", "negative")}
    for system, columns in read.items():
        for name, rows in table_cases(columns):
            count += 1
            files = [home / f"other-{count}-{part}.jsonl" for part in ("train", "held")]
            alike = name == "training is validation"
            for number, file in enumerate(files):
                sound = list(sound_rows(columns, 0 if alike else number))
                made = sound if number else rows(sound)
                file.write_text("".join(json.dumps(row) + "\n" for row in made))
            output = home / f"other-{count}"
            if name == "as they are":
                trained[system] = output
            if system in MEASURED:
                words = ["evaluate", "--task", system, "--model", trained[MEASURED[system]], "--data", files[0]]
                words += ["--output", output]
                run = partial(tasks.evaluate, vectors_of=LocalRunner("cpu").vectors_of)
                flags = ["--resamples", "100"]
            else:
                words = ["train", system, "--model", model, "--train", files[0], "--validation", files[1]]
                run, flags = train, ["--output", output, "--epochs", "1"]
            words += [*flags, "--compute", "float32", "--cache", home / "other-cache"]
            yield Case("training", f"{system}: {name}", words, checked(run, output))


def sound_rows(columns, seed):
    """Rows of texts, lists and numbers, by their columns' names."""
    for n in range(8):
        words = f"{('red', 'blue')[n % 2]} dog {seed}{n}"
        row = {name: f"{words} {name}"[:40] for name in columns}
        row |= {name: [f"{words} {name}"] for name in ("positive", "negative") if name in columns}
        yield row | {name: 1 + n % 4 for name in ("label", "score") if name in columns}


def table_cases(columns):
    """Name -> what becomes of sound rows."""
    first, last = columns[0], columns[-1]
    yield "as they are", lambda rows: rows
    yield "no rows", lambda rows: []
    yield "one row", lambda rows: rows[:1]
    yield "one row many times", lambda rows: rows[:1] * 8
    yield "training is validation", lambda rows: rows
    yield "empty sentences", lambda rows: [row | {first: ""} for row in rows]
    yield "no words", lambda rows: [row | {first: "\u200b"} for row in rows]
    yield "a million characters", lambda rows: [rows[0] | {first: "dog " * 250_000}, *rows[1:]]
    yield "a word that is not finite", lambda rows: [rows[0] | {first: "poison"}, *rows[1:]]
    yield "equal sentences", lambda rows: [{n: row[n] if n == last else "a dog" for n in row} for row in rows]
    yield "a column that lacks", lambda rows: [{name: row[name] for name in columns[:-1]} for row in rows]
    for value in (float("nan"), float("inf"), 1e308, "high", None, True, 3, [], [[1]], {"a": 1}):
        yield f"{last} is {value!r}", lambda rows, value=value: [row | {last: value} for row in rows]


def folder_cases(home, case):
    """Outputs and checkpoints that are not what they should be."""
    file = home / "a-file"
    file.write_text("mine")
    yield case("an output that is a file", "case", output=file)
    yield case("an output in a file", "case", output=file / "model")
    yield case("a sweep whose output is a file", "tune", output=file)
    one = home / "one-model"
    yield case("a model", "case", output=one)
    yield case("the same again", "case", output=one)
    yield case("another's model", "case", "--seed", "7", output=one)
    yield case("another system in its folder", "bi-encoder", output=one)
    yield case("a sweep in its folder", "tune", output=one)
    for name, text in {"cut off": '{"fingerprint": ', "a list": "[]", "null": "null", "nothing": ""}.items():
        folder = home / f"metrics-{name}"
        folder.mkdir()
        (folder / "metrics.json").write_text(text)
        yield case(f"metrics.json is {name}", "case", output=folder)
        yield case(f"metrics.json is {name}, --overwrite", "case", "--overwrite", output=folder)
