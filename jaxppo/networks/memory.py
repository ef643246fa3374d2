"""Memories: map a carry `[S, ...]` and features `[L, S, F]` to the next carry and features.

At the start of an episode the carry is zero: where `reset` `[L, S]` is true, it is reset before the
step. A memory has `initial_carry(num)`, which returns the initial carry `[num, ...]`.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels import cells
from jaxppo.kernels.norms import LayerNorm
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.products import Dense
from jaxppo.kernels.recurrences import linear_recurrence
from jaxppo.networks.checks import Checked, argument, check_features
from jaxppo.types import PyTree

CELLS: dict[str, Any] = {
    "lstm": nn.LSTMCell,
    "optimized_lstm": nn.OptimizedLSTMCell,
    "gru": nn.GRUCell,
    "mgu": nn.MGUCell,
    "simple": nn.SimpleCell,
}


class Recurrent(Checked):
    """Stacked flax cells, each scanned over the sequence.

    `cell`: `lstm` (Hochreiter and Schmidhuber 1997); `optimized_lstm`, the same with fewer matrix
    products; `gru` (Cho et al. 2014, arXiv 1406.1078); `mgu` (Zhou et al. 2016, arXiv 1603.09420);
    `simple`, one tanh layer.
    """

    cell: str = argument("lstm", choices=tuple(CELLS))
    size: int = 64
    num_layers: int = 1

    @nn.nowrap
    def initial_carry(self, num: int) -> PyTree:
        """Return zeros, one entry per layer."""
        cell = CELLS[self.cell](self.size, parent=None)
        one: PyTree = cell.initialize_carry(jax.random.key(0), (num, 1))
        return (one,) * self.num_layers

    @nn.compact
    def __call__(self, carry: PyTree, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Map features `[L, S, F]` to `[L, S, size]`."""
        check_features(x)

        def step(cell: Any, carry: PyTree, now: tuple[jax.Array, jax.Array]) -> Any:
            x, reset = now
            return cell(jax.tree.map(lambda c: jnp.where(reset[:, None], 0, c), carry), x)

        unroll = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        after = []
        for i, before in enumerate(carry):
            name = f"layer_{i}"
            own = cells.CELLS.get(self.cell.removeprefix("optimized_"))
            joined = forms().joined_gates or cells.is_fused()
            if own and joined and not self.is_initializing():
                end, x = cells.unroll(own, self.get_variable("params", name), before, x, reset)
            else:
                end, x = unroll(CELLS[self.cell](self.size, name=name), before, (x, reset))
            after.append(end)
        return tuple(after), x


class LRU(Checked):
    """Stacked linear recurrent units, each with layer norm, a gate and a skip connection.

    h_t = lambda h_{t-1} + sqrt(1 - |lambda|^2) B u_t, y_t = Re(C h_t) + D u_t with a complex
    diagonal lambda: Orvieto et al. 2023 (arXiv 2303.06349), section 3; there, the square root is a
    separate parameter. |lambda| starts between `min_radius` and `max_radius`, its angle below
    `max_phase`. The gate is y' sigmoid(W y') with y' = gelu(y), as in Smith et al. 2023 (arXiv
    2208.04933). Long sequences are parallel in time: see `linear_recurrence`.
    """

    size: int = 64
    state_size: int = 64
    num_layers: int = 1
    min_radius: float = argument(0.9, above=0)
    max_radius: float = 0.999
    max_phase: float = argument(math.pi / 10, above=0, high=2 * math.pi)

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument, or unless min_radius < max_radius < 1."""
        super().__post_init__()
        if not self.min_radius < self.max_radius < 1:
            raise ValueError(
                f"min_radius={self.min_radius}, max_radius={self.max_radius}: must be "
                "0 < min_radius < max_radius < 1"
            )

    @nn.nowrap
    def initial_carry(self, num: int) -> PyTree:
        """Return zeros, complex64 `[num, state_size]` per layer."""
        return (jnp.zeros((num, self.state_size), jnp.complex64),) * self.num_layers

    @nn.compact
    def __call__(self, carry: PyTree, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Map features `[L, S, F]` to `[L, S, size]`."""
        check_features(x)
        x = Dense(self.size, name="embedding")(x)
        after = []
        for i, before in enumerate(carry):
            layer = _LRULayer(
                self.state_size, self.min_radius, self.max_radius, self.max_phase, name=f"layer_{i}"
            )
            end, x = layer(before, x, reset)
            after.append(end)
        return tuple(after), x


class _LRULayer(nn.Module):
    state_size: int
    min_radius: float
    max_radius: float
    max_phase: float

    @nn.compact
    def __call__(
        self, carry: jax.Array, x: jax.Array, reset: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        size, shape = x.shape[-1], (self.state_size,)
        log_rate = self.param("log_rate", self._initial_log_rate, shape)
        log_phase = self.param("log_phase", self._initial_log_phase, shape)
        rate = -jnp.exp(log_rate)  # log |lambda|
        decay = jnp.exp(jax.lax.complex(rate, jnp.exp(log_phase)))
        scale = jnp.sqrt(-jnp.expm1(2.0 * rate))
        u = LayerNorm()(x)
        real, imaginary = jnp.split(Dense(2 * self.state_size, use_bias=False)(u), 2, axis=-1)
        states = linear_recurrence(
            decay, jax.lax.complex(scale * real, scale * imaginary), reset, carry
        )
        both = jnp.concatenate([states.real, states.imag], axis=-1)
        skip = self.param("skip", nn.initializers.normal(1.0), (size,))
        y = nn.gelu(Dense(size, use_bias=False)(both) + skip * u)
        return states[-1], x + y * nn.sigmoid(Dense(size)(y))

    def _initial_log_rate(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Draw |lambda|^2 uniformly between the squared radii."""
        low, high = self.min_radius**2, self.max_radius**2
        return jnp.log(-0.5 * jnp.log(jax.random.uniform(key, shape, minval=low, maxval=high)))

    def _initial_log_phase(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return jnp.log(self.max_phase * jax.random.uniform(key, shape, minval=1e-3))
