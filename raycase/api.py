"""The package's functions for Python, a few lines each over what the commands of the same names call.

Where a command has a flag, they have an argument: `--max-rejected` is `max_rejected`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

from raycase.errors import RequestError, names_arguments, needs_package
from raycase.io.json_values import from_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from raycase.integrations.mteb import ConditionalEncoder
    from raycase.models.embedder import Embedder

AnyFlags = TypeVar("AnyFlags")
Place = str | PathLike[str]


def _flags(of: type[AnyFlags], **options: Any) -> AnyFlags:
    """The dataclass of a command's flags. Raises RequestError for an argument that it lacks, or of another type."""
    known = [field.name for field in fields(of)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1) or ["see help of the command"]
            raise RequestError(f"expected an argument of {of.__name__}, got {name}; perhaps {near[0]}")
    try:
        return from_json(of, {name: _as_flag(value) for name, value in options.items()})
    except ValueError as error:
        raise RequestError(str(error)) from error


def _as_flag(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, and paths as strings, as flags are; others as text."""
    if isinstance(value, PathLike):
        return fspath(value)
    value = value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value
    if isinstance(value, (list, tuple)):
        return [*map(_as_flag, value)]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _several(values: Place | Iterable[Place], name: str) -> tuple[str, ...]:
    """One or several strings or paths. Raises RequestError, also for a set or a dictionary."""
    from raycase.models.embedder import as_texts

    texts: Any = _as_flag(values) if isinstance(values, (list, tuple, PathLike)) else values
    return tuple(as_texts(texts, name))


@names_arguments
def load(model: Place = "minilm-conditional-v3", **options: Any) -> Embedder:
    """Load a model.

    Args:
        model: one that ships, a name in the table of encoders, a Hugging Face id or a folder.
        options: `device` ("cpu", "cuda", "xpu", "mps"), `dtype` (of torch), `batch_tokens`, and how the model reads a
            pair: `prompt`, `pooling`, `subtract`, `dim` (`raycase.models.registry.resolve`).

    Raises:
        ValueError: for a model or an option that cannot be used.

    Examples:
        >>> model = raycase.load()
        >>> sentences = ["Two girls in red dresses play soccer.", "A boy in a red shirt sleeps.", "Two men talk."]
        >>> color = model.encode(sentences, condition="color of the clothes")
        >>> color.shape
        (3, 512)
        >>> number = model.encode(sentences, condition="number of people")
        >>> bool(model.similarity(color[0], color)[0, 1] > model.similarity(number[0], number)[0, 1])
        True
        >>> model.encode_grid(sentences, ["color of the clothes", "number of people"]).shape
        (3, 2, 512)
    """
    from raycase.models.registry import load as load_system

    return load_system(fspath(model), **options)


@names_arguments
def embed(
    input: Place, output: Place | None = None, *, conditions: str | Iterable[str] = (), **options: Any
) -> dict[str, Any]:
    """Embed a corpus under conditions, as `raycase embed` does. The same call again resumes a job that was stopped.

    Args:
        input: file, folder or glob of the texts, local or on object storage.
        output: folder of the vectors; none beside `into`.
        conditions: one or several; every text is embedded under each.
        options: the other flags of the command, such as `any_condition=True` or `index="captions.lance"`.

    Returns:
        What the last line of the command holds: counts of rows and pairs, seconds, places.

    Raises:
        ValueError: for a wrong request.
        RuntimeError: if the work failed.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = pathlib.Path(folder, "texts.csv")
        ...     _ = rows.write_text("text\\nTwo girls in red dresses play soccer.\\nA boy sleeps.\\n")
        ...     result = raycase.embed(rows, folder + "/out", conditions=["color of the clothes", "number of people"])
        >>> result["rows_out"], result["pairs"]
        (2, 4)
    """
    from raycase.commands.embed import EmbedFlags, embed_corpus

    return embed_corpus(
        _flags(EmbedFlags, input=input, output=output, conditions=_several(conditions, "conditions"), **options)
    )


@names_arguments
def train(system: str, *, output: Place, **options: Any) -> dict[str, Any]:
    """Train a system, as `raycase train SYSTEM` does, and save a model folder.

    Args:
        system: "case", "condition-pooling", "bi-encoder" or another one of `raycase train --help`.
        output: the model folder.
        options: the flags of the system, such as `train` and `validation`.

    Returns:
        The contents of `metrics.json`. Raises as `embed`.

    Examples:
        >>> raycase.train("case", train="train.csv", validation="v.csv", output="runs/case")  # doctest: +SKIP
    """
    from raycase.commands.train import TRAIN_FLAGS, train_model

    if system not in TRAIN_FLAGS:
        raise RequestError(f"system: expected one of {', '.join(TRAIN_FLAGS)}, got {system!r}")
    return train_model(_flags(TRAIN_FLAGS[system], output=output, **options))


@names_arguments
def evaluate(model: Place | Iterable[Place], data: Place, output: Place, **options: Any) -> dict[str, Any]:
    """Measure models on a task's judgements, as `raycase evaluate` does, and write a report.

    Args:
        model: one or several, as for `load`; the others are compared with the first.
        data: the judgements.
        output: folder of the report.
        options: the other flags of the command, such as `task="labelled"`.

    Returns:
        The contents of `metrics.json`. Raises as `embed`.

    Examples:
        >>> raycase.evaluate(["runs/case", "minilm"], "validation.csv", "runs/report")  # doctest: +SKIP
    """
    from raycase.commands.evaluate import EvaluateFlags, measure

    return measure(_flags(EvaluateFlags, model=_several(model, "model"), data=data, output=output, **options))


def to_sentence_transformer(model: Embedder) -> SentenceTransformer:
    """The model that `load` gave, as one of sentence-transformers: `encode(texts, condition=...)`, or of pairs
    `(text, condition)`.

    Its vectors are those of `model.encode`, computed where the model was loaded. Raises ValueError for a system that
    scores pairs and has no vectors.

    Examples:
        >>> model = raycase.load()
        >>> converted = raycase.to_sentence_transformer(model)
        >>> texts = ["A girl in a red dress", "A man in a suit"]
        >>> bool((converted.encode(texts, condition="color") == model.encode(texts, "color")).all())
        True
    """
    _check_embedder(model)
    from sentence_transformers import SentenceTransformer

    from raycase.integrations.sentence_transformers import Conditional

    return SentenceTransformer(modules=[Conditional(model)], device="cpu", similarity_fn_name="cosine")


@names_arguments
def to_mteb(model: Embedder, condition: str | None = None) -> ConditionalEncoder:
    """The model that `load` gave, for `mteb.evaluate`: it embeds texts under the condition, or unconditionally.

    Queries with an instruction of their own are searched under it: the documents' vectors depend on it too. Raises
    ValueError for a system that scores pairs and has no vectors, for a condition that it cannot embed, and where mteb
    is not installed.

    Examples:
        >>> model = raycase.to_mteb(raycase.load(), condition="color of the clothes")
        >>> model.mteb_model_meta.name, model.mteb_model_meta.embed_dim
        ('raycase/minilm-conditional-v3', 512)
    """
    _check_embedder(model)
    with needs_package("mteb", "mteb"):
        from raycase.integrations.mteb import ConditionalEncoder

    model.encode(["a"], condition)
    return ConditionalEncoder(model, condition)


def _check_embedder(model: Embedder) -> None:
    """Raise RequestError for what has no vectors."""
    from raycase.models.embedder import Embedder

    if not isinstance(model, Embedder):
        raise RequestError(f"model: expected a model from raycase.load that embeds, got {type(model).__name__}")
