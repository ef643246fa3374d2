"""Evaluation: one episode in each of many environments."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act
from jaxppo.algorithms.axes import vmap_members
from jaxppo.kernels import random_bits
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import precision
from jaxppo.ops.collectives import any_over
from jaxppo.types import Policy, PyTree, System


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Episodes:
    """The first episodes of `B` environments."""

    returns: jax.Array  # [B] float32, undiscounted; so far, where unfinished
    lengths: jax.Array  # [B] int32
    finished: jax.Array  # [B] bool; False where max_eval_steps came first
    empty_masks: jax.Array  # [B] int32, of action masks that allowed nothing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Progress:
    step: jax.Array
    env_state: PyTree
    obs: PyTree
    carry: PyTree
    reset: jax.Array
    episodes: Episodes


FIRST = 2**31 - 1  # number of the evaluation before training; the others count from 0


def evaluation_stream(key: jax.Array, number: jax.typing.ArrayLike) -> jax.Array:
    """Return the key of an evaluation's episodes, from the stream `key` of a seed."""
    return jax.random.fold_in(key, number)


def episode_keys(key: jax.Array, numbers: jax.typing.ArrayLike) -> jax.Array:
    """Return keys `[B]` of the episodes with these numbers, from the stream `key` of a seed."""
    return jax.vmap(random_bits.fold_in, (None, 0))(key, numbers)


def step_keys(keys: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `[B]` keys for the actions and `[B]` for the environments at `step`, from 0."""
    found = jax.vmap(random_bits.fold_in, (0, None))(keys, step + 1)
    action_keys, env_keys = jnp.moveaxis(jax.vmap(random_bits.split)(found), 1, 0)
    return action_keys, env_keys


def reset_keys(keys: jax.Array) -> jax.Array:
    """Return `[B]` keys for the resets of the episodes."""
    return jax.vmap(random_bits.fold_in, (0, None))(keys, 0)


def evaluate(system: System, policy: Policy, keys: jax.Array) -> Episodes:
    """Play one episode for each of the `[B]` keys.

    For a given policy, each episode depends only on its own key (up to rounding).

    Only the first episode of each environment counts, so that short episodes are not
    over-represented. Later steps are computed but ignored.
    """
    num_envs = keys.shape[0]
    if system.evaluation_greedy:
        policy = dataclasses.replace(policy, noise_key=None)
    with precision("highest"):
        env_state, obs = system.env.reset(reset_keys(keys))

    def running(progress: _Progress) -> jax.Array:
        playing = any_over((), ~progress.episodes.finished)
        return (progress.step < system.max_eval_steps) & playing

    def advance(progress: _Progress) -> _Progress:
        action_keys, env_keys = step_keys(keys, progress.step)
        keys_now = None if system.evaluation_greedy else action_keys
        carry, acted = act(system, policy, progress.carry, progress.obs, progress.reset, keys_now)
        with precision("highest"):
            env_state, step = system.env.step(env_keys, progress.env_state, acted.env_action)
        episodes = progress.episodes
        counting = ~episodes.finished & (progress.step < system.max_eval_steps)
        seen = jax.tree.map(lambda x: x[None], progress.obs)
        empty = system.algorithm.network.empty_masks(seen)[0]
        done = step.terminated | step.truncated
        return _Progress(
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
            ),
        )

    def advance_until_look(progress: _Progress) -> _Progress:
        steps = forms().steps_per_look
        return jax.lax.fori_loop(0, steps, lambda _, now: advance(now), progress)

    start = _Progress(
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
        ),
    )
    body = advance if forms().steps_per_look == 1 else advance_until_look
    return jax.lax.while_loop(running, body, start).episodes


evaluate_members = vmap_members(evaluate)  # policy [P, ...], [P, B] keys
