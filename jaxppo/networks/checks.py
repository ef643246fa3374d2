"""Checks of layers' arguments; the one-line `ValueError` is shown after `network.NAME: `."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from jaxppo.config.fields import check, setting


def argument(default: Any, **rule: Any) -> Any:
    """Make an argument of a layer with a rule of `setting`."""
    return setting(default, "", **rule)


class Checked(nn.Module):
    """A layer that checks its arguments by their types and by the rules of `setting`.

    Integers are at least 1 if there is no other rule, also those of a list.
    """

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument."""
        for field in dataclasses.fields(self):
            name, value, kind = field.name, getattr(self, field.name), field.type
            if kind == Sequence[int]:
                items = value if isinstance(value, Sequence) else [None]
                if any(type(n) is not int or n < 1 for n in items):
                    raise ValueError(f"{name}={value} must be a list of positive integers")
            elif kind is int:
                value = check(name, value, int, {"low": 1, **field.metadata})
                object.__setattr__(self, name, value)  # 2.0 is 2
            elif kind in (float, bool, float | None) or "choices" in field.metadata:
                check(name, value, kind, field.metadata)
        super().__post_init__()


def check_layers(name: str, layers: Any) -> None:
    """Raise `ValueError` unless a list or a mapping holds at least one layer, and only layers."""
    is_list = isinstance(layers, Sequence) and not isinstance(layers, str)
    parts = layers if isinstance(layers, Mapping) else dict(enumerate(layers)) if is_list else {}
    if not parts:
        raise ValueError(f"{name}={layers} must hold at least one layer")
    for key, layer in parts.items():
        if not callable(layer):
            raise ValueError(f"{name}.{key}={layer} must be a layer: give its _target_")


def check_range(low: float, high: float) -> None:
    """Raise `ValueError` on an empty range."""
    if low >= high:
        raise ValueError(f"low={low} must be below high={high}")


def check_features(x: Any) -> None:
    """Raise `ValueError` unless the input `x` of a memory is `[L, S, F]`."""
    if getattr(x, "ndim", None) != 3:
        shapes = ", ".join(str(leaf.shape[2:]) for leaf in jax.tree.leaves(x))
        raise ValueError(
            f"a memory takes features [L, S, F], not entries of shape {shapes}; put a torso before "
            "it"
        )
