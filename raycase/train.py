"""Training on Ray Train: embed the rated pairs once, fit g over data-parallel workers, save a model folder."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
import ray.train
import ray.train.torch
import torch
import tyro
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray.exceptions import RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError
from ray.util.queue import Empty, Queue

from raycase.embed import cause, start_ray
from raycase.fit import FitState, rank
from raycase.model_folder import open_model_folder, write_model_folder
from raycase.pooling import Pooling
from raycase.projection import RECIPE_FIELDS, PairVectors, Recipe, best_projector, evaluation, fit_projector
from raycase.provenance import provenance
from raycase.rated import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.request import Compute
from raycase.schema import RequestError
from raycase.storage import Place, fingerprint, place
from raycase.systems.case import CaseConfig, resolve
from raycase.vectors import pair_vectors

FAILURES = 3  # of workers, before the run fails; each goes on from the last epoch


@dataclass(frozen=True, kw_only=True)
class Source:
    """The rated pairs and the frozen encoder: what training and tuning have in common."""

    train: str
    """Rated pairs to learn from: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5)."""
    validation: str
    """Rated pairs to choose the epoch by; never trained on. Label -1: the condition does not apply."""
    model: str = "minilm"
    """Name in the table of encoders, Hugging Face id or local folder; it stays frozen."""
    prompt: str | None = None
    """How sentence and condition become one text, or several ways side by side, a+b. Default: the encoder's."""
    subtract: bool | None = None
    """Whether the condition's own vector is taken away (eq. 1). Default: the encoder's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""
    compute: Compute | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    output: str
    """Folder of the result, on this machine."""
    cache: str | None = None
    """Folder or URI for the embedded pairs. Default: `cache` beside the output."""
    overwrite: bool = False
    """Replace another result in the folder."""
    seed: int = 0
    """Of initial weights, order and dropout; a sweep counts its seeds from here."""

    @property
    def folder(self) -> Path:
        return Path(self.output).expanduser().absolute()

    @property
    def cache_place(self) -> Place:
        return place(self.cache or str(self.folder.parent / "cache"))

    def config(self) -> CaseConfig:
        """The zero-shot system that g is fitted on. Raises RequestError."""
        if "://" in self.output:
            raise RequestError(f"--output: wanted a folder on this machine, found {self.output}; copy the result there")
        if (Path(self.model) / "raycase.json").is_file():
            raise RequestError(f"--model: wanted an encoder without projector, found the trained model {self.model}")
        return resolve(self.model, prompt=self.prompt, pooling=self.pooling, subtract=self.subtract)

    def read(self) -> tuple[RatedPairs, RatedPairs]:
        """Training and validation pairs. Raises RequestError."""
        train, validation = read_rated(self.train, "--train"), read_rated(self.validation, "--validation")
        odd = sorted({float(r) for r in train.ratings if r != NOT_APPLICABLE and not 1 <= r <= 5})
        if odd:
            raise RequestError(f"--train: wanted labels from 1 to 5 (or -1: does not apply), found {odd[0]:g}")
        if len({float(r) for r in train.ratings if r != NOT_APPLICABLE}) < 2:
            raise RequestError(f"--train: wanted at least two distinct labels besides -1 in {self.train}, found fewer")
        return train, validation


@dataclass(frozen=True, kw_only=True)
class TrainJob(Source, Recipe):
    """Fit a projector on a frozen encoder (CASE, section 3.2), by eq. 2, and save a model folder.

    A run that was stopped goes on when the same command is given again.
    """

    system: tyro.conf.Positional[Literal["case"]]
    """What is trained."""
    workers: int = 1
    """Data-parallel processes; the batch is shared out among them."""
    gpus_per_worker: float | None = None
    """Default: 1 if the cluster has GPUs, else 0."""

    @property
    def recipe(self) -> Recipe:
        return Recipe(**{name: getattr(self, name) for name in RECIPE_FIELDS})


def train(job: TrainJob) -> dict[str, Any]:
    """Embed, fit, save; returns what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    job.recipe.check()
    if job.workers < 1:
        raise RequestError(f"--workers: wanted at least 1, found {job.workers}")
    config = job.config()
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "data": {part: rated.data_sha256 for part, rated in pairs.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    start_ray()
    vectors = {
        part: pair_vectors(rated, config, cache=job.cache_place, compute=job.compute) for part, rated in pairs.items()
    }
    embedded = time.time()
    fits = job.cache_place / "fits"
    if job.overwrite:
        (fits / name).remove()
    state = fit_on_ray(vectors["train"], vectors["validation"], job, fits / name)
    shape = job.recipe.projector(vectors["train"].dim)
    seconds = {"seconds": round(time.time() - began, 1), "embed_seconds": round(embedded - began, 1)}
    metrics = {"fingerprint": name} | model_metrics(state, vectors["validation"], pairs) | seconds
    metrics |= {"recipe": asdict(job.recipe) | {"dim": shape.output_dim}, "seed": job.seed, "workers": job.workers}
    write_model_folder(job.folder, replace(config, projector=shape), best_projector(state, shape), metrics)
    (fits / name).remove()
    return metrics


def model_metrics(state: FitState, validation: PairVectors, pairs: dict[str, RatedPairs]) -> dict[str, Any]:
    """The figures of a fit, with and without g, and what it was made from."""
    best = state.history[state.best_epoch - 1]
    return {
        "validation": {name: best[name] for name in ("spearman", "spearman_rated", "pearson")},
        "zero_shot": evaluation(validation)(torch.nn.Identity()),
        "best_epoch": state.best_epoch,
        "epochs": len(state.history),
        "history": state.history,
        "data": {
            part: {
                "file": Path(rated.uri).name,
                "rows": len(rated),
                "not_applicable": int((rated.ratings == NOT_APPLICABLE).sum()),
                "sha256": rated.data_sha256,
            }
            for part, rated in pairs.items()
        },
        "provenance": provenance(),
    }


# ----------------------------------------------------------------------------------------------------------- Ray Train


def fit_on_ray(train: PairVectors, validation: PairVectors, job: TrainJob, checkpoints: Place) -> FitState:
    """Fit g over the job's workers; goes on from the state in `checkpoints`. Prints a line an epoch.

    The state is one safetensors file, put as a whole after each epoch by the first worker: a run that is killed while
    it writes has the epoch before. (Ray Train's own snapshot is not written atomically.)
    """
    scaling = make_scaling(job)
    lines = Queue(actor_options={"num_cpus": 0})
    storage: dict[str, Any] = {"storage_path": checkpoints.path}
    if not checkpoints.is_local:
        storage["storage_filesystem"] = PyFileSystem(FSSpecHandler(checkpoints.fs))
    trainer = TorchTrainer(
        _fit_worker,
        train_loop_config={
            "train": ray.put(train),
            "validation": ray.put(validation),
            "recipe": job.recipe,
            "seed": job.seed,
            "threads": int(scaling.resources_per_worker["CPU"]),
            "state": checkpoints / "state.safetensors",
            "lines": lines,
        },
        scaling_config=scaling,
        run_config=RunConfig(name="ray", failure_config=FailureConfig(max_failures=FAILURES), **storage),
    )
    try:
        with _printed(lines):
            trainer.fit()
    except (RayError, TrainingFailedError) as error:
        raise cause(error) from error
    finally:
        lines.shutdown(force=True)
    return FitState.from_bytes((checkpoints / "state.safetensors").read())


def _fit_worker(config: dict[str, Any]) -> None:
    """What each worker runs: `fit_projector`, and after each epoch a state and a line."""
    torch.set_num_threads(max(1, config["threads"]))
    saved: Place = config["state"]
    state = FitState.from_bytes(saved.read()) if saved.exists() else None
    train, validation = ray.get([config["train"], config["validation"]])
    fitting = fit_projector(
        train, validation, config["recipe"], seed=config["seed"], state=state, wrap=ray.train.torch.prepare_model
    )
    for state in fitting:
        if rank() == 0:
            saved.put(state.to_bytes())
            config["lines"].put(state.line)
        ray.train.report(state.line)


def make_scaling(job: TrainJob) -> ScalingConfig:
    """Share the cluster's CPUs out among the workers. Raises RequestError where they do not fit."""
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    gpus = job.gpus_per_worker if job.gpus_per_worker is not None else float(any(n.get("GPU") for n in nodes))
    if gpus < 0:
        raise RequestError(f"--gpus-per-worker: wanted 0 or more, found {gpus}")
    fits = [min(n.get("CPU", 0), n.get("GPU", 0) / gpus if gpus else float("inf")) for n in nodes]
    if job.workers > sum(int(f) for f in fits):
        found = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes)
        raise RequestError(
            f"--workers: wanted {job.workers} with 1 CPU and {gpus:g} GPUs each, found nodes with {found}; "
            "ask for fewer workers or a larger cluster"
        )
    cpus = max(1, int(min(n.get("CPU", 0) for n in nodes) / -(-job.workers // len(nodes))))
    return ScalingConfig(
        num_workers=job.workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    )


@contextmanager
def _printed(lines: Queue) -> Iterator[None]:
    """Print the lines of the workers' epochs here while they come."""
    over = threading.Event()

    def follow() -> None:
        while True:
            last = over.is_set()
            try:
                line = lines.get(timeout=0.5)
            except Empty:
                if last:
                    return
                continue
            print(
                f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}  Spearman {line['spearman']:6.2f}  "
                f"Pearson {line['pearson']:6.2f}  {line['seconds']:.2f} s",
                flush=True,
            )

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
