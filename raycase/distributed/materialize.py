"""A corpus under new conditions as a Ray Data job: one task for some units of stored words."""

from __future__ import annotations

import json
import time
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from ray.data import TaskPoolStrategy
from safetensors.torch import load, save

from raycase.corpus.materialize import MaterializeJob, begin, check, finish, pool_unit
from raycase.corpus.output import output_at
from raycase.data.storage import fingerprint, locate
from raycase.data.stored_words import StoredWords, WordFormat
from raycase.distributed.cluster import start_ray
from raycase.distributed.ray_data import run_tasks
from raycase.distributed.resources import capacity, check_nodes
from raycase.errors import RequestError
from raycase.search.query_encoder import ask
from raycase.systems.condition_head import Questions
from raycase.systems.registry import resolve_embedder
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_pooling import WordPooler, unpack

UNITS_A_TASK, TASKS_A_WAVE = 4, 2048  # a task reads the basis once; a wave bounds what Ray holds


def materialize(job: MaterializeJob, flag: str = "--words") -> dict[str, Any]:
    """Pool what is missing on the cluster; returns counts. Raises RequestError, which names the flag, and WorkError."""
    began = time.time()
    words, conditions = check(job, flag)
    questions = _questions(words.job.config["model"], job.model or words.job.model, conditions)
    start_ray()
    cluster = capacity()
    check_nodes(words.output.root, cluster, flag)
    check_nodes(locate(job.output), cluster)
    todo = begin(job, words, conditions)
    if todo.missing:
        work = partial(
            _pool,
            words=todo.words.output.root.uri,
            output=todo.output.root.uri,
            print8=todo.job.print8,
            conditions=todo.conditions,
            questions=questions,
        )
        parts = [todo.missing[i : i + UNITS_A_TASK] for i in range(0, len(todo.missing), UNITS_A_TASK)]
        for start in range(0, len(parts), TASKS_A_WAVE):
            tasks = [{"units": words.summed(units)} for units in parts[start : start + TASKS_A_WAVE]]
            run_tasks(tasks, work, progress="pooled", patience=job.patience, num_cpus=1, compute=TaskPoolStrategy())
    return finish(todo, began)


def _questions(model: dict[str, Any], name: str | None, conditions: tuple[str, ...]) -> bytes:
    """What the words' head keeps of the conditions, as safetensors. Raises RequestError for another model."""
    assert name is not None
    config = resolve_embedder(name, dim=model.get("cut"))
    if fingerprint(config.describe()) != fingerprint(model):
        raise RequestError(f"--model: expected the model that stored the words, got another in {name}")
    asked, temperatures = ask(config.load(), conditions, model=name, flag="--conditions")
    tensors = {"queries": asked.queries, "mix": asked.mix, "temperatures": temperatures}
    tensors |= {} if asked.gate is None else {"gate": asked.gate}
    return save({key: value.cpu().contiguous() for key, value in tensors.items()})


@cache
def _pooler(words: str, questions: bytes) -> tuple[Any, WordFormat]:
    """A function that pools the words of a unit, `StoredWords` -> (N, C, D), and their format."""
    basis = output_at(words).basis
    codes, asked = WordCodes.from_bytes(basis.read(), basis.uri), load(questions)
    temperatures = asked.pop("temperatures")
    pooler = WordPooler(
        codes, Questions(queries=asked["queries"], mix=asked["mix"], gate=asked.get("gate")), temperatures
    )

    def pool(stored: StoredWords) -> np.ndarray:
        unpacked = unpack(stored, codes)
        vectors_NCD = np.empty((len(unpacked.order), len(asked["mix"]), codes.form.dim), np.float32)
        vectors_NCD[unpacked.order] = pooler.pool(unpacked).numpy()
        return vectors_NCD

    return pool, codes.form


def _pool(
    task: pa.Table, *, words: str, output: str, print8: str, conditions: tuple[str, ...], questions: bytes
) -> pa.Table:
    torch.set_num_threads(1)
    for name, sha256 in json.loads(task["task"][0].as_py())["units"].items():
        pool_unit(output_at(words), output_at(output), print8, name, sha256, conditions, *_pooler(words, questions))
    return pa.table({"done": [True]})
