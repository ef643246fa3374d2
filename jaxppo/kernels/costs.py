"""What a function costs, by the operations of its traced program."""

from collections.abc import Callable, Iterator
from typing import Any

import jax

_DEAR = {"while", "scan", "cond", "dot_general", "conv_general_dilated", "sort"}


def is_cheap(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether a function has no loops, branches, products or sorts, and few operations.

    `args` are arrays or shapes. Such a function costs less on an accelerator than to ask whether
    it is needed.
    """
    names = [equation.primitive.name for equation in _equations(jax.make_jaxpr(function)(*args))]
    return len(names) <= 300 and not _DEAR.intersection(names)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of those that it calls."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _equations(inner)
