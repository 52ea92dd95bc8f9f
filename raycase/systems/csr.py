"""CSR, the condition-specified router (Lin et al., 2024, section 2): a condition weights the tokens of a sentence.

Claim: in the last layers, the condition's [CLS] query attends to the sentence's keys, and the attention's output is
weighted by the result. A tri-encoder, which encodes each text once, thus comes close to a bi-encoder with no added
parameters.

    score = q_c K_s^T / sqrt(d_k),  w = softmax(score),  h = (1 + w) * h'        (eq. 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import normalize

from raycase.encoder.last_layer import BERT_LAYERS
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Compose, Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import TokenSpan
from raycase.encoder.sources import load_config
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.systems.csr_model import Csr
from raycase.systems.csr_router import Asks, CsrForm, Router, Weight
from raycase.systems.fine_tuned_config import FineTunedEmbedderConfig, starting_encoder
from raycase.systems.model_folder import load_extra
from raycase.systems.pairs import CONDITION, SENTENCE, count_tokens, prepare, prompt_sets
from raycase.systems.word_codes import typical_conditions

PAPERS_ROUTER = {"router": Router.QUERY, "asks": Asks.CLS, "routed": 1, "weight": Weight.ADDED}
FOR_AVERAGED = {"router": Router.HIDDEN, "asks": Asks.WORDS, "routed": 3, "weight": Weight.EVEN}


@dataclass(frozen=True, kw_only=True)
class CsrConfig(FineTunedEmbedderConfig):
    """A CSR system without its weights."""

    SYSTEM: ClassVar[str] = "csr"

    form: CsrForm = CsrForm.TRI
    router: Router = Router.QUERY
    asks: Asks = Asks.CLS
    routed: int = 1  # T - t: number of last layers with a router
    weight: Weight = Weight.ADDED
    compose: Compose | None = None  # with the condition's vector, as in a tri-encoder; not in the paper

    def __post_init__(self) -> None:
        if self.routed < 0:
            raise RequestError(f"--routed: expected 0 or more layers, got {self.routed}")

    @property
    def has_extra(self) -> bool:
        """Whether there are weights besides the encoder's."""
        return self.router is Router.HEAVY

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim * (2 if self.compose is Compose.CONCAT else 1)

    @property
    def weighs_words(self) -> bool:
        """Whether the router weighs the tokens of a sentence that is encoded apart from the condition."""
        return self.form is CsrForm.TRI and self.routed > 0

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct sentence and condition, or in bi form each pair. Loads no weights."""
        if self.form is CsrForm.TRI or conditions is None:
            return prepare(self.encoder, sentences, conditions, alone=[SENTENCE], bases=[CONDITION])
        [prompts] = prompt_sets(self.encoder)
        templates = [prompts.pair, replace(prompts.pair, span=TokenSpan.SENTENCE)]
        return prepare(self.encoder, sentences, conditions, pairs=templates)

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's texts: (N,) int64; 0 for a refused pair."""
        if conditions is None:
            return count_tokens(self.encoder, sentences, conditions, [SENTENCE])
        [prompts] = prompt_sets(self.encoder)
        templates = [SENTENCE, CONDITION] if self.form is CsrForm.TRI else [prompts.pair]
        return count_tokens(self.encoder, sentences, conditions, templates)

    def load(self, **options: Any) -> Csr:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        csr = Csr(self, load_encoder(self.encoder, **options | {"unpadded": False}))
        if csr.heavy is not None:
            load_extra(csr.heavy, self.local)
        return csr


LEAST_COSINE = 0.995  # above, a fit hardly learns conditions: MiniLM by the paper's router 1.0000, by its words 0.94


def least_cosine(config: CsrConfig) -> float:
    """The least cosine between one sentence's vectors under 20 conditions: near 1, the system does not see them."""
    conditions = typical_conditions()[:20]
    sentence = "A man in a red shirt throws a ball to his two dogs on the beach."
    prepared = config.prepare([sentence] * len(conditions), conditions)
    vectors_CD = normalize(torch.from_numpy(config.load().encode_prepared(prepared).vectors))
    return float((vectors_CD @ vectors_CD.T).min())


def csr(
    model: str,
    *,
    form: CsrForm = CsrForm.TRI,
    router: Router = Router.QUERY,
    asks: Asks = Asks.CLS,
    routed: int = 1,
    weight: Weight = Weight.ADDED,
    compose: Compose | None = None,
) -> CsrConfig:
    """The system before training. Raises RequestError for choices that contradict each other."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=Pooling.MEAN)
    config = load_config(spec.source)
    if config.model_type not in BERT_LAYERS:
        raise RequestError(f"--model: expected an encoder like {', '.join(BERT_LAYERS)}, got {config.model_type}")
    layers = int(config.num_hidden_layers)
    if not 0 <= routed <= layers:
        raise RequestError(f"--routed: expected 0 to {layers} layers of {model}, got {routed}")
    if routed == 0 and form is CsrForm.TRI and compose is None:
        raise RequestError("--routed 0: expected --compose, got none; without either, a condition changes nothing")
    if form is CsrForm.BI and (router is not Router.QUERY or asks is not Asks.CLS or compose is not None):
        raise RequestError(
            "--form bi: expected no --router, no --asks and no --compose; its router is the attention of [CLS]"
        )
    return CsrConfig(
        model=model,
        encoder=replace(spec, separator=": ", subtract=False),
        form=form,
        router=router,
        asks=asks,
        routed=routed,
        weight=weight,
        compose=compose,
    )


PREFIX = f"{CsrConfig.SYSTEM}:"  # before the name of an encoder: CSR without training


def default_router(model: str, form: CsrForm = CsrForm.TRI) -> dict[str, Any]:
    """The paper's router; for an encoder of the table that is averaged, in tri form, one that sees the condition."""
    averaged = model in ENCODERS and ENCODERS[model].pooling[0] is Pooling.MEAN
    return dict(FOR_AVERAGED if averaged and form is CsrForm.TRI else PAPERS_ROUTER)


def untrained(model: str, *, pooling: Pooling | None = None) -> CsrConfig:
    """CSR without training (Table 4), with the router that training takes by default. Raises RequestError."""
    if pooling not in (None, Pooling.MEAN):
        raise RequestError(f"--pooling: expected mean, the pooling of csr, got {pooling}; leave the flag out")
    return csr(model, **default_router(model))
