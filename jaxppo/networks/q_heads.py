"""Heads of Q-networks: map features `[L, S, F]` to Q-values of the actions in a discrete space.

If the observation has an action mask, the head takes it too; see `heads`. An action has `C`
components, 1 if the space is `Discrete`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels.products import Dense
from jaxppo.networks.checks import Checked, argument, check_range
from jaxppo.networks.torsos import NoisyDense
from jaxppo.ops.action_values import (
    ActionValues,
    CategoricalQ,
    DoubleQ,
    QOutput,
    QuantileQ,
    ScalarQ,
    legal_values,
    split_components,
)
from jaxppo.ops.actions import component_sizes
from jaxppo.types import Discrete, MultiDiscrete, PyTree, describe


class _QHead(Checked):
    """Base class of Q heads: some numbers for each value of each component of an action.

    With `dueling` they are a value plus an advantage minus the component's mean advantage: Wang et
    al. 2016 (arXiv 1511.06581), eq. 9. With `double` there are two estimates, see `DoubleQ`. With
    `initial_noise` above 0 the output layers are noisy: Fortunato et al. 2018 (arXiv 1706.10295),
    see `torsos.NoisyMLP`. Weights are orthogonal.
    """

    action_space: Discrete | MultiDiscrete
    dueling: bool = False
    double: bool = False
    initial_noise: float = argument(0.0, low=0)

    def __post_init__(self) -> None:
        """Raise `ValueError` on actions that are not discrete, or a wrong argument."""
        check_discrete(self.action_space)
        super().__post_init__()

    def output(
        self,
        x: jax.Array,
        mask: PyTree,
        num: int,
        gain: float,
        estimate: Callable[[jax.Array], ActionValues],
    ) -> QOutput:
        """Return the Q-values of features `[L, S, F]`; `estimate` takes `[L, S, C, A, num]`."""
        legal = legal_values(self.action_space, mask, x.shape[:-1])
        if not self.double:
            return QOutput(estimate=estimate(self.numbers(x, num, gain)), legal=legal)
        numbers = self.numbers(x, 2 * num, gain)
        pair = jax.vmap(estimate, -1, -1)(numbers.reshape(*numbers.shape[:-1], num, 2))
        return QOutput(estimate=DoubleQ(pair=pair), legal=legal)

    @nn.compact
    def numbers(self, x: jax.Array, num: int, gain: float) -> jax.Array:
        """Map features `[L, S, F]` to `[L, S, C, A, num]`."""
        sizes = component_sizes(self.action_space)
        each = self._dense("action", sum(sizes), num, gain)(x)
        rows = split_components(self.action_space, each.reshape(*x.shape[:-1], sum(sizes), num))
        if not self.dueling:
            return rows
        value = self._dense("value", len(sizes), num, gain)(x)
        exists = legal_values(self.action_space, None, ())[..., None]
        mean = jnp.mean(rows, axis=-2, keepdims=True, where=exists)
        return value.reshape(*x.shape[:-1], len(sizes), 1, num) + rows - mean

    def _dense(self, name: str, size: int, num: int, gain: float) -> nn.Module:
        kernel_init = nn.initializers.orthogonal(gain)
        if self.initial_noise:
            return NoisyDense(size * num, self.initial_noise, kernel_init, name=name)
        return Dense(size * num, kernel_init=kernel_init, name=name)


class ScalarQHead(_QHead):
    """One Q-value for each action. Weights are orthogonal with gain 1; see `_QHead`.

    The loss is the squared error, or with a `huber_delta` the Huber loss: Mnih et al. 2015 (DQN).
    """

    huber_delta: float | None = argument(None, above=0)  # null: squared errors

    def __call__(self, x: jax.Array, mask: PyTree = None) -> QOutput:
        """Return Q-values `[L, S, C, A]`."""
        estimate = partial(ScalarQ, huber_delta=self.huber_delta)
        return self.output(x, mask, 1, 1.0, lambda numbers: estimate(value=numbers[..., 0]))


class CategoricalQHead(_QHead):
    """Probabilities of `num_atoms` returns from `low` to `high` for each action (C51).

    `low` and `high` are in units of scaled, discounted return. Returns outside are clipped, so set
    both for each environment. Bellemare et al. 2017 (arXiv 1707.06887). Weights are orthogonal with
    gain 0.01; see `_QHead`.
    """

    num_atoms: int = argument(51, low=2)
    low: float = -10.0
    high: float = 10.0

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument or an empty range."""
        super().__post_init__()
        check_range(self.low, self.high)

    def __call__(self, x: jax.Array, mask: PyTree = None) -> QOutput:
        """Return histograms of returns, `[L, S, C, A]`."""
        estimate = partial(CategoricalQ, low=float(self.low), high=float(self.high))
        return self.output(x, mask, self.num_atoms, 0.01, lambda logits: estimate(logits=logits))


class QuantileQHead(_QHead):
    """`num_quantiles` quantiles of the return for each action (QR-DQN).

    Errors are squared up to `huber_delta` in the quantile loss and linear above it; with 0 they are
    absolute. Dabney et al. 2018 (arXiv 1710.10044). Weights are orthogonal with gain 1; see
    `_QHead`.
    """

    num_quantiles: int = 32
    huber_delta: float = argument(1.0, low=0)

    def __call__(self, x: jax.Array, mask: PyTree = None) -> QOutput:
        """Return quantiles of returns, `[L, S, C, A]`."""
        estimate = partial(QuantileQ, huber_delta=float(self.huber_delta))
        return self.output(x, mask, self.num_quantiles, 1.0, lambda q: estimate(quantiles=q))


def check_discrete(action_space: Any) -> None:
    """Raise `ValueError` unless actions are discrete or multi-discrete."""
    if isinstance(action_space, Discrete | MultiDiscrete):
        return
    raise ValueError(
        "a Q-network takes Discrete or MultiDiscrete actions, not "
        f"{type(action_space).__name__} ({describe(action_space)}); jaxppo.ff_ppo and "
        "jaxppo.rec_ppo take any actions"
    )
