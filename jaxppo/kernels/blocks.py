"""Parts of Pallas kernels for Triton that read and write blocks of arrays.

Triton's arrays have axes of powers of two. So an array is passed as one vector. A program reads
those elements of a block that exist; the others are padding.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxppo.kernels.platforms import forms

# Indices into a vector, and which of them exist; the others are padding
Indices = tuple[jax.Array, Any]

_SMALLEST = 16  # the least length of a product's axis in Triton
_WARPS = 8  # of a program; with 4, more registers are spilled to memory


def call(
    name: str,
    kernel: Any,
    grid: tuple[int, ...],
    sizes: Sequence[int],
    flops: int,
    *given: jax.Array,
) -> Any:
    """Return float32 vectors of `sizes` that the programs of a kernel compute of other vectors."""
    from jax.experimental import pallas as pl  # slow to import
    from jax.experimental.pallas import triton

    results = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes]
    moved = 4 * (sum(sizes) + sum(x.size for x in given))
    cost = pl.CostEstimate(flops=flops, bytes_accessed=moved, transcendentals=0)
    of_programs = pl.pallas_call(
        kernel,
        results,
        grid=grid,
        interpret=forms().kernels == "interpreted",
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        cost_estimate=cost,
        name=name,
    )
    return of_programs(*given)


def dot(a: jax.Array, b: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """Return `a @ b` of factors of `dtype`, summed in float32."""
    return lax.dot_general(
        *(a.astype(dtype), b.astype(dtype), (((1,), (0,)), ((), ()))),
        precision=lax.Precision.DEFAULT,  # TF32 on GPUs
        preferred_element_type=jnp.float32,
    )


def padded(size: int) -> int:
    """Return the length in Triton of an axis of this length: a power of two, 16 or more."""
    return max(_SMALLEST, 1 << (size - 1).bit_length())


def matrix(
    first: Any, height: Any, width: Any, rows: int, columns: int, stride: Any = None
) -> Indices:
    """Return where a matrix `[height, width]` is that starts at `first`, padded.

    Its rows are `stride` apart; None: they follow one another.
    """
    row, column = jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]
    index = first + row * (width if stride is None else stride) + column
    return index, (row < height) & (column < width)


def load(ref: Any, index: jax.Array, exists: Any, anew: bool = False) -> jax.Array:
    """Return what is at `index`, and 0 where nothing exists.

    `anew`: in every iteration of a loop. Otherwise the compiler keeps it over all iterations, which
    takes up to twice the shared memory.
    """
    from jax.experimental.pallas import triton

    return triton.load(ref.at[index], mask=exists, other=0.0, volatile=anew)


def store(ref: Any, index: jax.Array, exists: Any, values: jax.Array) -> None:
    """Write what exists of `values`."""
    from jax.experimental.pallas import triton

    # The interpreter writes masked values too, so their index is past the end, where none is kept
    triton.store(ref.at[jnp.where(exists, index, ref.shape[0])], values, mask=exists)


def indexable(*shape: Any) -> bool:
    """Return whether the kernels' indices, of 32 bits, reach all of an array.

    They do not if a policy is exported for any number of rows, which is then no integer.
    """
    return all(isinstance(length, int) for length in shape) and math.prod(shape) < 2**31


def ceil(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)
