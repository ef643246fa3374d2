"""Environments that are not JAX, as the learner sees them: spaces, and how to make simulators."""

import contextlib
import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import imported
from jaxppo.config.messages import raised
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import refuse
from jaxppo.envs.forms import bound_of, integers
from jaxppo.envs.shown import Shown, Taken, Views
from jaxppo.simulators import making
from jaxppo.simulators.group import Group
from jaxppo.simulators.pool import Pool, Simulators
from jaxppo.simulators.spaces import Leaf, UnsupportedSpaceError, actions_of, tree
from jaxppo.types import (
    Box,
    Discrete,
    Environment,
    MultiDiscrete,
    PyTree,
    Space,
    TimeStep,
    counted,
    is_space,
    zeros,
)


class Simulated:
    """A `types.Environment` whose steps are taken outside of JAX, by `Simulators`.

    `reset` is a placeholder of the right shapes; `runtime.simulated` collects and evaluates.
    """

    pool_size = 0

    def __init__(
        self,
        name: str,
        observation_space: Any,
        action_space: Any,
        time_limit: int | None,
        make: Callable[[int, list[Leaf], list[Leaf]], Simulators],
        make_drawn: Callable[[], Any] | None = None,
        *,
        in_waves: bool = False,
        num_agents: int = 1,
    ) -> None:
        self.name, self.time_limit = name, time_limit
        self.num_agents, self.pads = num_agents, num_agents > 1
        self.in_waves = in_waves  # episodes of evaluations can only start all at once
        observations, self._form = _leaves(name, "observation", observation_space)
        actions, form = _leaves(name, "action", action_space)
        taken = [dataclasses.replace(x, dtype="int32") if x.is_integers else x for x in actions]
        self.observation_leaves, self.action_leaves = observations, taken
        self.observation_space = jax.tree.unflatten(self._form, map(_space, observations))
        self.action_space = jax.tree.unflatten(form, map(_action_space, actions))
        self._make, self._make_drawn = make, make_drawn

    def make(self, num: int) -> Simulators:
        """Make `num` environments that step together."""
        return self._make(num, self.observation_leaves, self.action_leaves)

    def shown(self, wrap: Callable[[Environment], Environment]) -> "Simulated":
        """Return this environment with the observations of a wrapper of JAX environments."""
        taken = Taken(self)
        wrapped = wrap(taken)
        if wrapped is taken:
            return self
        env, form = copy.copy(self), jax.tree.structure(self.action_space, is_leaf=is_space)
        views = Views(wrapped)
        env.observation_space = wrapped.observation_space
        env._form = jax.tree.structure(env.observation_space, is_leaf=is_space)
        env._make = lambda num, *_: Shown(self.make(num), views, self.observation, form)
        return env

    def problems(self) -> list[str] | None:
        """Return what Gymnasium's checker finds in one environment; None if it does not apply."""
        if self._make_drawn is None:  # no environment can be made alone
            return None
        with contextlib.closing(self._make_drawn()) as env:
            return making.problems(env)

    def replay(
        self, seed: int, actions: PyTree, steps: set[int]
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """Repeat an episode by its `actions` `[T, A...]`; return frames after `steps`, and rewards.

        The actions are those that the environment takes.

        `ConfigError` if the environment does not render pictures.
        """
        if self._make_drawn is None:
            raise ConfigError(
                f"env={self.name}: cannot be drawn, since env.batch and EnvPool give no pictures; "
                "only single environments of Gymnasium can (env=gymnasium)"
            )
        env = self._make_drawn()
        frames, rewards = {}, []
        with contextlib.closing(env):
            env.reset(seed=seed)
            arrays = jax.tree.leaves(counted(self.action_space, actions, -1))
            for step, action in enumerate([None, *actions_of(env.action_space, arrays)]):
                if step:
                    rewards.append(env.step(action)[1])
                if step in steps:
                    frames[step] = self._picture(env)
        return frames, np.asarray(rewards, np.float32)

    def _picture(self, env: Any) -> np.ndarray:
        try:
            picture = np.asarray(env.render())
            if picture.ndim == 3 and picture.dtype == np.uint8:
                return picture
            wrong = 'gives no picture, uint8 [H, W, 3]; make it with render_mode="rgb_array"'
        except Exception as error:
            wrong = f"raises {raised(error)}"
            if "mujoco" in sys.modules and not os.environ.get("MUJOCO_GL"):
                wrong += "; without a display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        raise ConfigError(f"{self.name}: its render() {wrong}")

    def observation(self, parts: Sequence[np.ndarray]) -> PyTree:
        """Return the observation of arrays in the order of `observation_leaves`."""
        return jax.tree.unflatten(self._form, parts)

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[B]` keys to (no state, zeros `[B, O...]`)."""
        return (), zeros(self.observation_space, (key.shape[0],))

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        """Raise `ConfigError`: a compiled program cannot step a simulator."""
        raise ConfigError(
            f"{self.name}: is not written in JAX, so a compiled program cannot step it; "
            "jaxppo.train and the commands train on it"
        )


def check_settings(config: EnvConfig) -> None:
    """Raise `ConfigError` for settings that simulators do not have, and for wrong wrappers."""
    of_jax = ("params", "randomize", "curriculum", "resets")
    refuse(config, of_jax, "is for environments written in JAX; leave it out")
    for wrapper in config.wrappers:
        path = wrapper.get("_target_") if isinstance(wrapper, dict) else wrapper
        imported("env.wrappers", str(path), "class", ("[]",))
    if not config.processes:
        why = "needs processes in which the environments step; set env.processes to at least 1"
        refuse(config, ("step_timeout", "isolated"), why)


def pools(
    config: EnvConfig,
    factory: Callable[..., Any],
    kind: Callable[..., Any] = Group,
    own: Sequence[str] = (),
) -> Callable[[int, list[Leaf], list[Leaf]], Pool]:
    """Return what makes a `Pool` of what `factory` makes, as the settings say.

    `own` are metrics that are kept besides those of the settings.
    """
    return partial(
        Pool,
        factory,
        num_processes=config.processes,
        isolated=config.isolated,
        restart=config.on_error == "restart",
        timeout=config.step_timeout,
        kind=kind,
        metrics=[*own, *config.metric_kinds],
    )


def _leaves(name: str, what: str, space: Any) -> tuple[list[Leaf], Any]:
    """Return the arrays of a space and the structure of their tree."""
    try:
        found, form = jax.tree.flatten(tree(space))
    except UnsupportedSpaceError as error:
        raise ConfigError(
            f"{name}: its {what} space {error} has no arrays of fixed shape; change it by "
            "a wrapper: env.wrappers=[my_module.MyWrapper]"
        ) from error
    if empty := [leaf.name for leaf in found if 0 in leaf.shape] or ([] if found else [""]):
        raise ConfigError(f"{name}: its {what} space{empty[0]} is empty; it needs an entry")
    return found, form


def _space(leaf: Leaf) -> Space:
    """Return the space of an observation."""
    if leaf.kind == "Discrete":
        return Discrete(int(leaf.space.n), int(leaf.space.start))
    if leaf.kind == "MultiDiscrete":
        start = bound_of(leaf.space.start)
        return MultiDiscrete(tuple(leaf.space.nvec.reshape(-1).tolist()), leaf.shape, start)
    if leaf.kind == "MultiBinary":
        return Box(leaf.shape, leaf.dtype, 0.0, 1.0)
    return Box(leaf.shape, leaf.dtype, bound_of(leaf.space.low), bound_of(leaf.space.high))


def _action_space(leaf: Leaf) -> Space:
    if leaf.kind == "MultiBinary":
        return MultiDiscrete((2,) * int(np.prod(leaf.shape)), leaf.shape)
    if leaf.is_integers:
        return integers(leaf.space, leaf.space.low, leaf.space.high, simulated=True)
    return _space(leaf)
