"""Parallel environments of PettingZoo (Terry et al. 2021, arXiv 2009.14471) as a batch simulator.

Used as a class: `env=batch env.target=jaxppo.simulators.pettingzoo.Parallel
+env.kwargs.make=pettingzoo.butterfly.pistonball_v6.parallel_env`.
"""

from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from jaxppo.simulators.batch import mapped
from jaxppo.simulators.making import attribute


class Parallel:
    """`num_envs` environments that `make(**kwargs)` makes, whose agents have the same spaces.

    Where an environment has a `state_space`, the critic reads its `state()` too: observations get
    an entry `privileged_state`. An agent that has ended keeps its last observation. `TypeError` if
    spaces of agents differ.
    """

    def __init__(self, num_envs: int, make: str, **kwargs: Any) -> None:
        self._envs = [attribute(make)(**kwargs) for _ in range(num_envs)]
        self.num_envs, one = num_envs, self._envs[0]
        self._agents = list(one.possible_agents)
        self.num_agents = len(self._agents)
        self._seen, self.action_space = self._common("observation"), self._common("action")
        self._has_state = getattr(one, "state_space", None) is not None
        self.observation_space = self._seen
        if self._has_state:
            entries = self._seen.spaces if isinstance(self._seen, spaces.Dict) else {}
            entries = entries or {"observation": self._seen}
            self.observation_space = spaces.Dict({**entries, "privileged_state": one.state_space})

    def _common(self, what: str) -> Any:
        found = [getattr(self._envs[0], f"{what}_space")(agent) for agent in self._agents]
        for agent, space in zip(self._agents, found, strict=True):
            if space != found[0]:
                raise TypeError(
                    f"the {what} space of {agent} is {space}, that of {self._agents[0]} is "
                    f"{found[0]}; agents share one policy, so pad them, as SuperSuit does"
                )
        return found[0]

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each environment, with seeds from `seed` on."""
        self._last = [self._start(env, seed + i) for i, env in enumerate(self._envs)]
        return self._stack(self._last), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Step each environment by the actions `[num_envs, num_agents, ...]` of its agents."""
        shape = self.num_envs, self.num_agents
        reward = np.zeros(shape, np.float32)
        terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        final: list[list[Any]] = []
        for number, env in enumerate(self._envs):
            order = {agent: (number, i) for i, agent in enumerate(self._agents)}
            given = {agent: mapped(itemgetter(order[agent]), actions) for agent in env.agents}
            obs, *found, _ = env.step(given)
            for i, agent in enumerate(self._agents):
                if agent in obs:
                    self._last[number][i] = self._see(env, obs[agent])
                for into, by_agent in zip((reward, terminated, truncated), found, strict=True):
                    into[number, i] = by_agent.get(agent, into is not reward)
            final.append(list(self._last[number]))
            if not env.agents:
                self._last[number] = self._start(env, None)
        return self._stack(self._last), reward, terminated, truncated, self._stack(final), {}

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _start(self, env: Any, seed: int | None) -> list[Any]:
        obs, _ = env.reset(seed=seed)
        return [self._see(env, obs[agent]) for agent in self._agents]

    def _see(self, env: Any, obs: Any) -> Any:
        if not self._has_state:
            return obs
        entries = obs if isinstance(self._seen, spaces.Dict) else {"observation": obs}
        return {**entries, "privileged_state": env.state()}

    def _stack(self, seen: list[list[Any]]) -> Any:
        """Return observations `[num_envs, num_agents, ...]`."""
        flat = [x for each in seen for x in each]
        space = self.observation_space
        found = concatenate(space, flat, create_empty_array(space, len(flat)))
        lead = self.num_envs, self.num_agents
        return mapped(lambda x: x.reshape(*lead, *x.shape[1:]), found)
