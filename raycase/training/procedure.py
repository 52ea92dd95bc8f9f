"""What a system is trained by, from data to a model folder, and what its fits run by: this process, or Ray Train
(`raycase.ray.train`). The card of the model: every figure in it comes from `metrics.json`."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from torch import nn

from raycase.encoder.loading import best_device
from raycase.encoder.model_files import dataset_of
from raycase.errors import RequestError
from raycase.io.json_values import figure
from raycase.io.labelled_texts import LabelledTexts
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated, rows_in
from raycase.io.storage import Location
from raycase.job.runner import Runner
from raycase.models.configs import SystemConfig
from raycase.names import TrainCompute
from raycase.training.loop import FitState, Learner, fit
from raycase.training.recipe import Recipe
from raycase.training.tracking import Tracker
from raycase.training.vector_cache import VectorCache

MOST_FILES, MOST_LETTERS = 4, 300  # of the data and of the command in a card; metrics.json has all
STATE = "state.safetensors"  # of a fit that may resume
Fit = Callable[..., FitState]  # recipe, what makes the `Learner` of it and of data, and these data -> the last state


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """What a system is trained by."""

    start: Callable[[], Any]  # gives the system before it is trained
    recipe: Recipe
    settings: Mapping[str, Any]  # what determines the weights besides data, system and seed, as `metrics.json` has it
    compute: TrainCompute | None  # the number format inside the encoder
    cache: Location  # of vectors
    train: str
    validation: str

    @cached_property
    def config(self) -> Any:
        """The system before it is trained."""
        return self.start()

    def read(self) -> tuple[Any, ...]:
        """Read the training and the validation data, each with its `uri` and `data_sha256`."""
        return read_rated_parts(self.train, self.validation)

    def identity(self, parts: Sequence[Any]) -> dict[str, Any]:
        """Everything that determines the weights."""
        return {
            "model": self.config.describe(),
            "compute": self.compute,
            "data": {name: part.data_sha256 for name, part in named_parts(parts).items()},
            "recipe": self.settings,
            "seed": self.recipe.seed,
        }

    def share(self, parts: Sequence[Any], vectors: VectorCache) -> Any:
        """What all fits on this data share, trials of a sweep among them."""
        return parts

    def data(self, shared: Any) -> tuple[Any, Any]:
        """Training and validation data as a fit reads them; by default what is shared."""
        train, validation = shared
        return train, validation

    def on(self, *, gpu: bool) -> Self:
        """This training on a machine with a GPU or without."""
        return self

    @abstractmethod
    def learner(self, recipe: Recipe, train: Any, validation: Any) -> Learner:
        """What a fit trains, from the seed of the recipe on. Called where the fit runs."""

    def fit_all(self, fit: Fit, parts: Sequence[Any], data: tuple[Any, Any], vectors: VectorCache) -> Any:
        """Run the fits on the data of `data`, here one; returns what `save` saves."""
        return fit(self.recipe, self.learner, *data)

    @abstractmethod
    def save(self, folder: Path, data: tuple[Any, Any], fitted: Any, record: dict[str, Any]) -> dict[str, Any]:
        """Write the model folder of a fit; returns the contents of `metrics.json`, `record` among them."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What embeds the texts of a training, and runs its fits: `fit_here`, or one on Ray that equals it."""

    on_gpu: bool
    fit: Callable[..., FitState]
    vectors: VectorCache


def fit_here(
    recipe: Recipe,
    learner: Callable[..., Learner],
    *data: Any,
    device: str,
    checkpoints: Location,
    tracker: Tracker,
) -> FitState:
    """Run a fit in this process and report each epoch; gives the last state. An encoder's fit goes on from the
    checkpoint that it writes after each epoch."""
    file = checkpoints / STATE
    state = FitState.from_bytes(file.read()) if not recipe.frozen and file.exists() else None
    to_device = partial(nn.Module.to, device=device)
    with tracker.open_run(recipe, shown=len(state.history) if state else 0) as report:
        for state in fit(recipe, learner(recipe, *data), state=state, wrap=to_device):  # noqa: B020
            if not recipe.frozen:
                file.put(state.to_bytes())
            report(state.history)
    assert state is not None
    return state


def local_trainer(gpus_per_worker: float | None) -> Trainer:
    """The trainer that fits in this process."""
    device = best_device() if gpus_per_worker is None else "cuda" if gpus_per_worker else "cpu"
    return Trainer(on_gpu=device == "cuda", fit=partial(fit_here, device=device), vectors=VectorCache(Runner()))


def read_rated_parts(train_uri: str, validation_uri: str) -> tuple[RatedPairs, RatedPairs]:
    """Read rated pairs to train on and to validate with, which are others."""
    train, validation = read_rated(train_uri, "--train"), read_rated(validation_uri, "--validation")
    invalid = sorted({float(r) for r in train.ratings if r != NOT_APPLICABLE and not 1 <= r <= 5})
    if invalid:
        raise RequestError(f"--train: expected labels from 1 to 5 (or -1: does not apply), got {invalid[0]:g}")
    shared = rows_in(validation, train)
    if len(shared):
        raise RequestError(
            f"--validation: expected pairs that are not in --train, got {len(shared)} of {len(validation)} in "
            f"{train.uri}, the first in row {shared[0]}"
        )
    return train, validation


def named_parts(parts: Sequence[Any]) -> dict[str, Any]:
    """The parts of `Training.read` by name: what follows training and validation data are labelled texts."""
    tables = (f"labelled: {Path(part.uri).stem}" for part in parts[2:])  # `labels_of` has seen that their names differ
    return dict(zip(("train", "validation", *tables), parts, strict=True))


def fit_metrics(state: FitState) -> dict[str, Any]:
    """Metrics of the best epoch, and of every epoch."""
    best = {name: value for name, value in state.best_line.items() if name not in ("epoch", "loss", "seconds", "mib")}
    return {
        "validation": best,
        "select": state.select,
        "best_epoch": state.best_epoch,
        "epochs": len(state.history),
        "history": state.history,
    }


def data_metrics(parts: Sequence[Any]) -> dict[str, Any]:
    """What `metrics.json` has of each part of the data; its dataset where it is one of the Hugging Face hub."""
    found: dict[str, Any] = {}
    for name, part in named_parts(parts).items():
        found[name] = {"file": Path(part.uri).name, "rows": len(part), "sha256": part.data_sha256}
        if isinstance(part, LabelledTexts):
            found[name] |= {"columns": len(part.columns), "left_out": part.left_out}
        if dataset := dataset_of(part.uri):
            found[name]["dataset"] = dataset
        if isinstance(part, RatedPairs):
            found[name]["not_applicable"] = int((part.ratings == NOT_APPLICABLE).sum())
    return found


# ------------------------------------------------------------------------------------------------------------- the card


def fine_tuned_card(name: str, config: SystemConfig, metrics: dict[str, Any]) -> str:
    """The model card of a fine-tuned encoder."""
    validation = dict(metrics["validation"])
    threshold = validation.pop("threshold", None)  # a cosine, not x 100
    best = "" if threshold is None else f" The best threshold of a cosine on them is {threshold:.4f}."
    what = f"A fine-tuned encoder: {config.label}; {metrics['parameters']:,} trained parameters."
    return _card(name, what, validation, metrics, usage=_elsewhere(name, config.text_of_pair), behind=best)


def _elsewhere(name: str, text: str | None) -> str:
    """How sentence-transformers reads the folder, and how it is to write a pair as a text."""
    if text is None:
        return ""
    prompt = text.removesuffix("{sentence}").replace("{condition}", "color")
    how = f', prompt="{prompt}")  # under "color"' if prompt else ")"
    return f"""
As a model of sentence-transformers; TEI and vLLM read this folder, too. Give texts without white space around them:
raycase takes it away, these may not.

```python
model = SentenceTransformer("{name}")
model.encode(["A sentence"]{how}
```
"""


def case_card(name: str, config: Any, metrics: dict[str, Any]) -> str:
    """The model card of a CASE system with a projector."""
    g = config.projector
    layers = {0: "linear", 1: f"one layer, {g.activation}", 2: f"two layers of {g.hidden}, {g.activation}"}
    what = f"""Condition-aware sentence embeddings: CASE (Zhang, Zhou and Bollegala, 2025) on {config.label}, whose
encoder is frozen, with a projector {g.input_dim} -> {g.output_dim} ({layers[g.layers]},
dropout {g.dropout:g} at {g.dropout_at})."""
    return _rated_card(name, what, config, metrics, before="the same vectors without projector")


def head_card(name: str, config: SystemConfig, metrics: dict[str, Any]) -> str:
    """The model card of condition pooling with a trained head."""
    what = f"""Condition pooling on {config.name}: {config.label};
{metrics["parameters"]:,} trained parameters, all in the head.
Each sentence is encoded once, whatever the number of conditions."""
    if stated := metrics.get("stated"):
        what += f"""
Whether a text states anything of a condition: AUC {stated["auc"]:.1f} x 100, expected calibration error
{stated["calibration_error"]:.1f} %, on {stated["texts"]:,} left-out texts, each under a condition."""
    return _rated_card(name, what, config, metrics, before="without training")


def _rated_card(name: str, what: str, config: SystemConfig, metrics: dict[str, Any], *, before: str) -> str:
    """The card of a model whose encoder stands elsewhere, and that is compared with the one before training."""
    figures = {f"spearman, {before}": metrics["zero_shot"]["spearman"]}
    for key, value in metrics["validation"].items():
        dim = key.removeprefix("spearman_")
        figures[f"spearman, cut to {dim} dimensions (`dim={dim}`)" if dim.isdigit() else key] = value
    usage = f"""
```python
vectors = model.embed(["Two girls in red dresses play soccer."], ["color of the clothes"])  # (1, {config.dim})
```
"""
    what += f"\n\nEncoder weights: `{config.describe()['weights']}`"
    return _card(name, what, figures, metrics, usage=usage)


def _card(
    name: str, what: str, figures: dict[str, Any], metrics: dict[str, Any], *, usage: str = "", behind: str = ""
) -> str:
    """What a model is, how it is loaded, its figures, data, recipe and provenance."""
    data = list(metrics["data"].items())
    rows = "".join(f"| {part} | {d['file']} | {d['rows']} | `{d['sha256'][:16]}` |\n" for part, d in data[:MOST_FILES])
    if more := data[MOST_FILES:]:
        rows += f"| {len(more)} more | | {sum(d['rows'] for _, d in more)} | |\n"
    settings = {key: metrics[key] for key in ("compute", "seed", "workers") if key in metrics}
    chosen = "These are of the last epoch:" if metrics.get("select") == "epoch" else "The epoch was chosen on these:"
    made = metrics["provenance"]
    command = textwrap.shorten(made["command"], MOST_LETTERS, placeholder=" ...")
    return f"""# {name}

{what}

```python
import raycase

model = raycase.load("{name}")  # the path of this folder
```
{usage}
| on the validation data, x 100 | |
|---|---|
{_table({key: figure(value) for key, value in figures.items()})}
{chosen} epoch {metrics["best_epoch"]} of {metrics["epochs"]}.{behind}
`metrics.json` has every epoch, file and argument.

| data | file | rows | sha256 |
|---|---|---|---|
{rows}
| recipe | |
|---|---|
{_table(metrics["recipe"] | settings)}
    {command}

Commit {made["commit"] or "unknown"}, {made["date"]}, {made["machine"]}, {metrics["seconds"]} s.
"""


def _table(values: dict[str, Any]) -> str:
    return "".join(f"| {key} | {value} |\n" for key, value in values.items())
