"""Fine-tuning an encoder for knowledge graph completion (CSR, section 3.2): the vector of a head under its relation, as
the condition, is trained to be near that of the tail.

Shapes: E entities, N triples (in both directions), B triples of a batch, Q queries, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.data.graph import Graph, Known, Triples
from raycase.encoder.prepared import Prepared
from raycase.evaluation.ranking import MEASURES, filtered_ranks, rank_measures
from raycase.systems.pairs import prepare_accepted
from raycase.training.encoder_fit import Objective
from raycase.training.loop import Batches, BatchLoss, Evaluation, computed_rows, epoch_batches, gather, unwrapped
from raycase.training.losses import contrastive_loss
from raycase.training.recipe import TuneRecipe

TEMPERATURE = 0.05  # initial value; learned


@dataclass(frozen=True, kw_only=True)
class GraphPart:
    """The training or the validation triples of a graph."""

    graph: Graph
    triples: Triples

    @property
    def uri(self) -> str:
        """The file of the triples."""
        return self.triples.uri

    @property
    def data_sha256(self) -> str:
        """Hash of the triples and the graph's texts."""
        return self.triples.data_sha256

    def __len__(self) -> int:
        return len(self.triples) // 2  # without their inverses


@dataclass(frozen=True, kw_only=True)
class GraphTexts:
    """A graph, tokenised by a system: the entities alone, and the (head, relation) of each triple."""

    triples: Triples
    alone: Prepared  # (E,)
    queries: Prepared  # (N,)

    @classmethod
    def of(cls, config: Any, graph: Graph, triples: Sequence[Triples]) -> list[GraphTexts]:
        """Tokenise sets of triples over the same entities. Raises RequestError for a text that cannot be encoded."""
        alone = prepare_accepted(config.prepare, graph.entities, None, "--train")
        parts = []
        for part in triples:
            heads, relations, _ = part.rows.T.tolist()
            sentences, conditions = [graph.entities[h] for h in heads], [graph.relations[r] for r in relations]
            queries = prepare_accepted(config.prepare, sentences, conditions, "--train")
            parts.append(cls(triples=part, alone=alone, queries=queries))
        return parts


class Contrast(nn.Module):
    """The vectors of queries, tails and heads, from a system that embeds."""

    def __init__(self, system: Any, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        self.system = system
        self.log_inverse_temperature = nn.Parameter(torch.tensor(-math.log(temperature)))

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

    margin: float  # subtracted from the score of the true tail

    def texts(self, parts: Sequence[GraphPart]) -> list[GraphTexts]:
        """The entities and the queries, tokenised."""
        return GraphTexts.of(self.config, parts[0].graph, [part.triples for part in parts])

    def module(self, system: Any) -> Contrast:
        """The system with a learned temperature."""
        return Contrast(system)

    def batches(self, train: GraphTexts, recipe: TuneRecipe, seed: int) -> Batches:
        """Batches of triples."""
        rows = np.random.default_rng(seed).permutation(len(train.triples))
        order = epoch_batches(len(rows), recipe.batch_size, seed)
        return lambda epoch: (rows[batch] for batch in order(epoch))

    def batch_loss(self, train: GraphTexts, recipe: TuneRecipe) -> BatchLoss:
        """The contrastive loss of a batch of triples."""
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
            return contrastive_loss(queries_BD, tails_BD, heads_BD, known_BB, self_known_B, self.margin)

        return of_batch

    def evaluation(self, train: GraphTexts, validation: GraphTexts) -> Evaluation:
        """MRR and hits x 100 over all entities, in both directions, filtered by training and validation triples."""
        known = Known.of(train.triples, validation.triples)

        def evaluate(module: nn.Module) -> dict[str, float]:
            system: Any = unwrapped(module).system
            system.forget()
            with self.autocast(module):
                entities_ED = system.encode_prepared(validation.alone).vectors
                queries_QD = system.encode_prepared(validation.queries).vectors
            ranks_Q = filtered_ranks(
                queries_QD, entities_ED, validation.triples.rows[:, 2], validation.triples.queries, known
            )
            return dict(zip(MEASURES, rank_measures(ranks_Q).mean(0).tolist(), strict=True))

        return evaluate
