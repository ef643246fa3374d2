"""What a function costs, by the operations of its traced program."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

_EXPENSIVE = {
    *("while", "scan", "cond", "sort", "top_k", "approx_top_k", "fft", "triangular_solve"),
    *("dot_general", "ragged_dot_general", "conv_general_dilated", "custom_linear_solve"),
    *("cholesky", "qr", "geqrf", "householder_product", "lu", "eigh", "svd", "schur"),
    *("pure_callback", "ffi_call", "pallas_call"),
}
_MOST = 300  # operations
_MOST_BYTES = 4096  # of the results, for each row of the first argument


def is_cheap(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether a function has few operations and small results, and no side effects.

    Loops, branches, products, sorts and calls of the host are not among them. `args` are arrays or
    shapes. On an accelerator, always computing such a function is cheaper than a branch that skips
    it.
    """
    traced = jax.make_jaxpr(function)(*args)
    names = [equation.primitive.name for equation in _equations(traced)]
    rows = args[0].shape[0] if args[0].ndim else 1
    size = sum(x.size * x.dtype.itemsize for x in traced.out_avals)
    few = len(names) <= _MOST and size <= _MOST_BYTES * rows
    return few and not traced.effects and not _EXPENSIVE.intersection(names)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of those that it calls."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _equations(inner)
