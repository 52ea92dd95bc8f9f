"""Training CSR, on rated pairs; and any system that embeds for knowledge graph completion (section 3.2): the vector of
a head under its relation, as the condition, is trained to be near that of the tail.

Shapes: E entities, N triples (in both directions), B triples of a batch, b of one process, Q queries, D dimensions.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.prepared import Prepared
from raycase.errors import RequestError
from raycase.models.fine_tuned import FineTunedConfig
from raycase.models.pairs import prepare_accepted
from raycase.papers.csr.model import Asks, CsrForm, Router, Weight, csr, default_router
from raycase.papers.csr.task import MEASURES, Known, Triples, filtered_ranks, rank_measures, read_graph
from raycase.training.encoder_fit import Objective, RatedOrGraphJob
from raycase.training.loop import Batches, BatchLoss, Evaluation, computed_rows, epoch_batches, gather, unwrapped
from raycase.training.recipe import TuneRecipe

TEMPERATURE = 0.05  # initial value; learned
MARGIN = 0.02  # SimKGC's, subtracted from the score of the true tail in training


@dataclass(frozen=True, kw_only=True)
class GraphTexts:
    """Triples, tokenised by a system: the entities of their graph alone, and the (head, relation) of each triple."""

    triples: Triples
    alone: Prepared  # (E,)
    queries: Prepared  # (N,)

    @classmethod
    def of(cls, config: Any, parts: Sequence[Triples]) -> list[GraphTexts]:
        """Tokenise sets of triples of one graph. Raises RequestError for a text that cannot be encoded."""
        graph = parts[0].graph
        alone = prepare_accepted(config, graph.entities, None, "--train")
        found = []
        for part in parts:
            sentences, conditions = map(list, zip(*part.pairs, strict=True))
            queries = prepare_accepted(config, sentences, conditions, "--train")
            found.append(cls(triples=part, alone=alone, queries=queries))
        return found


class Contrast(nn.Module):
    """The vectors of queries, tails and heads, from a system that embeds."""

    def __init__(self, system: Any) -> None:
        super().__init__()
        self.system = system
        self.log_inverse_temperature = nn.Parameter(torch.tensor(-math.log(TEMPERATURE)))

    def forward(self, queries: Prepared, entities: Prepared) -> Tensor:
        """B queries, and 2 B entities (tails, then heads) -> (B, 3, D). The length of a query is 1 / temperature."""
        queries_BD = F.normalize(self.system(queries).float(), dim=1) * self.log_inverse_temperature.exp()
        tails_BD, heads_BD = F.normalize(self.system(entities).float(), dim=1).chunk(2)
        return torch.stack([queries_BD, tails_BD, heads_BD], dim=1)


@dataclass(frozen=True, kw_only=True)
class GraphObjective(Objective):
    """SimKGC's contrastive loss on triples in both directions."""

    TASK = "kgc"
    SELECT = "mrr"

    @property
    def terms(self) -> tuple[Any, ...]:
        return (MARGIN,)

    def read(self, train: str, validation: str) -> tuple[Triples, Triples]:
        """Read the training and validation triples. Raises RequestError."""
        graph = read_graph(posixpath.dirname(train) or ".", "--train")
        known, asked = graph.triples(train, "--train"), graph.triples(validation, "--validation")
        shared = Known.of(known).has(asked.queries, asked.rows[:, 2])
        if shared.any():
            raise RequestError(f"--validation: expected triples that are not in --train, got {int(shared.sum())}")
        return known, asked

    def texts(self, parts: Sequence[Triples]) -> list[GraphTexts]:
        return GraphTexts.of(self.config, parts)

    def module(self, system: Any) -> Contrast:
        return Contrast(system)

    def batches(self, train: GraphTexts, recipe: TuneRecipe, seed: int) -> Batches:
        rows = np.random.default_rng(seed).permutation(len(train.triples.rows))
        order = epoch_batches(len(rows), recipe.batch_size, seed)
        return lambda epoch: (rows[batch] for batch in order(epoch))

    def batch_loss(self, train: GraphTexts, recipe: TuneRecipe) -> BatchLoss:
        triples, known = train.triples, Known.of(train.triples)

        def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
            rows_b, count = computed_rows(batch)
            heads, _, tails = triples.rows[rows_b].T
            with self.autocast(module):
                vectors_b3D = module(train.queries.take(rows_b), train.alone.take(np.concatenate([tails, heads])))
            queries_BD, tails_BD, heads_BD = gather(vectors_b3D[:count], len(batch)).unbind(1)
            numbers, (heads, _, tails) = triples.queries[batch], triples.rows[batch].T
            known_BB = torch.from_numpy(known.has(numbers[:, None], tails[None, :])).to(queries_BD.device)
            self_known_B = torch.from_numpy(known.has(numbers, heads)).to(queries_BD.device)
            return contrastive_loss(queries_BD, tails_BD, heads_BD, known_BB, self_known_B)

        return of_batch

    def evaluation(self, train: GraphTexts, validation: GraphTexts) -> Evaluation:
        """MRR and hits x 100 over all entities, in both directions, filtered by training and validation triples."""
        triples, known = validation.triples, Known.of(train.triples, validation.triples)

        def evaluate(module: nn.Module) -> dict[str, float]:
            system: Any = unwrapped(module).system
            system.forget()
            with self.autocast(module):
                entities_ED = system.encode_prepared(validation.alone).vectors
                queries_QD = system.encode_prepared(validation.queries).vectors
            ranks_Q = filtered_ranks(queries_QD, entities_ED, triples, known)
            return dict(zip(MEASURES, (100 * rank_measures(ranks_Q).mean(0)).tolist(), strict=True))

        return evaluate


def contrastive_loss(
    queries_BD: Tensor, tails_BD: Tensor, heads_BD: Tensor, known_BB: Tensor, self_known_B: Tensor
) -> Tensor:
    """InfoNCE with an additive margin, in both directions (SimKGC, Wang et al., 2022, eq. 4):

    -log exp((q_i . t_i - margin) / tau) / (exp((q_i . t_i - margin) / tau) + sum over j of exp(q_i . n_j / tau))

    and the same from tails to queries. Negatives of a query are the batch's other tails and the query's head, without
    those that form known triples (`known_BB`, `self_known_B`). Tails and heads have length 1, queries 1 / tau: the
    gradient of the temperature thus flows through the queries, in the process that holds them.
    """
    true_BB = torch.eye(len(queries_BD), dtype=torch.bool, device=queries_BD.device)
    scores_BB = queries_BD @ tails_BD.T - true_BB.to(queries_BD) * MARGIN * queries_BD.norm(dim=1, keepdim=True)
    scores_BB = scores_BB.masked_fill(known_BB & ~true_BB, float("-inf"))
    self_B1 = (queries_BD * heads_BD).sum(1).masked_fill(self_known_B, float("-inf")).unsqueeze(1)
    target_B = torch.arange(len(queries_BD), device=queries_BD.device)
    return F.cross_entropy(torch.cat([scores_BB, self_B1], dim=1), target_B) + F.cross_entropy(scores_BB.T, target_B)


@dataclass(frozen=True, kw_only=True)
class CsrJob(RatedOrGraphJob):
    """CSR: the condition weights the sentence's tokens in the last layers (Lin et al., 2024).

    The paper's router is --router query --asks cls --routed 1 --weight 1+w. It does not see the condition in an encoder
    that is averaged: there the defaults are --router query --asks words --routed 3 --weight Tw, and --router hidden for
    minilm.
    """

    SYSTEM = "csr"

    form: CsrForm = CsrForm.TRI
    """tri: sentence and condition encoded separately. bi: as one text."""
    router: Router | None = None
    """Query and keys of the router: query, the attention's (the paper's); hidden, hidden states. Default: see
    above."""
    asks: Asks | None = None
    """Query of the condition: cls, the state of its [CLS] (the paper's); words, the mean of its words, and only the
    words of the sentence are weighted. Default: see above."""
    routed: int | None = None
    """Number of last layers with a router, T - t. Default: see above."""
    weight: Weight | None = None
    """Factor of the attention's output: 1+w (the paper's); w; Tw, w times the number of weighted tokens. Default: see
    above."""

    def config(self) -> FineTunedConfig:
        choices = default_router(self.model, self.form)
        choices |= {name: value for name in choices if (value := getattr(self, name)) is not None}
        return csr(self.model, form=self.form, **choices)


JOBS = {"csr": CsrJob}
OBJECTIVES = {"kgc": GraphObjective}
