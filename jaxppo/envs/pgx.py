"""Adapter of Pgx: environments for one player, and games of two players."""

import contextlib
import io
import typing
from typing import Any

import jax
import jax.numpy as jnp
import pgx

from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import named
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import games
from jaxppo.envs.episodes import Episodes
from jaxppo.envs.forms import box_of
from jaxppo.simulators.faults import ANY_ERROR
from jaxppo.types import Discrete, Environment, PyTree

# Games whose players move in turn, besides Go
ALTERNATING = {
    *("animal_shogi", "chess", "connect_four", "gardner_chess", "hex"),
    *("kuhn_poker", "othello", "shogi", "tic_tac_toe"),
}


class Pgx:
    """An environment of Pgx, as an `episodes.Single` or, for two players, a `games.Game`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.time_limit: int | None = None
        self.num_players = env.num_players
        self.alternates = env.id.startswith("go_") or env.id in ALTERNATING
        example = jax.eval_shape(env.init, jax.random.key(0))
        mask = example.legal_action_mask
        self.observation_space = {
            "observation": jax.tree.map(box_of, example.observation),
            "action_mask": box_of(mask),
        }
        self.action_space = Discrete(mask.shape[0])

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to (state, observation); who begins is drawn."""
        state = self._env.init(jax.random.split(key)[0])
        return state, self._observe(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Take a move; the reward of a game is that of both players, `[2]`."""
        state = self._env.step(state, action, jax.random.split(key)[0])
        reward = state.rewards if self.num_players > 1 else state.rewards[0]
        return state, self._observe(state), reward, state.terminated, state.truncated

    def turn(self, state: PyTree) -> jax.Array:
        """Return the player who moves next."""
        player: jax.Array = state.current_player
        return player

    def baseline(self, key: str) -> games.Choose:
        """Return a `games.Choose` that samples legal moves from Pgx's own network.

        `ConfigError`, with the setting `key`, if there is none, or it cannot be read.
        """
        model_id = f"{self._env.id}_v0"
        if model_id not in typing.get_args(pgx.BaselineModelId):
            raise ConfigError(
                f"{key}=baseline: Pgx has none for {self._env.id}; take another opponent"
            )
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # Pgx prints why, and exits
                model = pgx.make_baseline_model(model_id)
        except ANY_ERROR as error:
            raise ConfigError(
                f"{key}=baseline: cannot be read ({named(error)}); it needs dm-haiku, and "
                f"baselines/{model_id}.ckpt, which Pgx downloads where there is a network"
            ) from error

        def choose(obs: PyTree, keys: jax.Array) -> PyTree:
            logits = model(obs["observation"])[0]
            legal = jnp.where(obs["action_mask"], logits, -jnp.inf)
            return jax.vmap(jax.random.categorical)(keys, legal)

        return choose

    def svg(self, state: PyTree) -> str:
        """Draw a state."""
        return str(state.to_svg())

    def _observe(self, state: PyTree) -> dict[str, Any]:
        """Return the observation of the player who moves next."""
        return {"observation": state.observation, "action_mask": state.legal_action_mask}


def names() -> list[str]:
    """Return the names of all registered environments."""
    return list(pgx.available_envs())


def make(config: EnvConfig) -> Environment:
    """Build by Pgx's id."""
    name = str(config.name)
    env = pgx.make(name)
    if config.kwargs:  # `pgx.make` takes none
        size = {"size": 9} if name == "go_9x9" else {}
        env = type(env)(**{**size, **config.kwargs})
    if env.num_players > 2:
        raise ConfigError(
            f"env.name={name}: has {env.num_players} players; choose a game for one or two"
        )
    one = Pgx(env)
    if games.is_game(one):
        return games.make(name, one, config)
    return Episodes(name, one, config)
