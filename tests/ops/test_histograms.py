"""Histograms against NumPy's, and that they add up."""

import jax
import numpy as np

from jaxppo.ops.histograms import LARGE, NUM_BINS, SMALL, counts, edges

compiled = jax.jit(counts)


def test_counts_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(32, 64)) * 10.0 ** rng.uniform(-4, 4, size=(32, 64))).astype(np.float32)
    apart = np.abs(x[..., None] - edges()) > 1e-3 * np.abs(edges())
    x = x[apart.all(-1)]  # not where float32 rounds across
    expected, _ = np.histogram(np.clip(x, *edges()[[0, -1]]), edges())
    np.testing.assert_array_equal(compiled(x), expected)
    assert np.count_nonzero(expected) > 80


def test_edges_ascend_from_the_largest_to_the_largest() -> None:
    np.testing.assert_allclose(edges()[[0, NUM_BINS // 2, -1]], [-LARGE, 0.0, LARGE])
    widths = np.diff(edges())
    assert np.all(widths > 0)
    assert widths.min() < SMALL


def test_what_is_not_finite_is_not_counted_and_what_is_beyond_is() -> None:
    found = compiled(np.float32([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0]))
    assert found.sum() == 3
    assert (found[0], found[-1], found[NUM_BINS // 2]) == (1, 1, 1)


def test_counts_of_two_batches_add_up() -> None:
    x = np.random.default_rng(0).normal(size=(2, 100)).astype(np.float32)
    np.testing.assert_array_equal(compiled(x[0]) + compiled(x[1]), compiled(x))
