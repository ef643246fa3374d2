"""Films of a trained policy: the best, the median and the worst of several episodes."""

import base64
import dataclasses
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.evaluation import reset_keys, step_keys
from jaxppo.config.fields import ConfigError, setting
from jaxppo.config.messages import count
from jaxppo.deploy.drawings import Drawing, Picture, caption, drawing, write_film, write_strip
from jaxppo.deploy.policy import Playing, TrainedPolicy
from jaxppo.kernels.precisions import precision
from jaxppo.runtime.directories import output_folder
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.types import Policy, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering(Playing):
    """Film the best, the median and the worst of several episodes: python -m jaxppo.render run=DIR

    The episodes are the first ones that jaxppo.evaluate plays. Writes best.gif, median.gif,
    worst.gif, and strip.png with frames of the three.
    """

    episodes: int = setting(16, "how many to choose from", low=1)
    out: str | None = setting(None, "the directory to write to; null: the run directory")
    fps: int | None = setting(
        None,
        "frames per second; null: 30, or fewer if all three episodes are short",
        low=1,
        high=50,
    )
    max_frames: int = setting(
        500, "frames after the first; longer episodes show every k-th step and the last", low=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """An episode of `T` steps, with its first and its last state."""

    states: list[PyTree]  # [T + 1] of gymnax's environment
    observations: list[PyTree]  # [T + 1] of O...
    returns: list[float]  # [T + 1] sum of rewards so far, undiscounted
    finished: bool  # False if max_eval_steps came first


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Now:
    """State of the `B` episodes played at once, before a step."""

    step: jax.Array  # int32
    env_state: PyTree  # [B, ...]
    obs: PyTree  # [B, O...]
    carry: PyTree  # [B, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outcome:
    """Result of a step, before any auto-reset."""

    state: PyTree  # of gymnax's environment, of one episode
    observation: PyTree  # O..., of the same episode
    reward: jax.Array  # [B] float32
    done: jax.Array  # [B] bool


def render(settings: Rendering) -> None:
    """Write the films and print what they show."""
    policy = settings.load()
    drawn = drawing(policy.system.env)
    out = output_folder(settings.out or settings.run)
    numbers = choose(returns(policy, drawn, settings.episodes))
    episodes = {name: play(policy, drawn, number) for name, number in numbers.items()}
    longest = max(len(played.states) for played in episodes.values())
    fps = settings.fps or frames_per_second(longest)
    rows = []
    for name, played in episodes.items():
        length = len(played.states) - 1
        late = "" if played.finished else ", unfinished"
        text = f"return {played.returns[-1]:.2f}, {count(length, 'step')}{late}"
        path = out / f"{name}.gif"
        write_film(path, frames(drawn, played, settings.max_frames), fps)
        rows.append((f"{name}: {text}", pictures(drawn, played, evenly_spaced(length, 5))))
        print_lines(f"{path}: {text}, episode {numbers[name] + 1} of {settings.episodes}")
    write_strip(out / "strip.png", rows)
    print_lines(f"{out / 'strip.png'}: frames of the three")


@dataclasses.dataclass(frozen=True)
class Film:
    """A film of one episode; a notebook shows it."""

    gif: bytes
    episode_return: float
    length: int

    def save(self, path: str | Path) -> None:
        """Write a GIF."""
        Path(path).write_bytes(self.gif)

    def __repr__(self) -> str:
        return f"Film(return {self.episode_return:.2f}, {count(self.length, 'step')})"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.gif).decode()
        return f'<img alt="{self!r}" src="data:image/gif;base64,{data}">'


def film(
    policy: TrainedPolicy, *, episodes: int = 16, which: str = "best", max_frames: int = 500
) -> Film:
    """Film the best, median or worst of the first `episodes` that `policy.evaluate` plays.

    `ConfigError` if the environment cannot be drawn, see docs/environments.md.
    """
    drawn = drawing(policy.system.env)
    scores = choose(returns(policy, drawn, episodes))
    if which not in scores:
        raise ConfigError(f"which={which}: must be one of {', '.join(scores)}")
    played = play(policy, drawn, scores[which])
    file, num_states = io.BytesIO(), len(played.states)
    write_film(file, frames(drawn, played, max_frames), frames_per_second(num_states))
    return Film(gif=file.getvalue(), episode_return=played.returns[-1], length=num_states - 1)


def choose(scores: np.ndarray) -> dict[str, int]:
    """Return the indices of the best, median and worst score; NaN is the lowest score."""
    order = np.argsort(np.nan_to_num(scores, nan=-np.inf, posinf=np.inf), kind="stable")
    return {
        "best": int(order[-1]),
        "median": int(order[(len(order) - 1) // 2]),
        "worst": int(order[0]),
    }


def returns(policy: TrainedPolicy, drawn: Drawing, num: int) -> np.ndarray:
    """Return the returns of the first `num` episodes of `policy.evaluate`, `[num]` float32.

    They are equal up to float rounding. `play` runs the same program, so that it rounds alike and
    replays the same episodes.
    """
    at_once = policy.episodes_per_device
    totals = []
    for start in range(0, num, at_once):
        total, finished = np.zeros(at_once, np.float32), np.zeros(at_once, bool)
        for outcome in _outcomes(policy, drawn, start):
            total += np.where(finished, np.float32(0.0), outcome.reward)
            finished |= np.asarray(outcome.done)
            if finished.all():
                break
        totals.append(total)
    return np.concatenate(totals)[:num]


def play(policy: TrainedPolicy, drawn: Drawing, number: int) -> Played:
    """Play episode `number`, from 0, of `policy.evaluate`, up to float rounding."""
    row = number % policy.episodes_per_device
    outcomes = []
    for outcome in _outcomes(policy, drawn, number):
        outcomes.append(outcome)
        if outcome.done[row]:
            break
    rewards = [np.asarray(outcome.reward)[row] for outcome in outcomes]
    return Played(
        states=[outcome.state for outcome in outcomes],
        observations=[outcome.observation for outcome in outcomes],
        returns=np.cumsum(rewards, dtype=np.float32).tolist(),
        finished=bool(outcomes[-1].done[row]),
    )


def _outcomes(policy: TrainedPolicy, drawn: Drawing, number: int) -> Iterator[_Outcome]:
    """Yield the start and every step of the episodes played at once with episode `number`.

    Only max_eval_steps ends this: steps after the end of an episode belong to another one.
    """
    num = policy.episodes_per_device  # as in `policy.evaluate`: rounding depends on the batch size
    start, row = number - number % num, jnp.int32(number % num)
    keys = policy.episode_keys(start + np.arange(num))
    with precision("highest"):
        env_state, obs = policy.system.env.reset(reset_keys(keys))
    yield _Outcome(
        state=jax.tree.map(lambda x: x[row], drawn.inner(env_state)),
        observation=jax.tree.map(lambda x: x[row], obs),
        reward=jnp.zeros(num, jnp.float32),
        done=jnp.zeros(num, bool),
    )
    step, carry = jnp.zeros((), jnp.int32), policy.initial_carry(num)
    now = _Now(step=step, env_state=env_state, obs=obs, carry=carry)
    for _ in range(policy.system.max_eval_steps):
        now, outcome = _advance(policy, drawn, policy.policy, keys, row, now)
        yield outcome


@partial(jax.jit, static_argnums=(0, 1))
def _advance(
    policy: TrainedPolicy,
    drawn: Drawing,
    learnt: Policy,
    keys: jax.Array,
    row: jax.Array,
    now: _Now,
) -> tuple[_Now, _Outcome]:
    """Take a step as `evaluation.evaluate` does.

    At the end of an episode, gymnax's `step` returns a state of the next one. The last state comes
    from `step_env`, called with the same key as in `step`.
    """
    player = dataclasses.replace(policy, policy=learnt)
    action_keys, env_keys = step_keys(keys, now.step)

    def act(obs: PyTree, key: jax.Array, carry: PyTree) -> tuple[PyTree, PyTree]:
        sample_key = None if policy.system.evaluation_greedy else key
        return player.act(obs, sample_key, carry=carry, reset=now.step == 0)

    def after(key: jax.Array, state: PyTree, action: PyTree) -> PyTree:
        return drawn.env.step_env(jax.random.split(key)[0], state, action, drawn.params)[1]

    action, carry = jax.vmap(act)(now.obs, action_keys, now.carry)
    with precision("highest"):
        env_state, step = policy.system.env.step(env_keys, now.env_state, action)
    states = jax.vmap(after)(env_keys, drawn.inner(now.env_state), action)
    outcome = _Outcome(
        state=jax.tree.map(lambda x: x[row], states),
        observation=jax.tree.map(lambda x: x[row], step.final_observation),
        reward=step.reward,
        done=step.terminated | step.truncated,
    )
    return _Now(step=now.step + 1, env_state=env_state, obs=step.obs, carry=carry), outcome


def frames_per_second(num_states: int) -> int:
    """Return the speed of a film of so many states: 30, or fewer if it is short."""
    return min(30, max(4, num_states // 4))


def frames(drawn: Drawing, played: Played, max_frames: int) -> list[Picture]:
    """Draw an episode; of a long one every k-th step and the last."""
    return pictures(drawn, played, every_kth(len(played.states) - 1, max_frames))


def every_kth(length: int, max_frames: int) -> list[int]:
    """Return every k-th of the steps 0 to `length` and the last: 0 and up to `max_frames` more."""
    return [*range(0, length, -(-length // max_frames)), length]


def evenly_spaced(length: int, num: int) -> list[int]:
    """Return up to `num` of the steps 0 to `length`, evenly spaced, with both ends."""
    return sorted({round(i * length / (num - 1)) for i in range(num)})


def pictures(drawn: Drawing, played: Played, steps: list[int]) -> list[Picture]:
    """Draw the states after these numbers of steps, with captions."""
    return [
        caption(
            drawn.draw(played.states[i], played.observations[i]),
            f"step {i:,}   return {played.returns[i]:.2f}",
        )
        for i in steps
    ]
