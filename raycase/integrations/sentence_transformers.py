"""A loaded system as a model of sentence-transformers, for what takes such a model."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base.modules import InputModule

from raycase.encoder.model_files import INSIDE
from raycase.errors import check_problems
from raycase.io.json_values import loads
from raycase.io.storage import locate
from raycase.models.embedder import Embedder
from raycase.models.registry import load, resolve

MODEL = "model"  # folder of the model in what `save` wrote


class Conditional(InputModule):
    """The module that embeds texts, each under its condition, or all without one, on the device where it was loaded.

    A text is a string or a pair (text, condition); `condition=` and `prompt=` of `encode` are that of all strings.
    """

    system: Embedder

    def __init__(self, system: Embedder, model: str = "") -> None:
        super().__init__()
        self.forward_kwargs = {"condition"}  # which `encode` passes on
        self.__dict__["system"] = system  # no submodule: its weights are not the library's to move
        self.model = model or str(system.config.name)

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, condition: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Each text and its condition. Raises ValueError for what is neither, and where some have none."""
        got = (
            f"got {type(condition).__name__}; encode sorts its inputs, so give pairs: encode([(text, condition), ...])"
        )
        both = f"expected condition or prompt, which is the condition here, got {condition!r}, {prompt!r}"
        is_one = condition is None or isinstance(condition, str)
        check_problems({f"condition: expected one string, {got}": not is_one, both: condition is not None and prompt})
        pairs = [_pair(value, prompt or None if condition is None else condition) for value in inputs]
        conditions = [under for _, under in pairs]
        mixed = "expected a condition for each text or for none, got both: their vectors differ in length"
        check_problems({mixed: None in conditions and {*conditions} != {None}})
        return {"texts": [text for text, _ in pairs], "conditions": None if None in conditions else conditions}

    def forward(self, features: dict[str, Any], *, condition: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Adds `sentence_embedding`, (N, D) float32; the condition is in the features."""
        if not features:
            return {"sentence_embedding": torch.empty(0, self.get_embedding_dimension())}
        vectors = self.system.encode(features["texts"], features["conditions"])
        return features | {"sentence_embedding": torch.from_numpy(vectors)}

    def get_embedding_dimension(self) -> int:
        """That of vectors under a condition; unconditional ones may have another."""
        return int(self.system.config.dim)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """The model's name, or where it is a folder, a copy of it beside the configuration."""
        config = self.system.config
        if resolve(self.model).describe() != config.describe():
            raise ValueError(
                f"expected a model as raycase.load({self.model!r}) gives it, got one with choices of its own"
            )
        model, copied = Path(self.model), Path(output_path, MODEL)
        if self.model not in INSIDE and model.is_dir() and model.resolve() != copied.resolve():
            shutil.copytree(model, copied, dirs_exist_ok=True)
        name = MODEL if copied.is_dir() else self.model
        locate(str(Path(output_path, self.config_file_name))).put_json({"model": name})

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        """Read what `save` wrote."""
        place = cls.load_dir_path(model_name_or_path, kwargs.get("subfolder", ""))
        assert place is not None
        folder = Path(place)
        name = loads((folder / cls.config_file_name).read_bytes())["model"]
        return cls(load(str(folder / MODEL) if name == MODEL else name))


def _pair(value: Any, condition: str | None) -> tuple[str, str | None]:
    """A text and its condition. Raises ValueError for anything else."""
    if isinstance(value, str):
        return value, condition
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(part, str) for part in value)
    check_problems(
        {
            f"expected a text or a pair (text, condition), got {value!r:.80}": not is_pair,
            f"expected condition= or pairs, got both: {condition!r} and {value!r:.80}": condition is not None,
        }
    )
    return value[0], value[1]
