"""The linear recurrence against its definition, step by step in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxppo.kernels.recurrences import linear_recurrence

S, N = 3, 4


def inputs(length: int, kind: str = "complex", resets: float = 0.2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(length)

    def draw(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape)
        return x + 1j * rng.normal(size=shape) if kind == "complex" else x

    decay = rng.uniform(0.5, 1.0, N) * (np.exp(1j * rng.uniform(0, 3, N)) if kind != "real" else 1)
    return decay, draw(length, S, N), rng.random((length, S)) < resets, draw(S, N)


def narrow(*arrays: np.ndarray) -> list[jax.Array]:
    kinds = {"c": jnp.complex64, "f": jnp.float32, "b": bool}
    return [jnp.asarray(x, kinds[x.dtype.kind]) for x in arrays]


@pytest.mark.parametrize(
    "length, block, resets, kind",
    [
        *((1, 8, 0.2, "complex"), (6, 8, 0.2, "real"), (24, 4, 0.2, "complex")),
        *((30, 7, 1.0, "complex"), (30, 7, 0.2, "real"), (13, 4, 0.2, "real")),  # 13 is prime
    ],
)
def test_states_and_gradients_equal_those_of_the_definition(
    length: int, block: int, resets: float, kind: str
) -> None:
    """Of a loss that weighs every state differently, by central differences in float64."""
    decay, x, reset, start = inputs(length, kind, resets)
    rng = np.random.default_rng(1)
    weight = rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if kind != "real" else 0)

    def loss(decay: np.ndarray, x: np.ndarray, start: np.ndarray) -> float:
        return (weight * oracles.linear_recurrence(decay, x, reset, start)).real.sum()

    @jax.jit
    def of(*arrays: jax.Array) -> Any:
        def total(decay: jax.Array, x: jax.Array, start: jax.Array) -> Any:
            states = linear_recurrence(decay, x, jnp.asarray(reset), start, block=block)
            return jnp.sum((narrow(weight)[0] * states).real), states

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)

    gradients, states = of(*narrow(decay, x, start))
    expected = oracles.linear_recurrence(decay, x, reset, start)
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-5)
    values = [decay, x, start]
    for i, gradient in enumerate(gradients):
        places = [(n,) for n in range(N)] if i == 0 else [(0, 1, 2), (length // 2, 0, 3)]
        for place in places if i < 2 else [(0, 1), (2, 3)]:
            for direction in (1.0, 1j) if kind == "complex" else (1.0,):
                ends = []
                for sign in (1e-5, -1e-5):
                    moved = values[i].copy()
                    moved[place] += sign * direction
                    ends.append(loss(*(moved if j == i else v for j, v in enumerate(values))))
                slope = (ends[0] - ends[1]) / 2e-5
                # JAX's gradient of a real function holds dL/dx - i dL/dy
                part = gradient[place].real if direction == 1.0 else -gradient[place].imag
                np.testing.assert_allclose(part, slope, rtol=2e-4, atol=2e-4)


def test_a_long_recurrence_takes_few_steps_one_by_one() -> None:
    """The longest loop, forwards and backwards, is a block; the rest is parallel."""
    arrays = narrow(*inputs(1024))

    def of(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(jnp.abs(linear_recurrence(*arrays)))

    def lengths(jaxpr: jax.extend.core.Jaxpr) -> list[int]:
        found = []
        for equation in jaxpr.eqns:
            found += [equation.params["length"]] if equation.primitive.name == "scan" else []
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                found += lengths(inner) if hasattr(inner, "eqns") else []
        return found

    found = lengths(jax.make_jaxpr(jax.grad(of, argnums=(0, 1)))(*arrays).jaxpr)
    assert found
    assert max(found) == 128
