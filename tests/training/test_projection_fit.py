"""Projections without labels: PCA against NumPy's SVD, whitened variances, slices, random weights, refusals."""

import numpy as np
import pytest
import torch
from helpers import cosines

from raycase.errors import RequestError
from raycase.systems.projector import project
from raycase.training import projection_fit
from raycase.training.projection_fit import FITTED, FLOOR, Method, Projection, fit_projection, principal_axes


def spread(count=400, dim=8, seed=0):
    """Vectors far from the origin, whose variances differ, along no axis; read-only, as Ray's object store has them."""
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.standard_normal((dim, dim)))[0]
    vectors = (random.standard_normal((count, dim)) * np.arange(dim, 0, -1)) @ turn + 10 * random.standard_normal(dim)
    vectors = vectors.astype(np.float32)
    vectors.flags.writeable = False
    return vectors


def projected(vectors, method, dim=None, *, fitted_to=None, seed=0, **options):
    g, _ = fit_projection(
        vectors if fitted_to is None else fitted_to, Projection(method=method, dim=dim, **options), seed=seed
    )
    return project(g, vectors)


def by_svd(vectors, dim):
    """The first principal components of the centred vectors, up to sign, by NumPy's SVD of the vectors themselves."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    return (left * scale)[:, :dim]


def test_pca_is_that_of_the_svd():
    vectors = spread()
    found, wanted = projected(vectors, Method.PCA, 5), by_svd(vectors, 5)
    signs = np.sign((found * wanted).sum(0))
    np.testing.assert_allclose(found, wanted * signs, atol=2e-4)
    assert not np.allclose(vectors @ vectors[0], found @ found[0])  # it was centred


def test_pca_of_all_dimensions_keeps_distances_and_the_cosines_of_centred_vectors():
    vectors = spread()
    found, centred = projected(vectors, Method.PCA), vectors - vectors.mean(0, dtype=np.float64)
    np.testing.assert_allclose(cosines(found[1:], found[:-1]), cosines(centred[1:], centred[:-1]), atol=1e-4)


def test_the_share_of_the_variance_is_said_for_each_dimension():
    vectors = spread()
    variances = np.linalg.svd(np.cov(vectors.T.astype(np.float64)))[1]
    for method in FITTED:
        shares = fit_projection(vectors, Projection(method=method, dim=6, nested=(2, 4)))[1]
        assert shares == {str(d): pytest.approx(100 * variances[:d].sum() / variances.sum()) for d in (2, 4, 6)}
    assert fit_projection(vectors, Projection(method=Method.TRUNCATION, dim=6))[1] == {}


@pytest.mark.parametrize("dim", [3, 8])
def test_whitened_vectors_have_mean_zero_and_the_identity_as_covariance(dim):
    vectors = spread()
    found = projected(vectors, Method.WHITENING, dim)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(found.T, bias=True), np.eye(dim), atol=1e-3)


def test_whitening_is_pca_scaled_and_other_vectors_are_moved_by_the_same_mean():
    vectors, others = spread(), spread(50, seed=1)
    pca, white = (projected(others, method, 4, fitted_to=vectors) for method in FITTED)
    scale = projected(vectors, Method.PCA, 4).std(0)
    np.testing.assert_allclose(white, pca / scale, rtol=1e-3, atol=1e-3)
    assert np.abs(pca.mean(0)).max() > 1


def test_directions_without_variance_are_not_magnified():
    """Two equal views: half of the axes have none. Rounding alone is there, and stays small."""
    vectors = np.tile(spread(dim=4), 2)
    white = projected(vectors, Method.WHITENING, 8)
    np.testing.assert_allclose(np.cov(white[:, :4].T, bias=True), np.eye(4), atol=1e-3)
    assert np.isfinite(white).all() and white[:, 4:].std() < 0.05
    g, _ = fit_projection(vectors, Projection(method=Method.WHITENING, dim=8))
    first, *_ = principal_axes(vectors)[1]
    assert np.linalg.norm(next(g.parameters()).detach(), axis=1).max() <= 1.001 / np.sqrt(FLOOR * first)


def test_a_fit_does_not_depend_on_the_chunk_and_needs_no_writable_vectors(monkeypatch):
    vectors = spread()
    wanted = principal_axes(vectors)
    monkeypatch.setattr(projection_fit, "ROWS", 7)
    for found, part in zip(principal_axes(vectors), wanted, strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-9, atol=1e-9)
    assert (wanted[2][np.arange(8), np.abs(wanted[2]).argmax(1)] > 0).all()


def test_truncation_is_a_slice():
    vectors = spread()
    np.testing.assert_array_equal(projected(vectors, Method.TRUNCATION, 3), vectors[:, :3])
    np.testing.assert_array_equal(projected(vectors, Method.TRUNCATION), vectors)


def test_a_random_projection_has_its_seed_and_roughly_keeps_cosines():
    vectors = spread(200, 512)
    first, again, other = (projected(vectors, Method.RANDOM, 256, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1
    errors = cosines(first[1:], first[:-1]) - cosines(vectors[1:], vectors[:-1])
    assert 0 < np.abs(errors).mean() < 2 / np.sqrt(256)
    lengths = np.linalg.norm(first, axis=1) / np.linalg.norm(vectors, axis=1)
    assert abs(lengths.mean() - 1) < 0.1  # scaled by 1 / sqrt(K)


@pytest.mark.parametrize("method", Method)
def test_the_first_dimensions_are_the_smaller_projection_up_to_scale(method):
    vectors = spread()
    whole = projected(vectors, method, 6, nested=(3,), seed=4)
    small = projected(vectors, method, 3, seed=4)
    np.testing.assert_allclose(whole[:, :3] * (np.sqrt(6 / 3) if method is Method.RANDOM else 1), small, atol=1e-4)


@pytest.mark.parametrize("method", Method)
def test_g_is_linear_with_a_bias_where_the_mean_is_taken_off(method):
    g, _ = fit_projection(spread(), Projection(method=method, dim=4, nested=(2, 1, 2)))
    config = g.config
    assert (config.layers, config.dropout, config.input_dim, config.output_dim, config.nested) == (0, 0, 8, 4, (1, 2))
    assert config.bias == (method in FITTED) == (len(list(g.parameters())) == 2)
    assert not g.training and all(p.dtype == torch.float32 for p in g.parameters())


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("method", Method)
def test_more_dimensions_than_the_vectors_have_are_refused(method):
    with pytest.raises(RequestError, match=r"^--dim: expected at most 8, the dimension of the vectors, got 9$"):
        fit_projection(spread(), Projection(method=method, dim=9))
    with pytest.raises(RequestError, match=r"^--nested: expected dimensions below 8, got \(8,\)$"):
        fit_projection(spread(), Projection(method=method, nested=(8,)))


def test_fewer_vectors_than_dimensions_are_refused_where_they_are_fitted_to():
    few = spread(6)
    for method in FITTED:
        with pytest.raises(
            RequestError, match=rf"^--dim: expected fewer dimensions than the 6 vectors that {method} .* got 6;"
        ):
            fit_projection(few, Projection(method=method, dim=6))
        assert projected(few, method, 5).shape == (6, 5)
    for method in set(Method).difference(FITTED):
        assert projected(few, method, 8).shape == (6, 8)


@pytest.mark.parametrize("method", FITTED)
def test_vectors_that_do_not_differ_are_refused(method):
    for value in (0, 0.1):
        same = np.full((20, 8), value, dtype=np.float32)
        with pytest.raises(
            RequestError, match=r"^--train: expected sentences whose vectors differ, got 20 equal vectors"
        ):
            fit_projection(same, Projection(method=method, dim=2))


@pytest.mark.parametrize(
    ("values", "said"),
    [({"dim": 0}, "--dim: expected 1 to 65,536"), ({"nested": (512,)}, "--nested: expected dimensions below 512")],
)
def test_a_value_out_of_range_is_refused_by_its_flag(values, said):
    with pytest.raises(RequestError, match=said):
        Projection(**values).check()
