"""What sentence-transformers keeps beside an encoder's weights: how states become a vector, the prompt, the length.

Read as version 6.2 of the library reads it, in its formats since version 1 (`modules.json` names the modules and their
folders). What is not known in these files is refused by its name; what raycase does otherwise is in docs/encoders.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PretrainedConfig

from raycase.data.fetch import ENCODER_WEIGHTS, check_no_pointer, is_remote
from raycase.data.storage import locate, sha256_of_file
from raycase.encoder.architecture import is_causal, without_weights
from raycase.encoder.model_files import of_folder
from raycase.encoder.pickled_weights import BIN, as_safetensors
from raycase.encoder.pooling import Pooling
from raycase.encoder.published_files import (
    CONFIG,
    KNOWN_DENSE,
    KNOWN_NORMALIZE,
    KNOWN_POOLING,
    KNOWN_PROMPTS,
    KNOWN_SETTINGS,
    LEGACY,
    LENGTHS,
    MODULES,
    OLD_SETTINGS,
    POOLING,
    PROMPTS,
    SETTINGS,
    Settings,
)
from raycase.encoder.table import NORMALIZE, EncoderSpec, Published
from raycase.errors import RequestError

POOLINGS = {  # of the library -> ours; in the order in which it puts them side by side in files of before version 6
    "cls": Pooling.CLS,
    "max": Pooling.MAX,
    "mean": Pooling.MEAN_ALL,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "lasttoken": Pooling.LAST,
}
MODES = {ours: mode for mode, ours in POOLINGS.items()} | {Pooling.MEAN: "mean"}  # over all tokens
# Activation functions of `Dense`, by the last part of their names in torch.nn.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Sigmoid": nn.Sigmoid,
}
WITHOUT_EFFECT = {"Dropout"}  # once a model is trained
TokenCount = Callable[[str], int]  # of a prompt, as the library counts it


def read_modules(settings: Settings) -> list[tuple[str, str]] | None:
    """Name and folder of each module, the Transformer first; None where sentence-transformers never saved the model.

    Raises RequestError for a Transformer in a folder of its own, as versions before 1 had it.
    """
    modules = settings.read(MODULES)
    if modules is None:
        return None
    found: list[tuple[str, str]] = []
    settings.expect(isinstance(modules, list) and bool(modules), modules, MODULES, "a list of modules")
    for module in modules:
        whole = isinstance(module, dict) and all(isinstance(module.get(key), str) for key in ("type", "path"))
        settings.expect(whole, module, MODULES, "type and path of each module")
        kind, path = module["type"], module["path"]
        inside = Path(path).name == path and path != ".." and bool(path or not found)
        settings.expect(inside, module, MODULES, "folders beside it")
        ours = kind.startswith("sentence_transformers.")
        found.append((kind.rpartition(".")[2] if ours else kind, path))
    names = [str(module["name"]) for module in modules if "name" in module]
    settings.expect(len(set(names)) == len(names), names, MODULES, "a name of its own for each module")
    if found[0][1]:
        raise RequestError(
            f"--model: expected the encoder beside modules.json of {settings.source}, got {found[0][0]} in the folder "
            f"{found[0][1]}; save it anew: SentenceTransformer({settings.source!r}).save_pretrained(...)"
        )
    return found


def read_published(
    settings: Settings, modules: list[tuple[str, str]], hidden_size: int, prompt: str, tokens_of: TokenCount
) -> Published:
    """How the model of these settings gives vectors, behind this prompt. Raises RequestError for what raycase does not
    know."""
    (first, _), *others = modules
    if first != "Transformer":
        raise RequestError(
            f"--model: expected a Transformer beside modules.json of {settings.source}, got {first}; "
            "raycase reads encoders of transformers"
        )
    name, values = _transformer(settings)
    settings.check_known(values, name, KNOWN_SETTINGS)
    names = [name for name, _ in others]
    settings.expect(names[:1] == ["Pooling"], names, MODULES, "Pooling after the Transformer")
    poolings, include_prompt = _poolings(settings, f"{others[0][1]}/{CONFIG}", hidden_size)
    dim, after = hidden_size * len(poolings), []
    for name, path in others[1:]:
        if name == "Dense":
            after.append(path)
            dim = _dense(settings, path, dim)["out_features"]
        elif name == "Normalize":
            values = settings.object(f"{path}/{CONFIG}", sure=False)  # most repositories have none
            settings.check_known(values, f"{path}/{CONFIG}", KNOWN_NORMALIZE)
            _by_vector(settings, values, f"{path}/{CONFIG}")
            after.append(NORMALIZE)
        elif name not in WITHOUT_EFFECT:
            raise RequestError(
                f"--model: expected Transformer, Pooling, Dense, Normalize or Dropout in modules.json of "
                f"{settings.source}, got {name}, which raycase does not know; pass --pooling for the encoder without it"
            )
    values = settings.object(PROMPTS)
    settings.check_known(values, PROMPTS, KNOWN_PROMPTS)
    kept = values.get("truncate_dim")
    settings.expect(kept is None or (type(kept) is int and kept > 0), kept, PROMPTS, "truncate_dim above 0")
    return Published(
        pooling=poolings,
        after=tuple(after),
        dim=min(dim, kept or dim),
        prompt=prompt,
        skip=0 if include_prompt or not prompt else tokens_of(prompt),
    )


def _transformer(settings: Settings) -> tuple[str, dict[str, Any]]:
    """The file with the settings of the Transformer, and what it says."""
    for name in (SETTINGS, *OLD_SETTINGS):
        if values := settings.object(name):
            return name, values
    return SETTINGS, {}


def published_length(settings: Settings) -> tuple[int | None, bool]:
    """The most tokens that the settings allow, or None, and whether texts are put in lower case."""
    name, values = _transformer(settings)
    length = next((length for path in LENGTHS if (length := _at(values, path)) is not None), None)
    settings.expect(length is None or (type(length) is int and length > 2), length, name, "a length above 2")
    lower = values.get("do_lower_case", False)
    return length, settings.expect(type(lower) is bool, lower, name, "do_lower_case true or false")


def _at(values: Any, path: tuple[str, ...]) -> Any:
    """The value at the end of a path of keys, or None."""
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _poolings(settings: Settings, name: str, hidden_size: int) -> tuple[tuple[Pooling, ...], bool]:
    values = settings.object(name, needed=True)
    settings.check_known(values, name, KNOWN_POOLING)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for old, mode in LEGACY.items() if values.get(old)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    known = isinstance(modes, list) and bool(modes) and all(isinstance(m, str) and m in POOLINGS for m in modes)
    settings.expect(known, modes, name, f"pooling_mode among {', '.join(POOLINGS)}")
    size = values.get("embedding_dimension", values.get("word_embedding_dimension"))
    settings.expect(size == hidden_size, size, name, f"the encoder's dimension, {hidden_size},")
    included = values.get("include_prompt", True)
    return tuple(POOLINGS[mode] for mode in modes), settings.expect(
        type(included) is bool, included, name, "include_prompt true or false"
    )


def _by_vector(settings: Settings, values: dict[str, Any], name: str) -> None:
    """Raise RequestError for a module that reads or writes anything but the vector."""
    for field in ("module_input_name", "module_output_name"):
        value = values.get(field) or "sentence_embedding"
        settings.expect(value == "sentence_embedding", value, name, f"{field} sentence_embedding")


def _dense(settings: Settings, path: str, width: int | None = None) -> dict[str, Any]:
    """The configuration of a Dense. Raises RequestError for one that does not fit, or does more."""
    name = f"{path}/{CONFIG}"
    values = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}
    values |= settings.object(name, needed=True)
    settings.check_known(values, name, KNOWN_DENSE)
    for field in ("in_features", "out_features"):
        value = values.get(field)
        settings.expect(type(value) is int and 1 <= value <= 2**16, value, name, f"{field} of 1 to 65,536")
    if width is not None:
        settings.expect(values["in_features"] == width, values["in_features"], name, f"in_features {width}")
    settings.expect(type(values["bias"]) is bool, values["bias"], name, "bias true or false")
    settings.expect(not values.get("use_residual"), values.get("use_residual"), name, "use_residual false")
    kind = values["activation_function"]
    known = isinstance(kind, str) and kind.startswith("torch.nn.") and kind.rpartition(".")[2] in ACTIVATIONS
    settings.expect(known, kind, name, f"activation_function of torch.nn among {', '.join(ACTIVATIONS)}")
    _by_vector(settings, values, name)
    return values


def default_prompt(settings: Settings) -> str:
    """The prompt before each text, or ""."""
    values = settings.object(PROMPTS)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if default is None:
        return ""
    settings.expect(isinstance(prompts, dict), prompts, PROMPTS, "prompts by their names")
    prompts = {"query": None, "document": None} | prompts  # which each model has, empty
    known = isinstance(default, str) and default in prompts
    settings.expect(known, default, PROMPTS, "default_prompt_name of prompts")
    prompt = "" if prompts[default] is None else prompts[default]
    plain = isinstance(prompt, str) and "{sentence}" not in prompt and "{condition}" not in prompt
    settings.expect(plain, prompt, PROMPTS, "a prompt without {sentence} and {condition}")
    return str(prompt)


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors_BD: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return F.normalize(vectors_BD, dim=-1)


def load_after(settings: Settings, published: Published) -> nn.Sequential:
    """The modules behind the pooling, in float32.

    Raises RequestError for settings, and ValueError for weights, that do not fit.
    """
    return nn.Sequential(
        *(Normalize() if step == NORMALIZE else _load_dense(settings, step) for step in published.after)
    ).eval()


def _load_dense(settings: Settings, path: str) -> nn.Module:
    values = _dense(settings, path)
    linear = nn.Linear(values["in_features"], values["out_features"], bias=values["bias"])
    weights = load_file(_dense_weights(settings, path))
    expected = {f"linear.{name}": tensor.shape for name, tensor in linear.state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != expected:
        raise ValueError(f"weights {found} in {path}, expected {expected}")
    linear.load_state_dict({name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()})
    return nn.Sequential(linear, ACTIVATIONS[values["activation_function"].rpartition(".")[2]]())


def _dense_weights(settings: Settings, path: str) -> Path:
    """The file with a Dense's weights, as safetensors. Raises ValueError where there is none."""
    if file := of_folder(settings.folder, f"{path}/{ENCODER_WEIGHTS}", settings.pinned):
        check_no_pointer(file)
        return file
    if file := of_folder(settings.folder, f"{path}/{BIN}", settings.pinned):
        return as_safetensors([file], sha256_of_file(file)) / ENCODER_WEIGHTS
    raise ValueError(f"no {ENCODER_WEIGHTS} or {BIN} in {path}")


def dense_identity(source: str, folder: str, published: Published) -> dict[str, str]:
    """sha256 of the settings and weights of each Dense in a folder on this machine. A commit or a listing has them."""
    if is_remote(source) or not Path(folder).is_dir():
        return {}
    files = (Path(folder) / step / name for step in published.after for name in (CONFIG, ENCODER_WEIGHTS, BIN))
    return {f"{file.parent.name}/{file.name}": sha256_of_file(file) for file in files if file.is_file()}


def save_after(source: Settings, published: Published, folder: Path) -> None:
    """Write the folders of the modules behind the pooling beside a saved encoder."""
    for step in published.after:
        if step == NORMALIZE:
            continue
        (folder / step).mkdir(parents=True, exist_ok=True)
        config = of_folder(source.folder, f"{step}/{CONFIG}", source.pinned)
        assert config is not None
        (folder / step / CONFIG).write_bytes(config.read_bytes())
        (folder / step / ENCODER_WEIGHTS).write_bytes(_dense_weights(source, step).read_bytes())


def is_readable(spec: EncoderSpec, model: PretrainedConfig) -> bool:
    """Whether sentence-transformers pools as a row does, where it pools all tokens of a text: not behind an end token
    of raycase's own, nor a decoder that is read both ways."""
    alike = spec.causal == is_causal(without_weights(model))
    return alike and not spec.published and not spec.end_token and len(spec.poolings) == 1 and spec.pooling[0] in MODES


def write_modules(folder: Path, spec: EncoderSpec, model: PretrainedConfig) -> None:
    """Let sentence-transformers, TEI and vLLM read the folder of a saved encoder; spec: a row that `is_readable`."""
    mode = MODES[spec.pooling[0]]
    pooled = {"word_embedding_dimension": model.hidden_size} | {old: new == mode for old, new in LEGACY.items()}
    length = {"max_seq_length": spec.max_tokens, "do_lower_case": spec.lower_case}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate({"Transformer": "", "Pooling": POOLING}.items())
    ]
    locate(str(folder / POOLING / CONFIG)).put_json(pooled)
    locate(str(folder / SETTINGS)).put_json(length)
    locate(str(folder / PROMPTS)).put_json({"prompts": {}, "similarity_fn_name": "cosine"})
    locate(str(folder / MODULES)).put_json(modules)
