"""Acting step by step and learning from the result, for environments that step outside of JAX.

With the same environments the numbers are those of `spine.train_block`.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act, act_and_describe, replay, rollout_keys
from jaxppo.algorithms.axes import over_batches, vmap_batches, vmap_members
from jaxppo.algorithms.evaluation import step_keys
from jaxppo.algorithms.metrics import add
from jaxppo.algorithms.report import Metrics, count_nonfinite
from jaxppo.algorithms.schedules import begin_update
from jaxppo.algorithms.spine import learner, update_obs_statistics
from jaxppo.kernels import random_bits
from jaxppo.types import (
    ActingState,
    ActorOutput,
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
class ActorState:
    """What an actor with `B` environments keeps on its device during a rollout."""

    key: jax.Array  # typed key, of the next rollout
    keys: jax.Array  # [T] typed keys, of this one
    carry: PyTree  # [B, ...] memory before the next step
    carries: PyTree  # [T, B, ...] memory after each step
    action: PyTree  # [T, B, A...]
    extras: PyTree  # [T, B, ...] of ActorOutput


def init_actor(system: System, policy: Policy, key: jax.Array) -> ActorState:
    """Return the state of an actor that continues the stream of an `ActingState.key`."""
    num, length = system.num_envs, system.rollout_length
    carry = system.algorithm.network.initial_carry(num)

    def one(key: jax.Array) -> ActorOutput:
        obs = zeros(system.env.observation_space, (num,))
        return act(system, policy, carry, obs, jnp.ones(num, bool), key)[1]

    acted = jax.eval_shape(one, key)
    carries, action, extras = jax.tree.map(
        lambda x: jnp.zeros((length, *x.shape), x.dtype), (carry, acted.action, acted.extras)
    )
    keys = jax.random.split(key, length)
    return ActorState(
        key=key, keys=keys, carry=carry, carries=carries, action=action, extras=extras
    )


def begin_rollout(system: System, number: int | None, memory: ActorState) -> ActorState:
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


@partial(vmap_members, shared=1)
def act_members(
    system: System,
    policy: Policy,
    memory: ActorState,
    obs: PyTree,
    reset: jax.Array,
    step: jax.Array,
) -> tuple[ActorState, PyTree]:
    """Sample actions for `obs` `[P, U, B, O...]` at `step` of the rollout.

    Return the memory, and what the environments take, `[P, U, B, A...]`.
    """

    def one(memory: ActorState, obs: PyTree, reset: jax.Array) -> tuple[ActorState, PyTree]:
        carry, acted = act(system, policy, memory.carry, obs, reset, memory.keys[step])
        stored = memory.carries, memory.action, memory.extras
        carries, action, extras = jax.tree.map(
            lambda steps, x: jax.lax.dynamic_update_index_in_dim(steps, x, step, 0),
            stored,
            (carry, acted.action, acted.extras),
        )
        stored_now = {"carries": carries, "action": action, "extras": extras}
        return dataclasses.replace(memory, carry=carry, **stored_now), acted.env_action

    return over_batches(one, system, memory, obs, reset)


@vmap_members
def init_actors(system: System, policy: Policy, key: jax.Array) -> ActorState:
    """Map `init_actor` over policies `[P]` and keys `[P, U]`."""
    return over_batches(partial(init_actor, system, policy), system, key)


def begin_members(number: int | None, system: System, memory: ActorState) -> ActorState:
    """Map `begin_rollout` over members and update batches."""

    def begin(system: System, memory: ActorState) -> ActorState:
        return over_batches(partial(begin_rollout, system, number), system, memory)

    return vmap_members(begin)(system, memory)


@vmap_members
def explore_members(system: System, agent: AgentState) -> Policy:
    """Return the policies with which members collect their next rollout."""
    return prepared(system, begin_update(system, agent).policy)


def prepared(system: System, policy: Policy) -> Policy:
    """Return a policy whose parameters are not cast anew at every step."""
    return dataclasses.replace(policy, params=system.algorithm.network.prepare(policy.params))


@pytree
class Collected:
    """A rollout of an actor with `B` environments."""

    obs: PyTree  # [B, O...] before the first step
    reset: jax.Array  # [B] bool, that obs starts an episode
    steps: TimeStep  # [T, B, ...]
    memory: ActorState  # after the last step


Rollouts = tuple[Collected, ...]  # of all actors: leaves `[P, U, ...]`, or one's `[...]`


@vmap_members
def learn_members(
    system: System, state: LearnerState, rollouts: Rollouts, total: Metrics
) -> tuple[LearnerState, Metrics]:
    """Update members by the rollouts of all actors, and add to the metrics so far."""

    def learn(
        system: System, state: LearnerState, rollouts: Rollouts
    ) -> tuple[LearnerState, Metrics]:
        return learner(system)(system, state.agent, *joined(system, state, rollouts))

    state, found = vmap_batches(learn, system)(state, rollouts)
    return state, count_nonfinite(state, add(total, found))


@vmap_members
def warm_up_members(system: System, state: LearnerState, rollouts: Rollouts) -> LearnerState:
    """Fill the observation statistics of members, without learning; see `learn_members`."""

    def fill(system: System, state: LearnerState, rollouts: Rollouts) -> tuple[LearnerState, Any]:
        acting, rollout = joined(system, state, rollouts)
        agent = update_obs_statistics(system, state.agent, rollout)
        return LearnerState(agent=agent, acting=acting), ()

    return vmap_batches(fill, system)(state, rollouts)[0]


@vmap_members
def follow_members(
    system: System, agent: AgentState, acting: ActingState, rollout: Collected
) -> ActingState:
    """Return the state of an actor's environments after its rollout, `[P, U, ...]`."""

    def follow(system: System, state: LearnerState, rollout: Collected) -> Any:
        return dataclasses.replace(state, acting=joined(system, state, (rollout,))[0]), ()

    state = LearnerState(agent=agent, acting=acting)
    return vmap_batches(follow, system)(state, rollout)[0].acting


def joined(system: System, state: LearnerState, rollouts: Rollouts) -> tuple[ActingState, Rollout]:
    """Return what `replay` returns for the rollouts of all actors, side by side along `B`.

    An actor may have started episodes anew since the last rollout.
    """

    def join(axis: int, *parts: PyTree) -> PyTree:
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=axis), *parts)

    reset = join(0, *(rollout.reset for rollout in rollouts))
    names = ("episode_return", "episode_length", "discounted_return", "tallies")
    begun = {
        name: jax.tree.map(lambda x: jnp.where(reset, 0, x), getattr(state.acting, name))
        for name in names
    }
    obs = join(0, *(rollout.obs for rollout in rollouts))
    acting = dataclasses.replace(state.acting, obs=obs, reset=reset, **begun)
    memories = [rollout.memory for rollout in rollouts]
    acted = join(1, *((m.carries, m.action, m.extras) for m in memories))
    steps = join(1, *(rollout.steps for rollout in rollouts))
    return replay(system, state.agent, acting, acted, steps)


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
    `PolicyInfo` if it `describes`.
    """
    drawn = None
    if system.evaluation_greedy:
        policy = dataclasses.replace(policy, noise_key=None)
    else:
        drawn = jax.vmap(lambda key, step: step_keys(key[None], step)[0][0])(keys, steps)
    now = system, policy, carry, obs, reset, drawn
    info: PyTree = ()
    if describes:
        carry, acted, info = act_and_describe(*now)
    else:
        carry, acted = act(*now)
    seen = jax.tree.map(lambda x: x[None], obs)
    return carry, acted.env_action, system.algorithm.network.empty_masks(seen)[0], info
