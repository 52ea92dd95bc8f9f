"""Rated pairs with random states, and random heads of condition pooling."""

import numpy as np
import torch

from raycase.heads.condition_head import ConditionHead
from raycase.io.stored_tokens import StoredStates
from raycase.training.condition_pairs import PairStates
from raycase.training.recipe import HeadRecipe

RECIPE = HeadRecipe(heads=2, head_dim=4, dim=6, batch_size=8, epochs=2, dropout=0.0)
WIDTH = 5


def pairs(rows=40, seed=0, *, sentences=30, tokens=9, ratings=(-1, 1, 2, 3, 4, 5)):
    """Random states and ratings, as Ray's object store gives them: read-only; two pairs each of the same sentences."""
    random = np.random.default_rng(seed)
    parts = [random.standard_normal((random.integers(1, tokens), WIDTH)).astype(np.float16) for _ in range(sentences)]
    made = PairStates(
        sentences=StoredStates.of(parts, WIDTH),
        plain=np.stack([part.astype(np.float32).mean(0) for part in parts]),
        conditions=random.standard_normal((7, WIDTH)).astype(np.float32),
        sentence_index=random.integers(0, sentences, (rows // 2, 2)).repeat(2, axis=0),
        condition_index=random.integers(0, 7, rows),
        groups=np.arange(rows) // 2,
        ratings=random.choice(ratings, rows).astype(np.float32),
        epochs=np.zeros(rows, np.int64),
    )
    arrays = vars(made) | vars(made.sentences)
    for array in arrays.values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return made


def head_of(recipe=RECIPE, seed=0):
    torch.manual_seed(seed)
    return ConditionHead(recipe.head(WIDTH)).eval()
