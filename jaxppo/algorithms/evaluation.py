"""Evaluation: one episode in each of many environments."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act, act_and_describe
from jaxppo.algorithms.axes import vmap_members
from jaxppo.config.schema import TEAM_RETURN
from jaxppo.kernels import random_bits
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import precision
from jaxppo.ops import tallies
from jaxppo.ops.collectives import any_over
from jaxppo.types import Policy, PolicyInfo, PyTree, System, Tally, TimeStep, pytree


@pytree
class Episodes:
    """The first episodes of `B` environments."""

    returns: jax.Array  # [B] float32, undiscounted; so far, where unfinished
    lengths: jax.Array  # [B] int32
    finished: jax.Array  # [B] bool; False where max_eval_steps came first
    empty_masks: jax.Array  # [B] int32, of action masks that allowed nothing
    # [B] float32 each, of env.metrics; so far, where unfinished; NaN where nothing was told
    metrics: dict[str, jax.Array] = dataclasses.field(default_factory=dict)


@pytree
class Progress:
    """The state of `B` environments that play an episode each."""

    step: jax.Array  # int32, of all
    env_state: PyTree  # [B, ...]
    obs: PyTree  # [B, O...]
    carry: PyTree  # [B, ...]
    reset: jax.Array  # [B] bool
    episodes: Episodes
    tallies: dict[str, Tally]  # [B] of env.metrics


@pytree
class RecordedStep:
    """A step of the episodes; `record` stacks it to `[T, B, ...]`."""

    observations: PyTree  # [B, O...] raw, which the actions answer
    actions: PyTree  # [B, A...] as the environment takes them
    rewards: jax.Array  # [B] float32
    metrics: dict[str, jax.Array]  # [B] float32 each, of env.metrics
    terminated: jax.Array  # [B] bool
    truncated: jax.Array  # [B] bool
    info: PolicyInfo
    states: PyTree  # [B, ...] the environment's, before the step; () unless asked for
    after: PyTree  # [B, ...] the true next observation and state


FIRST = 2**31 - 1  # number of the evaluation before training; the others count from 0


@partial(jax.jit, inline=True)  # called eagerly too, where each operation would be a program
def evaluation_streams(keys: jax.Array, number: jax.typing.ArrayLike) -> jax.Array:
    """Return the keys `[P]` of an evaluation's episodes, from the streams `[P]` of seeds."""
    return jax.vmap(evaluation_stream, (0, None))(keys, number)


def evaluation_stream(key: jax.Array, number: jax.typing.ArrayLike) -> jax.Array:
    """Return the key of an evaluation's episodes, from the stream `key` of a seed."""
    return jax.random.fold_in(key, number)


@partial(jax.jit, inline=True)  # called eagerly too, where each operation would be a program
def episode_keys(key: jax.Array, numbers: jax.typing.ArrayLike) -> jax.Array:
    """Return keys `[B]` of the episodes with these numbers, from the stream `key` of a seed."""
    return jax.vmap(random_bits.fold_in, (None, 0))(key, numbers)


def step_keys(keys: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `[B]` keys for the actions and `[B]` for the environments at `step`, from 0."""
    found = jax.vmap(random_bits.fold_in, (0, None))(keys, step + 1)
    action_keys, env_keys = random_bits.split_each(found)
    return action_keys, env_keys


def reset_keys(keys: jax.Array) -> jax.Array:
    """Return `[B]` keys for the resets of the episodes."""
    return jax.vmap(random_bits.fold_in, (0, None))(keys, 0)


def agent_keys(system: System, keys: jax.Array) -> jax.Array:
    """Return keys `[B]` of the agents of worlds, from the keys `[E]` of their episodes."""
    num = system.env.num_agents
    if num == 1:
        return keys
    each = jax.vmap(jax.vmap(random_bits.fold_in, (None, 0)), (0, None))
    return each(keys, jnp.arange(num)).reshape(-1)


def of_worlds(system: System, episodes: Episodes) -> Episodes:
    """Return the episodes `[E]` of worlds, from those of their agents `[B]`.

    A return is the mean over the agents, a length that of the agent that lasts longest. A world
    tells its `env.metrics` at its end; of these, one that is cut off has the team's return alone.
    """
    num = system.env.num_agents
    if num == 1:
        return episodes
    rows: Episodes = jax.tree.map(lambda x: x.reshape(-1, num), episodes)
    told = {name: jnp.nanmax(x, axis=1) for name, x in rows.metrics.items()}  # told by one
    finished, team = rows.finished.all(1), rows.returns.sum(1)
    return Episodes(
        returns=rows.returns.mean(1),
        lengths=rows.lengths.max(1),
        finished=finished,
        empty_masks=rows.empty_masks.sum(1),
        metrics={**told, TEAM_RETURN: jnp.where(finished, told[TEAM_RETURN], team)},
    )


def evaluate(system: System, policy: Policy, keys: jax.Array) -> Episodes:
    """Play one episode for each of the `[E]` keys; without several agents, E is B.

    For a given policy, each episode depends only on its own key (up to rounding).

    Only the first episode of each environment counts, so that short episodes are not
    over-represented. Later steps are computed but ignored.
    """
    keys = agent_keys(system, keys)

    def running(progress: Progress) -> jax.Array:
        playing = any_over((), ~progress.episodes.finished)
        return (progress.step < system.max_eval_steps) & playing

    def advance(progress: Progress) -> Progress:
        choice, env_keys = _choice(system, policy, keys, progress)
        carry, acted = act(system, *choice)
        return _step(system, env_keys, progress, carry, acted.env_action)[0]

    def advance_until_look(progress: Progress) -> Progress:
        steps = forms().steps_per_look
        return jax.lax.fori_loop(0, steps, lambda _, now: advance(now), progress)

    body = advance if forms().steps_per_look == 1 else advance_until_look
    played = jax.lax.while_loop(running, body, begin(system, keys))
    return of_worlds(system, played.episodes)


Watch = Callable[[PyTree, PyTree, jax.Array], tuple[PyTree, PyTree]]


def watch_nothing(state: PyTree, action: PyTree, keys: jax.Array) -> tuple[PyTree, PyTree]:
    """Record no states of the environment."""
    del state, action, keys
    return (), ()


def record(
    system: System,
    policy: Policy,
    keys: jax.Array,
    progress: Progress,
    *,
    num_steps: int,
    watch: Watch = watch_nothing,
) -> tuple[Progress, RecordedStep]:
    """Continue the episodes of `evaluate` by `num_steps`; return what happened, `[T, B, ...]`.

    What follows the end of an episode does not belong to it. `watch` maps the environment's state,
    actions and keys, `[B, ...]`, to the states to record before and after the step.
    """

    def advance(progress: Progress, _: None) -> tuple[Progress, RecordedStep]:
        choice, env_keys = _choice(system, policy, keys, progress)
        carry, acted, info = act_and_describe(system, *choice)
        action = acted.env_action
        before, after = watch(progress.env_state, action, env_keys)
        now, step = _step(system, env_keys, progress, carry, action)
        return now, RecordedStep(
            observations=progress.obs,
            actions=action,
            rewards=step.reward,
            metrics=step.metrics,
            terminated=step.terminated,
            truncated=step.truncated & ~step.terminated,
            info=info,
            states=before,
            after=(step.final_observation, after),
        )

    return jax.lax.scan(advance, progress, None, num_steps)


def begin(system: System, keys: jax.Array) -> Progress:
    """Return the start of one episode for each of the `[B]` keys."""
    num_envs = keys.shape[0]
    with precision("highest"):
        env_state, obs = system.evaluation_env.reset(reset_keys(keys))
    counted = tallies.init(system.metrics, (num_envs,))
    return Progress(
        step=jnp.zeros((), jnp.int32),
        env_state=env_state,
        obs=obs,
        carry=system.algorithm.network.initial_carry(num_envs),
        reset=jnp.ones(num_envs, bool),
        episodes=Episodes(
            returns=jnp.zeros(num_envs, jnp.float32),
            lengths=jnp.zeros(num_envs, jnp.int32),
            finished=jnp.zeros(num_envs, bool),
            empty_masks=jnp.zeros(num_envs, jnp.int32),
            metrics=tallies.results(system.metrics, counted),
        ),
        tallies=counted,
    )


def _choice(
    system: System, policy: Policy, keys: jax.Array, progress: Progress
) -> tuple[tuple[Any, ...], jax.Array]:
    """Return the arguments of `act` after the system, and the environments' keys `[B]`."""
    action_keys, env_keys = step_keys(keys, progress.step)
    now = progress.carry, progress.obs, progress.reset
    if system.evaluation_greedy:
        return (dataclasses.replace(policy, noise_key=None), *now, None), env_keys
    return (policy, *now, action_keys), env_keys


def _step(
    system: System, env_keys: jax.Array, progress: Progress, carry: PyTree, action: PyTree
) -> tuple[Progress, TimeStep]:
    """Take a step and count it in the episodes that still run."""
    with precision("highest"):
        env_state, step = system.evaluation_env.step(env_keys, progress.env_state, action)
    episodes = progress.episodes
    counting = ~episodes.finished & (progress.step < system.max_eval_steps)
    seen = jax.tree.map(lambda x: x[None], progress.obs)
    empty = system.algorithm.network.empty_masks(seen)[0]
    done = step.terminated | step.truncated
    told = {name: jnp.where(counting, x, jnp.nan) for name, x in step.metrics.items()}
    counted = tallies.add(system.metrics, progress.tallies, told)
    now = Progress(
        step=progress.step + 1,
        env_state=env_state,
        obs=step.obs,
        carry=carry,
        reset=done,
        episodes=Episodes(
            returns=episodes.returns + jnp.where(counting, step.reward, 0.0),
            lengths=episodes.lengths + counting,
            finished=episodes.finished | (done & counting),
            empty_masks=episodes.empty_masks + (counting & empty),
            metrics=tallies.results(system.metrics, counted),
        ),
        tallies=counted,
    )
    return now, step


begin_members = vmap_members(begin)  # [P, B] keys
