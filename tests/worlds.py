"""Small worlds of several agents, made of `own_envs.Count`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from own_envs import Count

from jaxppo.types import Box, Discrete


class Steady(Count):
    """As `Count`, but no action ends an episode, and the reward is larger for action 1."""

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> Any:
        state, obs, reward, *_ = super().step(key, state, action)
        return state, obs, reward * (action - 0.4), False, False


class One:
    """A world of one agent, that `Count` is."""

    num_agents: Any = 1
    of: type[Count] = Count
    observation_space: Any = Count.observation_space
    action_space: Any = Count.action_space
    time_limit: Any = Count.time_limit

    def reset(self, key: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[None], self.of().reset(key))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        found = self.of().step(key, state[0], action[0])
        return tuple(jnp.asarray(x)[None] for x in found)


class Apart(One):
    """Two of `Steady` that never meet; they end together."""

    num_agents = 2

    def reset(self, key: jax.Array) -> Any:
        return jax.vmap(Steady().reset)(jax.random.split(key, 2))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        state, obs, reward, *_ = jax.vmap(Steady().step, (None, 0, 0))(key, state, action)
        return state, obs, reward, False, False


class Leaving:
    """Three agents, of which each leaves by action 1: then it is terminated, or agent 2 truncated.

    Observation [steps of the world, a number of the episode, the agent's own steps]. The reward is
    the number of agents that were there. 4 steps at most.
    """

    num_agents = 3
    observation_space = Box((3,), "float32", 0.0, 100.0)
    action_space = Discrete(2)
    time_limit = 4

    def reset(self, key: jax.Array) -> Any:
        start = jnp.zeros((3, 3)).at[:, 1].set(1.0 + jax.random.uniform(key))
        state = {"obs": start, "there": jnp.ones(3, bool)}
        return state, start

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        obs, there = state["obs"], state["there"]
        obs = obs.at[:, 0].add(1.0).at[:, 2].add(there)
        leaves = action == 1
        last = jnp.arange(3) == 2
        reward = jnp.broadcast_to(there.sum(), (3,)).astype(jnp.float32)
        state = {"obs": obs, "there": there & ~leaves}
        told = {"there": there.sum(), "time": obs[0, 0]}
        return state, obs, reward, leaves & ~last, leaves & last, told


class Still(Leaving):
    """Has no random numbers."""

    def reset(self, key: jax.Array) -> Any:
        start = jnp.zeros((3, 3)).at[:, 1].set(1.5)
        return {"obs": start, "there": jnp.ones(3, bool)}, start


class StillParallel:
    """The same as a parallel environment of PettingZoo."""

    possible_agents: Any = ("a", "b", "c")

    def __init__(self, limit: int = 4) -> None:
        self.limit = limit

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 100, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:
        self.agents = list(self.possible_agents)
        self.obs = {agent: np.array([0, 1.5, 0], np.float32) for agent in self.agents}
        return dict(self.obs), {}

    def step(self, actions: Any) -> Any:
        assert sorted(actions) == sorted(self.agents)
        there, late = self.agents, self.obs[self.agents[0]][0] + 1 >= self.limit
        obs = {x: self.obs[x] + np.array([1, 0, 1], np.float32) for x in there}
        self.obs = obs
        reward = {x: float(len(there)) for x in there}
        terminated = {x: bool(actions[x] == 1 and x != "c") for x in there}
        truncated = {x: bool((actions[x] == 1 and x == "c") or late) for x in there}
        self.agents = [x for x in there if not terminated[x] and not truncated[x]]
        return dict(obs), reward, terminated, truncated, {}

    def close(self) -> None:
        self.agents = []


class StillWorlds:
    """The same as one object; of agents that are over it says what it likes."""

    num_agents, time_limit = 3, 4
    observation_space, action_space = spaces.Box(0, 100, (3,), np.float32), spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, seed: int) -> Any:
        self.there = np.ones((self.num_envs, 3), bool)
        self.time = np.zeros(self.num_envs, np.float32)
        return self._see(), {}

    def step(self, actions: Any) -> Any:
        assert actions.shape == (self.num_envs, 3)
        there, last = self.there, np.arange(3) == 2
        self.time += 1
        reward = np.broadcast_to(there.sum(1, keepdims=True), there.shape).astype(np.float32)
        terminated = (actions == 1) & ~last
        truncated = (actions == 1) & last | (self.time == 4)[:, None]
        final = self._nothing(self._see(), there)
        self.there = there & ~terminated & ~truncated
        over = ~self.there.any(1)
        self.time[over], self.there[over] = 0, True
        obs = self._nothing(self._see(), self.there)
        return obs, reward, terminated, truncated, final, {}

    def _see(self) -> Any:
        time = np.broadcast_to(self.time[:, None], self.there.shape)
        return np.stack([time, np.full_like(time, 1.5), time], 2)

    def _nothing(self, obs: Any, there: Any) -> Any:
        return np.where(there[:, :, None], obs, np.nan).astype(np.float32)


class Team(One):
    """Two agents with rewards and ends in common."""

    num_agents = 2

    def reset(self, key: jax.Array) -> Any:
        state, obs = Count().reset(key)
        return state, jnp.stack([obs, obs])

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        state, obs, reward, terminated, truncated = Count().step(key, state, action.min())
        return state, jnp.stack([obs, obs]), reward, terminated, truncated


class Unlike(Team):
    """Its rewards are of three agents."""

    def step(self, *args: Any) -> Any:
        state, obs, _, *rest = super().step(*args)
        return state, obs, jnp.zeros(3), *rest
