"""Distributions over actions, with the interface of distrax.

A head may also return distrax's own distributions. Those here do not derive from its classes, since
distrax imports TensorFlow Probability, which takes as long as JAX; only `product` needs it. They
also correct errors of distrax 0.1.9: its tanh-normal returns a log-probability that is not finite
for 77 of 200 stored actions, and its beta distribution is wrong by up to 0.2 nats in float32. The
categorical here is also faster on CPUs: if there are few categories, it sums them one by one (see
`_cut`).

Arrays have leading batch axes `...`; bounds and ranks are static. Parameters of any float type
become float32, and all results are float32 (integers: int32). A value is a raw action, which the
learner stores. `to_action` maps it to the environment's action, to which log-probabilities and
entropies refer.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from jaxppo.kernels import random_bits
from jaxppo.ops.actions import is_distribution
from jaxppo.types import STATIC, PyTree

Bound = Any  # one number, or nested tuples in the shape of an event, as in types.Box

FEW = 8  # up to so many categories are summed one by one

# Logit of a forbidden value: its exp is exactly 0, and 0 times it is 0, unlike 0 times -inf.
# `_masked` uses a lower number if legal logits are about as low.
ILLEGAL = -1e9

# Draws of a beta distribution stay this far from 0 and 1, since log 0 is not finite.
BETA_MARGIN = 1e-6

# A logistic variable is a normal one with a random standard deviation 2 K, where K has the
# Kolmogorov distribution (Andrews and Mallows 1974). So tanh(u) = E[erf(u / (K sqrt 2))]. The
# expectation over K is approximated by a sum over six values of K with these weights: the Gauss
# quadrature rule for the distribution of log K.
MIXTURE_SCALES = (0.38375648, 0.52291301, 0.71970643, 1.0057377, 1.40317882, 1.94358907)
MIXTURE_WEIGHTS = (0.00748472, 0.13130283, 0.39785672, 0.35767482, 0.10042087, 0.00526004)


def categorical(logits: jax.Array, mask: jax.Array | None = None) -> Distribution:
    """Return a distribution over K actions: p_k = softmax(logits)_k among those that `mask` allows.

    `logits` are `[..., K]`, `mask` bool `[..., K]`, actions int32 `[...]`. A forbidden action has
    probability exactly 0 (Huang and Ontanon 2020, arXiv 2006.14171). A mask that allows nothing is
    ignored.
    """
    return Categorical(logits=_masked(logits, mask), event_ndim=0)


def multi_categorical(
    logits: jax.Array,
    num_values: tuple[int, ...],
    shape: tuple[int, ...],
    mask: jax.Array | None = None,
) -> Distribution:
    """Return independent categoricals, each of its own size: log p(a) = sum_i log p_i(a_i).

    `logits` and `mask` `[..., sum(num_values)]` hold the components one after another, in row-major
    order of `shape`. Actions are int32 `[..., *shape]`. If the mask of a component allows nothing,
    it is ignored. `ValueError` if sizes and shape disagree.
    """
    if len(num_values) != math.prod(shape) or logits.shape[-1] != sum(num_values):
        raise ValueError(
            f"{logits.shape[-1]} logits for components of sizes {num_values} in shape {shape}"
        )
    widest = max(num_values)
    starts = np.cumsum((0, *num_values[:-1]))

    def rows(x: Any) -> jax.Array:
        """Return a padded row for each component, `[..., *shape, widest]`."""
        if min(num_values) == widest:
            return x.reshape(*x.shape[:-1], *shape, widest)
        padding = [(0, 0)] * (x.ndim - 1)
        padded = [
            jnp.pad(x[..., i : i + n], (*padding, (0, widest - n)))
            for i, n in zip(starts, num_values, strict=True)
        ]
        return jnp.stack(padded, axis=-2).reshape(*x.shape[:-1], *shape, widest)

    if mask is not None:
        chex.assert_equal_shape([logits, mask])
        mask = rows(mask)
    exists = np.arange(widest) < np.reshape(num_values, (*shape, 1))
    return Categorical(logits=_masked(rows(logits), mask, exists), event_ndim=len(shape))


def tanh_normal(
    loc: jax.Array, scale: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """Return a diagonal normal squashed into bounds: a = low + (high - low) (tanh(u) + 1) / 2.

    `loc` and `scale` are `[..., *A]`, with `A` of rank `event_ndim`; raw actions are u. Haarnoja et
    al. 2018 (arXiv 1801.01290), appendix C. `ValueError` if bounds are not finite or do not fit A.
    """
    _check_finite(low, high)
    loc, scale = _parameters(loc, scale, low, high, event_ndim)
    return TanhNormal(loc=loc, scale=scale, low=low, high=high, event_ndim=event_ndim)


def clipped_normal(
    loc: jax.Array, scale: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """Return a diagonal normal over u; the environment gets u clipped to bounds.

    `loc` and `scale` are `[..., *A]`, with `A` of rank `event_ndim`; raw actions are u. Density,
    entropy and KL are those of u: the clip is part of the environment (as in Schulman et al. 2017).
    Bounds may be infinite.
    """
    loc, scale = _parameters(loc, scale, low, high, event_ndim)
    return ClippedNormal(loc=loc, scale=scale, low=low, high=high, event_ndim=event_ndim)


def beta(
    alpha: jax.Array, beta: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """Return independent beta distributions stretched to bounds: a = low + (high - low) x.

    `alpha` and `beta` are `[..., *A]`, with `A` of rank `event_ndim`, and at least 1, so that there
    is one mode; raw actions are x in (0, 1). Chou et al. 2017 (ICML). `ValueError` if bounds are
    not finite or do not fit A.
    """
    _check_finite(low, high)
    alpha, beta = _parameters(alpha, beta, low, high, event_ndim)
    return Beta(alpha=alpha, beta=beta, low=low, high=high, event_ndim=event_ndim)


def product(parts: PyTree) -> Distribution:
    """Return a product of independent distributions: log-probabilities, entropies and KLs add up.

    `parts` is a dict or tuple, possibly nested, of distributions with the same batch axes. Raw and
    final actions are trees of the same structure. `ValueError` if there are no parts.
    """
    from jaxppo.ops.products import Product  # distrax is slow to import

    if not jax.tree.leaves(parts, is_leaf=is_distribution):
        raise ValueError("a product of no distributions")
    return Product(parts)


class Distribution(abc.ABC):
    """A dataclass of arrays `[..., A...]` and static fields, such as `event_ndim`, the rank of A.

    As a pytree, its leaves are the fields that are not declared static. It is not registered as a
    dataclass, of which jaxlib 0.10.2 compares no classes: `jit` would run one family for another.
    """

    event_ndim: int

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the arrays and the static fields."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # of each subclass
        parts: tuple[list[Any], list[Any]] = ([], [])
        for field in fields:
            parts[bool(field.metadata.get("static"))].append(getattr(self, field.name))
        return tuple(parts[0]), tuple(parts[1])

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: Any) -> Any:
        """Invert `tree_flatten`."""
        parts = (iter(arrays), iter(static))
        self = object.__new__(cls)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            given = next(parts[bool(field.metadata.get("static"))])
            object.__setattr__(self, field.name, given)
        return self

    def sample(self, *, seed: jax.Array, sample_shape: int | tuple[int, ...] = ()) -> jax.Array:
        """Draw raw actions `[*sample_shape, ..., A...]`; `seed` is a key."""
        shape = (sample_shape,) if isinstance(sample_shape, int) else sample_shape
        drawn = self._sample_n(seed, math.prod(shape))
        return drawn.reshape((*shape, *drawn.shape[1:]))

    def sample_and_log_prob(
        self, *, seed: jax.Array, sample_shape: int | tuple[int, ...] = ()
    ) -> tuple[jax.Array, jax.Array]:
        """Draw raw actions as `sample`; return also their log-probabilities."""
        shape = (sample_shape,) if isinstance(sample_shape, int) else sample_shape
        drawn = self._sample_n(seed, math.prod(shape))
        log_prob = self.log_prob(drawn)
        drawn = drawn.reshape((*shape, *drawn.shape[1:]))
        return drawn, log_prob.reshape((*shape, *log_prob.shape[1:]))

    @abc.abstractmethod
    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        """Draw `[n, ..., A...]`."""

    @abc.abstractmethod
    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log-probability of raw actions `[..., A...]`, `[...]`."""

    @property
    @abc.abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """The shape of a value, `[..., A...]`."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """A."""
        return self._shape[len(self._shape) - self.event_ndim :]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """`...`"""
        return self._shape[: len(self._shape) - self.event_ndim]

    def to_action(self, value: jax.Array) -> jax.Array:
        """Return the environment's action for a raw action; here they are equal."""
        return value

    def _value(self, value: jax.Array) -> jax.Array:
        """Check that the shape of a value ends in that of the parameters; return the value."""
        chex.assert_shape(value, (..., *self._shape))
        return value


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Categorical(Distribution):
    """The distribution of `categorical` and `multi_categorical`."""

    logits: jax.Array  # [..., A..., K], ILLEGAL where forbidden
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.logits.shape[:-1]

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        """Draw int32 `[n, ..., A...]`."""
        key, shape = random_bits.quick(key), (n, *self._shape)
        return jax.random.categorical(key, self.logits, shape=shape).astype(jnp.int32)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return sum_i log softmax(logits_i)[a_i], `[...]`."""
        value = self._value(value)
        is_drawn = jnp.arange(self.logits.shape[-1]) == value[..., None]
        chosen = [
            jnp.where(drawn, log_p, 0.0)
            for drawn, log_p in zip(_cut(is_drawn), _log_softmax(self.logits), strict=True)
        ]
        return _sum(_sum_pieces(chosen), self.event_ndim)

    def entropy(self) -> jax.Array:
        """Return -sum_i sum_k p_ik log p_ik, `[...]`."""
        terms = [-jnp.exp(log_p) * log_p for log_p in _log_softmax(self.logits)]
        return _sum(_sum_pieces(terms), self.event_ndim)

    def kl_divergence(self, other: Categorical, **_: Any) -> jax.Array:
        """Return sum_i sum_k p_ik log(p_ik / q_ik), `[...]`."""
        chex.assert_equal_shape([self.logits, other.logits])
        pairs = zip(_log_softmax(self.logits), _log_softmax(other.logits), strict=True)
        terms = [jnp.exp(log_p) * (log_p - log_q) for log_p, log_q in pairs]
        return _sum(_sum_pieces(terms), self.event_ndim)

    def mode(self) -> jax.Array:
        """Return the most probable value of each component, int32 `[..., A...]`."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Normal(Distribution):
    """A diagonal normal over the raw action u; a one-to-one map of u has the same KL."""

    loc: jax.Array  # [..., A...]
    scale: jax.Array  # [..., A...]
    low: Bound = dataclasses.field(metadata=STATIC)
    high: Bound = dataclasses.field(metadata=STATIC)
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A

    def _log_densities(self, value: jax.Array) -> jax.Array:
        return norm.logpdf(value, self.loc, self.scale)

    def _entropies(self) -> jax.Array:
        return 0.5 * math.log(2.0 * math.pi * math.e) + jnp.log(self.scale)

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.loc.shape

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        """Draw u, float32 `[n, ..., A...]`.

        `log_prob` reads the rounded u, as the learner does, so that the first ratio is 1.
        """
        draw = jax.random.normal(random_bits.quick(key), (n, *self.loc.shape))
        return self.loc + self.scale * draw

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return sum log N(u; loc, scale), `[...]`."""
        value = self._value(value).astype(jnp.float32)
        return _sum(self._log_densities(value), self.event_ndim)

    def entropy(self) -> jax.Array:
        """Return sum log(scale sqrt(2 pi e)), `[...]`."""
        return _sum(self._entropies(), self.event_ndim)

    def kl_divergence(self, other: _Normal, **_: Any) -> jax.Array:
        """Return the sum of log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, `[...]`."""
        chex.assert_equal_shape([self.loc, other.loc])
        # m1 / s2 - m2 / s2 would lose the digits of the difference if s2 is small.
        distance = (self.loc - other.loc) / other.scale
        log_ratio = jnp.log(self.scale / other.scale)
        kl = 0.5 * (distance**2 + jnp.expm1(2.0 * log_ratio)) - log_ratio
        return _sum(kl, self.event_ndim)

    def mode(self) -> jax.Array:
        """Return the mode of u, `[..., A...]`."""
        return self.loc


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClippedNormal(_Normal):
    """The distribution of `clipped_normal`."""

    def to_action(self, value: jax.Array) -> jax.Array:
        """Return min(max(u, low), high), `[..., A...]`."""
        return jnp.clip(value.astype(jnp.float32), jnp.float32(self.low), jnp.float32(self.high))


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TanhNormal(_Normal):
    """The distribution of `tanh_normal`."""

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the sum of log N(u; loc, scale) - log(da / du), `[...]`.

        da / du = (high - low) / 2 (1 - tanh^2 u), and log(1 - tanh^2 u) =
        2 (log 2 - u - softplus(-2u)), which is precise even if tanh(u) rounds to 1.
        """
        value = self._value(value).astype(jnp.float32)
        slope = 2.0 * (math.log(2.0) - value - jax.nn.softplus(-2.0 * value))
        log_prob = self._log_densities(value) - slope - self._log_half_width()
        return _sum(log_prob, self.event_ndim)

    def entropy(self) -> jax.Array:
        """Return the sum of the entropy of u and E[log(da / du)], `[...]`.

        E[log(1 - tanh^2 u)] = -2 E[log cosh u]. With a standard normal z and K as for
        `MIXTURE_SCALES`, log cosh u = E|u + K z| - log 2. For u from N(loc, scale^2) and a given K,
        u + K z is normal with variance scale^2 + K^2, so its mean magnitude has a closed form. The
        Gauss rule averages that over K. Its error is at most 2e-6 nats for every u, so also on
        average, for every loc and scale.
        """
        log_cosh = jnp.full_like(self.loc, -math.log(2.0))
        for weight, width in zip(MIXTURE_WEIGHTS, MIXTURE_SCALES, strict=True):
            log_cosh += weight * _mean_magnitude(self.loc, jnp.sqrt(self.scale**2 + width**2))
        entropy = self._entropies() - 2.0 * log_cosh + self._log_half_width()
        return _sum(entropy, self.event_ndim)

    def to_action(self, value: jax.Array) -> jax.Array:
        """Return low + (high - low) (tanh(u) + 1) / 2, clipped to the bounds, `[..., A...]`."""
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        middle, half = jnp.float32(low / 2.0 + high / 2.0), jnp.float32(high / 2.0 - low / 2.0)
        action = middle + half * jnp.tanh(value.astype(jnp.float32))
        return jnp.clip(action, jnp.float32(low), jnp.float32(high))

    def _log_half_width(self) -> jax.Array:
        return _log_width(self.low, self.high) - math.log(2.0)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Beta(Distribution):
    """The distribution of `beta`."""

    alpha: jax.Array  # [..., A...], at least 1
    beta: jax.Array  # [..., A...], at least 1
    low: Bound = dataclasses.field(metadata=STATIC)
    high: Bound = dataclasses.field(metadata=STATIC)
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.alpha.shape

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        """Draw x, float32 `[n, ..., A...]`."""
        return _inside(jax.random.beta(key, self.alpha, self.beta, (n, *self.alpha.shape)))

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Return the log-density of the action, summed over A, `[...]`.

        It is (alpha - 1) log x + (beta - 1) log(1 - x) - log B(alpha, beta) - log(high - low).
        Values closer to 0 or 1 than `BETA_MARGIN` count as at that margin.

        In float32 the terms, each about as large as n = alpha + beta, would cancel to rounding
        error. By Stirling's formula their sum, without the width, equals
        -D(alpha, n x) - D(beta, n (1 - x)) + log(alpha beta / (2 pi n)) / 2 - log x (1 - x)
        + r(n) - r(alpha) - r(beta), with D of `_deviance` and r of `_stirling` (Loader 2000).
        """
        x, total = _inside(self._value(value).astype(jnp.float32)), self.alpha + self.beta
        log_prob = -_deviance(self.alpha, total * x) - _deviance(self.beta, total * (1.0 - x))
        log_prob += 0.5 * (jnp.log(self.alpha / total) + jnp.log(self.beta))
        log_prob -= jnp.log(x) + jnp.log1p(-x) + 0.5 * math.log(2.0 * math.pi)
        log_prob += _stirling(total)[0] - _stirling(self.alpha)[0] - _stirling(self.beta)[0]
        return _sum(log_prob - _log_width(self.low, self.high), self.event_ndim)

    def entropy(self) -> jax.Array:
        """Return the entropy of the action, summed over A, `[...]`.

        It is log B(alpha, beta) - (alpha - 1) psi(alpha) - (beta - 1) psi(beta) + (n - 2) psi(n)
        + log(high - low), with psi the digamma function and n = alpha + beta. Large terms are
        cancelled by hand as in `log_prob`.
        """
        alpha, beta = self.alpha, self.beta
        total = alpha + beta

        def one(z: jax.Array, less: float) -> jax.Array:
            rest, slope = _stirling(z)
            return rest - (z - less) * slope - 0.5 * less / z

        entropy = 0.5 * (jnp.log(alpha / total) + jnp.log(beta / total) - jnp.log(total))
        entropy += 0.5 * (1.0 + math.log(2.0 * math.pi))
        entropy += one(alpha, 1.0) + one(beta, 1.0) - one(total, 2.0)
        return _sum(entropy + _log_width(self.low, self.high), self.event_ndim)

    def kl_divergence(self, other: Beta, **_: Any) -> jax.Array:
        """Return the KL divergence summed over A, `[...]`; it does not depend on the bounds.

        It is log B(a2, b2) - log B(a1, b1) + (a1 - a2) E[log x] + (b1 - b2) E[log(1 - x)]
        = G(a1, a2) + G(b1, b2) - G(n1, n2), where n = a + b and G(y, z) is the height of log Gamma
        at z above its tangent at y. The large part of that sum is n2 times the KL divergence of two
        Bernoulli distributions with p = a / n. It is computed as one term.
        """
        chex.assert_equal_shape([self.alpha, other.alpha])
        a1, b1, a2, b2 = self.alpha, self.beta, other.alpha, other.beta
        n1, n2 = a1 + b1, a2 + b2
        move = ((a2 - a1) * b1 - (b2 - b1) * a1) / n1  # n2 (a2 / n2 - a1 / n1)
        kl = _deviance(n2 * (a1 / n1) + move, n2 * (a1 / n1), move)
        kl += _deviance(n2 * (b1 / n1) - move, n2 * (b1 / n1), -move)

        def gap(y: jax.Array, z: jax.Array, step: jax.Array) -> jax.Array:
            (rest, slope), (other_rest, _) = _stirling(y), _stirling(z)
            ratio = step / y
            return 0.5 * (ratio - jnp.log1p(ratio)) + other_rest - rest - slope * step

        kl += gap(a1, a2, a2 - a1) + gap(b1, b2, b2 - b1) - gap(n1, n2, (a2 - a1) + (b2 - b1))
        return _sum(kl, self.event_ndim)

    def mode(self) -> jax.Array:
        """Return (alpha - 1) / (alpha + beta - 2), `[..., A...]`; 1/2 if both are 1."""
        above, below = self.alpha - 1.0, self.beta - 1.0
        flat = above + below <= 0.0
        return jnp.where(flat, 0.5, above / jnp.where(flat, 1.0, above + below))

    def to_action(self, value: jax.Array) -> jax.Array:
        """Return low + (high - low) x, clipped to the bounds, `[..., A...]`."""
        low, high = jnp.float32(self.low), jnp.float32(self.high)
        value = value.astype(jnp.float32)
        return jnp.clip(low * (1.0 - value) + high * value, low, high)


def _masked(logits: jax.Array, mask: jax.Array | None, exists: Any = True) -> jax.Array:
    """Return logits `[..., K]` in float32, with illegal ones far below all others.

    A value is illegal if `mask` forbids it and allows another one, or if it does not exist (bool,
    `[K]` of each row). Legal logits may be arbitrarily low.
    """
    logits, legal = logits.astype(jnp.float32), jnp.asarray(exists)
    if mask is None and np.all(exists):
        return logits
    if mask is not None:
        chex.assert_equal_shape([logits, mask])
        chex.assert_type(mask, bool)
        legal &= mask | ~jnp.any(mask & legal, axis=-1, keepdims=True)
    lowest = jnp.min(jnp.where(legal, logits, 0.0), axis=-1, keepdims=True)
    return jnp.where(legal, logits, jnp.minimum(ILLEGAL, 2.0 * jax.lax.stop_gradient(lowest)))


def _parameters(
    first: jax.Array, second: jax.Array, low: Bound, high: Bound, event_ndim: int
) -> tuple[jax.Array, jax.Array]:
    """Return both arrays in float32; `ValueError` if the bounds do not fit the event."""
    chex.assert_equal_shape([first, second])
    event = first.shape[first.ndim - event_ndim :]
    if first.ndim < event_ndim or not {np.shape(low), np.shape(high)} <= {(), event}:
        raise ValueError(
            f"bounds of shapes {np.shape(low)} and {np.shape(high)} for events of rank "
            f"{event_ndim} in parameters of shape {first.shape}"
        )
    return first.astype(jnp.float32), second.astype(jnp.float32)


def _check_finite(low: Bound, high: Bound) -> None:
    below, above = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if not np.all(np.isfinite(below) & np.isfinite(above) & (below < above)):
        raise ValueError(f"bounds must be finite, and low below high: {low=}, {high=}")


def _deviance(x: jax.Array, mean: jax.Array, apart: jax.Array | None = None) -> jax.Array:
    """Return x log(x / mean) + mean - x of positive numbers; `apart` is a precise x - mean."""
    t = (mean - x if apart is None else -apart) / x
    near = jnp.abs(t) < 0.5
    log = jnp.where(near, jnp.log1p(jnp.where(near, t, 0.0)), jnp.log(mean / x))
    return x * (t - log)


def _stirling(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return r(z) = log Gamma(z) - (z - 1/2) log z + z - log(2 pi) / 2 and its derivative, z >= 1.

    It uses the asymptotic series at z + 3 and r(z) = r(z + 1) + (z + 1/2) log(1 + 1 / z) - 1
    (Abramowitz and Stegun, 6.1.15 and 6.1.40). In float32 the error is below 4e-7.
    """
    rest = slope = jnp.zeros_like(z)
    for i in range(3):
        y = z + i
        log = jnp.log1p(1.0 / y)
        rest += (y + 0.5) * log - 1.0
        slope += log - (y + 0.5) / (y * (y + 1.0))
    y = 1.0 / (z + 3.0)
    square = y * y
    rest += y * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    slope -= square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    return rest, slope


def _inside(x: jax.Array) -> jax.Array:
    return jnp.clip(x, BETA_MARGIN, 1.0 - BETA_MARGIN)


def _mean_magnitude(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """Return E|x| of a normal x: the mean of the folded normal (Leone et al. 1961)."""
    ratio = loc / scale
    peak = math.sqrt(2.0 / math.pi) * scale * jnp.exp(-0.5 * ratio**2)
    return peak + loc * jax.lax.erf(ratio * math.sqrt(0.5))


def _log_width(low: Bound, high: Bound) -> jax.Array:
    """Return log(high - low), of the event's shape or a scalar; float64 avoids an overflow."""
    return jnp.float32(np.log(np.asarray(high, np.float64) - np.asarray(low, np.float64)))


def _log_softmax(logits: jax.Array) -> list[jax.Array]:
    """Return the log-softmax over the last axis, in the pieces of `_cut`."""
    pieces = _cut(logits)
    highest = functools.reduce(jnp.maximum, (jnp.max(x, axis=-1) for x in pieces))
    highest = jax.lax.stop_gradient(highest)[..., None]
    log_total = jnp.log(_sum_pieces([jnp.exp(x - highest) for x in pieces]))[..., None]
    return [x - highest - log_total for x in pieces]


def _cut(x: jax.Array) -> list[jax.Array]:
    """Cut an array `[..., K]` along the last axis into K pieces if K is small, else into one.

    On CPUs, reductions over such a short axis take as long as the matrix product before them. Sums
    of pieces are fused with their inputs and take a third of that.
    """
    return jnp.split(x, x.shape[-1], axis=-1) if x.shape[-1] <= FEW else [x]


def _sum_pieces(pieces: list[jax.Array]) -> jax.Array:
    """Sum over the last axis of the array that `_cut` cut, `[...]`."""
    return functools.reduce(operator.add, [jnp.sum(x, axis=-1) for x in pieces])


def _sum(x: jax.Array, ndim: int) -> jax.Array:
    """Sum over the last `ndim` axes."""
    return jnp.sum(x, axis=tuple(range(-ndim, 0)))
