"""Checks of layers' arguments; the one-line `ValueError` is shown after `network.NAME: `."""

import math
from collections.abc import Sequence
from typing import Any

import jax


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise `ValueError` unless `value` is an integer, at least `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value} must be an integer, at least {least}")


def check_finite(name: str, value: Any, *, negative: bool = True) -> None:
    """Raise `ValueError` unless `value` is finite; `negative`: whether it may be below 0."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name}={value} must be a finite number")
    if value < 0 and not negative:
        raise ValueError(f"{name}={value} must not be negative")


def check_atoms(num_atoms: Any, low: Any, high: Any) -> None:
    """Raise `ValueError` on fewer than two atoms or an empty range."""
    check_count("num_atoms", num_atoms, 2)
    check_finite("low", low)
    check_finite("high", high)
    if low >= high:
        raise ValueError(f"low={low} must be below high={high}")


def check_bool(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value} must be true or false")


def check_sizes(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is a list of positive integers."""
    if not isinstance(value, Sequence) or any(type(n) is not int or n < 1 for n in value):
        raise ValueError(f"{name}={value} must be a list of positive integers")


def check_features(x: Any) -> None:
    """Raise `ValueError` unless the input `x` of a memory is `[L, S, F]`."""
    if getattr(x, "ndim", None) != 3:
        shapes = ", ".join(str(leaf.shape[2:]) for leaf in jax.tree.leaves(x))
        raise ValueError(
            f"a memory takes features [L, S, F], not entries of shape {shapes}; put a torso before "
            "it"
        )
