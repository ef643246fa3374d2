"""Small games of jaxppo's own contract."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.types import Box, Discrete

LINES = np.asarray(
    [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
)


class TicTacToe:
    """The state is (board `[9]`: 1 of player 0, -1 of player 1, 0 free; who moves next).

    Player 0 begins. Observation: own stones, then the other's, `[18]`, and the free fields.
    """

    num_players = 2
    action_space: Any = Discrete(9)

    def __init__(self) -> None:
        self.observation_space: Any = {
            "stones": Box((18,), "float32", 0.0, 1.0),
            "action_mask": Box((9,), "bool"),
        }

    def reset(self, key: jax.Array) -> Any:
        del key
        state = jnp.zeros(9, jnp.int32), jnp.int32(0)
        return state, self._observe(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        del key
        board, player = state
        own = 1 - 2 * player
        board = board.at[action].set(own)
        wins = jnp.any(jnp.sum(board[LINES], axis=1) == 3 * own)
        rewards = jnp.where(wins, jnp.array([1.0, -1.0]) * own, 0.0)
        after = board, 1 - player
        return after, self._observe(after), rewards, wins | jnp.all(board != 0), jnp.bool_(False)

    def turn(self, state: Any) -> jax.Array:
        return state[1]

    def _observe(self, state: Any) -> Any:
        board, player = state
        own = 1 - 2 * player
        stones = jnp.concatenate([board == own, board == -own]).astype(jnp.float32)
        return {"stones": stones, "action_mask": board == 0}


class Nim:
    """`heap` stones; a move takes 1 or 2, and who takes the last wins.

    The state is (stones, who moves next). The observation is the number of stones, one-hot. With
    `twice`, a player who takes 2 moves again.
    """

    num_players = 2
    action_space: Any = Discrete(2)

    def __init__(self, heap: int = 6, twice: bool = False) -> None:
        self.heap, self.alternates = heap, not twice
        self.observation_space: Any = {
            "heap": Box((heap + 1,), "float32", 0.0, 1.0),
            "action_mask": Box((2,), "bool"),
        }

    def reset(self, key: jax.Array) -> Any:
        del key
        state = jnp.int32(self.heap), jnp.int32(0)
        return state, self._observe(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        del key
        stones, player = state
        stones = jnp.maximum(stones - 1 - action, 0)
        over = stones == 0
        rewards = jnp.where(over, jnp.array([1.0, -1.0]) * (1 - 2 * player), 0.0)
        again = (action == 1) & (not self.alternates)
        after = stones, jnp.where(again, player, 1 - player)
        return after, self._observe(after), rewards, over, jnp.bool_(False)

    def turn(self, state: Any) -> jax.Array:
        return state[1]

    def _observe(self, state: Any) -> Any:
        stones, _ = state
        heap = jax.nn.one_hot(stones, self.heap + 1)
        return {"heap": heap, "action_mask": stones >= jnp.array([1, 2])}


class Forced(Nim):
    """Three stones, and each takes one: player 0 wins."""

    def __init__(self) -> None:
        super().__init__(heap=3)

    def _observe(self, state: Any) -> Any:
        return super()._observe(state) | {"action_mask": jnp.array([True, False])}


class Paid(Nim):
    """Player 0 gains 1 with each move."""

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Any:
        after, seen, _, over, cut = super().step(key, state, action)
        return after, seen, jnp.array([1.0, -1.0]), over, cut


def perfect(observation: Any, key: jax.Array) -> jax.Array:
    """Play Nim: leave what 3 divides, from where that can be."""
    del key
    return (jnp.argmax(observation["heap"]) % 3 == 2).astype(jnp.int32)


def of_board(observation: Any, key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, (9,))
