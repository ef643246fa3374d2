"""Policy distributions; and what a critic says of a value.

Every class is a pytree whose arrays carry the batch axes `...` first, so that `tree.map` may index
a batch and `vmap` may map one. Bounds and ranks are static. Parameters of any float type become
float32 at the door, and all that comes out is float32 (integers: int32).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from jax.scipy.stats import norm

from jaxppo.kernels import random_bits
from jaxppo.types import PyTree, ValueEstimate

Distribution = Any
Bound = Any  # one number, or nested tuples in the shape of an event: what types.Box holds

STATIC = dict(static=True)
# Every class here has a static `family` of its own. Without it the structures of two dataclasses
# with as many leaves and equal static fields compare equal (jaxlib 0.10.2, though their hashes
# differ), and `jit` now and then runs for one what it compiled for the other.

FEW = 8  # categories, up to which they are taken one by one

ILLEGAL = -1e9  # logit: exp of it is exactly 0, and 0 times it, unlike 0 times -inf, is 0

# A draw of a beta distribution that rounds to 0 or 1 would have no finite log.
BETA_MARGIN = 1e-6

# The logistic distribution is a scale mixture of normals whose scale is twice a Kolmogorov variable
# (Andrews and Mallows 1974), so tanh(u) = E[erf(u / (K sqrt 2))]. These are the nodes and weights
# of the 6-point Gauss rule for K in log K.
MIXTURE_SCALES = (0.38375648, 0.52291301, 0.71970643, 1.0057377, 1.40317882, 1.94358907)
MIXTURE_WEIGHTS = (0.00748472, 0.13130283, 0.39785672, 0.35767482, 0.10042087, 0.00526004)


def categorical(logits: jax.Array, mask: jax.Array | None = None) -> Distribution:
    """One of K actions, p_k = softmax(logits)_k among those that `mask` allows.

    `logits` `[..., K]`, `mask` bool `[..., K]`; actions are int32 `[...]`. A forbidden action has
    probability exactly 0 (Huang and Ontanon 2020, arXiv 2006.14171). An entry whose mask allows
    nothing is drawn as if it had none.
    """
    return Categorical(logits=_masked(logits, mask), event_ndim=0)


def multi_categorical(
    logits: jax.Array,
    num_values: tuple[int, ...],
    shape: tuple[int, ...],
    mask: jax.Array | None = None,
) -> Distribution:
    """Independent categoricals, each of its own size: log p(a) = sum_i log p_i(a_i).

    `logits` `[..., sum(num_values)]` hold the components one after the other in row-major order of
    `shape`, and so does `mask`; actions are int32 `[..., *shape]`. A component whose mask allows
    nothing is drawn as if it had none. `ValueError` where sizes and shape disagree.
    """
    if len(num_values) != math.prod(shape) or logits.shape[-1] != sum(num_values):
        raise ValueError(
            f"{logits.shape[-1]} logits for components of sizes {num_values} in shape {shape}"
        )
    widest = max(num_values)
    starts = np.cumsum((0, *num_values[:-1]))

    def rows(x: jax.Array, fill: Any) -> jax.Array:
        """Components `[..., n]` one below the other, `[..., *shape, widest]`."""
        if min(num_values) == widest:
            return x.reshape(*x.shape[:-1], *shape, widest)
        padding = [(0, 0)] * (x.ndim - 1)
        padded = [
            jnp.pad(x[..., i : i + n], (*padding, (0, widest - n)), constant_values=fill)
            for i, n in zip(starts, num_values, strict=True)
        ]
        return jnp.stack(padded, axis=-2).reshape(*x.shape[:-1], *shape, widest)

    if mask is not None:
        chex.assert_equal_shape([logits, mask])
        mask = rows(mask, False)
    # Padding is ILLEGAL whatever the mask says; a component without a legal value ignores its mask.
    return Categorical(
        logits=_masked(rows(logits.astype(jnp.float32), ILLEGAL), mask), event_ndim=len(shape)
    )


def tanh_normal(
    loc: jax.Array, scale: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """A diagonal normal squashed into bounds: a = low + (high - low) (tanh(u) + 1) / 2.

    `loc` and `scale` `[..., *A]`, `A` of rank `event_ndim`; raw actions are u. Haarnoja et al. 2018
    (arXiv 1801.01290), appendix C. `ValueError` on bounds that are not finite or
    do not fit A.
    """
    _check_finite(low, high)
    loc, scale = _parameters(loc, scale, low, high, event_ndim)
    return TanhNormal(loc=loc, scale=scale, low=low, high=high, event_ndim=event_ndim)


def clipped_normal(
    loc: jax.Array, scale: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """A diagonal normal over u whose draws are clipped to bounds on their way out.

    `loc` and `scale` `[..., *A]`, `A` of rank `event_ndim`; raw actions are u. Density, entropy and
    KL are of u: the clip belongs to the environment (as in Schulman et al. 2017). Bounds may be
    infinite.
    """
    loc, scale = _parameters(loc, scale, low, high, event_ndim)
    return ClippedNormal(loc=loc, scale=scale, low=low, high=high, event_ndim=event_ndim)


def beta(
    alpha: jax.Array, beta: jax.Array, low: Bound, high: Bound, *, event_ndim: int
) -> Distribution:
    """Independent beta distributions stretched to bounds: a = low + (high - low) x.

    `alpha` and `beta` `[..., *A]`, at least 1 so that there is one mode, `A` of rank `event_ndim`;
    raw actions are x in (0, 1). Chou et al. 2017 (ICML). `ValueError` on bounds that are not
    finite or do not fit A.
    """
    _check_finite(low, high)
    alpha, beta = _parameters(alpha, beta, low, high, event_ndim)
    return Beta(alpha=alpha, beta=beta, low=low, high=high, event_ndim=event_ndim)


def product(parts: PyTree) -> Distribution:
    """Independent distributions: log p(a) = sum_i log p_i(a_i), and sums of entropies and KLs.

    `parts` is a dict or tuple, nested at will, of distributions over the same batch axes; raw and
    final actions are trees of the same structure. `ValueError` where there are none.
    """
    if not jax.tree.leaves(parts, is_leaf=_is_part):
        raise ValueError("a product of no distributions")
    return Product(parts=parts)


def scalar_value(value: jax.Array) -> ValueEstimate:
    """The value itself, `[...]`; its loss is whatever `error(value, target)` says."""
    return ScalarValue(value=value.astype(jnp.float32))


def categorical_value(logits: jax.Array, low: float, high: float, sigma: float) -> ValueEstimate:
    """A histogram over K atoms z_k evenly spaced from `low` to `high`: V = sum_k p_k z_k.

    `logits` `[..., K]`. The loss is the cross-entropy -sum_k q_k log p_k to the projection q of the
    target, clipped to the atoms. With `sigma` in widths w of a bin, q_k is the mass that a normal
    of deviation sigma w around the target puts in the bin z_k +- w / 2, over its mass in all bins
    (HL-Gauss: Imani and White 2018; Farebrother et al. 2024, arXiv 2403.03950, section 3.1).
    `sigma=0` splits q between the two nearest atoms so that its mean is the target (two-hot:
    Bellemare et al. 2017, arXiv 1707.06887, eq. 7). `ValueError` where that makes no histogram.
    """
    if logits.shape[-1] < 2 or not -math.inf < low < high < math.inf or not 0 <= sigma < math.inf:
        raise ValueError(f"no histogram of {logits.shape[-1]} atoms: {low=}, {high=}, {sigma=}")
    return CategoricalValue(
        logits=logits.astype(jnp.float32), low=float(low), high=float(high), sigma=float(sigma)
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Categorical:
    """Independent categoricals; `categorical` and `multi_categorical` make it."""

    logits: jax.Array  # [..., A..., K], ILLEGAL where forbidden
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A
    family: str = dataclasses.field(default="categorical", metadata=STATIC)

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw int32 `[..., A...]`; its log-probability `[...]`."""
        value = jax.random.categorical(random_bits.quick(seed), self.logits).astype(jnp.int32)
        return value, self.log_prob(value)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """sum_i log softmax(logits_i)[a_i], `[...]`."""
        chex.assert_shape(value, self.logits.shape[:-1])
        is_drawn = jnp.arange(self.logits.shape[-1]) == value[..., None]
        chosen = [
            jnp.where(drawn, log_p, 0.0)
            for drawn, log_p in zip(_cut(is_drawn), _log_softmax(self.logits), strict=True)
        ]
        return _sum(_sum_pieces(chosen), self.event_ndim)

    def entropy(self) -> jax.Array:
        """-sum_i sum_k p_ik log p_ik, `[...]`."""
        terms = [-jnp.exp(log_p) * log_p for log_p in _log_softmax(self.logits)]
        return _sum(_sum_pieces(terms), self.event_ndim)

    def kl_divergence(self, other: Categorical) -> jax.Array:
        """sum_i sum_k p_ik log(p_ik / q_ik), `[...]`."""
        chex.assert_equal_shape([self.logits, other.logits])
        pairs = zip(_log_softmax(self.logits), _log_softmax(other.logits), strict=True)
        terms = [jnp.exp(log_p) * (log_p - log_q) for log_p, log_q in pairs]
        return _sum(_sum_pieces(terms), self.event_ndim)

    def mode(self) -> jax.Array:
        """The likeliest value of each component, int32 `[..., A...]`."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def to_action(self, value: jax.Array) -> jax.Array:
        """The value itself."""
        return value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Normal:
    """A diagonal normal over the raw action u; its KL is that of any one-to-one image of u."""

    loc: jax.Array  # [..., A...]
    scale: jax.Array  # [..., A...]
    low: Bound = dataclasses.field(metadata=STATIC)
    high: Bound = dataclasses.field(metadata=STATIC)
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A

    def _log_densities(self, value: jax.Array) -> jax.Array:
        return norm.logpdf(value, self.loc, self.scale)

    def _entropies(self) -> jax.Array:
        return 0.5 * math.log(2.0 * math.pi * math.e) + jnp.log(self.scale)

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw u float32 `[..., A...]`; the log-density `[...]` of its action."""
        value = self.loc + self.scale * jax.random.normal(random_bits.quick(seed), self.loc.shape)
        # of the rounded value, as the learner will see it: the first ratio is 1
        return value, self.log_prob(value)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """sum log N(u; loc, scale), `[...]`."""
        value = _event(value, self.loc)
        return _sum(self._log_densities(value), self.event_ndim)

    def entropy(self) -> jax.Array:
        """sum log(scale sqrt(2 pi e)), `[...]`."""
        return _sum(self._entropies(), self.event_ndim)

    def kl_divergence(self, other: _Normal) -> jax.Array:
        """sum of log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2, `[...]`."""
        chex.assert_equal_shape([self.loc, other.loc])
        # Not m1 / s2 - m2 / s2, which for a small s2 loses the digits of the difference.
        distance = (self.loc - other.loc) / other.scale
        log_ratio = jnp.log(self.scale / other.scale)
        kl = 0.5 * (distance**2 + jnp.expm1(2.0 * log_ratio)) - log_ratio
        return _sum(kl, self.event_ndim)

    def mode(self) -> jax.Array:
        """The mode of u, `[..., A...]`."""
        return self.loc


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippedNormal(_Normal):
    """Made by `clipped_normal`."""

    family: str = dataclasses.field(default="clipped_normal", metadata=STATIC)

    def to_action(self, value: jax.Array) -> jax.Array:
        """min(max(u, low), high), `[..., A...]`."""
        return jnp.clip(value.astype(jnp.float32), _float32(self.low), _float32(self.high))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TanhNormal(_Normal):
    """Made by `tanh_normal`."""

    family: str = dataclasses.field(default="tanh_normal", metadata=STATIC)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """sum of log N(u; loc, scale) - log(da / du), `[...]`.

        da / du = (high - low) / 2 (1 - tanh^2 u), and log(1 - tanh^2 u) =
        2 (log 2 - u - softplus(-2u)), which keeps its digits where tanh(u) rounds to 1.
        """
        value = _event(value, self.loc)
        slope = 2.0 * (math.log(2.0) - value - jax.nn.softplus(-2.0 * value))
        log_prob = self._log_densities(value) - slope - self._log_half_width()
        return _sum(log_prob, self.event_ndim)

    def entropy(self) -> jax.Array:
        """sum of the entropy of u and E[log(da / du)], `[...]`.

        E[log(1 - tanh^2 u)] = -2 E[log cosh u], and log cosh u = E|u + K z| - log 2 for a standard
        normal z and the K of `MIXTURE_SCALES`. So E[log cosh u] + log 2 is the mean over K of
        E|N(loc, scale^2 + K^2)|, which is known in closed form. What the rule for K leaves out is
        within 2e-6 nats for every loc and scale, as a convolution widens no error.
        """
        log_cosh = jnp.full_like(self.loc, -math.log(2.0))
        for weight, width in zip(MIXTURE_WEIGHTS, MIXTURE_SCALES, strict=True):
            log_cosh += weight * _mean_magnitude(self.loc, jnp.sqrt(self.scale**2 + width**2))
        entropy = self._entropies() - 2.0 * log_cosh + self._log_half_width()
        return _sum(entropy, self.event_ndim)

    def to_action(self, value: jax.Array) -> jax.Array:
        """low + (high - low) (tanh(u) + 1) / 2, within the bounds, `[..., A...]`."""
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        middle, half = _float32(low / 2.0 + high / 2.0), _float32(high / 2.0 - low / 2.0)
        action = middle + half * jnp.tanh(value.astype(jnp.float32))
        return jnp.clip(action, _float32(low), _float32(high))

    def _log_half_width(self) -> jax.Array:
        return _log_width(self.low, self.high) - math.log(2.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Beta:
    """Made by `beta`."""

    alpha: jax.Array  # [..., A...], at least 1
    beta: jax.Array  # [..., A...], at least 1
    low: Bound = dataclasses.field(metadata=STATIC)
    high: Bound = dataclasses.field(metadata=STATIC)
    event_ndim: int = dataclasses.field(metadata=STATIC)  # the rank of A
    family: str = dataclasses.field(default="beta", metadata=STATIC)

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw x float32 `[..., A...]`; the log-density `[...]` of its action."""
        value = _inside(jax.random.beta(seed, self.alpha, self.beta))
        return value, self.log_prob(value)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """sum of (alpha - 1) log x + (beta - 1) log(1 - x) - log B(alpha, beta) - log(high - low).

        `[...]`. Values outside of the margin that draws keep from 0 and 1 count as on it.
        """
        value = _inside(_event(value, self.alpha))
        log_prob = (self.alpha - 1.0) * jnp.log(value) + (self.beta - 1.0) * jnp.log1p(-value)
        log_prob -= betaln(self.alpha, self.beta) + _log_width(self.low, self.high)
        return _sum(log_prob, self.event_ndim)

    def entropy(self) -> jax.Array:
        """The sum over A of log(high - low) and, with psi the digamma function, the following.

        log B(alpha, beta) - (alpha - 1) psi(alpha) - (beta - 1) psi(beta)
        + (alpha + beta - 2) psi(alpha + beta), `[...]`.
        """
        psi_alpha, psi_beta = self._mean_logs()
        entropy = betaln(self.alpha, self.beta) + _log_width(self.low, self.high)
        entropy -= (self.alpha - 1.0) * psi_alpha + (self.beta - 1.0) * psi_beta
        return _sum(entropy, self.event_ndim)

    def kl_divergence(self, other: Beta) -> jax.Array:
        """The sum over A of the following, `[...]`; the bounds, which both share, leave it be.

        log B(a2, b2) - log B(a1, b1) + (a1 - a2) E[log x] + (b1 - b2) E[log(1 - x)].
        """
        chex.assert_equal_shape([self.alpha, other.alpha])
        psi_alpha, psi_beta = self._mean_logs()
        kl = betaln(other.alpha, other.beta) - betaln(self.alpha, self.beta)
        kl += (self.alpha - other.alpha) * psi_alpha + (self.beta - other.beta) * psi_beta
        return _sum(kl, self.event_ndim)

    def mode(self) -> jax.Array:
        """(alpha - 1) / (alpha + beta - 2), `[..., A...]`; 1/2 where the density is constant."""
        total = self.alpha + self.beta - 2.0
        flat = total <= 0.0
        return jnp.where(flat, 0.5, (self.alpha - 1.0) / jnp.where(flat, 1.0, total))

    def to_action(self, value: jax.Array) -> jax.Array:
        """low + (high - low) x, within the bounds, `[..., A...]`."""
        low, high = _float32(self.low), _float32(self.high)
        value = value.astype(jnp.float32)
        return jnp.clip(low * (1.0 - value) + high * value, low, high)

    def _mean_logs(self) -> tuple[jax.Array, jax.Array]:
        """E[log x] and E[log(1 - x)], `[..., A...]`."""
        psi_total = jax.lax.digamma(self.alpha + self.beta)
        return jax.lax.digamma(self.alpha) - psi_total, jax.lax.digamma(self.beta) - psi_total


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Made by `product`."""

    parts: PyTree  # of Distribution
    family: str = dataclasses.field(default="product", metadata=STATIC)

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[PyTree, jax.Array]:
        """Draw each part by a key of its own; the sum of log-probabilities, `[...]`."""
        parts, structure = jax.tree.flatten(self.parts, is_leaf=_is_part)
        keys = random_bits.split(seed, len(parts))
        draws = [part.sample_and_log_prob(seed=key) for part, key in zip(parts, keys, strict=True)]
        values, log_probs = zip(*draws, strict=True)
        return jax.tree.unflatten(structure, values), _total(log_probs)

    def log_prob(self, value: PyTree) -> jax.Array:
        """The sum over parts, `[...]`."""
        return self._sum_over_parts(lambda part, value: part.log_prob(value), value)

    def entropy(self) -> jax.Array:
        """The sum over parts, `[...]`."""
        return self._sum_over_parts(lambda part: part.entropy())

    def kl_divergence(self, other: Product) -> jax.Array:
        """The sum over parts, `[...]`."""
        return self._sum_over_parts(lambda part, other: part.kl_divergence(other), other.parts)

    def mode(self) -> PyTree:
        """The mode of each part."""
        return jax.tree.map(lambda part: part.mode(), self.parts, is_leaf=_is_part)

    def to_action(self, value: PyTree) -> PyTree:
        """What each part makes of its value."""
        return jax.tree.map(
            lambda part, value: part.to_action(value), self.parts, value, is_leaf=_is_part
        )

    def _sum_over_parts(self, function: Callable[..., jax.Array], *trees: PyTree) -> jax.Array:
        terms = jax.tree.map(function, self.parts, *trees, is_leaf=_is_part)
        return _total(jax.tree.leaves(terms))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalarValue:
    """Made by `scalar_value`."""

    value: jax.Array  # [...]
    family: str = dataclasses.field(default="scalar_value", metadata=STATIC)

    def mean(self) -> jax.Array:
        """The value, `[...]`."""
        return self.value

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """error(value, target), `[...]`."""
        return error(self.value, target)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalValue:
    """Made by `categorical_value`."""

    logits: jax.Array  # [..., K]
    low: float = dataclasses.field(metadata=STATIC)
    high: float = dataclasses.field(metadata=STATIC)
    sigma: float = dataclasses.field(metadata=STATIC)  # in widths of a bin
    family: str = dataclasses.field(default="categorical_value", metadata=STATIC)

    def mean(self) -> jax.Array:
        """sum_k softmax(logits)_k z_k, `[...]`."""
        atoms = _float32(np.linspace(self.low, self.high, self.logits.shape[-1]))
        return jnp.sum(jax.nn.softmax(self.logits) * atoms, axis=-1)

    def loss(
        self, target: jax.Array, error: Callable[[jax.Array, jax.Array], jax.Array]
    ) -> jax.Array:
        """-sum_k q_k log softmax(logits)_k, `[...]`; `error` is not used."""
        chex.assert_shape(target, self.logits.shape[:-1])
        return -jnp.sum(self.project(target) * jax.nn.log_softmax(self.logits), axis=-1)

    def project(self, target: jax.Array) -> jax.Array:
        """The histogram q `[..., K]` of targets `[...]`."""
        last = self.logits.shape[-1] - 1
        bins = (target.astype(jnp.float32) - self.low) * (last / (self.high - self.low))
        bins = jnp.clip(bins, 0.0, last)[..., None]  # in units of w, from the first atom
        if self.sigma == 0.0:
            return jnp.maximum(0.0, 1.0 - jnp.abs(_float32(np.arange(last + 1)) - bins))
        edges = _float32(np.arange(last + 2) - 0.5)
        below = jax.scipy.special.ndtr((edges - bins) / self.sigma)
        return jnp.diff(below) / (below[..., -1:] - below[..., :1])


def _masked(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Logits `[..., K]` in float32, ILLEGAL where the mask forbids and allows something else."""
    logits = logits.astype(jnp.float32)
    if mask is None:
        return logits
    chex.assert_equal_shape([logits, mask])
    chex.assert_type(mask, bool)
    return jnp.where(mask | ~jnp.any(mask, axis=-1, keepdims=True), logits, ILLEGAL)


def _parameters(
    first: jax.Array, second: jax.Array, low: Bound, high: Bound, event_ndim: int
) -> tuple[jax.Array, jax.Array]:
    """Both in float32; `ValueError` where the bounds do not fit the event."""
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


def _event(value: jax.Array, parameter: jax.Array) -> jax.Array:
    """The value in float32; a shape that would broadcast is refused."""
    chex.assert_equal_shape([value, parameter])
    return value.astype(jnp.float32)


def _inside(x: jax.Array) -> jax.Array:
    return jnp.clip(x, BETA_MARGIN, 1.0 - BETA_MARGIN)


def _mean_magnitude(loc: jax.Array, scale: jax.Array) -> jax.Array:
    """E|x| of a normal x: the mean of the folded normal (Leone et al. 1961)."""
    ratio = loc / scale
    peak = math.sqrt(2.0 / math.pi) * scale * jnp.exp(-0.5 * ratio**2)
    return peak + loc * jax.lax.erf(ratio * math.sqrt(0.5))


def _log_width(low: Bound, high: Bound) -> jax.Array:
    """log(high - low), of the event's shape or a scalar; in float64, where no width overflows."""
    return _float32(np.log(np.asarray(high, np.float64) - np.asarray(low, np.float64)))


def _float32(x: Any) -> jax.Array:
    return jnp.asarray(x, jnp.float32)


def _log_softmax(logits: jax.Array) -> list[jax.Array]:
    """Along the last axis, in the pieces of `_cut`."""
    pieces = _cut(logits)
    highest = functools.reduce(jnp.maximum, (jnp.max(x, axis=-1) for x in pieces))
    highest = jax.lax.stop_gradient(highest)[..., None]
    log_total = jnp.log(_sum_pieces([jnp.exp(x - highest) for x in pieces]))[..., None]
    return [x - highest - log_total for x in pieces]


def _cut(x: jax.Array) -> list[jax.Array]:
    """Arrays `[..., K]` in pieces along the last axis: one, or where K is small, K of them.

    Reductions over an axis so short take a CPU as long as the product that it came from; sums of
    pieces, which fuse with what they are made of, a third of that.
    """
    return jnp.split(x, x.shape[-1], axis=-1) if x.shape[-1] <= FEW else [x]


def _sum_pieces(pieces: list[jax.Array]) -> jax.Array:
    """Over the last axis of what `_cut` gave, `[...]`."""
    return _total([jnp.sum(x, axis=-1) for x in pieces])


def _sum(x: jax.Array, ndim: int) -> jax.Array:
    """Over the last `ndim` axes."""
    return jnp.sum(x, axis=tuple(range(-ndim, 0)))


def _total(terms: Any) -> jax.Array:
    return functools.reduce(operator.add, terms)


def _is_part(x: Any) -> bool:
    return not isinstance(x, dict | tuple)
