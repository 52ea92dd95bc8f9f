"""A corpus under new conditions: the work of `raycase.corpus.materialize`, one task for some units of stored words."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from safetensors.torch import load, save

from raycase.corpus.job_record import find_job, write_job
from raycase.corpus.manifest import read_manifest
from raycase.corpus.materialize import MaterializeJob, check_materialize, names_left, pool_unit
from raycase.corpus.output import output_at
from raycase.corpus.resume import account, run_units
from raycase.corpus.runner import Runner
from raycase.corpus.written import open_written
from raycase.data.storage import fingerprint
from raycase.data.stored_words import StoredWords, WordFormat
from raycase.errors import RequestError
from raycase.search.query_encoder import ask
from raycase.systems.condition_head import Questions
from raycase.systems.registry import resolve_embedder
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_pooling import WordPooler, unpack_words

COUNTS = ("rows_in", "rows_out", "rows_rejected", "pairs", "units")
UNITS_A_TASK = 4  # a task reads the basis once


def materialize(job: MaterializeJob, runner: Runner, flag: str = "--words") -> dict[str, Any]:
    """Pool what is missing; returns counts. Raises RequestError, which names the flag, and WorkError."""
    began = time.time()
    words, conditions = check_materialize(job, flag)
    questions = _questions(words.job.config["model"], job.model or words.job.model, conditions)
    output = output_at(job.output)
    config = {name: value for name, value in words.job.config.items() if name != "word_bytes"}
    config |= {"unconditional": False, "conditions": conditions, "words": words.job.fingerprint}
    old = words.job
    opened, done = find_job(output, config, old.files, model=old.model, sharing=old.sharing, overwrite=job.overwrite)
    left = names_left(words, done)
    parts = [words.summed(left[i : i + UNITS_A_TASK]) for i in range(0, len(left), UNITS_A_TASK)]
    pool = partial(
        _pool,
        words=words.output.root.uri,
        output=output.root.uri,
        print8=opened.print8,
        conditions=conditions,
        questions=questions,
    )
    places = [(flag, words.output.root), ("--output", output.root)]
    unit = f"{UNITS_A_TASK} units"
    pooling = runner.map(pool, parts, unit=unit, places=places, stall_timeout=job.stall_timeout) if parts else ()
    write_job(output, opened, overwrite=job.overwrite)
    units, lines = run_units(output, opened, done, lambda done: len(names_left(words, done)), pooling, "units")
    form = WordFormat.of(words.schema) if words.names else None
    model = read_manifest(words.output)["model"] | {"dim": form.dim if form else 0}
    this_run = {"seconds": round(time.time() - began, 3), "units_done": len(left)}
    manifest = account(output, opened, units, lines, len(left), {"model": model, "run": this_run})
    result = {name: manifest[name] for name in COUNTS} | this_run
    return result | {"output": output.root.uri, "manifest": output.manifest.uri}


def _questions(model: dict[str, Any], name: str, conditions: tuple[str, ...]) -> bytes:
    """What the words' head keeps of the conditions, as safetensors. Raises RequestError for another model."""
    config = resolve_embedder(name, dim=model.get("cut"))
    if fingerprint(config.describe()) != fingerprint(model):
        raise RequestError(f"--model: expected the model that stored the words, got another in {name}")
    asked, temperatures = ask(config.load(), conditions, model=name, named="--conditions")
    tensors = {"queries": asked.queries, "mix": asked.mix, "temperatures": temperatures}
    tensors |= {} if asked.gate is None else {"gate": asked.gate}
    return save({key: value.cpu().contiguous() for key, value in tensors.items()})


def words_pooler(
    words: str, conditions: tuple[str, ...], model: str | None = None
) -> tuple[Callable[[StoredWords], np.ndarray], WordFormat]:
    """A function that pools stored words of an output under conditions, of N texts (N, C, D) float32, and their format.

    Raises RequestError for what is no output of stored words, and for another model than theirs."""
    written = open_written(words, "--words")
    written.check_basis("--words")
    return _pooler(words, _questions(written.job.config["model"], model or written.job.model, conditions))


@lru_cache(1)
def _pooler(words: str, questions: bytes) -> tuple[Any, WordFormat]:
    """A function that pools the words of a unit, `StoredWords` -> (N, C, D), and their format."""
    basis = output_at(words).basis
    codes, asked = WordCodes.from_bytes(basis.read(), basis.uri), load(questions)
    temperatures = asked.pop("temperatures")
    pooler = WordPooler(
        codes, Questions(queries=asked["queries"], mix=asked["mix"], gate=asked.get("gate")), temperatures
    )

    def pool(stored: StoredWords) -> np.ndarray:
        unpacked = unpack_words(stored, codes)
        vectors_NCD = np.empty((len(unpacked.order), len(asked["mix"]), codes.form.dim), np.float32)
        vectors_NCD[unpacked.order] = pooler.pool(unpacked).numpy()
        return vectors_NCD

    return pool, codes.form


def _pool(
    units: dict[str, str], *, words: str, output: str, print8: str, conditions: tuple[str, ...], questions: bytes
) -> None:
    for name, sha256 in units.items():
        pool_unit(output_at(words), output_at(output), print8, name, sha256, conditions, *_pooler(words, questions))
