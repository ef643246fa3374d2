"""Apply observation wrappers of JAX environments (mask, frame stack, extras) to simulators.

The wrappers wrap a stub, `Taken`, and the results of simulators are passed through them in the
argument where JAX environments take random keys.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.ops.sequences import where
from jaxppo.simulators.pool import Simulators
from jaxppo.types import PyTree, TimeStep, zeros


@dataclasses.dataclass(frozen=True)
class _Taken:
    """Results of `B` simulators, which take the place of keys `[B]`."""

    shape: tuple[int, ...]
    result: Any  # observation of a reset, `TimeStep` of a step


class Taken:
    """A stub of `types.Environment` that returns the results of simulators."""

    pool_size, pads = 0, False

    def __init__(self, env: Any) -> None:  # a Simulated
        self.num_agents = env.num_agents
        self.name, self.time_limit = env.name, env.time_limit
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, key: Any) -> tuple[PyTree, PyTree]:
        """Return no state, and the observation `[B, O...]` in the place of keys."""
        return (), key.result

    def step(self, key: Any, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """Return no state, and the step `[B, ...]` in the place of keys."""
        return (), key.result


class Views:
    """The programs of a wrapped `Taken`, which follow the episodes of `B` simulators."""

    def __init__(self, env: Any) -> None:  # an Environment, which passes what it gets for keys on
        self._env = env
        self.reset, self.step = jax.jit(self._reset), jax.jit(self._step)

    def init(self, obs: PyTree, num: int) -> PyTree:
        """Return the state and the observation of `B` simulators that have not begun."""
        taken = zeros(self._env.observation_space, (num,))
        state = jax.eval_shape(lambda x: self._env.reset(_Taken((num,), x))[0], obs)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state), taken

    def _reset(self, now: PyTree, obs: PyTree, chosen: jax.Array) -> PyTree:
        """Map (state, observation) to those in which the chosen episodes `[B]` bool start."""
        return where(chosen, self._env.reset(_Taken(chosen.shape, obs)), now)

    def _step(self, now: PyTree, step: TimeStep, action: PyTree, chosen: jax.Array) -> Any:
        """Return state, observation and `final_observation` after a step of the chosen."""
        state, shown = self._env.step(_Taken(chosen.shape, step), now[0], action)
        return where(chosen, (state, shown.obs), now), shown.final_observation


class Shown:
    """`pool.Simulators` whose `obs` and `final` hold what `views` make of those of others."""

    def __init__(
        self,
        simulators: Simulators,
        views: Views,
        form: Callable[[Sequence[np.ndarray]], PyTree],
        action_form: Any,
    ) -> None:
        self._of, self._views, self._form, self._action_form = simulators, views, form, action_form
        self._num, self.restarts = len(simulators.arrays.reward), 0
        self._now = views.init(form(simulators.arrays.obs), self._num)
        self.arrays = copy.copy(simulators.arrays)
        for name in ("obs", "final"):
            setattr(self.arrays, name, [np.array(x) for x in jax.tree.leaves(self._now[1])])

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Start episodes in some environments."""
        self._of.reset(rows, seeds)
        self.restarts = self._of.restarts
        chosen = np.zeros(self._num, bool)
        chosen[rows] = True
        self._now = self._views.reset(self._now, self._form(self._of.arrays.obs), chosen)
        self._write(self.arrays.obs, self._now[1])

    def step(self, actions: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
        """Step all environments, or only `rows` `[N]` bool and then start nothing."""
        self._of.step(actions, rows)
        self.restarts, arrays = self._of.restarts, self._of.arrays
        flags: dict[str, Any] = {
            name: getattr(arrays, name) for name in ("reward", "terminated", "truncated")
        }
        obs, final = self._form(arrays.obs), self._form(arrays.final)
        step = TimeStep(obs=obs, final_observation=final, **flags)
        chosen = np.ones(self._num, bool) if rows is None else rows
        action = jax.tree.unflatten(self._action_form, actions)
        self._now, final = self._views.step(self._now, step, action, chosen)
        self._write(self.arrays.final, final)
        self._write(self.arrays.obs, self._now[1] if rows is None else final)

    def _write(self, into: Sequence[np.ndarray], tree: PyTree) -> None:
        for array, x in zip(into, jax.tree.leaves(tree), strict=True):
            array[:] = x

    def abandon(self) -> None:
        """End processes at once, see `Simulators`."""
        self._of.abandon()

    def close(self) -> None:
        """End all processes, and close all environments."""
        self._of.close()
