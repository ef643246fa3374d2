"""A runner and a keeper who do not see each other: whether a gate is open shows only at the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxppo.types import Box, Discrete, PyTree, pytree

KEEPER, RUNNER = 0, 1


@pytree
class GateState:
    """The whole state, which no agent sees."""

    signal: jax.Array  # int32, the lever that opens the gate
    toll: jax.Array  # float32
    open: jax.Array  # bool
    place: jax.Array  # int32, the runner's
    time: jax.Array  # int32, steps taken


class Gate:
    """Two agents open a gate and pass it, a `teams.World`.

    In the first step the keeper sees which of `levers` levers opens the gate, and pulls one; later
    it can do nothing. The runner walks along `length` cells (action 0: to the left, 1: to the
    right) to the gate, which it does not see, and ends the episode there. Both get 1 if the gate is
    open then. At the end of every episode both also get a toll, which is normal with mean 0 and
    standard deviation `toll`; no action changes it.

    The observation is a dict: `observation` is what the agent sees, and `privileged_state` all of
    it, which the critic alone reads. The best return is 1, of a lever at random 1 / `levers`.
    """

    num_agents = 2

    def __init__(self, levers: int = 4, length: int = 4, toll: float = 10.0) -> None:
        self.levers, self.length, self.toll = levers, length, toll
        self._last = 3 * length  # a rule of the game, which ends then
        self.time_limit = self._last + 1
        self.action_space = Discrete(max(levers, 2))
        seen = 2 + levers + length
        self.observation_space: PyTree = {
            "observation": Box((seen,), "float32", 0.0, 1.0),
            "privileged_state": Box((seen + 3,), "float32"),
        }

    def reset(self, key: jax.Array) -> tuple[GateState, PyTree]:
        """Map a key to (state, observations of keeper and runner)."""
        lever_key, toll_key = jax.random.split(key)
        state = GateState(
            signal=jax.random.randint(lever_key, (), 0, self.levers),
            toll=self.toll * jax.random.normal(toll_key),
            open=jnp.bool_(False),
            place=jnp.int32(0),
            time=jnp.int32(0),
        )
        return state, self._observe(state)

    def step(self, key: jax.Array, state: GateState, action: jax.Array) -> tuple[PyTree, ...]:
        """Take a step; reward and end are in common."""
        is_first = state.time == 0
        move = jnp.where(action[RUNNER] == 1, 1, jnp.where(action[RUNNER] == 0, -1, 0))
        state = GateState(
            signal=state.signal,
            toll=state.toll,
            open=jnp.where(is_first, action[KEEPER] == state.signal, state.open),
            place=jnp.clip(state.place + move, 0, self.length - 1),
            time=state.time + 1,
        )
        arrived = state.place == self.length - 1
        over = arrived | (state.time >= self._last)
        reward = (arrived & state.open) + over * state.toll
        told = {"passed": arrived & state.open}
        return state, self._observe(state), reward, over, jnp.bool_(False), told

    def _observe(self, state: GateState) -> PyTree:
        signal = jax.nn.one_hot(state.signal, self.levers) * (state.time == 0)
        place = jax.nn.one_hot(state.place, self.length)
        keeper = jnp.concatenate([jnp.array([1.0, 0.0]), signal, 0.0 * place])
        runner = jnp.concatenate([jnp.array([0.0, 1.0]), 0.0 * signal, place])
        rest = [state.open, state.toll, state.time / self._last]
        whole = jnp.concatenate([signal, place, jnp.stack([jnp.float32(x) for x in rest])])
        states = [jnp.concatenate([jnp.eye(2)[i], whole]) for i in (KEEPER, RUNNER)]
        return {"observation": jnp.stack([keeper, runner]), "privileged_state": jnp.stack(states)}
