"""Adapter of Pgx: games of one player, and of two against one who plays at random."""

from typing import Any

import jax
import jax.numpy as jnp
import pgx

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import unknown
from jaxppo.envs.episodes import Episodes, box_of
from jaxppo.types import Discrete, PyTree


class Pgx:
    """One game of Pgx as an `episodes.Single`.

    In a game of two the agent is player 0, which has either side by chance. Its opponent draws
    from the legal moves with equal chances, as often as it is the opponent's turn: that makes of
    the game a decision process of one agent, whose reward is player 0's over those moves. Playing
    against oneself would need a learner that sees the rewards of both sides.
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
        """A key to (state, observation) before the agent's first move."""
        init_key, opponent_key = jax.random.split(key)
        state, _ = self._opponents_turn(opponent_key, self._env.init(init_key))
        return state, self._observe(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """The agent's move, and what the opponent answers."""
        move_key, opponent_key = jax.random.split(key)
        moved = self._env.step(state, action, move_key)
        state, more = self._opponents_turn(opponent_key, moved)
        reward = moved.rewards[0] + more
        return state, self._observe(state), reward, state.terminated, state.truncated

    def _opponents_turn(self, key: jax.Array, state: PyTree) -> tuple[PyTree, jax.Array]:
        """The state at the agent's next turn or the end, and the agent's reward until then."""
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

        _, state, total = jax.lax.while_loop(waiting, answer, (key, state, jnp.float32(0.0)))
        return state, total

    def _observe(self, state: PyTree) -> dict[str, Any]:
        """What player 0 sees; at an end the turn may be another's."""
        seen = self._env._observe(state, jnp.int32(0))
        return {"observation": seen, "action_mask": state.legal_action_mask}


def make(config: EnvConfig) -> Episodes:
    """Build by Pgx's id."""
    name = str(config.name)
    if name not in pgx.available_envs():
        raise unknown(config, pgx.available_envs())
    if config.kwargs:
        raise ConfigError(f"env.kwargs={config.kwargs}: games of pgx take no arguments; give {{}}")
    env = pgx.make(name)
    if env.num_players > 2:
        raise ConfigError(
            f"env.name={name}: is of {env.num_players} players; games of one or two can be played"
        )
    return Episodes(name, Pgx(env), config)
