"""Torsos: from features `[L, S, F]` to features."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "elu": nn.elu,
    "leaky_relu": nn.leaky_relu,
}


class MLP(nn.Module):
    """Dense layers, each followed by optional layer norm and the activation.

    Orthogonal weights of gain sqrt(2), zero biases.
    """

    layer_sizes: Sequence[int] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False

    def __post_init__(self) -> None:
        """`ValueError` on an unknown activation or a size that is not positive."""
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation={self.activation} is none of {', '.join(sorted(ACTIVATIONS))}"
            )
        sizes: Any = self.layer_sizes
        if not isinstance(sizes, Sequence) or any(type(n) is not int or n < 1 for n in sizes):
            raise ValueError(f"layer_sizes={sizes} must be a list of positive integers")
        if not isinstance(self.layer_norm, bool):
            raise ValueError(f"layer_norm={self.layer_norm} must be true or false")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., F]` to `[..., layer_sizes[-1]]`."""
        for size in self.layer_sizes:
            x = nn.Dense(size, kernel_init=nn.initializers.orthogonal(np.sqrt(2)))(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
        return x
