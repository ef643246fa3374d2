"""Films of a trained policy: the best, the median and the worst of some episodes."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.evaluation import episode_keys, reset_keys, step_keys
from jaxppo.config.fields import setting
from jaxppo.deploy.drawings import Drawing, Picture, caption, drawing, write_film, write_strip
from jaxppo.deploy.policy import Playing, TrainedPolicy
from jaxppo.runtime.build import random_streams
from jaxppo.runtime.directories import output_folder
from jaxppo.runtime.sinks.console import print_lines
from jaxppo.types import Policy, PyTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering(Playing):
    """Film the best, the median and the worst of some episodes: python -m jaxppo.render run=DIR

    The episodes are the first of those that jaxppo.evaluate plays. Writes best.gif, median.gif,
    worst.gif, and strip.png with frames of the three.
    """

    episodes: int = setting(16, "how many to choose from", low=1)
    out: str | None = setting(None, "the directory to write to; null: the run directory")
    fps: int | None = setting(
        None,
        "frames a second; null: 30, or fewer where all three episodes are short",
        low=1,
        high=50,
    )
    max_frames: int = setting(
        500, "frames after the first one; of longer episodes every k-th, and the last", low=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """An episode of `T` steps from its opening to the state that it ended in."""

    states: list[PyTree]  # [T + 1] of gymnax's own environment
    observations: list[PyTree]  # [T + 1] of O...
    returns: list[float]  # [T + 1] rewards so far, undiscounted
    finished: bool  # False where max_eval_steps came first


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Now:
    """Before a step of the `B` episodes that are played at once."""

    step: jax.Array  # int32
    env_state: PyTree  # [B, ...]
    obs: PyTree  # [B, O...]
    carry: PyTree  # [B, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outcome:
    """Of a step, before any auto-reset."""

    state: PyTree  # of gymnax's own environment, of one of the episodes
    observation: PyTree  # O..., of the same
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
    fps = settings.fps or min(30, max(4, longest // 4))
    rows = []
    for name, played in episodes.items():
        length = len(played.states) - 1
        late = "" if played.finished else ", unfinished"
        text = f"return {played.returns[-1]:.2f}, {length:,} step{'' if length == 1 else 's'}{late}"
        path = out / f"{name}.gif"
        write_film(path, pictures(drawn, played, kept(length, settings.max_frames)), fps)
        rows.append((f"{name}: {text}", pictures(drawn, played, spread(length, 5))))
        print_lines(f"{path}: {text}, episode {numbers[name] + 1} of {settings.episodes}")
    write_strip(out / "strip.png", rows)
    print_lines(f"{out / 'strip.png'}: frames of the three")


def choose(scores: np.ndarray) -> dict[str, int]:
    """Which of the `[episodes]` are best, median and worst; NaN is worse than anything."""
    order = np.argsort(np.nan_to_num(scores, nan=-np.inf, posinf=np.inf), kind="stable")
    return {
        "best": int(order[-1]),
        "median": int(order[(len(order) - 1) // 2]),
        "worst": int(order[0]),
    }


def returns(policy: TrainedPolicy, drawn: Drawing, num: int) -> np.ndarray:
    """Of the first `num` episodes of `policy.evaluate`, up to float rounding, `[num]` float32.

    Played by the program of `play`, so that rounding does not make other episodes of them there.
    """
    at_once = _at_once(policy)
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
    """The episode of that number, from 0 on, in `policy.evaluate`, up to float rounding."""
    row = number % _at_once(policy)
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


def _at_once(policy: TrainedPolicy) -> int:
    """Episodes that `policy.evaluate` plays at once on a device, which its rounding depends on."""
    return -(-policy.config.arch.num_eval_episodes // policy.num_devices)


def _outcomes(policy: TrainedPolicy, drawn: Drawing, number: int) -> Iterator[_Outcome]:
    """The opening and every step of the episodes that are played at once with that number.

    Endless but for max_eval_steps: what follows an episode's end is of another.
    """
    num = _at_once(policy)
    start, row = number - number % num, jnp.int32(number % num)
    stream = random_streams([policy.config.arch.seed])[3][0]
    keys = episode_keys(stream, start + np.arange(num))
    env_state, obs = policy.system.env.reset(reset_keys(keys))
    yield _Outcome(
        state=jax.tree.map(lambda x: x[row], drawn.inner(env_state)),
        observation=jax.tree.map(lambda x: x[row], obs),
        reward=jnp.zeros(num, jnp.float32),
        done=jnp.zeros(num, bool),
    )
    now = _Now(
        step=jnp.zeros((), jnp.int32),
        env_state=env_state,
        obs=obs,
        carry=policy.initial_carry(num),
    )
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
    """A step as `evaluation.evaluate` takes it.

    Where it ends an episode, `step` of gymnax returns a state of the next one. The state that the
    episode ended in is of `step_env`, called with the key that `step` calls it with.
    """
    player = dataclasses.replace(policy, policy=learnt)
    action_keys, env_keys = step_keys(keys, now.step)

    def act(obs: PyTree, key: jax.Array, carry: PyTree) -> tuple[PyTree, PyTree]:
        drawn_by = None if policy.system.evaluation_greedy else key
        return player.act(obs, drawn_by, carry=carry, reset=now.step == 0)

    def after(key: jax.Array, state: PyTree, action: PyTree) -> PyTree:
        return drawn.env.step_env(jax.random.split(key)[0], state, action, drawn.params)[1]

    action, carry = jax.vmap(act)(now.obs, action_keys, now.carry)
    env_state, step = policy.system.env.step(env_keys, now.env_state, action)
    states = jax.vmap(after)(env_keys, drawn.inner(now.env_state), action)
    outcome = _Outcome(
        state=jax.tree.map(lambda x: x[row], states),
        observation=jax.tree.map(lambda x: x[row], step.final_observation),
        reward=step.reward,
        done=step.terminated | step.truncated,
    )
    return _Now(step=now.step + 1, env_state=env_state, obs=step.obs, carry=carry), outcome


def kept(length: int, max_frames: int) -> list[int]:
    """Of the steps 0 to `length`, every k-th and the last: 0 and at most `max_frames` others."""
    return [*range(0, length, -(-length // max_frames)), length]


def spread(length: int, num: int) -> list[int]:
    """At most `num` of the steps 0 to `length`, evenly spaced, both ends among them."""
    return sorted({round(i * length / (num - 1)) for i in range(num)})


def pictures(drawn: Drawing, played: Played, steps: list[int]) -> list[Picture]:
    """The states after these many steps, with captions."""
    return [
        caption(
            drawn.draw(played.states[i], played.observations[i]),
            f"step {i:,}   return {played.returns[i]:.2f}",
        )
        for i in steps
    ]
