"""The precision of matrix products of float32 numbers."""

from contextlib import AbstractContextManager
from typing import Any

import jax

# Settings of `arch.precision` -> JAX's names; None: as the user has set JAX. Each is at least as
# precise on platforms that do not have it: CPUs multiply float32 numbers as they are.
PRECISIONS = {
    "float32": None,
    "tf32": "tensorfloat32",
    "bf16": "tensorfloat32",
    "highest": "highest",
}


def precision(name: str) -> AbstractContextManager[Any]:
    """Context in which float32 matrix products have a precision of `arch.precision`."""
    return at(PRECISIONS[name] or current())


def at(asked: str | None) -> AbstractContextManager[Any]:
    """Context in which float32 matrix products have a precision that `current` returned."""
    return jax.default_matmul_precision(asked)


def current() -> str | None:
    """Return the precision of float32 matrix products, by JAX's name; None: JAX's choice."""
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
