"""CSR, the condition-specified router (Lin et al., 2024, section 2): a condition weights the tokens of a sentence.

Claim: in the last layers, the condition's [CLS] query attends to the sentence's keys, and the attention's output is
weighted by the result. A tri-encoder, which encodes each text once, thus comes close to a bi-encoder with no added
parameters.

    score = q_c K_s^T / sqrt(d_k),  w = softmax(score),  h = (1 + w) * h'        (eq. 1)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import normalize

from raycase.encoder.last_layer import LIKE_BERT
from raycase.encoder.pooling import Pooling
from raycase.encoder.sources import load_config
from raycase.encoder.table import ENCODERS
from raycase.errors import RequestError
from raycase.systems.csr_model import CsrConfig
from raycase.systems.csr_router import Asks, CsrForm, Router, Weight
from raycase.systems.fine_tuned_config import starting_encoder
from raycase.systems.word_codes import typical_conditions

PAPERS_ROUTER = {"router": Router.QUERY, "asks": Asks.CLS, "routed": 1, "weight": Weight.ADDED}
# Products of queries and keys have the size that the softmax was trained for. Those of hidden states teach MiniLM more
# (`results/fine_tuning.md`); MPNet's are too small to tell conditions apart (`results/mpnet.md`).
FOR_AVERAGED = {"router": Router.QUERY, "asks": Asks.WORDS, "routed": 3, "weight": Weight.EVEN}
FOR_MINILM = FOR_AVERAGED | {"router": Router.HIDDEN}
LEAST_COSINE = 0.995  # above, a fit hardly learns conditions: MiniLM by the paper's router 1.0000, by its words 0.94


def least_cosine(config: CsrConfig) -> float:
    """The least cosine between one sentence's vectors under 20 conditions: near 1, the system does not see them."""
    conditions = typical_conditions()[:20]
    sentence = "A man in a red shirt throws a ball to his two dogs on the beach."
    prepared = config.prepare([sentence] * len(conditions), conditions)
    vectors_CD = normalize(torch.from_numpy(config.load().encode_prepared(prepared).vectors))
    return float((vectors_CD @ vectors_CD.T).min())


def csr(model: str, **choices: Any) -> CsrConfig:
    """The system before training; choices: the fields of `CsrConfig`. Raises RequestError for contradictions."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=Pooling.MEAN)
    encoder = load_config(spec.source)
    if encoder.model_type not in LIKE_BERT:
        raise RequestError(f"--model: expected an encoder like {', '.join(LIKE_BERT)}, got {encoder.model_type}")
    layers, routed = int(encoder.num_hidden_layers), choices.get("routed", CsrConfig.routed)
    if not 0 <= routed <= layers:
        raise RequestError(f"--routed: expected 0 to {layers} layers of {model}, got {routed}")
    config = CsrConfig(model=model, encoder=replace(spec, separator=": ", subtract=False), **choices)
    if routed == 0 and config.form is CsrForm.TRI and config.compose is None:
        raise RequestError("--routed 0: expected --compose, got none; without either, a condition changes nothing")
    heard = config.router is not Router.QUERY or config.asks is not Asks.CLS or config.compose is not None
    if config.form is CsrForm.BI and heard:
        raise RequestError(
            "--form bi: expected no --router, no --asks and no --compose; its router is the attention of [CLS]"
        )
    return config


def default_router(model: str, form: CsrForm = CsrForm.TRI) -> dict[str, Any]:
    """The paper's router; in tri form, for an encoder that was published as averaged, one that sees the condition."""
    if form is not CsrForm.TRI:
        return dict(PAPERS_ROUTER)
    if model in ENCODERS:
        averaged = ENCODERS[model].pooling[0] is Pooling.MEAN
    else:
        try:
            published = starting_encoder(model, prompted=False).published
        except RequestError:  # `csr` says what cannot be read; what sentence-transformers adds to it is not used here
            published = None
        averaged = published is not None and published.pooling[0] is Pooling.MEAN_ALL
    return dict(PAPERS_ROUTER if not averaged else FOR_MINILM if model == "minilm" else FOR_AVERAGED)


def untrained(model: str, *, pooling: Pooling | None = None) -> CsrConfig:
    """CSR without training (Table 4), with the router that training takes by default. Raises RequestError."""
    if pooling not in (None, Pooling.MEAN):
        raise RequestError(f"--pooling: expected mean, the pooling of csr, got {pooling}; leave the flag out")
    return csr(model, **default_router(model))
