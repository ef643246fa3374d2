"""Checks of layers' arguments; the one-line `ValueError` is shown after `network.NAME: `."""

import math
from collections.abc import Sequence
from typing import Any

import jax


def check_count(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is an integer, at least 1."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value} must be an integer, at least 1")


def check_finite(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is a finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{name}={value} must be a finite number")


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
