"""LSTM and GRU over a sequence, with one matrix product per step, forward and backward.

The products with the inputs, and those of the parameters' gradients, are computed for all steps at
once (Appleyard et al. 2016, arXiv 1604.01946, section 3). An automatic gradient of a scan computes
them step by step and stores every intermediate array.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.kernels import packing
from jaxppo.kernels.precisions import at, current
from jaxppo.kernels.products import float32_product
from jaxppo.types import PyTree

Carry = tuple[jax.Array, ...]  # [S, H] each; the last is the hidden state
# (carry, input part, hidden part of the gates' pre-activations) -> the next carry. The parts are
# `[S, G]`, where G is H times the number of gates
Gates = Callable[[Carry, jax.Array, jax.Array], Carry]


def lstm_gates(carry: Carry, inputs: jax.Array, hidden: jax.Array) -> Carry:
    """Return (c, h) of an LSTM (Hochreiter and Schmidhuber 1997)."""
    i, f, g, o = jnp.split(inputs + hidden, 4, axis=-1)
    c = jax.nn.sigmoid(f) * carry[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def gru_gates(carry: Carry, inputs: jax.Array, hidden: jax.Array) -> Carry:
    """Return (h,) of a gated recurrent unit (Cho et al. 2014, arXiv 1406.1078)."""
    (r, z, n), (hidden_r, hidden_z, hidden_n) = (jnp.split(x, 3, -1) for x in (inputs, hidden))
    r, z = jax.nn.sigmoid(r + hidden_r), jax.nn.sigmoid(z + hidden_z)
    return ((1.0 - z) * jnp.tanh(n + r * hidden_n) + z * carry[0],)


# The letters are those of the gates in the names of flax's parameters, in the order of `Gates`
CELLS: dict[str, tuple[Gates, str]] = {"lstm": (lstm_gates, "ifgo"), "gru": (gru_gates, "rzn")}


def unroll(
    cell: tuple[Gates, str], params: PyTree, carry: PyTree, x: jax.Array, reset: jax.Array
) -> tuple[PyTree, jax.Array]:
    """Apply a cell of `CELLS`, with the parameters of flax's cell, to a sequence.

    `carry` is what flax's cell has: `(c, h)` or `h`, `[S, H]` each. `x` is `[L, S, F]`; `reset` is
    `[L, S]` bool: the carry counts as 0 there. Return the last carry and the hidden states
    `[L, S, H]`.
    """
    gates, letters = cell

    def joined(of: str) -> tuple[jax.Array, jax.Array]:
        """Return the kernels of all gates side by side `[F, G]`, and the biases `[G]`."""
        each = [params[of + letter] for letter in letters]
        kernels = [part["kernel"] for part in each]
        biases = [part.get("bias", jnp.zeros(part["kernel"].shape[-1])) for part in each]
        return jnp.concatenate(kernels, axis=-1), jnp.concatenate(biases)

    (input_kernel, input_bias), (kernel, bias) = joined("i"), joined("h")
    inputs = float32_product(x, input_kernel) + input_bias
    start = carry if isinstance(carry, tuple) else (carry,)
    end, hidden = _scan(gates, current(), (kernel, bias, inputs, ~reset[..., None], start))
    return end if isinstance(carry, tuple) else end[0], hidden


# kernel `[H, G]`, bias `[G]`, inputs `[L, S, G]`, keep `[L, S, 1]` bool, and the first carry
Given = tuple[jax.Array, jax.Array, jax.Array, jax.Array, Carry]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scan(gates: Gates, asked: str | None, given: Given) -> tuple[Carry, jax.Array]:
    del asked  # for the gradient
    return _run(gates, given, lambda carry: carry[-1])


def _run(gates: Gates, given: Given, output: Callable[[Carry], Any]) -> tuple[Carry, Any]:
    kernel, bias, inputs, keep, start = given

    def step(carry: Carry, now: tuple[jax.Array, jax.Array]) -> tuple[Carry, Any]:
        x, keep = now
        carry = jax.tree.map(lambda c: jnp.where(keep, c, 0), carry)
        carry = gates(carry, x, carry[-1] @ kernel + bias)
        return carry, output(carry)

    return packing.scan(step, start, (inputs, keep))


def _forward(
    gates: Gates, asked: str | None, given: Given
) -> tuple[tuple[Carry, jax.Array], tuple[Given, Carry]]:
    del asked
    end, states = _run(gates, given, lambda carry: carry)
    return (end, states[-1]), (given, states)


def _backward(
    gates: Gates, asked: str | None, kept: Any, gradient: tuple[Carry, jax.Array]
) -> tuple[Any]:
    with at(asked):
        return (_differentiate(gates, kept, gradient),)


def _differentiate(gates: Gates, kept: Any, gradient: tuple[Carry, jax.Array]) -> tuple[Any, ...]:
    (kernel, bias, inputs, keep, start), states = kept
    of_end, of_hidden = gradient
    before = jax.tree.map(
        lambda first, x: jnp.where(keep, jnp.concatenate([first[None], x[:-1]]), 0), start, states
    )
    hidden, of_kernel = jax.vjp(lambda x, k: float32_product(x, k) + bias, before[-1], kernel)

    def step(of_carry: Carry, now: Any) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        of_output, keep, *given = now
        of_carry = (*of_carry[:-1], of_carry[-1] + of_output)
        _, differentiate = jax.vjp(gates, *given)
        of_before, of_inputs, of_gates = differentiate(of_carry)
        of_before = (*of_before[:-1], of_before[-1] + of_gates @ kernel.T)
        of_before = jax.tree.map(lambda g: jnp.where(keep, g, 0), of_before)
        return of_before, (of_inputs, of_gates)

    steps = (of_hidden, keep, before, inputs, hidden)
    reverse = jax.tree.map(lambda x: x[::-1], steps)
    of_start, found = packing.scan(step, of_end, reverse)
    of_inputs, of_gates = jax.tree.map(lambda x: x[::-1], found)
    return of_kernel(of_gates)[1], jnp.sum(of_gates, (0, 1)), of_inputs, None, of_start


_scan.defvjp(_forward, _backward)
