"""Environments of JaxMARL (Rutherford et al. 2024, arXiv 2311.10090) as a `teams.World`.

Used as a class: `env.target=jaxppo.envs.jaxmarl.JaxMARL env.kwargs.name=MPE_simple_spread_v3`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import installing
from jaxppo.envs.forms import box_of, line, some_legal
from jaxppo.envs.gymnax import space_of
from jaxppo.types import Box, Discrete, PyTree


class JaxMARL:
    """The environment `name`, made with further arguments, whose agents have the same spaces.

    The observation is a dict: `observation` of the agent, `privileged_state`, which the critic
    alone reads (those of all agents, its own first), and `action_mask` if the environment has one.
    At its `max_steps` JaxMARL ends an episode as if the MDP had ended. So it gets one step more,
    and the time limit truncates.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        try:
            import jaxmarl
        except ImportError as error:
            raise ConfigError(
                f"env.kwargs.name={name}: JaxMARL cannot be imported ({line(error)}); "
                f"{installing('jaxmarl')}"
            ) from error
        env: Any = jaxmarl.make(name, **kwargs)
        self._env, self._agents = env, list(env.agents)
        while "max_steps" not in vars(env) and "_env" in vars(env):  # of a wrapper
            env = env._env
        self.num_agents = len(self._agents)
        self.time_limit: int | None = getattr(env, "max_steps", None)
        if self.time_limit is not None:
            env.max_steps = self.time_limit + 1
        env = self._env
        self.action_space = self._common(
            name, "actions", [space_of(env.action_space(x)) for x in self._agents]
        )
        example, _ = jax.eval_shape(env.reset, jax.random.key(0))  # some spaces are of other shapes
        seen = self._common(name, "observations", [box_of(example[a]) for a in self._agents])
        size = self.num_agents * math.prod(seen.shape)
        self.observation_space: PyTree = {
            "observation": seen,
            "privileged_state": Box((size,), "float32"),
        }
        self._masks = self._has_masks()
        if self._masks and isinstance(self.action_space, Discrete):
            mask = Box((self.action_space.num_values,), "bool", 0.0, 1.0)
            self.observation_space["action_mask"] = mask

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observations of the agents)."""
        obs, state = self._env.reset(key)
        return state, self._observe(obs, state)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array) -> tuple[PyTree, ...]:
        """Take a step; an agent is over when it or the whole world is done."""
        actions = {name: action[i] for i, name in enumerate(self._agents)}
        obs, state, reward, done, told = self._env.step_env(key, state, actions)
        over = self._stack(done) | done["__all__"]
        return state, self._observe(obs, state), self._stack(reward), over, False, told

    def _observe(self, obs: dict[str, jax.Array], state: PyTree) -> PyTree:
        each = self._stack(obs).astype(self.observation_space["observation"].dtype)
        flat = each.reshape(self.num_agents, -1).astype(jnp.float32)
        whole = [jnp.roll(flat, -i, axis=0).reshape(-1) for i in range(self.num_agents)]
        found = {"observation": each, "privileged_state": jnp.stack(whole)}
        if "action_mask" in self.observation_space:
            mask = self._stack(self._env.get_avail_actions(state)).astype(bool)
            found["action_mask"] = some_legal(mask)  # of agents that are over
        return found

    def _stack(self, by_name: dict[str, Any]) -> jax.Array:
        return jnp.stack([jnp.asarray(by_name[name]) for name in self._agents])

    def _has_masks(self) -> bool:
        try:
            jax.eval_shape(
                lambda key: self._env.get_avail_actions(self._env.reset(key)[1]), jax.random.key(0)
            )
        except Exception:  # JaxMARL's base class raises, and some environments inherit it
            return False
        return True

    def _common(self, name: str, what: str, found: list[Any]) -> Any:
        """Return the space that all agents share; `ConfigError` if theirs differ."""
        if any(space != found[0] for space in found):
            raise ConfigError(
                f"env.kwargs.name={name}: its agents have several kinds of {what}, and one policy "
                f"for all needs one: {', '.join(map(str, dict.fromkeys(map(str, found))))}"
            )
        return found[0]
