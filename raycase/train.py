"""Training on Ray Train: embed the rated pairs once, fit g over data-parallel workers, save a model folder."""

from __future__ import annotations

import math
import sys
import threading
import time
from contextlib import suppress
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
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError
from ray.util.queue import Empty, Queue

from raycase.embed import cause, start_ray
from raycase.fit import FitState, rank
from raycase.model_folder import open_model_folder, write_model_folder
from raycase.pooling import Pooling
from raycase.projection import RECIPE_FIELDS, PairVectors, Recipe, best_projector, evaluation, fit_projector
from raycase.provenance import provenance
from raycase.rated import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.request import Compute
from raycase.schema import RequestError, WorkError
from raycase.storage import Place, check_paths, fingerprint, place
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
        check_paths({f"--{n}": getattr(self, n) for n in ("train", "validation", "output", "cache")})
        if self.seed < 0:
            raise RequestError(f"--seed: wanted 0 or more, found {self.seed}")
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
        for flag, rated in (("--train", train), ("--validation", validation)):
            if len({float(r) for r in rated.ratings if r != NOT_APPLICABLE}) < 2:
                raise RequestError(
                    f"{flag}: wanted at least two distinct labels besides -1 in {rated.uri}, found fewer"
                )
        seen = set(train.triples)
        both = [row for row, triple in enumerate(validation.triples) if triple in seen]
        if both:
            raise RequestError(
                f"--validation: wanted no pair that is trained on, found {len(both)} of {len(validation)} in "
                f"{self.train}, the first in row {both[0]}"
            )
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
    check_cache(job.cache_place)
    scaling = make_scaling(job)
    vectors = {
        part: pair_vectors(rated, config, cache=job.cache_place, compute=job.compute) for part, rated in pairs.items()
    }
    embedded = time.time()
    checkpoints = job.cache_place / "fits" / fingerprint([name, str(job.folder)])[:16]
    if job.overwrite:
        checkpoints.remove()
    state = fit_on_ray(vectors["train"], vectors["validation"], job, scaling, checkpoints)
    shape = job.recipe.projector(vectors["train"].dim)
    seconds = {"seconds": round(time.time() - began, 1), "embed_seconds": round(embedded - began, 1)}
    metrics = {"fingerprint": name} | model_metrics(state, vectors["validation"], pairs) | seconds
    metrics |= {"recipe": asdict(job.recipe) | {"dim": shape.output_dim}, "seed": job.seed, "workers": job.workers}
    write_model_folder(job.folder, replace(config, projector=shape), best_projector(state, shape), metrics)
    checkpoints.remove()
    return metrics


def check_cache(cache: Place) -> None:
    """A local cache is one machine's. Raises RequestError on a cluster of several."""
    nodes = sum(n["Alive"] for n in ray.nodes())
    if cache.is_local and nodes > 1:
        raise RequestError(f"--cache: wanted object storage on a cluster of {nodes} nodes, found {cache.uri}")


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


def fit_on_ray(
    train: PairVectors, validation: PairVectors, job: TrainJob, scaling: ScalingConfig, checkpoints: Place
) -> FitState:
    """Fit g over the job's workers; goes on from the state in `checkpoints`. Prints a line an epoch.

    The state is one safetensors file, put as a whole after each epoch by the first worker: a run that is killed while
    it writes has the epoch before. (Ray Train's own snapshot is not written atomically, and each of its reports waits
    for the controller's next look, 2 s.) Raises WorkError.
    """
    news = Queue(actor_options={"num_cpus": 0})
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
            "news": news,
        },
        scaling_config=scaling,
        run_config=RunConfig(name="ray", failure_config=FailureConfig(max_failures=FAILURES), **storage),
    )
    ended: list[Exception | None] = []
    # Outside of the main thread, Ray Train leaves SIGINT alone; its handler would end the process with status 0.
    threading.Thread(target=lambda: ended.append(_error_of(trainer)), daemon=True).start()
    while True:
        over = bool(ended)
        with suppress(Empty):
            while True:
                show(news.get(timeout=0.2))
        if over:
            break
    news.shutdown(force=True)
    if ended[0] is not None:
        raise cause(ended[0]) from ended[0]
    return FitState.from_bytes((checkpoints / "state.safetensors").read())


def _error_of(trainer: TorchTrainer) -> Exception | None:
    """What the training ended with; of failed workers, the first one's error."""
    try:
        trainer.fit()
    except WorkerGroupError as error:
        return next(iter(error.worker_failures.values()), error)
    except (RayError, TrainingFailedError) as error:
        return error
    return None


def show(news: dict[str, float] | str) -> None:
    """Print an epoch's line, or raise WorkError with what made the fit impossible."""
    if isinstance(news, str):
        raise WorkError(news)
    print(
        f"epoch {news['epoch']:>3}  loss {news['loss']:.4f}  Spearman {news['spearman']:6.2f}  "
        f"Pearson {news['pearson']:6.2f}  {news['seconds']:.2f} s",
        flush=True,
    )


def _fit_worker(config: dict[str, Any]) -> None:
    """What each worker runs: `fit_projector`, and after each epoch a state and a line."""
    torch.set_num_threads(max(1, config["threads"]))
    saved: Place = config["state"]
    state = FitState.from_bytes(saved.read()) if saved.exists() else None
    train, validation = ray.get([config["train"], config["validation"]])
    fitting = fit_projector(
        train, validation, config["recipe"], seed=config["seed"], state=state, wrap=ray.train.torch.prepare_model
    )
    try:
        for state in fitting:
            if rank() == 0:
                saved.put(state.to_bytes())
                config["news"].put(state.line)
    except WorkError as error:  # every worker sees the same loss; starting them again would not help
        if rank() == 0:
            config["news"].put(str(error))


def make_scaling(job: TrainJob) -> ScalingConfig:
    """Share the cluster's CPUs out among the workers. Raises RequestError where they do not fit."""
    nodes = [n["Resources"] for n in ray.nodes() if n["Alive"]]
    gpus = job.gpus_per_worker if job.gpus_per_worker is not None else float(any(n.get("GPU") for n in nodes))
    if gpus < 0:
        raise RequestError(f"--gpus-per-worker: wanted 0 or more, found {gpus}")

    def room(cpus: int) -> int:
        """How many workers with so many CPUs fit."""
        return sum(int(min(n.get("CPU", 0) / cpus, n.get("GPU", 0) / gpus if gpus else math.inf)) for n in nodes)

    if room(1) < job.workers:
        found = ", ".join(f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes)
        raise RequestError(
            f"--workers: wanted {job.workers} with 1 CPU and {gpus:g} GPUs each, found nodes with {found}; "
            "ask for fewer workers or a larger cluster"
        )
    most = int(max(n.get("CPU", 0) for n in nodes))
    cpus = next(c for c in range(most, 0, -1) if room(c) >= job.workers)
    return ScalingConfig(
        num_workers=job.workers, use_gpu=gpus > 0, resources_per_worker={"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    )
