"""What sentence-transformers saved beside an encoder: read by that library, written for it.

The library is imported where `modules.json` is read, and where a model needs its modules behind the states.
"""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raycase.encoder.model_files import PINNED, file_of
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import MODULES, encoder_errors, hub_uri, weights_folder
from raycase.encoder.table import BY_LIBRARY, NORMALIZE, EncoderSpec, Published
from raycase.errors import note
from raycase.io.json_values import loads
from raycase.io.storage import locate

SETTINGS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, CONFIG = "1_Pooling", "config.json"  # a folder, and a file in it
MODES = {"mean": Pooling.MEAN_ALL, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}  # of the library -> ours
LEGACY = {  # flags of a Pooling as TEI and vLLM read them -> its mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
note_once = cache(note)
STATES = {"method": "forward", "method_output_name": "last_hidden_state"}  # what we read of a model


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the library would do with a folder: the most tokens of a text (None: not given), whether texts are in lower
    case, the prompt before each, the dimension that vectors are cut to (None: all), and by what they are compared."""

    max_tokens: int | None
    lower_case: bool
    prompt: str
    truncate_dim: int | None
    similarity: str


def read_layout(source: str) -> Layout | None:
    """What the library saved beside an encoder; None where it saved nothing.

    Raises RequestError for a Transformer that does more than give its last states, and where it is not known, offline,
    whether a repository has one of these files.
    """
    folder = Path(weights_folder(source))
    if match := PINNED.fullmatch(hub_uri(source)):
        for name in (MODULES, SETTINGS, PROMPTS):
            file_of(match[1], f"{match[3]}/{name}" if match[3] else name, match[2], sure=True)
    if not (folder / MODULES).is_file():
        return None
    from sentence_transformers.base.modules import Transformer  # takes seconds to import

    with encoder_errors(f"files of sentence-transformers at {source}"):
        first = loads((folder / MODULES).read_bytes())[0]
        alone = first["type"].endswith(".Transformer") and not first["path"]
        values = Transformer.load_config(str(folder)) if alone else {}
        changed = values.get("config_kwargs") or values.get("config_args") or values.get("query_expansion")
        changed = changed or values.get("transformer_task", "feature-extraction") != "feature-extraction"
        if changed or values.get("modality_config", {}).get("text") != STATES:
            raise ValueError(f"{first!r:.200} with {values!r:.200}, expected a Transformer that gives its last states")
        of_tokenizer = values.get("processor_kwargs") or values.get("tokenizer_args") or {}
        processed = values.get("processing_kwargs", {}).get("text", {})
        lengths = (processed.get("max_length"), of_tokenizer.get("model_max_length"), values.get("max_seq_length"))
        saved = loads((folder / PROMPTS).read_bytes()) if (folder / PROMPTS).is_file() else {}
        prompts = {"query": "", "document": "", None: ""} | saved.get("prompts", {})
        return Layout(
            max_tokens=next(filter(None, lengths), None),
            lower_case=values.get("do_lower_case", False),
            prompt=prompts[saved.get("default_prompt_name")] or "",
            truncate_dim=saved.get("truncate_dim"),
            similarity=saved.get("similarity_fn_name") or "cosine",
        )


class LibraryModules(nn.Module):
    """The library's modules behind the Transformer: states of whole texts -> f(s), in float32."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from sentence_transformers.util import import_module_class

        self.parts = nn.ModuleList()
        for module in loads((Path(folder) / MODULES).read_bytes())[1:]:
            of_library: Any = import_module_class(module["type"], model_name_or_path=folder, trust_remote_code=False)
            self.parts.append(of_library.load(folder, subfolder=_inside(module["path"]), local_files_only=True).float())
        self.eval()

    def forward(self, hidden_BTD: Tensor, real_BT: Tensor, prompt_tokens: int) -> Tensor:
        """States, which of them are no padding, and how many tokens the prompt has: (B, T, D), (B, T) -> (B, K)."""
        features: dict[str, Any] = {"token_embeddings": hidden_BTD.float(), "attention_mask": real_BT.long()}
        features["prompt_length"] = prompt_tokens
        for part in self.parts:
            features = part(features)
        vectors_BK: Tensor = features["sentence_embedding"]
        return vectors_BK


def _inside(path: str) -> str:
    """The path of a module's folder. Raises ValueError for one elsewhere."""
    if Path(path).name != path or path == "..":
        raise ValueError(f"{path!r} in {MODULES}, expected folders beside it")
    return path


def read_published(source: str, layout: Layout, hidden_size: int, tokenizer: Any) -> Published:
    """How the library makes f(s) of states: by a pooling that we have, too, or by its own modules.

    Raises RequestError for modules that it does not give without code of the repository, or that need more than states.
    """
    with encoder_errors(f"modules of sentence-transformers that need states alone at {source}"), torch.no_grad():
        modules = LibraryModules(weights_folder(source))
        dim = modules(torch.ones(1, 2, hidden_size), torch.ones(1, 2), 0).shape[1]
    parts: list[Any] = list(modules.parts)
    pooling, *others = (part.get_config_dict() | {"class": type(part).__name__} for part in parts)
    mode, skips = pooling.get("pooling_mode"), bool(layout.prompt) and not pooling.get("include_prompt", True)
    steps = [other["class"] for other in others if other["class"] != "Dropout"]
    if layout.similarity != "cosine" and steps[-1:] != ["Normalize"]:  # of length 1, all rank alike
        note_once(f"{source} was saved to be compared by {layout.similarity}; raycase compares its vectors by cosine")
    known = MODES.get(mode) if isinstance(mode, str) else None
    read = {other.get(field) for other in others for field in ("module_input_name", "module_output_name")}
    alike = known and pooling["class"] == "Pooling" and not skips and read <= {None, "sentence_embedding"}
    ids = tokenizer(layout.prompt)["input_ids"] if skips else []
    ids = ids[:-1] if ids and ids[-1] in tokenizer.all_special_ids else ids  # the library leaves out the others
    return Published(
        pooling=(known or Pooling.MEAN_ALL,),
        after=tuple(NORMALIZE for _ in steps) if alike and steps in ([], ["Normalize"]) else (BY_LIBRARY,),
        dim=min(dim, layout.truncate_dim or dim),
        prompt=layout.prompt,
        skip=len(ids),
    )


def copy_modules(source: str, folder: Path) -> None:
    """Copy the library's files from an encoder to a saved one."""
    here = Path(weights_folder(source))
    for name in (MODULES, SETTINGS, PROMPTS):
        if (here / name).is_file():
            shutil.copyfile(here / name, folder / name)
    for module in loads((here / MODULES).read_bytes())[1:]:
        if (here / _inside(module["path"])).is_dir():
            shutil.copytree(here / module["path"], folder / module["path"], dirs_exist_ok=True)


WRITTEN_MODES = {ours: mode for mode, ours in MODES.items()} | {Pooling.MEAN: "mean"}  # over all tokens of a text


def write_modules(folder: Path, spec: EncoderSpec, hidden_size: int) -> None:
    """Let sentence-transformers, TEI and vLLM read the folder of a saved encoder; spec: one without `published`."""
    mode = WRITTEN_MODES[spec.pooling[0]]
    pooled = {"word_embedding_dimension": hidden_size} | {old: new == mode for old, new in LEGACY.items()}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate({"Transformer": "", "Pooling": POOLING}.items())
    ]
    locate(str(folder / POOLING / CONFIG)).put_json(pooled)
    locate(str(folder / SETTINGS)).put_json({"max_seq_length": spec.max_tokens, "do_lower_case": spec.lower_case})
    locate(str(folder / PROMPTS)).put_json({"prompts": {}, "similarity_fn_name": "cosine"})
    locate(str(folder / MODULES)).put_json(modules)
