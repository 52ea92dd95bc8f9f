"""Rated pairs with random states or vectors, random columns of labelled texts, and heads of condition pooling."""

import numpy as np
import torch

from raycase.commands.train import ConditionPoolingFlags
from raycase.heads.condition_head import ConditionHead
from raycase.models.pairs import PairVectors
from raycase.tokens.stored import StoredStates
from raycase.training.condition_head import HeadData
from raycase.training.head_states import PairStates, States
from raycase.training.label_batches import ColumnIndex

JOB = ConditionPoolingFlags(output="", heads=2, head_dim=4, hidden=3, dim=6, batch_size=8, epochs=2, dropout=0.0)
WIDTH, SENTENCES, CONDITIONS = 5, 30, 7


def pairs(rows=40, seed=0, *, sentences=SENTENCES, tokens=9, ratings=(-1, 1, 2, 3, 4, 5)):
    """Random states and ratings, as Ray's object store gives them: read-only; two pairs each of the same sentences."""
    random = np.random.default_rng(seed)
    parts = [random.standard_normal((random.integers(1, tokens), WIDTH)).astype(np.float16) for _ in range(sentences)]
    states = States(
        sentences=StoredStates.of(parts, WIDTH),
        unconditional=np.stack([part.astype(np.float32).mean(0) for part in parts]),
        conditions=random.standard_normal((CONDITIONS, WIDTH)).astype(np.float32),
    )
    made = PairStates(
        states=states,
        sentence_index=random.integers(0, sentences, ((rows + 1) // 2, 2)).repeat(2, axis=0)[:rows],
        condition_index=random.integers(0, CONDITIONS, rows),
        groups=np.arange(rows) // 2,
        ratings=random.choice(ratings, rows).astype(np.float32),
    )
    return read_only(made, states, states.sentences)


def learned(rated, *columns):
    """Rated pairs and columns of the same texts, as a head learns from them."""
    return HeadData(rated=rated, columns=[*columns])


def column(texts=20, seed=0, *, labels=3):
    """Some of the sentences of `pairs` with random labels, two of them of one group, under two of the conditions; one
    label has an answer."""
    random = np.random.default_rng(seed)
    *texts, answer = random.permutation(SENTENCES)[: texts + 1]
    made = ColumnIndex(
        texts=np.array(texts),
        labels=np.eye(labels, dtype=bool)[random.integers(0, labels, len(texts))],
        wordings=random.permutation(CONDITIONS)[:2],
        groups=np.maximum(np.arange(labels) - 1, 0),
        answers=(np.array([answer]), *[np.zeros(0, np.int64)] * (labels - 1)),
        stated=None,
    )
    return read_only(made)


def vector_pairs(rows=80, seed=0, *, vectors=60, dim=8, ratings=(-1, 1, 2, 3, 4, 5)):
    """Random vectors and ratings, read-only."""
    random = np.random.default_rng(seed)
    made = PairVectors(
        vectors=random.standard_normal((vectors, dim)).astype(np.float32),
        pair_index=random.integers(0, vectors, (rows, 2)),
        ratings=random.choice(ratings, rows).astype(np.float32),
    )
    return read_only(made)


def read_only(*made):
    """The first one; the arrays of all are read-only from now on."""
    for array in [value for each in made for value in vars(each).values() if isinstance(value, np.ndarray)]:
        array.flags.writeable = False
    return made[0]


def head_of(job=JOB, seed=0):
    torch.manual_seed(seed)
    return ConditionHead(job.shape(WIDTH)).eval()
