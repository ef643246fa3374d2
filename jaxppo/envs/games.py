"""Games of two players who move in turn: one policy on both seats, or against an opponent."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import imported
from jaxppo.config.messages import explained
from jaxppo.config.schema import BOTH_SEATS, OPPONENTS, EnvConfig, is_player
from jaxppo.envs import refuse
from jaxppo.envs.episodes import ended, part, renew
from jaxppo.envs.forms import check_spaces, differences, entry_of, line, random_action, returned
from jaxppo.envs.told import chosen
from jaxppo.kernels import random_bits
from jaxppo.ops.collectives import any_over
from jaxppo.ops.sequences import where
from jaxppo.types import PyTree, TimeStep, pytree, zeros

BOTH = -1  # in the place of the learner's seat: it plays both
# (observations [R, O...] of the players to move, keys [R]) -> their actions [R, A...]
Choose = Callable[[PyTree, jax.Array], PyTree]


class Game(Protocol):
    """One game of two players, without auto-reset: the interface of adapters and users' classes.

    Players are numbered 0 and 1. Observations are those of the player who moves next. Spaces are
    those of `types`, the same for both players. A dict observation may hold an action mask.
    """

    num_players: int  # 2
    observation_space: PyTree  # of Space
    action_space: PyTree  # of Space
    # `alternates = False`, if there: a player may move twice in a row. For films `frame(state)`,
    # uint8 `[H, W, 3]`, or `svg(state)`, the text of an SVG

    def reset(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Map a key to the (state, observation `[O...]`) that starts a game."""

    def step(
        self, key: jax.Array, state: PyTree, action: PyTree
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array]:
        """Return (next state, observation, rewards `[2]`, terminated, truncated) after a move."""

    def turn(self, state: PyTree) -> jax.Array:
        """Return the player who moves next, int32 0 or 1."""


@pytree
class GamesState:
    """The state of `B` games."""

    inner: PyTree  # [B, ...] of the game
    seat: jax.Array  # [B] int32, the learner's player; BOTH: it plays both
    score: jax.Array  # [B] float32, sum of the learner's rewards in games against an opponent
    since: jax.Array  # [B] int32, update since which the opponent has been in the pool


@pytree
class _Moved:
    """`R` games after a move."""

    inner: PyTree  # [R, ...]
    obs: PyTree  # [R, O...] of the players who move next
    reward: jax.Array  # [R] float32, of the learner, since its last observation
    terminated: jax.Array  # [R] bool
    truncated: jax.Array  # [R] bool


class Games:
    """A `types.Environment` of `B` games.

    In the first `num_against(B)` games the learner has one seat, drawn for each game, and a step
    is its move and the answer of an opponent. In the others it has both seats: a step is one move,
    and observation and reward are those of the player who makes it. `TimeStep.sign` says whether
    the next observation is that of the same player.

    Of a pool of `N` opponents each has the same number of games, in consecutive rows. If a policy
    in the pool is replaced, running games against it are truncated after the learner's next move,
    before any answer.
    """

    num_agents, pads, pool_size = 1, False, 0
    time_limit: int | None = None  # games end by their rules

    def __init__(self, name: str, game: Game, config: EnvConfig) -> None:
        self.name, self.one = name, game
        self.observation_space = game.observation_space
        self.action_space = game.action_space
        self.alternates = getattr(game, "alternates", True)
        self._mask = config.action_mask
        self._metrics = config.metric_kinds
        self._opponent, self._random_moves = config.opponent, config.random_moves
        self._pool = (config.num_opponents, config.opponent_share)
        self._choose: Choose | None = None
        self._since: Any = None

    @property
    def signs(self) -> bool:
        """Return whether steps have a sign, since the next player may be the other."""
        return self._opponent in BOTH_SEATS

    def num_against(self, num: int) -> int:
        """Return how many of `num` games are played against an opponent."""
        if self._opponent == "pool":
            size, share = self._pool
            return size * int(share * num / size)
        return 0 if self._opponent == "self" else num

    def seated(self, choose: Choose, since: jax.Array | None = None) -> Self:
        """Return these games with an opponent that chooses moves by a policy.

        `since` `[N]` are the updates since which the policies of a pool have been in it.
        """
        env = copy.copy(self)
        env._choose, env._since = choose, since
        return env

    def reset(self, key: jax.Array) -> tuple[GamesState, PyTree]:
        """Map `[B]` keys to (state `[B, ...]`, observation `[B, O...]`)."""
        obs, state = self._start(key)
        return state, obs

    def step(
        self, key: jax.Array, state: GamesState, action: PyTree
    ) -> tuple[GamesState, TimeStep]:
        """Take one auto-reset step of `B` games."""
        _, after, replaced = self._played(key, state, action)
        over = ended(after.terminated, after.truncated)
        score = state.score + after.reward
        last = GamesState(inner=after.inner, seat=state.seat, score=score, since=state.since)
        obs, new = renew(over, self._start, key, (after.obs, last))
        same = self._turn(after.inner) == self._turn(state.inner)
        told = over & (state.seat != BOTH) & ~replaced
        results = {"win": score > 0, "draw": score == 0, "loss": score < 0}
        return new, TimeStep(
            obs=obs,
            final_observation=after.obs,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            metrics=chosen(
                self.name,
                self._metrics,
                {name: jnp.where(told, x, jnp.nan) for name, x in results.items()},
            ),
            sign=jnp.where(same, 1.0, -1.0) if self.signs else None,
        )

    def view(self, state: PyTree) -> tuple[Games, PyTree]:
        """Return self and `state`, which is one of `positions`."""
        return self, state

    def positions(
        self, key: jax.Array, state: GamesState, action: PyTree
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return the games' own states before a step, after its move and after the answers."""
        moved, after, _ = self._played(key, state, action)
        return state.inner, moved.inner, after.inner

    def _played(
        self, key: jax.Array, state: GamesState, action: PyTree
    ) -> tuple[_Moved, _Moved, jax.Array]:
        """Return `B` games after the learner's move, and after the answers.

        The third says which were truncated because their opponent was replaced.
        """
        move_key, answer_key = random_bits.split_each(part(key, 0))
        since, player = self._since_of(state.since.shape[0]), self._turn(state.inner)
        moved = self._move(move_key, state.inner, action, player)
        replaced = (state.seat != BOTH) & (state.since != since) & ~moved.terminated
        moved = dataclasses.replace(moved, truncated=moved.truncated | replaced)
        return moved, self._answered(answer_key, moved, state.seat), replaced

    def _turn(self, inner: PyTree) -> jax.Array:
        """Return the players who move next, `[B]`."""
        return jax.vmap(self.one.turn)(inner)

    def _move(self, key: jax.Array, inner: PyTree, action: PyTree, player: jax.Array) -> _Moved:
        """Return games `[R]` after a move, with the rewards of `player` `[R]`."""
        found = jax.vmap(self.one.step)(key, inner, action)
        names = "state, observation, rewards, terminated, truncated"
        inner, obs, rewards, terminated, truncated = returned("step", found, names)
        if jnp.shape(rewards)[1:] != (2,):
            raise ConfigError(
                f"step: rewards has shape {jnp.shape(rewards)[1:]}, and must be (2,), a reward for "
                "each player"
            )
        own = jnp.take_along_axis(jnp.asarray(rewards, jnp.float32), player[:, None], axis=1)
        return _Moved(
            inner=inner,
            obs=obs,
            reward=own[:, 0],
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool),
        )

    def _answered(self, key: jax.Array, moved: _Moved, seat: jax.Array) -> _Moved:
        """Return `B` games, of which those against an opponent have its answers."""
        num = self.num_against(seat.shape[0])
        if num in (0, seat.shape[0]):
            return self._answers(key, moved, seat) if num else moved
        first = self._answers(*jax.tree.map(lambda x: x[:num], (key, moved, seat)))
        return jax.tree.map(lambda new, old: jnp.concatenate([new, old[num:]]), first, moved)

    def _answers(self, key: jax.Array, moved: _Moved, seat: jax.Array) -> _Moved:
        """Let opponents move in games `[R]` until it is the turn of the learner's `seat` `[R]`."""

        def waits(moved: _Moved) -> jax.Array:
            # After a resume on other devices, games with both seats may be in these rows
            others = (seat != BOTH) & (self._turn(moved.inner) != seat)
            return others & ~ended(moved.terminated, moved.truncated)

        def answer(carry: tuple[jax.Array, _Moved]) -> tuple[jax.Array, _Moved]:
            key, moved = carry
            key, choice_key, move_key = random_bits.split_each(key, 3)
            action = (self._choose or self._at_random)(moved.obs, choice_key)
            after = self._move(move_key, moved.inner, action, seat)
            after = dataclasses.replace(after, reward=moved.reward + after.reward)
            return key, where(waits(moved), after, moved)

        # A loop of unknown length would make a GPU wait for the host at each of its turns
        if self.alternates:
            return answer((key, moved))[1]
        now = jax.lax.while_loop(lambda now: any_over((), waits(now[1])), answer, (key, moved))
        return now[1]

    def _at_random(self, obs: PyTree, key: jax.Array) -> PyTree:
        """Return uniform legal actions of games `[R]`."""
        return jax.vmap(partial(random_action, self.action_space))(key, entry_of(obs, self._mask))

    def _start(self, key: jax.Array) -> tuple[PyTree, GamesState]:
        """Map `[B]` keys to first (observations, states) of games."""
        reset_key, random_key, seat_key, answer_key = random_bits.split_each(key, 4)
        found = jax.vmap(self.one.reset)(reset_key)
        inner, obs = returned("reset", found, "state, observation")
        if self._random_moves:
            inner, obs = jax.vmap(self._moved_at_random)(random_key, inner, obs)
        num = key.shape[0]
        never = jnp.zeros(num, bool)
        zero = jnp.zeros(num, jnp.float32)
        start = _Moved(inner=inner, obs=obs, reward=zero, terminated=never, truncated=never)
        turn = self._turn(inner)
        seat = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(seat_key)
        if self._opponent == "pool" and self._choose is None:  # at the start of a run
            seat, opened = turn, start
        else:
            opened = self._answered(answer_key, start, seat)
            # If the opponent's first moves would end a game, the learner opens it instead
            over = ended(opened.terminated, opened.truncated)
            seat, opened = where(over, (turn, start), (seat, opened))
        seat = jnp.where(jnp.arange(num) < self.num_against(num), seat, BOTH)
        since = self._since_of(num)
        return opened.obs, GamesState(
            inner=opened.inner, seat=seat, score=opened.reward, since=since
        )

    def _moved_at_random(self, key: jax.Array, inner: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
        """Return one game after 0 to `random_moves` uniform legal moves, of which none ends it."""
        num_key, key = random_bits.split(key)
        num = jax.random.randint(num_key, (), 0, self._random_moves + 1)

        def move(i: jax.Array, now: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
            goes_on, (inner, obs) = now
            choice_key, move_key = random_bits.split(random_bits.fold_in(key, i))
            action = random_action(self.action_space, choice_key, entry_of(obs, self._mask))
            *after, _, terminated, truncated = self.one.step(move_key, inner, action)
            over = jnp.asarray(terminated, bool) | jnp.asarray(truncated, bool)
            goes_on &= (i < num) & ~over
            return goes_on, jax.tree.map(partial(jnp.where, goes_on), tuple(after), (inner, obs))

        return jax.lax.fori_loop(0, self._random_moves, move, (jnp.bool_(True), (inner, obs)))[1]

    def _since_of(self, num: int) -> jax.Array:
        """Return since which update the opponent of each of `num` games has been in the pool."""
        against = self.num_against(num)
        if self._since is None or not against:
            return jnp.zeros(num, jnp.int32)
        each = jnp.repeat(self._since, against // self._since.shape[0])
        return jnp.concatenate([each, jnp.zeros(num - against, jnp.int32)])


def is_game(one: Any) -> bool:
    """Return whether an object of a user's class has the interface of `Game`."""
    return getattr(one, "num_players", 1) == 2 and callable(getattr(one, "turn", None))


def make(name: str, game: Game, config: EnvConfig) -> Games:
    """Return the environment of a game; `ConfigError` for settings that games do not have."""
    check_spaces(name, game, limit=False)
    if (limit := getattr(game, "time_limit", None)) is not None:
        raise ConfigError(
            f"{name}: time_limit={line(limit)}: games end by their rules; leave it out"
        )
    if config.evaluation_opponent != config.opponent:  # only to check it
        _chooser("env.evaluation_opponent", config.evaluation_opponent, name, game)
    choose = _chooser("env.opponent", config.opponent, name, game)
    refuse(config, ["resets"], f"{name} is a game; set env.resets=each")
    if config.opponent != "random" or config.evaluation_opponent not in (None, "random"):
        why = (
            "changes what the learner sees, and not what its opponent sees; leave it out, or take "
            "random opponents only (env.opponent, env.evaluation_opponent)"
        )
        refuse(config, ("mask", "extras", "frame_stack"), why)
    games = Games(name, game, config)
    return games if choose is None else games.seated(choose)


def policy_of(opponent: str) -> tuple[Path, str]:
    """Return the run that `DIR` or `DIR@STEPS` names, and which of its policies."""
    folder, at, steps = opponent.rpartition("@")
    return (Path(folder), steps) if at and not Path(opponent).is_dir() else (Path(opponent), "best")


def _chooser(key: str, value: str | None, name: str, game: Game) -> Choose | None:
    """Return a function, or Pgx's network, as a `Choose`; None for other opponents.

    `ConfigError` if it does not exist, or returns no action of the game.
    """
    allowed = OPPONENTS if key == "env.opponent" else ("random", "baseline")
    choose: Choose
    if value == "baseline":
        if not hasattr(game, "baseline"):
            raise ConfigError(f"{key}=baseline: is for games of Pgx, not {name}; take another")
        choose = game.baseline(key)
    elif value is None or value in allowed or policy_of(value)[0].is_dir():
        return None
    elif is_player(value):
        choose = jax.vmap(imported(key, value, "function", allowed))
    else:
        raise ConfigError(
            f"{key}={value}: must be one of {', '.join(allowed)}, the directory of a run, or the "
            "import path of a function (observation, key) -> action"
        )
    num = 3  # as in `forms.problems`
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num))
    obs, action = jax.eval_shape(lambda: zeros((game.observation_space, game.action_space), (num,)))
    try:
        found = jax.eval_shape(choose, obs, keys)
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"{key}={value}: fails: {explained(error)}; it is called with an observation and a key"
        ) from error
    if wrong := differences("its action", found, action):
        raise ConfigError(f"{key}={value}: {wrong[0]}; return an action of one game")
    return choose
