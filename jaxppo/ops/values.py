"""A critic's estimate of a value: a number, or a histogram over numbers.

Every class is a pytree of arrays with leading batch axes `...`. Parameters of any float type become
float32, and all results are float32.
"""

import dataclasses
import math
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.types import STATIC, ValueEstimate, pytree

# Every class here has its own static `family`. Without it, two dataclasses with equally many leaves
# and equal static fields have tree structures that compare equal (jaxlib 0.10.2; their hashes
# differ), and `jit` sometimes runs for one the program that it compiled for the other.


def scalar_value(value: jax.Array) -> ValueEstimate:
    """Return an estimate by one number `[...]`, with the loss `error(value, target)`."""
    return ScalarValue(value=value.astype(jnp.float32))


def categorical_value(logits: jax.Array, low: float, high: float, sigma: float) -> ValueEstimate:
    """Return a histogram over K atoms z_k evenly spaced from `low` to `high`: V = sum_k p_k z_k.

    `logits` are `[..., K]`. The loss is the cross-entropy -sum_k q_k log p_k, where q is the
    projection of the target, clipped to the atoms. `sigma` is in bin widths w. With `sigma` above
    0, q_k is the mass of a normal of mean target and standard deviation sigma w in the bin
    z_k +- w / 2, divided by its mass in all bins (HL-Gauss: Imani and White 2018; Farebrother et
    al. 2024, arXiv 2403.03950, section 3.1). `sigma=0` splits q between the two nearest atoms so
    that its mean is the target (two-hot: Bellemare et al. 2017, arXiv 1707.06887, eq. 7).
    `ValueError` if the numbers make no histogram.
    """
    if logits.shape[-1] < 2 or not -math.inf < low < high < math.inf or not 0 <= sigma < math.inf:
        raise ValueError(f"no histogram of {logits.shape[-1]} atoms: {low=}, {high=}, {sigma=}")
    return CategoricalValue(
        logits=logits.astype(jnp.float32), low=float(low), high=float(high), sigma=float(sigma)
    )


@pytree
class ScalarValue:
    """The estimate of `scalar_value`."""

    value: jax.Array  # [...]
    family: str = dataclasses.field(default="scalar_value", metadata=STATIC)

    def mean(self) -> jax.Array:
        """Return the value, `[...]`."""
        return self.value

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """Return error(value, target), `[...]`."""
        return error(self.value, target)


@pytree
class CategoricalValue:
    """The estimate of `categorical_value`."""

    logits: jax.Array  # [..., K]
    low: float = dataclasses.field(metadata=STATIC)
    high: float = dataclasses.field(metadata=STATIC)
    sigma: float = dataclasses.field(metadata=STATIC)  # in bin widths
    family: str = dataclasses.field(default="categorical_value", metadata=STATIC)

    @property
    def atoms(self) -> jax.Array:
        """Return z_k, `[K]`."""
        return jnp.float32(np.linspace(self.low, self.high, self.logits.shape[-1]))

    def probs(self) -> jax.Array:
        """Return softmax(logits), `[..., K]`."""
        return jax.nn.softmax(self.logits)

    def mean(self) -> jax.Array:
        """Return sum_k softmax(logits)_k z_k, `[...]`."""
        atoms = self.atoms
        return jnp.sum(self.probs() * atoms, axis=-1)

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """Return -sum_k q_k log softmax(logits)_k, `[...]`; `error` is not used."""
        chex.assert_shape(target, self.logits.shape[:-1])
        return self.cross_entropy(self.project(target))

    def cross_entropy(self, probs: jax.Array) -> jax.Array:
        """Return -sum_k q_k log softmax(logits)_k of a histogram q `[..., K]`, `[...]`."""
        return -jnp.sum(probs * jax.nn.log_softmax(self.logits), axis=-1)

    def project(self, target: jax.Array) -> jax.Array:
        """Return the histogram q `[..., K]` of targets `[...]`."""
        last = self.logits.shape[-1] - 1
        bins = (target.astype(jnp.float32) - self.low) * (last / (self.high - self.low))
        bins = jnp.clip(bins, 0.0, last)[..., None]  # in units of w, from the first atom
        if self.sigma == 0.0:
            return jnp.maximum(0.0, 1.0 - jnp.abs(jnp.float32(np.arange(last + 1)) - bins))
        edges = jnp.float32(np.arange(last + 2) - 0.5)
        below = jax.scipy.special.ndtr((edges - bins) / self.sigma)
        return jnp.diff(below) / (below[..., -1:] - below[..., :1])
