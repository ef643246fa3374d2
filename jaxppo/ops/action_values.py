"""Q-values of discrete actions: numbers, histograms or quantiles; and actions chosen by them.

An action has `C` components (1 if the space is discrete) with up to `A` values each. Every class is
a pytree of arrays with leading batch axes `...`, and implements `ActionValues`. Components are
treated as independent actions of the same state: the value of a state is the mean over components
of their values (Tavakoli et al. 2018, arXiv 1711.08946). `DoubleQ` holds two estimates of any kind.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.kernels import random_bits
from jaxppo.ops import distributional, returns
from jaxppo.ops.actions import component_sizes, flat_mask
from jaxppo.ops.losses import huber_error, squared_error
from jaxppo.types import STATIC, Discrete, MultiDiscrete, PyTree, pytree


class ActionValues(Protocol):
    """Estimates of the returns that follow the actions in a state.

    `loss` is for what `select` returns, which has no axis `A`. Values and targets are `[...]`, or
    `[..., K]` for distributions; `DoubleQ` adds an axis of 2 at the end.
    """

    def mean(self) -> jax.Array:
        """Return Q(s, a), `[..., C, A]`."""

    def select(self, action: jax.Array) -> "ActionValues":
        """Select the estimates of actions, int32 `[..., C]`; the result has no axis `A`."""

    def greedy_value(self, legal: jax.Array) -> jax.Array:
        """Return the estimate of the greedy actions; `legal` is bool `[..., C, A]`.

        It is averaged over components: `[...]`, or `[..., K]` (their mixture).
        """

    def lambda_returns(
        self,
        reward: jax.Array,
        discount: jax.Array,
        next_value: jax.Array,
        truncated: jax.Array,
        lambda_: jax.Array,
    ) -> jax.Array:
        """Return the targets of the actions taken, `[T, B]` or `[T, B, K]`.

        `next_value` `[T, B]` or `[T, B, K]` is the `greedy_value` of the true successor; the other
        arguments are as in `returns.lambda_returns`.
        """

    def loss(self, target: jax.Array) -> jax.Array:
        """Return the loss to targets `[...]` or `[..., K]`, averaged over `C`: `[...]`."""


@pytree
class QOutput:
    """Output of a Q-network, batched over its leading axes `...`."""

    estimate: ActionValues  # [..., C, A]
    legal: jax.Array  # [..., C, A] bool; at least one value of each component


class _SingleQ:
    """Base class of estimates that choose and value an action with the same numbers.

    `state_value` averages what `select` returned over components.
    """

    def greedy_value(self: Any, legal: jax.Array) -> jax.Array:
        """Return the estimate of the greedy actions; `legal` is bool `[..., C, A]`."""
        return self.select(greedy_actions(self.mean(), legal)).state_value()


@pytree
class ScalarQ(_SingleQ):
    """One number for each action."""

    value: jax.Array  # [..., C, A]
    huber_delta: float | None = dataclasses.field(default=None, metadata=STATIC)  # None: squared
    family: str = dataclasses.field(default="scalar_q", metadata=STATIC)  # see `values`

    def mean(self) -> jax.Array:
        """Return the numbers."""
        return self.value

    def select(self, action: jax.Array) -> "ScalarQ":
        """Return the numbers of actions, `[..., C]`."""
        return dataclasses.replace(self, value=_take(self.value, action, 0))

    def state_value(self) -> jax.Array:
        """Return the mean over components, `[...]`."""
        return jnp.mean(self.value, axis=-1)

    # `[T, B]`: Peng's Q(lambda), if `next_value` is of greedy actions
    lambda_returns = staticmethod(returns.lambda_returns)

    def loss(self, target: jax.Array) -> jax.Array:
        """Return (Q - target)^2 / 2, or the Huber loss, averaged over `C`, `[...]`."""
        target = jnp.broadcast_to(target[..., None], self.value.shape)
        if self.huber_delta is None:
            return jnp.mean(squared_error(self.value, target), axis=-1)
        return jnp.mean(huber_error(self.value, target, self.huber_delta), axis=-1)


@pytree
class CategoricalQ(_SingleQ):
    """Probabilities of `K` atoms, evenly spaced from `low` to `high`, for each action (C51)."""

    logits: jax.Array  # [..., C, A, K]
    low: float = dataclasses.field(metadata=STATIC)
    high: float = dataclasses.field(metadata=STATIC)
    family: str = dataclasses.field(default="categorical_q", metadata=STATIC)

    @property
    def atoms(self) -> jax.Array:
        """Return the atoms, `[K]`."""
        return jnp.float32(np.linspace(self.low, self.high, self.logits.shape[-1]))

    def mean(self) -> jax.Array:
        """Return the expectations, `[..., C, A]`."""
        return jnp.sum(jax.nn.softmax(self.logits) * self.atoms, axis=-1)

    def select(self, action: jax.Array) -> "CategoricalQ":
        """Return the histograms of actions, `[..., C, K]`."""
        return dataclasses.replace(self, logits=_take(self.logits, action, 1))

    def state_value(self) -> jax.Array:
        """Return the mean of the components' probabilities, `[..., K]`."""
        return jnp.mean(jax.nn.softmax(self.logits), axis=-2)

    def lambda_returns(
        self,
        reward: jax.Array,
        discount: jax.Array,
        next_value: jax.Array,
        truncated: jax.Array,
        lambda_: jax.Array,
    ) -> jax.Array:
        """Return the probabilities of lambda returns, `[T, B, K]`."""
        return distributional.categorical_lambda_returns(
            reward, discount, next_value, truncated, self.atoms, lambda_=lambda_
        )

    def loss(self, target: jax.Array) -> jax.Array:
        """Return the cross-entropy to target probabilities `[..., K]`, averaged over `C`."""
        log_prob = jax.nn.log_softmax(self.logits)
        return -jnp.mean(jnp.sum(target[..., None, :] * log_prob, axis=-1), axis=-1)


@pytree
class QuantileQ(_SingleQ):
    """`N` quantiles for each action, at the levels (2 i + 1) / (2 N) (QR-DQN)."""

    quantiles: jax.Array  # [..., C, A, N]
    huber_delta: float = dataclasses.field(metadata=STATIC)
    family: str = dataclasses.field(default="quantile_q", metadata=STATIC)

    def mean(self) -> jax.Array:
        """Return the means of the quantiles, `[..., C, A]`."""
        return jnp.mean(self.quantiles, axis=-1)

    def select(self, action: jax.Array) -> "QuantileQ":
        """Return the quantiles of actions, `[..., C, N]`."""
        return dataclasses.replace(self, quantiles=_take(self.quantiles, action, 1))

    def state_value(self) -> jax.Array:
        """Return the quantiles of the mixture of the components, `[..., N]`."""
        *lead, components, num = self.quantiles.shape
        if components == 1:
            return self.quantiles[..., 0, :]
        values = self.quantiles.reshape(*lead, components * num)
        weights = jnp.full_like(values, 1.0 / values.shape[-1])
        return distributional.quantile_mixture(values, weights, num)

    lambda_returns = staticmethod(distributional.quantile_lambda_returns)

    def loss(self, target: jax.Array) -> jax.Array:
        """Return the quantile Huber loss to target quantiles `[..., N]`, averaged over `C`."""
        target = jnp.broadcast_to(target[..., None, :], self.quantiles.shape)
        each = distributional.quantile_loss(self.quantiles, target, self.huber_delta)
        return jnp.mean(each, axis=-1)


@pytree
class DoubleQ:
    """Two estimates; the target of each takes its own greedy action and the other's value of it.

    Double Q-learning: van Hasselt 2010, algorithm 1, but both learn from every step. Acting uses
    the mean of the two. Every method is that of the two estimates, whose arrays, values and targets
    have a last axis of 2.
    """

    pair: Any  # `ActionValues` with arrays [..., C, A, 2] or [..., C, A, K, 2]

    def mean(self) -> jax.Array:
        """Return the mean of the two, `[..., C, A]`."""
        return jnp.mean(_of_both(lambda each: each.mean())(self.pair), axis=-1)

    def select(self, action: jax.Array) -> "DoubleQ":
        """Select the estimates of actions, int32 `[..., C]`."""
        return DoubleQ(pair=_of_both(lambda each: each.select(action))(self.pair))

    def greedy_value(self, legal: jax.Array) -> jax.Array:
        """Return the value of the greedy action of each in the eyes of the other, `[..., 2]`."""
        chosen = _of_both(lambda each: greedy_actions(each.mean(), legal))(self.pair)
        other = jax.tree.map(lambda x: jnp.flip(x, axis=-1), self.pair)
        return _of_both(lambda each, action: each.select(action).state_value())(other, chosen)

    def lambda_returns(
        self,
        reward: jax.Array,
        discount: jax.Array,
        next_value: jax.Array,
        truncated: jax.Array,
        lambda_: jax.Array,
    ) -> jax.Array:
        """Return the targets of both, `[T, B, 2]`."""

        def of_each(each: ActionValues, value: jax.Array) -> jax.Array:
            return each.lambda_returns(reward, discount, value, truncated, lambda_)

        return _of_both(of_each)(self.pair, next_value)

    def loss(self, target: jax.Array) -> jax.Array:
        """Return the mean of the two losses, `[...]`."""
        return jnp.mean(_of_both(lambda each, to: each.loss(to))(self.pair, target), axis=-1)


def _of_both(function: Callable[..., Any]) -> Callable[..., Any]:
    """Map a function over the last axis of its arguments."""
    return jax.vmap(function, in_axes=-1, out_axes=-1)


def split_components(space: Discrete | MultiDiscrete, x: jax.Array) -> jax.Array:
    """Split concatenated components: `[..., sum num_values, K]` to `[..., C, A, K]`.

    A component with fewer values than `A` is padded with its last one; see `legal_values`.
    """
    sizes = np.asarray(component_sizes(space))
    starts = np.cumsum(sizes) - sizes
    last = (sizes - 1)[:, None]
    return jnp.take(x, starts[:, None] + np.minimum(np.arange(max(sizes)), last), axis=-2)


def legal_values(space: Discrete | MultiDiscrete, mask: PyTree, lead: tuple[int, ...]) -> jax.Array:
    """Return which values of the components are legal, bool `[*lead, C, A]`.

    `mask` is as in `actions.flat_mask`. If it allows nothing in a component, it is ignored there.
    """
    sizes = np.asarray(component_sizes(space))
    exists = np.arange(max(sizes)) < sizes[:, None]
    flat = flat_mask(space, mask)
    if flat is None:
        return jnp.broadcast_to(exists, (*lead, *exists.shape))
    allowed = split_components(space, flat[..., None])[..., 0] & exists
    return allowed | (exists & ~jnp.any(allowed, axis=-1, keepdims=True))


def greedy_actions(q: jax.Array, legal: jax.Array) -> jax.Array:
    """Return the legal values of highest Q, int32 `[..., C]`; both arrays are `[..., C, A]`."""
    return jnp.argmax(_only_legal(q, legal), axis=-1).astype(jnp.int32)


def epsilon_greedy(q: jax.Array, legal: jax.Array, epsilon: jax.Array, key: jax.Array) -> jax.Array:
    """Return greedy values, or with probability `epsilon` uniform legal ones, int32 `[..., C]`.

    Each component explores on its own. `q` and `legal` are `[..., C, A]`.
    """
    chex.assert_equal_shape([q, legal])
    draws = jax.random.uniform(random_bits.quick(key), (*q.shape[:-1], q.shape[-1] + 1))
    uniform = greedy_actions(draws[..., :-1], legal)
    return jnp.where(draws[..., -1] < epsilon, uniform, greedy_actions(q, legal))


def epsilon_greedy_log_prob(
    q: jax.Array, legal: jax.Array, epsilon: jax.Array, action: jax.Array
) -> jax.Array:
    """Return log(epsilon / n + (1 - epsilon) [a is greedy]), n the number of legal values.

    `q` and `legal` are `[..., C, A]`, `action` and the result `[..., C]`.
    """
    uniform = _take(legal, action, 0) / jnp.sum(legal, axis=-1)
    return jnp.log(epsilon * uniform + (1.0 - epsilon) * (action == greedy_actions(q, legal)))


def soft_value(q: jax.Array, legal: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return temperature x log sum exp(Q / temperature) over legal actions, `[..., C]`.

    It is the mean of Q plus temperature times entropy under the softmax policy: Vieillard et al.
    2020 (arXiv 2007.14430), section 2. `q` and `legal` are `[..., C, A]`.
    """
    scaled = _only_legal(q, legal) / temperature
    return temperature * jax.nn.logsumexp(scaled, axis=-1)


def scaled_entropy(q: jax.Array, legal: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Return temperature x entropy of softmax(Q / temperature) over legal actions, `[..., C]`.

    `q` and `legal` are `[..., C, A]`.
    """
    policy = jax.nn.softmax(_only_legal(q, legal) / temperature)
    return soft_value(q, legal, temperature) - jnp.sum(policy * q, axis=-1, where=legal)


def munchausen_bonus(
    q: jax.Array,
    legal: jax.Array,
    action: jax.Array,
    alpha: jax.Array | float,
    temperature: jax.Array | float,
    clip: jax.Array | float,
) -> jax.Array:
    """Return alpha x max(temperature log pi(a|s), -clip) with pi = softmax(Q / temperature).

    Vieillard et al. 2020 (arXiv 2007.14430), eq. 1; `-clip` is their l_0. `temperature` and `clip`
    are in units of Q. `q` and `legal` are `[..., C, A]`, `action` and the result `[..., C]`.
    """
    scaled_log_prob = _take(q, action, 0) - soft_value(q, legal, temperature)
    return alpha * jnp.clip(scaled_log_prob, -clip, 0.0)


def _only_legal(q: jax.Array, legal: jax.Array) -> jax.Array:
    return jnp.where(legal, q, -jnp.inf)


def _take(x: jax.Array, action: jax.Array, num_axes: int) -> Any:
    """Select `x[..., action, :]`, where `num_axes` axes follow the actions' own."""
    index = action.reshape(*action.shape, *(1,) * (1 + num_axes))
    return jnp.take_along_axis(x, index, axis=-1 - num_axes).squeeze(-1 - num_axes)
