"""The settings files that sentence-transformers keeps beside an encoder, and which settings of each are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raycase.data.json_values import loads
from raycase.encoder.model_files import of_folder
from raycase.errors import RequestError

MODULES, SETTINGS, PROMPTS, CONFIG = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "config.json",
)
POOLING = "1_Pooling"  # a folder
OLD_SETTINGS = tuple(  # of versions that had a name for each kind; the first of all that says anything counts
    f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# The settings of each file that are read, or change no vector of `encode`, with the one value that is known, or ANY. A
# model may need what else there is, so it is refused by its name.
ANY = object()
KnownSettings = dict[str, Any]


def _known(*names: str) -> KnownSettings:
    return dict.fromkeys(names, ANY)


# How model, configuration and tokenizer are loaded, numbers are rounded and rows are padded.
OPTIONS = _known("trust_remote_code", "use_safetensors", "low_cpu_mem_usage", "device_map", "dtype", "torch_dtype")
OPTIONS |= _known("attn_implementation", "add_pooling_layer", "use_cache", "use_fast", "padding_side")
LENGTHS = (  # where the most tokens may be; the first that is there counts
    ("processing_kwargs", "text", "max_length"),
    ("tokenizer_args", "model_max_length"),  # of older versions
    ("processor_kwargs", "model_max_length"),
    ("max_seq_length",),
)
KNOWN_SETTINGS = {
    **_known("max_seq_length", "do_lower_case", "unpad_inputs"),
    **_known("query_length", "document_length", "query_expansion"),  # of `encode_query` and `encode_document`
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    "processing_kwargs": {"text": {"max_length": ANY, "truncation": True, "padding": ANY}},
    **dict.fromkeys(("model_kwargs", "model_args", "config_kwargs", "config_args"), OPTIONS),
    **dict.fromkeys(("processor_kwargs", "tokenizer_args"), OPTIONS | _known("model_max_length")),
}
KNOWN_PROMPTS = _known("prompts", "default_prompt_name", "truncate_dim")
KNOWN_PROMPTS |= _known("__version__", "similarity_fn_name", "requirements") | {"model_type": "SentenceTransformer"}
KNOWN_POOLING = _known("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension", *LEGACY)
KNOWN_NORMALIZE = _known("module_input_name", "module_output_name")
KNOWN_DENSE = KNOWN_NORMALIZE | _known("in_features", "out_features", "bias", "activation_function", "use_residual")


@dataclass(frozen=True)
class Settings:
    """The settings of one folder or Hugging Face id, file by file."""

    source: str
    folder: str
    pinned: dict[str, str]

    def read(self, name: str, *, sure: bool = True) -> Any:
        """The JSON in a file; None where there is none. Raises RequestError for anything else in it, and where it is
        not known whether there is one: `sure` as `raycase.data.hub.file_of`."""
        file = of_folder(self.folder, name, self.pinned, sure=sure)
        if file is None:
            return None
        try:
            return loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"--model: expected JSON in {name} of {self.source}, got: {error}") from error

    def object(self, name: str, *, needed: bool = False, sure: bool = True) -> dict[str, Any]:
        """`read` for an object; empty where there is no file, unless it is needed."""
        values = self.read(name, sure=sure)
        if values is None and not needed:
            return {}
        return self.expect(isinstance(values, dict), "no file" if values is None else values, name, "an object")

    def check_known(self, values: dict[str, Any], name: str, known: KnownSettings, inside: str = "") -> None:
        """Raise RequestError for a setting of a file that is not among the known ones, or not as it is known."""
        for key, value in values.items():
            wanted = known.get(key)
            if value is None and key in known:
                continue
            if isinstance(value, dict) and isinstance(wanted, dict):
                self.check_known(value, name, wanted, f"{inside}{key}.")
            elif key not in known or (wanted is not ANY and value != wanted):
                got = f"{inside}{key} {value!r:.100}"
                raise RequestError(
                    f"--model: expected settings that raycase knows in {name} of {self.source}, got {got}; "
                    "pass --pooling for the encoder without it"
                )

    def expect(self, holds: bool, value: Any, where: str, expected: str) -> Any:
        """The value, if it is what is expected. Raises RequestError."""
        if not holds:
            raise RequestError(f"--model: expected {expected} in {where} of {self.source}, got {value!r:.100}")
        return value
