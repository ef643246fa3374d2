"""Permutations: exact ones for every size, and mixed as well as chance would."""

import jax
import numpy as np
import pytest

from jaxppo.kernels.permutations import random_permutation

NUM_KEYS = 8192


def permutations(num_keys: int, n: int, seed: int = 0) -> np.ndarray:
    """`[num_keys, n]`, a permutation of each of as many keys."""
    keys = jax.random.split(jax.random.key(seed), num_keys)
    return np.asarray(jax.jit(jax.vmap(lambda key: random_permutation(key, n)))(keys))


@pytest.mark.parametrize("n", [1, 2, 7, 63, 72, 100_003, 131_072])
def test_every_number_once(n: int) -> None:
    result = permutations(6, n)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(np.sort(result, axis=1), np.broadcast_to(np.arange(n), (6, n)))


@pytest.mark.parametrize("n, walks", [(64, False), (72, False), (100_100, False), (101, True)])
def test_sizes_that_have_factors_take_no_walk(n: int, walks: bool) -> None:
    """A loop of unknown length makes a GPU wait for the host."""
    jaxpr = jax.make_jaxpr(lambda key: random_permutation(key, n))(jax.random.key(0))
    assert ("while" in str(jaxpr)) == walks


@pytest.mark.parametrize("n", [100, 512])
def test_a_key_alone_or_mapped_gives_the_same_and_others_another(n: int) -> None:
    mapped = permutations(256, n)
    assert len(np.unique(mapped, axis=0)) == 256
    keys = jax.random.split(jax.random.key(0), 256)
    compiled = jax.jit(random_permutation, static_argnums=1)
    np.testing.assert_array_equal(compiled(keys[2], n), mapped[2])
    if n == 100:
        np.testing.assert_array_equal(random_permutation(keys[1], n), mapped[1])


@pytest.fixture(scope="module", params=[100, 101, 128])
def drawn(request: pytest.FixtureRequest) -> np.ndarray:
    """Permutations `[NUM_KEYS, n]`: 10 x 10, a prime, an odd power of two."""
    return permutations(NUM_KEYS, request.param)


def test_every_element_is_anywhere_equally_often(drawn: np.ndarray) -> None:
    n = drawn.shape[1]
    expected = NUM_KEYS / n
    counts = np.stack([np.bincount(drawn[:, place], minlength=n) for place in range(n)])
    chi_square = np.sum((counts - expected) ** 2 / expected, axis=0)  # of each element
    # Chi-square of k degrees of freedom has mean k and variance 2 k; in all, k = (n - 1)^2.
    assert chi_square.max() < (n - 1) + 6.0 * np.sqrt(2.0 * (n - 1))
    assert abs(chi_square.sum() - (n - 1) ** 2) < 5.0 * np.sqrt(2.0) * (n - 1)


def test_first_two_are_any_pair_equally_often(drawn: np.ndarray) -> None:
    n = drawn.shape[1]
    num_pairs = n * (n - 1)
    counts = np.bincount(drawn[:, 0] * n + drawn[:, 1], minlength=n * n).reshape(n, n)
    assert np.all(np.diag(counts) == 0)
    expected = NUM_KEYS / num_pairs
    chi_square = np.sum((counts[~np.eye(n, dtype=bool)] - expected) ** 2 / expected)
    # Where few fall on each pair, the variance is larger by 1 / expected.
    bound = 5.0 * np.sqrt(num_pairs * (2.0 + 1.0 / expected))
    assert abs(chi_square - (num_pairs - 1)) < bound


def test_neighbours_stay_neighbours_no_more_often_than_by_chance(drawn: np.ndarray) -> None:
    n = drawn.shape[1]
    for step in (1, -1):  # n - 1 places, each with probability 1 / n
        adjacent = np.mean(np.diff(drawn, axis=1) == step)
        assert abs(adjacent - 1.0 / n) < 5.0 * np.sqrt(1.0 / n / (NUM_KEYS * (n - 1)))


def test_one_fixed_point_on_average(drawn: np.ndarray) -> None:
    num_fixed = np.sum(drawn == np.arange(drawn.shape[1]), axis=1)  # nearly Poisson of mean 1
    assert abs(num_fixed.mean() - 1.0) < 5.0 / np.sqrt(NUM_KEYS)
    assert abs(num_fixed.var() - 1.0) < 0.1


@pytest.mark.long
def test_any_two_share_a_minibatch_as_often_as_by_chance(drawn: np.ndarray) -> None:
    n, num_minibatches = drawn.shape[1], 4
    size = n // num_minibatches
    minibatch = np.argsort(drawn, axis=1) // size  # [NUM_KEYS, n], of each element
    together = sum(
        member.T @ member
        for member in ((minibatch == m).astype(np.float32) for m in range(num_minibatches))
    )
    chance = (size - 1) / (n - 1)
    error = together / NUM_KEYS - chance
    deviations = error[np.triu_indices(n, 1)] / np.sqrt(chance * (1.0 - chance) / NUM_KEYS)
    assert np.abs(deviations).max() < 6.0
    assert abs(np.sqrt(np.mean(deviations**2)) - 1.0) < 0.25


def test_minibatches_of_the_default_run_hold_no_trace_of_order() -> None:
    n, num_minibatches = 131_072, 16
    order = permutations(4, n).reshape(4, num_minibatches, -1)
    size = order.shape[-1]
    # The mean of a minibatch of numbers drawn without replacement from 0 .. n - 1.
    deviation = np.sqrt((n**2 - 1) / 12.0 / size * (1.0 - size / n))
    means = order.mean(axis=-1)
    assert np.all(np.abs(means - (n - 1) / 2.0) < 5.0 * deviation)
    # Neighbours in time and in environment fall into one minibatch by chance alone.
    minibatch = np.argsort(order.reshape(4, n), axis=1) // size
    chance = (size - 1) / (n - 1)
    for stride in (1, 2, 128, 1024, n // 2):
        together = np.mean(minibatch[:, stride:] == minibatch[:, :-stride])
        noise = np.sqrt(chance * (1.0 - chance) / (4 * (n - stride)))
        assert abs(together - chance) < 5.0 * noise
