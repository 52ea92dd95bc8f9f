"""Model folders: written by training, read by `raycase.load`. `raycase.json` is written last: it marks a whole one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from raycase.encoder.choices import MODES, PROMPTS, SETTINGS, is_causal, without_weights
from raycase.encoder.model_files import CARD, ENCODER_WEIGHTS, METRICS, MODEL_FILE
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import TOKENIZER, library_config, published_tokenizer, weights_folder
from raycase.encoder.table import HERE, MODULES, EncoderSpec
from raycase.errors import RequestError, expecting
from raycase.heads.condition_head import WEIGHTS as HEAD
from raycase.heads.projector import WEIGHTS, save_weights
from raycase.io.json_values import loads
from raycase.io.places import claim
from raycase.io.storage import locate

EXTRA = "extra.safetensors"  # weights that are not the encoder's
ENCODER = "encoder"  # a folder
POOLING, CONFIG = "1_Pooling", "config.json"  # a folder of sentence-transformers, and a file in it
VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OF_TOKENIZER = ("tokenizer.json", TOKENIZER, "chat_template.jinja", "special_tokens_map.json", *VOCABULARIES)
# An encoder that others read, too, is in no folder of its own. Without its configuration it is none: that comes last.
AT_ROOT = (*OF_TOKENIZER, ENCODER_WEIGHTS, POOLING, SETTINGS, PROMPTS, MODULES, CONFIG)
WRITTEN_MODES = {ours: mode for mode, ours in MODES.items()} | {Pooling.MEAN: "mean"}  # over all tokens of a text
LEGACY = {  # flags of a Pooling as TEI and vLLM read them -> its mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
WRITTEN = (MODEL_FILE, *reversed(AT_ROOT), METRICS, CARD, EXTRA, WEIGHTS, HEAD, ENCODER)


def open_model_folder(folder: Path, fingerprint: str, *, overwrite: bool = False) -> dict[str, Any] | None:
    """The metrics of the finished model with this fingerprint in a folder; None if there is none yet."""
    root = locate(str(folder))
    if overwrite and not any((root / name).exists() for name in (METRICS, MODEL_FILE)):
        for name in AT_ROOT:
            if (root / name).exists():
                raise RequestError(
                    f"--output: expected a model that training wrote in {root.uri}, or none, got {name} without "
                    f"{METRICS}; choose another folder"
                )
    results = [name for name in WRITTEN if name != METRICS]
    metrics = claim(root, METRICS, fingerprint, job="this very model", results=results, overwrite=overwrite)
    return metrics if (root / MODEL_FILE).exists() else None


def begin_folder(folder: Path, metrics: dict[str, Any], card: str) -> None:
    """Remove an earlier model, what makes it one first, and write the metrics and the model card; the model follows."""
    root = locate(str(folder))
    for part in (*root.half_written(), *(root / name for name in WRITTEN if name not in (METRICS, CARD))):
        part.remove()
    (root / METRICS).put_json(metrics)
    (root / CARD).put(card.encode())


def write_folder(folder: Path, config: Any, module: nn.Module, metrics: dict[str, Any], card: str) -> None:
    """Write the model folder of a system whose encoder stands elsewhere; module: what was trained above it."""
    begin_folder(folder, metrics, card)
    save_weights(module, folder / config.WEIGHTS)
    config.write(folder)


# ------------------------------------------------------------------------------------------------------- its encoder


def write_fine_tuned(folder: Path, config: Any, model: Any, extra: nn.Module | None) -> None:
    """Write the model of a system that was trained with its encoder, at the root where others read that encoder.

    extra: what is saved beside the library's `model`."""
    spec, place = config.encoder, folder / ENCODER
    save_encoder(model, spec, place)
    if config.text_of_pair is not None:
        assert extra is None, "vLLM would read its weights as the encoder's"
        write_modules(place, spec, model.config.hidden_size)
        for name in AT_ROOT:
            if (place / name).exists():
                (place / name).rename(folder / name)
        if not any(place.iterdir()):  # what other libraries' versions write besides stays there
            place.rmdir()
    if extra is not None:
        save_weights(extra, folder / EXTRA)
    source = f"{HERE}{ENCODER}" if config.text_of_pair is None else HERE
    replace(config, encoder=replace(spec, source=source)).write(folder)


def save_encoder(model: Any, spec: EncoderSpec, folder: Path) -> None:
    """Save a model in the Hugging Face layout, with the tokenizer of its row and what makes f(s) of its states."""
    with expecting(f"expected to write the encoder into {folder}", SafetensorError, raises=OSError):  # of a full disk
        model.save_pretrained(folder, max_shard_size="1000GB")  # one file, whose name is known
    published_tokenizer(spec.source).save_pretrained(folder)
    if spec.published is not None and spec.published.by_library:
        here = Path(weights_folder(spec.source))
        modules = loads((here / MODULES).read_bytes())[1:]
        for name in (MODULES, SETTINGS, PROMPTS, *(module["path"] for module in modules)):
            if (here / name).is_dir():
                shutil.copytree(here / name, folder / name, dirs_exist_ok=True)
            elif (here / name).is_file():
                shutil.copyfile(here / name, folder / name)


def read_elsewhere(spec: EncoderSpec) -> bool:
    """Whether sentence-transformers gives a text the vector of a row, and has a token to pad its batches with."""
    if spec.published or spec.end_token or spec.pooling[0] not in WRITTEN_MODES:
        return False
    reads_alike = spec.causal == is_causal(without_weights(library_config(spec.source)))
    return reads_alike and published_tokenizer(spec.source).pad_token is not None


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
