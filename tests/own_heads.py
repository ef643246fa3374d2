"""Heads of a user's own, which return distributions of distrax."""

from typing import Any

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp


class Categorical(nn.Module):
    action_space: Any
    more: int = 0  # categories than the space has

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> distrax.Distribution:
        return distrax.Categorical(nn.Dense(self.action_space.num_values + self.more)(x))


class Bernoulli(nn.Module):
    """Whose logits have no axis of categories."""

    action_space: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> distrax.Distribution:
        return distrax.Bernoulli(nn.Dense(1)(x)[..., 0], dtype=jnp.int32)


class Normal(nn.Module):
    action_space: Any
    broadcast: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> distrax.Distribution:
        loc = nn.Dense(self.action_space.shape[0])(x)
        log_scale = self.param("log_scale", nn.initializers.zeros, loc.shape[-1:])
        scale = jnp.exp(log_scale)
        scale = jnp.broadcast_to(scale, loc.shape) if self.broadcast else scale
        return distrax.Independent(distrax.Normal(loc, scale), 1)


class Multivariate(nn.Module):
    action_space: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> distrax.Distribution:
        loc = nn.Dense(self.action_space.shape[0])(x)
        return distrax.MultivariateNormalDiag(loc, jnp.ones(loc.shape[-1]))


class Squashed(nn.Module):
    """Without an entropy and a mode."""

    action_space: Any

    @nn.compact
    def __call__(self, x: jax.Array, mask: Any = None) -> distrax.Distribution:
        loc = nn.Dense(self.action_space.shape[0])(x)
        squash = distrax.Block(distrax.Tanh(), 1)
        return distrax.Transformed(distrax.MultivariateNormalDiag(loc), squash)
