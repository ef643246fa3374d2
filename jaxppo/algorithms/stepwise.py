"""Acting step by step and learning from the result, for environments that step outside of JAX.

With the same environments the numbers are those of `spine.train_block`.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import Ended, act, replay, rollout_keys
from jaxppo.algorithms.axes import vmap_batches, vmap_members
from jaxppo.algorithms.evaluation import step_keys
from jaxppo.algorithms.metrics import add
from jaxppo.algorithms.spine import Metrics, count_nonfinite, explore, update, watch
from jaxppo.kernels import random_bits
from jaxppo.types import (
    Acted,
    ActingState,
    AgentState,
    LearnerState,
    Policy,
    PyTree,
    Rollout,
    System,
    TimeStep,
    pytree,
    zeros,
)


@pytree
class Memory:
    """What an actor with `B` environments keeps on its device during a rollout."""

    key: jax.Array  # typed key, of the next rollout
    keys: jax.Array  # [T] typed keys, of this one
    carry: PyTree  # [B, ...] memory before the next step
    carries: PyTree  # [T, B, ...] memory after each step
    action: PyTree  # [T, B, A...]
    kept: PyTree  # [T, B, ...] of Acted


def init_memory(system: System, policy: Policy, key: jax.Array) -> Memory:
    """Return the memory of an actor that continues the stream of an `ActingState.key`."""
    num, length = system.num_envs, system.rollout_length
    carry = system.algorithm.network.initial_carry(num)

    def one(key: jax.Array) -> Acted:
        obs = zeros(system.env.observation_space, (num,))
        return act(system, policy, carry, obs, jnp.ones(num, bool), key)[1]

    acted = jax.eval_shape(one, key)
    carries, action, kept = jax.tree.map(
        lambda x: jnp.zeros((length, *x.shape), x.dtype), (carry, acted.action, acted.kept)
    )
    keys = jax.random.split(key, length)
    return Memory(key=key, keys=keys, carry=carry, carries=carries, action=action, kept=kept)


def begin_rollout(system: System, number: int | None, memory: Memory) -> Memory:
    """Draw the keys of the next rollout. Actors of one learner have different numbers.

    `system.num_envs` is that of the learner, whose stream of keys is the same.
    """
    keys = rollout_keys(system, memory.key)
    steps = keys[1:, 0]
    if number is not None:
        steps = jax.vmap(random_bits.fold_in, (0, None))(steps, number)
    return dataclasses.replace(
        memory, key=random_bits.split(keys[0, 0], 1 + system.epochs)[0], keys=steps
    )


def _over_batches(phase: Any, system: System, own: PyTree) -> PyTree:
    """Map `phase(own)` over update batches `[U, ...]`."""

    def one(system: System, state: LearnerState) -> tuple[LearnerState, tuple[()]]:
        return dataclasses.replace(state, acting=phase(state.acting)), ()

    state, _ = vmap_batches(one, system)(LearnerState(agent=(), acting=own))  # type: ignore[arg-type]
    return state.acting


@partial(vmap_members, shared=1)
def act_members(
    system: System, policy: Policy, memory: Memory, obs: PyTree, reset: jax.Array, step: jax.Array
) -> tuple[Memory, PyTree]:
    """Sample actions for `obs` `[P, U, B, O...]` at `step` of the rollout.

    Return the memory, and what the environments take, `[P, U, B, A...]`.
    """

    def one(own: tuple[Memory, PyTree, jax.Array]) -> tuple[Memory, PyTree]:
        memory, obs, reset = own
        carry, acted, _ = act(system, policy, memory.carry, obs, reset, memory.keys[step])
        stored = memory.carries, memory.action, memory.kept
        carries, action, kept = jax.tree.map(
            lambda steps, x: jax.lax.dynamic_update_index_in_dim(steps, x, step, 0),
            stored,
            (carry, acted.action, acted.kept),
        )
        stored_now = {"carries": carries, "action": action, "kept": kept}
        return dataclasses.replace(memory, carry=carry, **stored_now), acted.env_action

    return _over_batches(one, system, (memory, obs, reset))


@vmap_members
def init_memories(system: System, policy: Policy, key: jax.Array) -> Memory:
    """Map `init_memory` over policies `[P]` and keys `[P, U]`."""
    return _over_batches(partial(init_memory, system, policy), system, key)


def begin_members(number: int | None, system: System, memory: Memory) -> Memory:
    """Map `begin_rollout` over members and update batches."""

    def one(system: System, memory: Memory) -> Memory:
        return _over_batches(partial(begin_rollout, system, number), system, memory)

    return vmap_members(one)(system, memory)


@vmap_members
def explore_members(system: System, agent: AgentState) -> Policy:
    """Return the policies with which members collect their next rollout."""
    return prepared(system, explore(system, agent).policy)


def prepared(system: System, policy: Policy) -> Policy:
    """Return a policy whose parameters are not cast anew at every step."""
    return dataclasses.replace(policy, params=system.algorithm.network.prepare(policy.params))


@pytree
class Collected:
    """A rollout of an actor with `B` environments."""

    obs: PyTree  # [B, O...] before the first step
    reset: jax.Array  # [B] bool, that obs starts an episode
    steps: TimeStep  # [T, B, ...]
    memory: Memory  # after the last step


@vmap_members
def learn_members(
    system: System, state: LearnerState, rollouts: tuple[Collected, ...], total: Metrics
) -> tuple[LearnerState, Metrics]:
    """Update members by the rollouts of all actors, and add to the metrics so far.

    Leaves of `rollouts` are `[P, U, ...]`, each with the environments of one actor.
    """

    state = dataclasses.replace(state, acting=(state.acting, rollouts))  # type: ignore[arg-type]
    state, found = vmap_batches(partial(update, collect=_joined), system)(state)
    return state, count_nonfinite(state, add(total, found))


@vmap_members
def watch_members(
    system: System, state: LearnerState, rollouts: tuple[Collected, ...]
) -> LearnerState:
    """Fill the observation statistics of members, without learning; see `learn_members`."""

    state = dataclasses.replace(state, acting=(state.acting, rollouts))  # type: ignore[arg-type]
    return vmap_batches(partial(watch, collect=_joined), system)(state)[0]


def _joined(system: System, agent: AgentState, given: Any) -> tuple[ActingState, Rollout, Ended]:
    """Return what `replay` returns for the rollouts of all actors, side by side along `B`.

    An actor may have started episodes anew since the last rollout.
    """
    acting: ActingState
    acting, rollouts = given

    def join(axis: int, *parts: PyTree) -> PyTree:
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=axis), *parts)

    reset = join(0, *(each.reset for each in rollouts))
    begun = {
        name: jnp.where(reset, 0, getattr(acting, name))
        for name in ("episode_return", "episode_length", "discounted_return")
    }
    obs = join(0, *(each.obs for each in rollouts))
    acting = dataclasses.replace(acting, obs=obs, reset=reset, **begun)
    memories = [each.memory for each in rollouts]
    acted = join(1, *((m.carries, m.action, m.kept) for m in memories))
    return replay(system, agent, acting, acted, join(1, *(each.steps for each in rollouts)))


def act_in_episodes(
    system: System,
    policy: Policy,
    carry: PyTree,
    obs: PyTree,
    reset: jax.Array,
    keys: jax.Array,
    steps: jax.Array,
    *,
    describes: bool,
) -> tuple[PyTree, PyTree, jax.Array, PyTree]:
    """Act as `evaluation.evaluate` does, in episodes with `keys` `[B]` at their `steps` `[B]`.

    Return the memory, the actions as the environment takes them, which masks were empty, and the
    `Thoughts` if it `describes`.
    """
    if system.evaluation_greedy:
        policy = dataclasses.replace(policy, noise_key=None)
        drawn = None
    else:
        drawn = jax.vmap(lambda key, step: step_keys(key[None], step)[0][0])(keys, steps)
    carry, acted, thoughts = act(system, policy, carry, obs, reset, drawn, describes=describes)
    seen = jax.tree.map(lambda x: x[None], obs)
    return carry, acted.env_action, system.algorithm.network.empty_masks(seen)[0], thoughts
