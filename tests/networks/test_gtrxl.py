"""The gated transformer-XL: what its formulas say, and which steps it sees."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxppo.networks import transformer
from jaxppo.networks.transformer import GTrXL

LENGTH, NUM, FEATURES = 14, 3, 4
MODULE = GTrXL(size=6, num_layers=2, num_heads=3, window=4, mlp_size=7)
APPLY = jax.jit(MODULE.apply)


@functools.cache
def example() -> tuple[Any, Any, jax.Array, jax.Array]:
    """Parameters away from their symmetric start, an empty carry, features and some resets."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(LENGTH, NUM, FEATURES)), jnp.float32)
    reset = np.zeros((LENGTH, NUM), bool)
    reset[[5, 6, 11], [1, 1, 2]] = True
    empty = MODULE.initial_carry(NUM)
    params = jax.jit(MODULE.init)(jax.random.key(0), empty, x, jnp.asarray(reset))
    moved = jax.tree.map(lambda p: p + rng.normal(size=p.shape).astype(np.float32) / 3, params)
    return moved, empty, x, jnp.asarray(reset)


@pytest.mark.long
def test_it_is_its_formulas_in_float64() -> None:
    """In both forms of the attention: of a whole sequence, and of a step."""
    params, carry, x, reset = example()
    expected = oracles.gtrxl(params["params"], np.asarray(x), np.asarray(reset), 3, 4)
    _, outputs = APPLY(params, carry, x, reset)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    for t in range(LENGTH):
        carry, y = APPLY(params, carry, x[t : t + 1], reset[t : t + 1])
        np.testing.assert_allclose(y[0], expected[t], rtol=1e-4, atol=1e-5)


def test_steps_and_sequences_take_different_forms() -> None:
    few = [transformer._few(length, 4 + length, 6, 3) for length in (1, LENGTH)]
    assert few == [True, False]
    default = GTrXL()
    size, window, heads = default.size, default.window, default.num_heads
    few = [transformer._few(length, window + length, size, heads) for length in (1, 32)]
    assert few == [True, False]


TWO_LAYERS = GTrXL(size=24, num_layers=2, num_heads=3, window=3, mlp_size=7)


@jax.jit
def slopes(x: jax.Array, opens: jax.Array) -> jax.Array:
    """The gradient of each output `[L]` by all inputs `[L, 1, F]`, at first parameters."""
    empty = TWO_LAYERS.initial_carry(1)
    params = TWO_LAYERS.init(jax.random.key(0), empty, x, opens)
    return jax.jacrev(lambda x: TWO_LAYERS.apply(params, empty, x, opens)[1].sum((1, 2)))(x)


def influence(length: int, reset: Any) -> np.ndarray[Any, Any]:
    """Whether output t `[length, ...]` depends on input j `[..., length]`, of one sequence."""
    x = jax.random.normal(jax.random.key(1), (length, 1, FEATURES))
    return np.abs(slopes(x, jnp.asarray(reset)[:, None])).sum((2, 3)) > 0


@pytest.mark.long
def test_it_sees_the_window_of_each_layer_and_no_more() -> None:
    found = influence(10, np.zeros(10, bool))
    distance = np.arange(10)[:, None] - np.arange(10)
    np.testing.assert_array_equal(found, (distance >= 0) & (distance <= 3 * 2))


def test_an_episode_never_sees_an_earlier_one() -> None:
    params, empty, x, reset = example()
    episode = np.cumsum(reset, axis=0)
    earlier = episode < episode[-1]
    one, other = (
        APPLY(params, empty, given, reset)[1]
        for given in (x, x + 3.0 * jnp.asarray(earlier)[..., None])
    )
    np.testing.assert_array_equal(one[~earlier], other[~earlier])
    assert not np.isclose(one[earlier], other[earlier]).all(-1).any()
    # Nor by the carry, at which a later call looks
    for length in (1, LENGTH):
        opens = jnp.zeros((length, NUM), bool).at[0].set(True)
        _, fresh = APPLY(params, empty, x[:length], opens)
        before, _ = APPLY(params, empty, 9.0 * x, jnp.zeros((LENGTH, NUM), bool))
        after, later = APPLY(params, before, x[:length], opens)
        np.testing.assert_array_equal(fresh, later)
        np.testing.assert_array_equal(after["count"], min(length, 4))


def test_a_step_beyond_the_windows_changes_nothing_through_the_carry() -> None:
    params, carry, x, _ = example()
    quiet = jnp.zeros((1, NUM), bool)

    def last(x: jax.Array, length: int) -> jax.Array:
        now = carry
        for t in range(length):
            now, y = APPLY(params, now, x[t : t + 1], quiet)
        return y

    for age, seen in ((8, True), (9, False)):  # 2 layers x 4 steps
        other = x.at[12 - age].add(1.0)
        assert np.array_equal(last(x, 13), last(other, 13)) != seen


@pytest.mark.long
def test_layers_start_close_to_the_identity() -> None:
    x, y = jax.random.normal(jax.random.key(0), (2, 50, 6))
    distances = []
    for bias in (0.0, 2.0, 9.0):
        gate = transformer._Gate(bias)
        out, _ = jax.jit(gate.init_with_output)(jax.random.key(1), x, y)
        distances.append(float(jnp.abs(out - x).mean()))
    assert distances[0] > 2 * distances[1] > 10 * distances[2]
