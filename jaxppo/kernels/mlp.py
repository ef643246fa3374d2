"""MLPs with their heads as one kernel forward and one backward, for GPUs.

XLA computes an MLP layer by layer: each product, activation and sum over rows is a kernel of its
own that reads and writes activations in memory. Here a program of the kernel takes a block of rows
through all layers and keeps activations in registers. The backward kernel computes them again from
the rows' inputs. The kernels are written with Pallas for Triton.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax

from jaxppo.kernels import packing
from jaxppo.kernels.blocks import Indices, call, ceil, dot, indexable, load, matrix, padded, store

Layer = tuple[jax.Array, jax.Array]  # kernel [F, G], bias [G]

# What fits in the shared memory of an A100, an H100 and an H200: the widest of inputs, layers and
# outputs -> the most hidden layers
MOST_LAYERS = {64: 3, 128: 2}
# At most so many programs in a tower compute gradients: each takes several blocks of rows in turn,
# and writes one sum of them
_PROGRAMS = 66  # two towers fill the 132 multiprocessors of an H200

# Activation, and its derivative from pre-activation and result
ACTIVATIONS: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array]]] = {
    "tanh": (jnp.tanh, lambda z, h: 1.0 - h * h),
    "relu": (lambda z: jnp.maximum(z, 0.0), lambda z, h: jnp.where(z > 0.0, 1.0, 0.0)),
    "silu": (lambda z: z * _sigmoid(z), lambda z, h: _sigmoid(z) * (1.0 + z - h)),
}


def _sigmoid(z: jax.Array) -> jax.Array:
    return 1.0 / (1.0 + jnp.exp(-z))


@dataclasses.dataclass(frozen=True)
class Towers:
    """The shapes of T MLPs, each with a head, that read the same rows.

    Their parameters are one vector: the hidden layers of each tower, then the head of each; of a
    layer the kernel, row by row, and the bias.
    """

    num_inputs: int
    hidden: tuple[int, ...]  # sizes of the hidden layers, the same in all towers
    outputs: tuple[int, ...]  # [T]
    activation: str  # one of ACTIVATIONS
    bfloat16: bool = False  # factors of the hidden layers' products; heads are as the platform does

    def fits(self) -> bool:
        """Return whether there are kernels for these shapes."""
        widest = max(self.num_inputs, *self.hidden, *self.outputs)
        most = next((n for width, n in MOST_LAYERS.items() if widest <= width), 0)
        return self.activation in ACTIVATIONS and 1 <= len(self.hidden) <= most

    def rows(self, num: int) -> int:
        """Return how many of `num` rows a program computes at a time: where it spills least."""
        widest = max(self.num_inputs, *self.hidden, *self.outputs)
        most = 128 if widest <= 64 and len(self.hidden) < 3 else 32
        return min(most, padded(num))

    def dtype(self, layer: int) -> Any:
        """Return the type of the factors of a layer's products."""
        return jnp.bfloat16 if self.bfloat16 and layer < len(self.hidden) else jnp.float32

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each hidden layer."""
        return tuple(zip((self.num_inputs, *self.hidden[:-1]), self.hidden, strict=True))

    def weights(self, towers: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the weights of the first layers, of other hidden layers, and of the heads."""
        first, *hidden = (len(towers) * before * size for before, size in self.sizes)
        return first, sum(hidden), self.hidden[-1] * sum(self.outputs[i] for i in towers)

    @property
    def num_hidden(self) -> int:
        """Parameters of the hidden layers of one tower."""
        return sum((before + 1) * size for before, size in self.sizes)

    @property
    def num_params(self) -> int:
        """Parameters of all towers."""
        heads = sum((self.hidden[-1] + 1) * size for size in self.outputs)
        return len(self.outputs) * self.num_hidden + heads


def apply(shape: Towers, params: Sequence[Sequence[Layer]], x: jax.Array) -> tuple[jax.Array, ...]:
    """Map `[N, F]` to the outputs of each tower, float32 `[N, K]`.

    `params` are the layers of each tower, its head last. Differentiable in reverse mode.
    """
    chex.assert_axis_dimension(x, -1, shape.num_inputs)
    hidden = [array for tower in params for layer in tower[:-1] for array in layer]
    heads = [array for tower in params for array in tower[-1]]
    vector = jnp.concatenate([a.astype(jnp.float32).reshape(-1) for a in (*hidden, *heads)])
    rows = x.astype(jnp.float32).reshape(-1, shape.num_inputs)
    if indexable(rows.shape[0], max(shape.num_inputs, *shape.outputs)):
        outputs = _apply(shape, packing.members(), rows, vector)
    else:
        outputs = plain(shape, rows, vector)
    sizes = zip(outputs, shape.outputs, strict=True)
    return tuple(y.reshape(*x.shape[:-1], size) for y, size in sizes)


def plain(shape: Towers, x: jax.Array, vector: jax.Array) -> tuple[jax.Array, ...]:
    """Return what `apply` does, of `[N, F]` and the vector of parameters, by XLA's products."""
    places = (_places(shape, tower) for tower in range(len(shape.outputs)))

    def filled(place: Indices) -> jax.Array:
        return jnp.where(place[1], vector[place[0]], 0.0)

    towers = [[(filled(kernel), filled(bias)) for kernel, bias in tower] for tower in places]
    x = jnp.pad(x, ((0, 0), (0, padded(shape.num_inputs) - shape.num_inputs)))
    found = [_through(shape, x, weights)[-1][1] for weights in towers]
    return tuple(y[:, :size] for y, size in zip(found, shape.outputs, strict=True))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(shape: Towers, members: int, x: jax.Array, vector: jax.Array) -> tuple[jax.Array, ...]:
    """Compute each tower by itself, so that the compiler leaves out those that nobody reads."""
    del members
    return tuple(_outputs(shape, (i,), x, vector)[0] for i in range(len(shape.outputs)))


def _keep(
    shape: Towers, members: int, x: jax.Array, vector: jax.Array
) -> tuple[tuple[jax.Array, ...], Any]:
    """Compute all towers at once; keep what they are computed from."""
    del members
    return _outputs(shape, tuple(range(len(shape.outputs))), x, vector), (x, vector)


def _outputs(
    shape: Towers, towers: tuple[int, ...], x: jax.Array, vector: jax.Array
) -> tuple[jax.Array, ...]:
    num, flops = x.shape[0], 2 * x.shape[0] * sum(shape.weights(towers))
    grid = len(towers), ceil(num, shape.rows(num))
    sizes = [num * shape.outputs[i] for i in towers]
    kernel = partial(_forward, shape, towers, num)
    found = call("mlp", kernel, grid, sizes, flops, x.reshape(-1), vector)
    return tuple(y.reshape(num, -1) for y in found)


def _gradient(
    shape: Towers, members: int, kept: Any, gradients: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    x, vector = kept
    num = x.shape[0]
    programs = min(ceil(num, shape.rows(num)), max(_PROGRAMS // members, 1))
    towers = tuple(range(len(shape.outputs)))
    grid = len(towers), programs
    first, hidden, heads = shape.weights(towers)
    # Hidden layers again, the gradients of weights, and those of all layers' inputs but the first's
    flops = 2 * num * ((first + hidden) + (first + hidden + heads) + (hidden + heads))
    given = x.reshape(-1), vector, *(g.reshape(-1) for g in gradients)
    kernel = partial(_backward, shape, num, programs)
    (sums,) = call("mlp", kernel, grid, [programs * shape.num_params], flops, *given)
    # The inputs' gradient: the compiler leaves it out where nobody asks for it
    (x_gradient,) = jax.vjp(lambda x: plain(shape, x, vector), x)[1](gradients)
    return x_gradient, jnp.sum(sums.reshape(programs, -1), 0)


_apply.defvjp(_keep, _gradient)


def _forward(
    shape: Towers, towers: tuple[int, ...], num: int, x_ref: Any, vector_ref: Any, *y_refs: Any
) -> None:
    """Compute the outputs of a block of rows in one tower."""
    tower, block = _place(towers)
    x = load(x_ref, *_rows(shape, block, num, shape.num_inputs))
    y = _through(shape, x, _weights(shape, tower, vector_ref))[-1][1]
    for i, y_ref in zip(towers, y_refs, strict=True):
        index, exists = _rows(shape, block, num, shape.outputs[i], max(shape.outputs))
        store(y_ref, index, exists & (tower == i), y)


def _backward(
    shape: Towers, num: int, programs: int, x_ref: Any, vector_ref: Any, *refs: Any
) -> None:
    """Sum the gradient of one tower's parameters over every `programs`-th block of rows."""
    *y_refs, sums_ref = refs
    tower, program = _place(tuple(range(len(shape.outputs))))
    derivative = ACTIVATIONS[shape.activation][1]

    def add(turn: Any, sums: Any) -> Any:
        weights = _weights(shape, tower, vector_ref, anew=True)
        block = program + turn * programs
        x = load(x_ref, *_rows(shape, block, num, shape.num_inputs))
        found = [(x, x), *_through(shape, x, weights)]
        gradient: Any = 0.0
        for i, (size, y_ref) in enumerate(zip(shape.outputs, y_refs, strict=True)):
            index, exists = _rows(shape, block, num, size, max(shape.outputs))
            gradient += load(y_ref, index, exists & (tower == i))
        added = []
        for i in reversed(range(len(weights))):
            dtype = shape.dtype(i)
            kernel_gradient = dot(found[i][1].T, gradient, dtype)
            added.append((kernel_gradient, jnp.sum(gradient, 0)))
            if i:
                gradient = dot(gradient, weights[i][0].T, dtype) * derivative(*found[i])
        return jax.tree.map(jnp.add, sums, added[::-1])

    sums = [
        tuple(jnp.zeros(index.shape, jnp.float32) for index, _ in layer)
        for layer in _places(shape, tower)
    ]
    turns = ceil(ceil(num, shape.rows(num)), programs)
    sums = add(0, sums) if turns == 1 else lax.fori_loop(0, turns, add, sums)
    for layer, total in zip(_places(shape, tower), sums, strict=True):
        for (index, exists), values in zip(layer, total, strict=True):
            store(sums_ref, program * shape.num_params + index, exists, values)


def _place(towers: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the tower of this program, and its number there."""
    from jax.experimental import pallas as pl

    return (pl.program_id(0) if len(towers) > 1 else towers[0]), pl.program_id(1)


def _through(shape: Towers, x: jax.Array, weights: list[Layer]) -> list[Layer]:
    """Return the pre-activation and the result of each layer; the head has no activation."""
    found, activate = [], ACTIVATIONS[shape.activation][0]
    for i, (kernel, bias) in enumerate(weights):
        is_hidden = i < len(shape.hidden)
        z = dot(x, kernel, shape.dtype(i)) + bias
        x = activate(z) if is_hidden else z
        found.append((z, x))
    return found


def _weights(shape: Towers, tower: Any, vector_ref: Any, anew: bool = False) -> list[Layer]:
    """Return the kernel and bias of each layer, padded with zeros.

    `anew`: read them in every turn of a loop. Otherwise the compiler keeps them over all turns,
    which takes up to twice the shared memory.
    """
    return [
        (load(vector_ref, *kernel, anew), load(vector_ref, *bias, anew))
        for kernel, bias in _places(shape, tower)
    ]


def _places(shape: Towers, tower: Any) -> list[tuple[Indices, Indices]]:
    """Return where the kernel and bias of each layer are in the vector of parameters."""
    first, found = tower * shape.num_hidden, []
    for before, size in shape.sizes:
        found.append(_of_layer(first, before, size, size))
        first += (before + 1) * size
    starts, last = [len(shape.outputs) * shape.num_hidden], shape.hidden[-1]
    for size in shape.outputs[:-1]:
        starts.append(starts[-1] + (last + 1) * size)
    head, size = (_of(tower, values) for values in (starts, shape.outputs))
    return [*found, _of_layer(head, last, size, max(shape.outputs))]


def _of(tower: Any, values: Sequence[int]) -> Any:
    """Return the value of a tower."""
    if isinstance(tower, int):
        return values[tower]
    found = jnp.int32(values[0])
    for i, value in enumerate(values[1:], 1):
        found = jnp.where(tower == i, jnp.int32(value), found)
    return found


def _of_layer(first: Any, before: int, size: Any, widest: int) -> tuple[Indices, Indices]:
    kernel = matrix(first, before, size, padded(before), padded(widest))
    column = jnp.arange(padded(widest))
    return kernel, (first + before * size + column, column < size)


def _rows(shape: Towers, block: Any, num: int, size: int, widest: int = 1) -> Indices:
    """Return where a block of rows is in an array `[num, size]`, padded to `widest` columns."""
    rows = shape.rows(num)
    first = block * rows
    return matrix(first * size, num - first, size, rows, padded(max(size, widest)))
