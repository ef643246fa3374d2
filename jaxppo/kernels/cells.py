"""LSTM and GRU over a sequence, with one matrix product per step, forward and backward.

The products with the inputs, and those of the parameters' gradients, are computed for all steps at
once (Appleyard et al. 2016, arXiv 1604.01946, section 3). An automatic gradient of a scan computes
them step by step and stores every intermediate array.

The steps are a scan, whose every step launches several kernels, or inside of `fused` a loop in one
Pallas kernel for Triton: its programs take a block of sequences each through all steps, and keep
the carry in registers.
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxppo.kernels import packing
from jaxppo.kernels.blocks import Indices, call, ceil, dot, indexable, load, matrix, padded, store
from jaxppo.kernels.precisions import at, current
from jaxppo.kernels.products import float32_product
from jaxppo.types import PyTree

MOST_UNITS = 128  # of a cell with a kernel
# Up to so many units the weights stay in the shared memory of a GPU; wider ones are read anew in
# every step
_KEPT_UNITS = 64
_PROGRAMS = 132  # fill the multiprocessors of an H200
_is_fused = jax.make_user_context(default_value=False)

Carry = tuple[jax.Array, ...]  # [S, H] each; the last is the hidden state
# (carry, input part, hidden part of the gates' pre-activations) -> the next carry. The parts are
# `[S, G]`, where G is H times the number of gates
Gates = Callable[[Carry, jax.Array, jax.Array], Carry]


def lstm_gates(carry: Carry, inputs: jax.Array, hidden: jax.Array) -> Carry:
    """Return (c, h) of an LSTM (Hochreiter and Schmidhuber 1997)."""
    return lstm(carry, *jnp.split(inputs + hidden, 4, axis=-1))


def lstm(carry: Carry, i: jax.Array, f: jax.Array, g: jax.Array, o: jax.Array) -> Carry:
    """Return (c, h) of the gates' pre-activations, `[S, H]` each."""
    c = jax.nn.sigmoid(f) * carry[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def gru_gates(carry: Carry, inputs: jax.Array, hidden: jax.Array) -> Carry:
    """Return (h,) of a gated recurrent unit (Cho et al. 2014, arXiv 1406.1078)."""
    (r, z, n), (hidden_r, hidden_z, hidden_n) = (jnp.split(x, 3, -1) for x in (inputs, hidden))
    return _gru(carry, jax.nn.sigmoid(r + hidden_r), jax.nn.sigmoid(z + hidden_z), n, hidden_n)


def gru(carry: Carry, r: jax.Array, z: jax.Array, n: jax.Array, hidden_n: jax.Array) -> Carry:
    """Return (h,) of the gates' pre-activations, `[S, H]` each; that of n has two parts."""
    return _gru(carry, jax.nn.sigmoid(r), jax.nn.sigmoid(z), n, hidden_n)


def _gru(carry: Carry, r: jax.Array, z: jax.Array, n: jax.Array, hidden_n: jax.Array) -> Carry:
    return ((1.0 - z) * jnp.tanh(n + r * hidden_n) + z * carry[0],)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One kind of cell."""

    gates: Gates
    apart: Callable[..., Carry]  # `gates`, with each pre-activation an argument
    letters: str  # of the gates in the names of flax's parameters, in the order of `Gates`
    num_carries: int
    num_sums: int  # gates, the first ones, that need only the sum of input and hidden part

    @property
    def num_parts(self) -> int:
        """Pre-activations of `apart`: sums, then other input parts, then other hidden parts."""
        return 2 * len(self.letters) - self.num_sums


CELLS = {"lstm": Cell(lstm_gates, lstm, "ifgo", 2, 4), "gru": Cell(gru_gates, gru, "rzn", 1, 2)}


def unroll(
    cell: Cell, params: PyTree, carry: PyTree, x: jax.Array, reset: jax.Array
) -> tuple[PyTree, jax.Array]:
    """Apply a cell of `CELLS`, with the parameters of flax's cell, to a sequence.

    `carry` is what flax's cell has: `(c, h)` or `h`, `[S, H]` each. `x` is `[L, S, F]`; `reset` is
    `[L, S]` bool: the carry counts as 0 there. Return the last carry and the hidden states
    `[L, S, H]`.
    """

    def joined(of: str) -> tuple[jax.Array, jax.Array]:
        """Return the kernels of all gates side by side `[F, G]`, and the biases `[G]`."""
        each = [params[of + letter] for letter in cell.letters]
        kernels = [part["kernel"] for part in each]
        biases = [part.get("bias", jnp.zeros(part["kernel"].shape[-1])) for part in each]
        return jnp.concatenate(kernels, axis=-1), jnp.concatenate(biases)

    (input_kernel, input_bias), (kernel, bias) = joined("i"), joined("h")
    inputs = float32_product(x, input_kernel) + input_bias
    start = carry if isinstance(carry, tuple) else (carry,)
    given = kernel, bias, inputs, ~reset[..., None], start
    if is_fused() and _fits(inputs, kernel):
        end, hidden = _fused(cell, current(), _rows(inputs.shape[1], kernel.shape[0]), given)
    else:
        end, hidden = _scan(cell.gates, current(), given)
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


def _before(keep: jax.Array, start: Carry, states: Carry) -> Carry:
    """Return the carry that each step reads, `[L, S, H]`, of those after each step."""
    return tuple(
        jnp.where(keep, jnp.concatenate([first[None], x[:-1]]), 0)
        for first, x in zip(start, states, strict=True)
    )


def _differentiate(gates: Gates, kept: Any, gradient: tuple[Carry, jax.Array]) -> tuple[Any, ...]:
    (kernel, bias, inputs, keep, start), states = kept
    of_end, of_hidden = gradient
    before = _before(keep, start, states)
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


def fused() -> AbstractContextManager[None]:
    """Context in which the steps of a sequence are one kernel, where the cell is narrow enough."""
    return _is_fused(True)


def is_fused() -> bool:
    """Return whether the context is that of `fused`."""
    return bool(_is_fused.value)


def _fits(inputs: jax.Array, kernel: jax.Array) -> bool:
    """Return whether there is a kernel for these shapes."""
    is_narrow = kernel.shape[0] <= MOST_UNITS
    # For one step, as in acting, preparing the kernel's inputs takes more kernels than it saves
    return indexable(2, *inputs.shape) and is_narrow and inputs.shape[0] > 1


def _rows(num: int, units: int) -> int:
    """Return how many of `num` sequences a program computes, so that few registers spill."""
    most = 64 if units <= _KEPT_UNITS else 32
    return min(most, padded(ceil(num * packing.members(), _PROGRAMS)))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _fused(cell: Cell, asked: str | None, rows: int, given: Given) -> tuple[Carry, jax.Array]:
    del asked  # for the gradient
    return _last(_through(cell, rows, False, given)[0])


def _keep(
    cell: Cell, asked: str | None, rows: int, given: Given
) -> tuple[tuple[Carry, jax.Array], Any]:
    del asked
    kernel, _, _, keep, start = given
    states, parts = _through(cell, rows, True, given)
    return _last(states), (kernel, keep, start, states, parts)


def _last(states: Carry) -> tuple[Carry, jax.Array]:
    return tuple(x[-1] for x in states), states[-1]


def _through(cell: Cell, rows: int, keeps: bool, given: Given) -> tuple[Carry, Any]:
    """Return the carries after each step `[L, S, H]`, and where asked the pre-activations."""
    kernel, bias, inputs, keep, start = given
    (length, num, _), units = inputs.shape, kernel.shape[0]
    sizes = [length * num * units] * cell.num_carries
    sizes += [length * num * units * cell.num_parts] * keeps
    flops = 2 * length * num * kernel.size
    forward = partial(_forward_kernel, cell, (length, num, units), rows)
    vectors = (x.reshape(-1) for x in (kernel, bias, inputs, keep.astype(jnp.float32), *start))
    found = call(cell.letters, forward, (ceil(num, rows),), sizes, flops, *vectors)
    states = tuple(x.reshape(length, num, units) for x in found[: cell.num_carries])
    return states, found[cell.num_carries :]


def _back(
    cell: Cell, asked: str | None, rows: int, kept: Any, gradient: tuple[Carry, jax.Array]
) -> tuple[Any]:
    kernel, keep, start, states, parts = kept
    of_end, of_hidden = gradient
    length, num, units = of_hidden.shape
    before = _before(keep, start, states)
    sizes = [parts[0].size, *[num * units] * cell.num_carries]
    flops = 2 * length * num * kernel.size
    backward = partial(_backward_kernel, cell, (length, num, units), rows)
    given = kernel, *parts, keep.astype(jnp.float32), of_hidden, *before, *of_end
    vectors = (x.reshape(-1) for x in given)
    of_parts, *of_start = call(cell.letters, backward, (ceil(num, rows),), sizes, flops, *vectors)
    of_parts = of_parts.reshape(length, num, -1)
    sums, gates = cell.num_sums * units, len(cell.letters) * units
    of_gates = jnp.concatenate([of_parts[..., :sums], of_parts[..., gates:]], -1)
    with at(asked):
        (of_kernel,) = jax.vjp(partial(float32_product, before[-1]), kernel)[1](of_gates)
    starts = tuple(x.reshape(num, units) for x in of_start)
    return ((of_kernel, jnp.sum(of_gates, (0, 1)), of_parts[..., :gates], None, starts),)


_fused.defvjp(_keep, _back)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Where the sequences of a program are in vectors.

    The vectors are arrays `[L, S, parts, H]`, and `[H, gates, H]` for the weights.
    """

    num: int  # S
    units: int  # H
    rows: int  # of a program
    first: Any  # of this one

    @property
    def columns(self) -> int:
        return padded(self.units)

    def at(self, step: Any, part: int = 0, parts: int = 1) -> Indices:
        width = parts * self.units
        start = (step * self.num + self.first) * width + part * self.units
        return matrix(start, self.num - self.first, self.units, self.rows, self.columns, width)

    def keeps(self, step: Any) -> Indices:
        return matrix(step * self.num + self.first, self.num - self.first, 1, self.rows, 1)

    def weights(self, kernel_ref: Any, num: int) -> Callable[[], list[jax.Array]]:
        """Return a function that a step calls for the weights of each of `num` gates."""
        size, columns, anew = self.units, self.columns, self.units > _KEPT_UNITS

        def read() -> list[jax.Array]:
            places = (i * size for i in range(num))
            shape = size, size, columns, columns, num * size
            return [load(kernel_ref, *matrix(first, *shape), anew) for first in places]

        kept = [] if anew else read()
        return read if anew else lambda: kept


def _block(shape: tuple[int, int, int], rows: int) -> _Block:
    from jax.experimental import pallas as pl

    _, num, units = shape
    return _Block(num, units, rows, pl.program_id(0) * rows)


def _forward_kernel(
    cell: Cell,
    shape: tuple[int, int, int],
    rows: int,
    kernel_ref: Any,
    bias_ref: Any,
    inputs_ref: Any,
    keep_ref: Any,
    *refs: Any,
) -> None:
    """Compute the states of a block of sequences, step by step."""
    block, num, gates = _block(shape, rows), cell.num_carries, len(cell.letters)
    start_refs, state_refs, parts_refs = refs[:num], refs[num : 2 * num], refs[2 * num :]
    weights = block.weights(kernel_ref, gates)
    columns = (matrix(i * block.units, 1, block.units, 1, block.columns) for i in range(gates))
    biases = [load(bias_ref, *index) for index in columns]

    def step(t: Any, carry: Carry) -> Carry:
        keep = load(keep_ref, *block.keeps(t)) > 0
        carry = tuple(jnp.where(keep, x, 0.0) for x in carry)
        hidden = [dot(carry[-1], w) + b for w, b in zip(weights(), biases, strict=True)]
        inputs = [load(inputs_ref, *block.at(t, i, gates)) for i in range(gates)]
        sums = [x + y for x, y in zip(inputs, hidden, strict=True)][: cell.num_sums]
        parts = [*sums, *inputs[cell.num_sums :], *hidden[cell.num_sums :]]
        carry = cell.apart(carry, *parts)
        for ref, x in zip(state_refs, carry, strict=True):
            store(ref, *block.at(t), x)
        for ref in parts_refs:
            for i, part in enumerate(parts):
                store(ref, *block.at(t, i, len(parts)), part)
        return carry

    lax.fori_loop(0, shape[0], step, tuple(load(ref, *block.at(0)) for ref in start_refs))


def _backward_kernel(
    cell: Cell,
    shape: tuple[int, int, int],
    rows: int,
    kernel_ref: Any,
    parts_ref: Any,
    keep_ref: Any,
    of_hidden_ref: Any,
    *refs: Any,
) -> None:
    """Compute the gradients of a block's pre-activations, from the last step to the first."""
    block, num, gates = _block(shape, rows), cell.num_carries, len(cell.letters)
    before_refs, of_end_refs, of_parts_ref = refs[:num], refs[num : 2 * num], refs[2 * num]
    weights = block.weights(kernel_ref, gates)

    def step(turn: Any, of_carry: Carry) -> Carry:
        t = shape[0] - 1 - turn
        *others, of_hidden = of_carry
        of_carry = (*others, of_hidden + load(of_hidden_ref, *block.at(t)))
        before = tuple(load(ref, *block.at(t)) for ref in before_refs)
        places = [block.at(t, i, cell.num_parts) for i in range(cell.num_parts)]
        parts = (load(parts_ref, *place) for place in places)
        of_before, *of_parts = jax.vjp(cell.apart, before, *parts)[1](of_carry)
        for place, gradient in zip(places, of_parts, strict=True):
            store(of_parts_ref, *place, gradient)
        *others, of_hidden = of_before
        for w, of_gate in zip(weights(), of_parts[: cell.num_sums] + of_parts[gates:], strict=True):
            of_hidden += dot(of_gate, w.T)
        keep = load(keep_ref, *block.keeps(t)) > 0
        return tuple(jnp.where(keep, x, 0.0) for x in (*others, of_hidden))

    of_start = lax.fori_loop(
        0, shape[0], step, tuple(load(ref, *block.at(0)) for ref in of_end_refs)
    )
    for ref, x in zip(refs[2 * num + 1 :], of_start, strict=True):
        store(ref, *block.at(0), x)
