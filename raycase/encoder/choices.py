"""From a name and choices to a row of the table of encoders, or to one that is made for an encoder outside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from raycase.encoder.loading import LibraryModules, class_of
from raycase.encoder.model_files import INSIDE, PINNED, file_of, is_remote
from raycase.encoder.pooling import LATENT_POOLINGS, OVER_A_SPAN, Pooling
from raycase.encoder.prompts import OwnPrompt, PooledPart
from raycase.encoder.sources import encoder_errors, hub_uri, library_config, published_tokenizer, weights_folder
from raycase.encoder.table import ENCODERS, MODULES, NORMALIZE, EncoderSpec, Published
from raycase.errors import RequestError, note_once
from raycase.io.json_values import loads
from raycase.io.storage import PACKAGE
from raycase.names import PromptStyle

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MOST_TOKENS = 512  # of a prompt, for encoders without any length
POSITIONS = ("position_embeddings", "embed_positions", "wpe")  # names of tables of positions, of BERT, OPT and GPT-2
SETTINGS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"  # of sentence-transformers
MODES = {"mean": Pooling.MEAN_ALL, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}  # of the library -> ours
STATES = {"method": "forward", "method_output_name": "last_hidden_state"}  # what we read of a model
UNLIMITED = 10**9  # a tokenizer without a length gives a larger number than this


def find_encoder(
    name: str, *, prompt: str | None = None, pooling: Pooling | None = None, own: OwnPrompt | None = None
) -> EncoderSpec:
    """The row of the table for `name`, or a row made for a Hugging Face id or a model folder, with the choices applied:
    the chosen pooling first, and `own` as the view `template`, by default the only one."""
    prompt = prompt or (PromptStyle.TEMPLATE if own else None)
    spec = ENCODERS.get(name)
    if own and own.pool:
        pooling = _pooling_over(own.pool, pooling, spec.pooling if spec else None, name)
    if spec is None and prompt is None:
        _check_place(name)
        raise RequestError(f"--model: {name} is not in the table of encoders; pass --prompt")
    spec = _row(name, prompt, pooling)
    if own is not None:
        default = {Pooling.LAST: PooledPart.LAST} | dict.fromkeys(OVER_A_SPAN, PooledPart.CONDITION)
        own = replace(own, pool=own.pool or default.get(spec.pooling[0]))
        spec = replace(spec, own=own, subtract=spec.subtract and own.base_template is not None)
    return replace(spec, prompt=prompt or spec.prompt)


def find_unprompted(name: str, *, pooling: Pooling | None = None) -> EncoderSpec:
    """`find_encoder` for systems that encode each text by itself, outside the table as sentence-transformers does."""
    return replace(_row(name, None, pooling), prompt=PromptStyle.CONCAT_SC)  # not used


def _row(name: str, prompt: str | None, pooling: Pooling | None) -> EncoderSpec:
    """The row of the table, or one outside it, with this pooling first."""
    spec = ENCODERS.get(name) or _spec_outside_table(name, prompt, pooling)
    pooling = pooling or spec.pooling[0]
    if pooling not in spec.pooling:
        raise RequestError(f"--pooling: expected one of {', '.join(spec.pooling)} for {name}, got {pooling}")
    return replace(spec, pooling=(pooling, *(p for p in spec.pooling if p is not pooling)))


def _pooling_over(
    pool: PooledPart, pooling: Pooling | None, available: tuple[Pooling, ...] | None, name: str
) -> Pooling:
    """The pooling that reads these tokens: the chosen one, else the encoder's first."""
    of_part = {PooledPart.LAST: (Pooling.LAST,), PooledPart.SENTENCE: (Pooling.MEAN, Pooling.LATENT)}
    fitting = of_part.get(pool, OVER_A_SPAN)
    found = next((p for p in ([pooling] if pooling else available or fitting) if p in fitting), None)
    if found is None:
        wanted, got = " or ".join(fitting), f"--pooling {pooling}; leave one out" if pooling else name
        raise RequestError(f"--prompt: pool {pool}: expected an encoder with the pooling {wanted}, got {got}")
    return found


def _check_place(name: str) -> None:
    """Raise RequestError for a name that is no Hugging Face id, folder or URI."""
    if is_remote(name) or Path(name).is_dir():
        return
    if "/" not in name:
        raise RequestError(
            f"--model: expected one of {', '.join([*INSIDE, *ENCODERS])}, a Hugging Face id, or a model folder here or "
            f"on object storage, got {name!r}; models of sentence-transformers have ids like sentence-transformers/NAME"
        )
    if name.startswith(PACKAGE):
        had = f"got {name.rpartition('/')[2]} of an earlier one; install that one, or embed again"
        raise RequestError(f"--model: expected a model that ships with this raycase ({', '.join(INSIDE)}), {had}")
    if name.startswith((".", "/", "~")) or name.split("@")[0].count("/") > 1:
        raise RequestError(f"--model: expected a model folder, got {name!r}, which does not exist")


def _spec_outside_table(name: str, prompt: str | None, pooling: Pooling | None) -> EncoderSpec:
    """The row of a Hugging Face id or a folder: with this pooling, else as sentence-transformers pools it; under a
    prompt over the text, as CASE does, and without a default prompt."""
    _check_place(name)
    layout, config = read_layout(name), library_config(name)
    if pooling in LATENT_POOLINGS and not hasattr(config, "latent_attention"):
        raise RequestError(f"--pooling {pooling}: expected an NV-Embed, got a {config.model_type} at {name}")
    tokenizer = published_tokenizer(name)
    with encoder_errors(f"a readable encoder at {name}"):
        model = without_weights(config)
        positions = getattr(config, "max_position_embeddings", None) or 0  # as sentence-transformers reads it
        most = min(int(tokenizer.model_max_length), positions if positions > 0 else UNLIMITED)
        most = (layout and layout.max_tokens) or most
    published = None
    if layout and prompt is None:
        _check_alike(name, layout.prompt, tokenizer)
    if layout and pooling is None:
        published = read_published(name, layout, config.hidden_size, tokenizer)
    elif layout and pooling and layout.prompt and prompt is None:
        published = Published(pooling=(pooling,), after=(), dim=config.hidden_size, prompt=layout.prompt)
    if prompt is not None and pooling is None:
        if published is None or published.by_library or published.dim != config.hidden_size:
            raise RequestError(
                f"--prompt: {name} is not in the table of encoders, and was not saved by sentence-transformers with "
                "one pooling alone; pass --pooling beside it, or leave --prompt out"
            )
        [pooling], published = published.pooling, None
        pooling = Pooling.MEAN if pooling is Pooling.MEAN_ALL else pooling
    causal = is_causal(model)
    return EncoderSpec(
        source=str(Path(name).absolute()) if Path(name).is_dir() else name,
        prompt=prompt or PromptStyle.CONCAT_SC,
        pooling=(pooling or (published.pooling[0] if published else _default_pooling(name, config, causal)),),
        causal=causal,
        max_tokens=int(min(most if most < UNLIMITED else MOST_TOKENS, learned_positions(model))),
        published=published,
        lower_case=layout is not None and layout.lower_case,
    )


def _default_pooling(name: str, config: PretrainedConfig, causal: bool) -> Pooling:
    """What sentence-transformers takes for an encoder that it did not save."""
    saved = next(iter(config.architectures or ()), "")
    if saved.endswith("ForSequenceClassification") and config.num_labels == 1:
        raise RequestError(f"--model: expected an encoder, got {name}, a cross-encoder: it scores pairs of texts")
    return Pooling.LAST if saved.endswith("ForCausalLM") and causal else Pooling.MEAN_ALL


def _check_alike(name: str, prompt: str, tokenizer: Any) -> None:
    """Raise RequestError where the library cuts a text elsewhere, or reads tokens in a prompt that are text here."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special and token.content in prompt]
    if special or tokenizer.truncation_side != "right":
        got = f"{special[0]} in the default prompt" if special else "one that cuts texts at their beginning"
        raise RequestError(f"--model: expected a tokenizer that reads as raycase does at {name}, got {got}")


def without_weights(config: PretrainedConfig) -> PreTrainedModel:
    """The encoder of a configuration, without memory for its weights. Raises ValueError where there is none."""
    with torch.device("meta"):
        return class_of(config).from_config(config)


def is_causal(model: PreTrainedModel) -> bool:
    """Whether its tokens attend to those before them only."""
    has_causal = any(getattr(m, "is_causal", False) for m in model.modules())
    return has_causal and bool(getattr(model.config, "is_causal", True))


def learned_positions(model: PreTrainedModel) -> float:
    """How many tokens a prompt may have for each to have its own weights; infinite where positions are computed."""
    tables = [m for name, m in model.named_modules() if name.split(".")[-1] in POSITIONS and hasattr(m, "weight")]
    padding = [getattr(table, "padding_idx", None) for table in tables]  # RoBERTa's begin behind the padding's
    unused = [max(0 if i is None else i + 1, getattr(t, "offset", 0)) for i, t in zip(padding, tables, strict=True)]
    return min((len(t.weight) - n for t, n in zip(tables, unused, strict=True)), default=float("inf"))


# ----------------------------------------------------------------- what sentence-transformers saved beside an encoder


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the library would do with a folder."""

    max_tokens: int | None  # None: not given
    lower_case: bool
    prompt: str  # before each text
    truncate_dim: int | None  # None: all
    similarity: str


def read_layout(source: str) -> Layout | None:
    """What the library saved beside an encoder; None where it saved nothing. Raises RequestError where it is not known,
    offline, whether a repository has one of these files."""
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


def read_published(source: str, layout: Layout, hidden_size: int, tokenizer: Any) -> Published:
    """How the library makes f(s) of states: by a pooling that we have, too, or by its own modules."""
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
        after=tuple(NORMALIZE for _ in steps) if alike and steps in ([], ["Normalize"]) else (MODULES,),
        dim=min(dim, layout.truncate_dim or dim),
        prompt=layout.prompt,
        skip=len(ids),
    )
