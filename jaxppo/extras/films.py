"""Films of a trained policy: the best, the median and the worst of several episodes."""

import base64
import dataclasses
import io
import mimetypes
from functools import partial
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.config.fields import ConfigError, check, setting
from jaxppo.config.messages import count
from jaxppo.deploy.episodes import Episode, check_alone, totals
from jaxppo.deploy.policy import Playing, TrainedPolicy, check_count
from jaxppo.envs import is_simulated
from jaxppo.envs.games import Games
from jaxppo.extras.drawings import (
    Drawing,
    Panel,
    Picture,
    caption,
    drawing,
    write_film,
    write_strip,
    write_svg,
)
from jaxppo.kernels.precisions import precision
from jaxppo.runtime.simulated.evaluation import episode_seeds
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.runtime.sinks.wandb import check_is_logged, send_films
from jaxppo.runtime.store.directories import output_folder
from jaxppo.types import PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering(Playing):
    """Film the best, the median and the worst of several episodes: python -m jaxppo.render run=DIR

    The episodes are the first ones that jaxppo.evaluate plays. Writes best.gif, median.gif,
    worst.gif, and strip.png with frames of the three; of games of Pgx best.svg, median.svg and
    worst.svg.
    """

    episodes: int = setting(16, "how many to choose from", low=1)
    out: str | None = setting(None, "the directory to write to; null: the run directory")
    fps: int | None = setting(
        None,
        "frames per second; null: 2 in games, else 30, or fewer if all three episodes are short",
        low=1,
        high=50,
    )
    max_frames: int = setting(
        500, "frames after the first; longer episodes show every k-th step and the last", low=1
    )
    thoughts: bool = setting(
        True,
        "draw beside each frame the value, the entropy and the distribution of actions (PQN: the "
        "Q-values); not in an SVG",
    )
    wandb: bool = setting(False, "also send the films to the W&B run of the run")


def render(settings: Rendering) -> None:
    """Write the films and print what they show."""
    if settings.wandb:
        check_is_logged(Path(settings.run))
    policy = settings.load()
    check_alone(policy.system)
    drawn = drawing(policy.system.evaluation_env)
    out = output_folder(settings.out or settings.run)
    episodes = play(policy, drawn, settings.episodes)
    numbers = choose(*scores_of(policy, episodes))
    longest = max(episodes[i].length for i in numbers.values())
    fps = settings.fps or frames_per_second(drawn, longest)
    rows, files = [], []
    for name, number in numbers.items():
        played = with_frames(policy, number, episodes[number], settings.max_frames)
        late = "" if played.finished else ", unfinished"
        told = "".join(f", {name} {value:.4g}" for name, value in played.metrics.items())
        text = f"return {played.episode_return:.2f}, {count(played.length, 'step')}{told}{late}"
        files.append(out / f"{name}{drawn.suffix}")
        shots = shots_of(drawn, played)
        chosen = [shots[i] for i in every_kth(len(shots) - 1, settings.max_frames)]
        _write(files[-1], drawn, played, chosen, settings.thoughts, fps)
        if not drawn.svg:
            few = [shots[i] for i in evenly_spaced(len(shots) - 1, 5)]
            rows.append((f"{name}: {text}", pictures(drawn, played, few)))
        print_lines(f"{files[-1]}: {text}, episode {numbers[name] + 1} of {settings.episodes}")
    if rows:
        files.append(out / "strip.png")
        write_strip(files[-1], rows)
        print_lines(f"{files[-1]}: frames of the three")
    if settings.wandb:
        send_films(policy.config.logger, Path(settings.run), files)


@dataclasses.dataclass(frozen=True)
class Film:
    """A film of one episode; a notebook shows it."""

    data: bytes
    episode_return: float
    length: int
    suffix: str  # .gif or .svg

    def save(self, path: str | Path) -> None:
        """Write the film; `ConfigError` unless the name ends in its `suffix`."""
        if Path(path).suffix.lower() != self.suffix:
            raise ConfigError(f"path={path}: must end in {self.suffix}, the only format")
        Path(path).write_bytes(self.data)

    def __repr__(self) -> str:
        return f"Film(return {self.episode_return:.2f}, {count(self.length, 'step')})"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.data).decode()
        kind = mimetypes.types_map[self.suffix]
        return f'<img alt="{self!r}" src="data:{kind};base64,{data}">'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shot:
    """A picture of an episode."""

    step: int
    states: PyTree  # [T + 1], of which it shows one
    caption: str

    def drawn(self, drawn: Drawing, played: Episode) -> Any:
        """Draw it."""
        return drawn.draw(*_moment(played, self.states, self.step))


def film(
    policy: TrainedPolicy,
    *,
    episodes: int = 16,
    which: str = "best",
    max_frames: int = 500,
    thoughts: bool = True,
) -> Film:
    """Film the best, median or worst of the first `episodes` that `policy.evaluate` plays.

    With `thoughts`, curves beside it show the value, the entropy and the actions' distribution.
    `ConfigError` if the environment cannot be drawn, see docs/environments.md.
    """
    check_count("episodes", episodes)
    check_count("max_frames", max_frames)
    check_alone(policy.system)
    drawn = drawing(policy.system.evaluation_env)
    every = play(policy, drawn, episodes)
    scores = choose(*scores_of(policy, every))
    check("which", which, str, {"choices": tuple(scores)})
    number, file = scores[which], io.BytesIO()
    played = with_frames(policy, number, every[number], max_frames)
    shots = shots_of(drawn, played)
    chosen = [shots[i] for i in every_kth(len(shots) - 1, max_frames)]
    _write(file, drawn, played, chosen, thoughts, frames_per_second(drawn, played.length))
    return Film(file.getvalue(), played.episode_return, played.length, drawn.suffix)


def _write(
    file: Path | IO[bytes],
    drawn: Drawing,
    played: Episode,
    shots: list[Shot],
    thoughts: bool,
    fps: int,
) -> None:
    """Write a GIF or SVG of these pictures of an episode, with its `Frames` if a simulator's."""
    if drawn.svg:
        write_svg(file, [(each.caption, each.drawn(drawn, played)) for each in shots], fps)
        return
    images = pictures(drawn, played, shots, thoughts=thoughts)
    write_film(file, images, fps, smooth=is_simulated(drawn.env))


def scores_of(policy: TrainedPolicy, episodes: list[Episode]) -> list[np.ndarray]:
    """Return what ranks episodes: their `arch.eval_metric`, if it is set, then their returns."""
    found, metric = totals(episodes), policy.config.arch.eval_metric
    return [*([] if metric is None else [found[f"metrics/{metric}"]]), found["returns"]]


def choose(*scores: np.ndarray) -> dict[str, int]:
    """Return the indices of the best, median and worst score; NaN is the lowest score.

    Later `scores` decide where earlier ones are equal.
    """
    keys = [np.nan_to_num(each, nan=-np.inf, posinf=np.inf) for each in scores]
    order = np.lexsort(keys[::-1])
    return {
        "best": int(order[-1]),
        "median": int(order[(len(order) - 1) // 2]),
        "worst": int(order[0]),
    }


def play(policy: TrainedPolicy, drawn: Drawing, num: int) -> list[Episode]:
    """Return the first `num` episodes of `policy.evaluate`, with states, up to float rounding."""
    return list(policy.record(num, partial(_watch, drawn)))


@dataclasses.dataclass(frozen=True)
class Frames:
    """Pictures of some steps of an episode."""

    of_step: dict[int, Picture]

    def __getitem__(self, step: int) -> Picture:
        return self.of_step[step]


def with_frames(policy: TrainedPolicy, number: int, played: Episode, max_frames: int) -> Episode:
    """Return an episode of a simulator with `Frames` as its states; others as they are.

    Its actions are repeated from its seed. `ConfigError` if this gives other rewards.
    """
    env: Any = policy.system.evaluation_env
    if not is_simulated(env):
        return played
    wanted = {*every_kth(played.length, max_frames), *evenly_spaced(played.length, 5)}
    (seed,) = episode_seeds(policy.episode_keys(np.array([number])))
    found, rewards = env.replay(int(seed), played.actions, wanted)
    if not np.array_equal(rewards, played.rewards):
        raise ConfigError(
            f"{env.name}: does not repeat an episode from its seed, so a recorded one cannot be "
            "drawn; its reset(seed=...) must decide all of its random numbers"
        )
    return dataclasses.replace(played, states=Frames(found))


def _watch(drawn: Drawing, state: PyTree, action: PyTree, keys: jax.Array) -> tuple[PyTree, PyTree]:
    """Return the states of gymnax's environments `[B, ...]` before and after a step.

    At the end of an episode, gymnax's `step` returns a state of the next one. The last state comes
    from `step_env`, called with the same key as in `step`. In games, states are pairs: before the
    step, and after the learner's move.
    """

    before = drawn.inner(state)
    with precision("highest"):
        if isinstance(drawn.env, Games):
            start, moved, after = drawn.env.positions(keys, before, action)
            return (start, moved), (after, after)
        return before, jax.vmap(drawn.env.advance)(keys, before, action)


def frames_per_second(drawn: Drawing, length: int) -> int:
    """Return the speed of a film of so many steps: 30, or fewer if it is short or of a game."""
    return 2 if isinstance(drawn.env, Games) else min(30, max(4, (length + 1) // 4))


def every_kth(length: int, max_frames: int) -> list[int]:
    """Return every k-th of the steps 0 to `length` and the last: 0 and up to `max_frames` more."""
    return [*range(0, length, -(-length // max_frames)), length]


def evenly_spaced(length: int, num: int) -> list[int]:
    """Return up to `num` of the steps 0 to `length`, evenly spaced, with both ends."""
    return sorted({round(i * length / (num - 1)) for i in range(num)})


def shots_of(drawn: Drawing, played: Episode) -> list[Shot]:
    """Return the pictures of an episode: of every step, in games of every move and its answer."""
    returns = np.cumsum([0.0, *played.rewards], dtype=np.float32)
    states, moved, answered = played.states, None, np.ones(played.length, bool)
    if isinstance(drawn.env, Games):
        states, moved = played.states
        pairs = zip(jax.tree.leaves(states), jax.tree.leaves(moved), strict=True)
        changed = [(x[1:] != y[:-1]).reshape(played.length, -1).any(1) for x, y in pairs]
        answered = np.any(changed, axis=0)
    shots = []
    for step in range(played.length + 1):
        if step == 0 or answered[step - 1]:
            text = f"step {step:,}   return {returns[step]:.2f}"
            shots.append(Shot(step=step, states=states, caption=text))
        if moved is not None and step < played.length:
            text = f"move {step + 1:,}   return {returns[step + (not answered[step])]:.2f}"
            shots.append(Shot(step=step, states=moved, caption=text))
    return shots


def pictures(
    drawn: Drawing, played: Episode, shots: list[Shot], *, thoughts: bool = False
) -> list[Picture]:
    """Draw pictures with captions, and thoughts beside them."""
    states = [each.drawn(drawn, played) for each in shots]
    panel = Panel.of(played, states[0].shape[0]) if thoughts else None
    return [
        caption(picture if panel is None else panel.beside(picture, each.step), each.caption)
        for each, picture in zip(shots, states, strict=True)
    ]


def _moment(played: Episode, states: PyTree, step: int) -> tuple[PyTree, PyTree]:
    """Return the state, one of `states`, and the observation after `step` steps."""
    state = jax.tree.map(lambda x: jnp.asarray(x[step]), states)
    if step == played.length:
        return state, played.final_observation
    return state, jax.tree.map(lambda x: x[step], played.observations)
