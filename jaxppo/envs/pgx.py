"""Adapter of Pgx: games for one player, and for two players against a random opponent."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pgx

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.forms import box_of
from jaxppo.types import Discrete, PyTree

# Games whose players move in turn: one answer of the opponent, without a loop whose length is
# unknown (a GPU would wait for the host at each of its turns)
ALTERNATING = {
    *("animal_shogi", "chess", "connect_four", "gardner_chess", "go_19x19", "go_9x9", "hex"),
    *("kuhn_poker", "othello", "shogi", "tic_tac_toe"),
}


class Pgx:
    """One game of Pgx as an `episodes.Single`.

    In a game for two the agent is player 0, on a random side. The opponent draws legal moves
    uniformly until it is the agent's turn again. So the game is a decision process of one agent.
    Its reward is the sum of player 0's rewards over those moves. Self-play would need a learner
    that sees the rewards of both sides.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.time_limit: int | None = None
        example = jax.eval_shape(env.init, jax.random.key(0))
        mask = example.legal_action_mask
        self.observation_space = {
            "observation": jax.tree.map(box_of, example.observation),
            "action_mask": box_of(mask),
        }
        self.action_space = Discrete(mask.shape[0])

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation) before the agent's first move."""
        init_key, opponent_key = jax.random.split(key)
        state, _ = self._opponents_turn(opponent_key, self._env.init(init_key))
        return state, self._observe(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Take the agent's move and the opponent's moves after it."""
        move_key, opponent_key = jax.random.split(key)
        moved = self._env.step(state, action, move_key)
        state, more = self._opponents_turn(opponent_key, moved)
        reward = moved.rewards[0] + more
        return state, self._observe(state), reward, state.terminated, state.truncated

    def _opponents_turn(self, key: jax.Array, state: PyTree) -> tuple[PyTree, jax.Array]:
        """Play the opponent; return the state at the agent's turn or the end, and its reward."""
        if self._env.num_players == 1:
            return state, jnp.float32(0.0)

        def waiting(carry: tuple[jax.Array, PyTree, jax.Array]) -> jax.Array:
            _, state, _ = carry
            return (state.current_player != 0) & ~(state.terminated | state.truncated)

        def answer(
            carry: tuple[jax.Array, PyTree, jax.Array],
        ) -> tuple[jax.Array, PyTree, jax.Array]:
            key, state, total = carry
            key, choice_key, move_key = jax.random.split(key, 3)
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            move = jax.random.categorical(choice_key, logits)
            state = self._env.step(state, move, move_key)
            return key, state, total + state.rewards[0]

        before = (key, state, jnp.float32(0.0))
        if self._env.id in ALTERNATING:
            waits = waiting(before)
            moved = jax.tree.map(partial(jnp.where, waits), answer(before), before)
            return moved[1:]
        return jax.lax.while_loop(waiting, answer, before)[1:]

    def _observe(self, state: PyTree) -> dict[str, Any]:
        """Return the observation of player 0, also if the game ends at the other's turn."""
        # The public `observe` warns that its argument for the player is deprecated.
        obs = self._env._observe(state, jnp.int32(0))
        return {"observation": obs, "action_mask": state.legal_action_mask}


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(pgx.available_envs())


def make(config: EnvConfig) -> Episodes:
    """Build by Pgx's id."""
    name = str(config.name)
    env = pgx.make(name, **config.kwargs)
    if env.num_players > 2:
        raise ConfigError(
            f"env.name={name}: has {env.num_players} players; choose a game for one or two"
        )
    return Episodes(name, Pgx(env), config)
