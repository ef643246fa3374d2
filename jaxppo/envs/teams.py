"""Worlds with several agents, as an environment with a row for each agent."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import TEAM_RETURN, EnvConfig
from jaxppo.envs import games
from jaxppo.envs.episodes import Episodes, EpisodesState, stepped
from jaxppo.envs.forms import check_spaces, is_integer, line, returned
from jaxppo.ops import tallies
from jaxppo.ops.sequences import where
from jaxppo.types import Environment, PyTree, Tally, TimeStep, pytree, zeros


class World(Protocol):
    """One world of `num_agents` agents `N` without auto-reset: the interface of users' classes.

    It is that of `episodes.Single`, with agents as the first axis of observations, actions,
    rewards and flags. Spaces are those of one agent. All agents share one policy.
    """

    num_agents: int
    observation_space: PyTree  # of Space, of one agent
    action_space: PyTree  # of Space, of one agent
    time_limit: int | None  # steps after which all agents are truncated; None: no limit

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to the (state, observations `[N, O...]`) that start an episode."""

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, ...]:
        """Return (next state, observations, reward, terminated, truncated) for actions `[N, A...]`.

        The last three are `[N]`, or scalars for all agents. With flags `[N]` an agent may end
        before the others. From then on its actions have no effect, and what the world returns for
        it is not learnt from. A sixth value is a dict of what the world tells for `env.metrics`.
        """


@pytree
class Seen:
    """What a step of a world returned for each of its `N` agents."""

    obs: PyTree  # [N, O...]
    alive: jax.Array  # [N] bool, the agent acted in this step
    reward: jax.Array  # [N] float32; 0 where not alive
    terminated: jax.Array  # [N] bool; True where not alive
    truncated: jax.Array  # [N] bool


class _OfWorld:
    """What all views of a world have of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.num_agents = world.num_agents
        self.observation_space: PyTree = world.observation_space  # of one agent
        self.action_space: PyTree = world.action_space
        self.time_limit = world.time_limit


class Whole(_OfWorld):
    """A world as an `episodes.Single`: it is over when all of its agents are."""

    def reset(self, key: jax.Array) -> tuple[PyTree, Seen]:
        """Map a key to ((state, agents alive `[N]`), what they see)."""
        state, obs = returned("reset", self._world.reset(key), "state, observation")
        alive = jnp.ones(self.num_agents, bool)
        reward = jnp.zeros(self.num_agents, jnp.float32)
        seen = Seen(obs=obs, alive=alive, reward=reward, terminated=~alive, truncated=~alive)
        return (state, alive), seen

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[Any, ...]:
        """Take a step; an agent that is over stays so, without rewards."""
        inner, alive = state
        inner, obs, reward, *flags, told = stepped(self._world, key, inner, action)
        terminated, truncated = (self._each(flag, bool) for flag in flags)
        finite = partial(jnp.nan_to_num, nan=0.0, posinf=0.0, neginf=0.0)
        obs = where(alive, obs, jax.tree.map(finite, obs))  # NaN of a row that pads is no fault
        seen = Seen(
            obs=obs,
            alive=alive,
            reward=jnp.where(alive, self._each(reward, jnp.float32), 0.0),
            terminated=terminated | ~alive,
            truncated=truncated & alive,
        )
        left = alive & ~terminated & ~truncated
        return (inner, left), seen, jnp.float32(0), ~left.any(), jnp.bool_(False), told

    def _each(self, x: Any, dtype: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(x, dtype), (self.num_agents,))


class Only(_OfWorld):
    """A world of one agent as an `episodes.Single`: the plain environment."""

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to the (state, observation `[O...]`) that starts an episode."""
        state, obs = returned("reset", self._world.reset(key), "state, observation")
        return state, jax.tree.map(lambda x: x[0], obs)

    def step(self, key: jax.Array, state: PyTree, action: PyTree) -> Any:
        """Take a step of the only agent."""
        action = jax.tree.map(lambda x: x[None], action)
        state, obs, *numbers, told = stepped(self._world, key, state, action)
        each = (jnp.reshape(jnp.asarray(x), ()) for x in numbers)
        return state, jax.tree.map(lambda x: x[0], obs), *each, told


@pytree
class TeamsState:
    """The state of `W` worlds."""

    worlds: EpisodesState  # [W, ...]
    team_return: jax.Array  # [W] float32, undiscounted, of the running episodes
    tallies: dict[str, Tally]  # [W] of env.metrics


class Teams:
    """A `types.Environment` of `B` rows, one for each agent of `W = B / N` worlds like `world`.

    The agents of a world are neighbours. The first one's key is the world's. A world starts anew
    when all of its agents are over. Until then a row whose agent is over pads: `alive` is false
    and each of its steps terminates, so nothing of it enters an episode. What a world tells is
    told once, at its end, by the first of the agents that act then.
    """

    def __init__(self, name: str, world: World, config: EnvConfig) -> None:
        self.name = name
        self.one = world
        self.num_agents = world.num_agents
        self._kinds = config.metric_kinds
        if TEAM_RETURN in self._kinds:
            raise ConfigError(
                f"env.metrics=[{TEAM_RETURN}]: is there for every world with agents; leave it out"
            )
        self.worlds = Episodes(name, Whole(world), config)
        self.observation_space = world.observation_space
        self.action_space = world.action_space
        self.time_limit = self.worlds.time_limit
        self.pool_size = self.worlds.pool_size
        self.pads = _ends_alone(name, world)

    def starts(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map `[N]` keys to first (observations, states) of worlds, for a `Pool`."""
        return self.worlds.starts(key)

    def reset(self, key: jax.Array) -> tuple[TeamsState, PyTree]:
        """Map `[B]` keys to (state `[W, ...]`, observation `[B, O...]`)."""
        worlds, seen = self.worlds.reset(key[:: self.num_agents])
        zero = jnp.zeros(key.shape[0] // self.num_agents, jnp.float32)
        counted = tallies.init(self._kinds, zero.shape)
        return TeamsState(worlds=worlds, team_return=zero, tallies=counted), self._rows(seen.obs)

    def step(
        self, key: jax.Array, state: TeamsState, action: PyTree
    ) -> tuple[TeamsState, TimeStep]:
        """Take one step of `B` agents; worlds that are over start anew."""
        num = self.num_agents
        action = jax.tree.map(lambda x: x.reshape(-1, num, *x.shape[1:]), action)
        worlds, step = self.worlds.step(key[::num], state.worlds, action)
        seen: Seen = step.final_observation
        over = step.terminated | step.truncated  # [W]
        truncated = seen.truncated | (step.truncated[:, None] & seen.alive)
        team_return = state.team_return + seen.reward.sum(1)
        counted = tallies.add(self._kinds, state.tallies, step.metrics)
        told = {TEAM_RETURN: team_return} | tallies.results(self._kinds, counted)
        first = jnp.cumsum(seen.alive, 1) * seen.alive == 1  # [W, N] the first that acts
        tells = first & over[:, None]
        zero = jax.tree.map(jnp.zeros_like, (team_return, counted))
        team_return, counted = where(over, zero, (team_return, counted))
        return TeamsState(worlds=worlds, team_return=team_return, tallies=counted), TimeStep(
            obs=self._rows(step.obs.obs),
            final_observation=self._rows(seen.obs),
            reward=self._rows(seen.reward),
            terminated=self._rows(seen.terminated),
            truncated=self._rows(truncated),
            metrics={
                name: self._rows(jnp.where(tells, x[:, None], jnp.nan)) for name, x in told.items()
            },
            alive=self._rows(seen.alive) if self.pads else None,
        )

    def _rows(self, tree: PyTree) -> PyTree:
        """Map `[W, N, ...]` to `[B, ...]`."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _ends_alone(name: str, world: World) -> bool:
    """Return whether an agent may end before its world; `ConfigError` for arrays of a wrong form.

    A world that cannot be traced is reported later, with all others, by `forms.problems`.
    """
    num = world.num_agents

    def play(key: jax.Array) -> tuple[PyTree, ...]:
        state, obs = world.reset(key)
        return obs, *world.step(key, state, zeros(world.action_space, (num,)))[2:5]

    try:
        obs, *results = jax.eval_shape(play, jax.random.key(0))
        wanted = jax.eval_shape(lambda: zeros(world.observation_space, (num,)))
        pairs = list(zip(jax.tree.leaves(obs), jax.tree.leaves(wanted), strict=True))
    except Exception:  # a user's code may raise anything
        return False
    wrong = [("reset: observation", x.shape, like.shape) for x, like in pairs]
    wrong = [each for each in wrong if each[1] != each[2]]
    names = ("reward", "terminated", "truncated")
    for what, x in zip(names, results, strict=True):
        if x.shape not in ((), (num,)):
            wrong.append((f"step: {what}", x.shape, f"({num},), or () for all agents"))
    if wrong:
        what, shape, right = wrong[0]
        raise ConfigError(
            f"{name}: {what} has shape {shape}; with num_agents={num} it must have {right}"
        )
    return any(x.shape == (num,) for x in results[1:])


def make(name: str, one: Any, config: EnvConfig) -> Environment:
    """Return the environment of a class: of worlds with agents if it has `num_agents`.

    A class with `num_players` of 2 and `turn` is a game.
    """
    if games.is_game(one):
        return games.make(name, one, config)
    check_spaces(name, one)
    if not hasattr(one, "num_agents"):
        return Episodes(name, one, config)
    num = one.num_agents
    if not is_integer(num) or num < 1:
        raise ConfigError(f"{name}: num_agents={line(num)}: must be an integer, at least 1")
    return Teams(name, one, config) if num > 1 else Episodes(name, Only(one), config)
