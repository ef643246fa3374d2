"""The spine: collect a rollout, learn from it in epochs of minibatches, repeat.

Training is one program, composed as Anakin is (Hessel et al. 2021, arXiv 2104.06272):

    update = scan(act, step the environments), targets (PPO: truncated GAE),
             and for each epoch a shuffle and scan(gradient step)
    block  = fori_loop(vmap(update))  update batches [U], which average their gradients
    all    = vmap(block)              members [P], which share nothing
    train  = jit(shard_map(all))      devices [D]: what jax.pmap is made of today

The spine knows no algorithm by name. Every phase is a function of a `System` and arrays, and runs
on its own as well as under the mapped axes of `train_block`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms import guards, memory, opponents
from jaxppo.algorithms.acting import collect
from jaxppo.algorithms.axes import vmap_batches
from jaxppo.algorithms.gradient_steps import make_step
from jaxppo.algorithms.metrics import add, over_axes
from jaxppo.algorithms.optimizers import optimizer
from jaxppo.algorithms.report import (
    Learnt,
    Metrics,
    count_nonfinite,
    no_step,
    of_rollout,
    report,
    zero_metrics,
)
from jaxppo.algorithms.schedules import begin_update
from jaxppo.kernels import packing, random_bits
from jaxppo.kernels.permutations import random_permutation
from jaxppo.kernels.platforms import forms
from jaxppo.ops import sequences
from jaxppo.ops.statistics import init_statistics, normalized_entries, return_scale
from jaxppo.types import (
    ActingState,
    AgentState,
    Batch,
    Hyperparameters,
    LearnerState,
    Policy,
    Rollout,
    System,
    zeros,
)


def init_agent(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """Make an agent: initial parameters, optimiser state and empty statistics."""
    return with_optimizer(system, new_agent(system, hyperparameters, key))


def with_optimizer(system: System, agent: AgentState) -> AgentState:
    """Return the agent with the first state of its optimiser."""
    opt_state = optimizer(system, agent).init(agent.policy.params)
    return dataclasses.replace(agent, opt_state=opt_state)


def new_agent(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """Make an agent without an optimiser."""
    key, noise_key = jax.random.split(key)
    init = system.algorithm.init
    params = (init if forms().members_at_once else jax.custom_batching.sequential_vmap(init))(key)
    update = jnp.zeros((), jnp.int32)
    example = normalized_entries(
        jax.eval_shape(lambda: zeros(system.env.observation_space)), system.normalize_entries
    )
    policy = Policy(
        params=params,
        obs_statistics=init_statistics(example),
        noise_key=noise_key,
        exploration=system.algorithm.exploration(hyperparameters, update),
    )
    return AgentState(
        policy=policy,
        opt_state=(),
        hyperparameters=hyperparameters,
        algorithm_state=system.algorithm.init_state(),
        reward_statistics=init_statistics(jnp.zeros(())),
        update=update,
        opponents=opponents.init_pool(system, policy),
    )


def train_block(
    system: System, state: LearnerState, total: Metrics, num_updates: jax.Array
) -> tuple[LearnerState, Metrics]:
    """Run `num_updates` updates. The acting state is `[U, ...]`; the agent has no such axis.

    The count is traced, so that blocks of any length use one program. `total` are the metrics so
    far, `zero_metrics()` at first. Several calls give the same bits as one call of all updates.
    """
    step = vmap_batches(update, system)

    def iterate(_: int, carry: tuple[LearnerState, Metrics]) -> tuple[LearnerState, Metrics]:
        state, total = carry
        state, found = step(state)
        return state, add(total, found)

    state, total = jax.lax.fori_loop(0, num_updates, iterate, (state, total))
    return state, count_nonfinite(state, total)


def update(system: System, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """Run one update: collect a rollout and learn from it."""
    acting, rollout = collect(system, state.agent, state.acting)
    return learner(system)(system, state.agent, acting, rollout)


def learner(system: System) -> Callable[..., tuple[LearnerState, Metrics]]:
    """Return what follows a rollout: `learn_from`, or with `arch.learn=false` `pass_by`."""
    return learn_from if system.learns else pass_by


def pass_by(
    system: System, agent: AgentState, acting: ActingState, rollout: Rollout
) -> tuple[LearnerState, Metrics]:
    """Count a rollout, and update statistics of observations; parameters stay as they are."""
    keys = random_bits.split(acting.key, 1 + system.epochs)
    metrics = zero_metrics(system)
    learn = dataclasses.replace(metrics.learn, skipped_updates=jnp.int32(1))
    found = over_axes(system.axes, of_rollout(system, rollout))
    agent = end_update(system, agent, begin_update(system, agent), rollout)
    acting = dataclasses.replace(acting, key=keys[0])
    metrics = dataclasses.replace(metrics, rollout=found, learn=learn)
    return LearnerState(agent=agent, acting=acting), metrics


def learn_from(
    system: System, agent: AgentState, acting: ActingState, rollout: Rollout
) -> tuple[LearnerState, Metrics]:
    """Learn from a rollout, which may have been collected elsewhere; `acting` is as it ended."""
    keys = random_bits.split(acting.key, 1 + system.epochs)  # the first continues the stream
    agent, learnt = learn(system, agent, rollout, keys[1:])
    acting = dataclasses.replace(acting, key=keys[0])
    return LearnerState(agent=agent, acting=acting), report(system, rollout, learnt)


def learn(
    system: System, agent: AgentState, rollout: Rollout, keys: jax.Array
) -> tuple[AgentState, Learnt]:
    """Compute targets, run an epoch of minibatches for each of the `keys`, update statistics."""
    before, agent = agent, begin_update(system, agent)
    agent, scaled = scale_rewards(system, agent, rollout)
    agent, batch, of_targets = make_batch(system, agent, scaled)
    with jax.named_scope("epochs"):
        agent, of_steps = run_epochs(system, agent, scaled, batch, keys)
        agent, of_finish = system.algorithm.finish(system, agent, batch)
    learnt = Learnt(agent=agent, targets=of_targets, steps=of_steps, finish=of_finish, batch=batch)
    return end_update(system, before, agent, rollout), learnt


def scale_rewards(
    system: System, agent: AgentState, rollout: Rollout
) -> tuple[AgentState, Rollout]:
    """Normalise, scale and clip the rewards of a rollout.

    Normalisation divides by the standard deviation of G_t = r_t + gamma G_{t-1} within episodes,
    over all rollouts so far (Engstrom et al. 2020, arXiv 2005.12729, section 3), or by its size if
    it is constant. In self-play the sum is from the view of the player who moves.
    """
    hp, reward = agent.hyperparameters, rollout.steps.reward
    if system.normalize_rewards:
        totals = rollout.steps.discounted_return
        alive = rollout.steps.alive
        statistics = guards.merge_statistics(system, agent.reward_statistics, totals, alive=alive)
        reward = reward / return_scale(statistics.mean, statistics.variance)
        agent = dataclasses.replace(agent, reward_statistics=statistics)
    reward = jnp.clip(reward * hp.reward_scale, -hp.reward_clip, hp.reward_clip)
    steps = dataclasses.replace(rollout.steps, reward=reward)
    return agent, dataclasses.replace(rollout, steps=steps)


def make_batch(
    system: System, agent: AgentState, rollout: Rollout
) -> tuple[AgentState, Batch, Any]:
    """Compute the algorithm's targets and cut the rollout into sequences `[L, S]`.

    Return the agent, whose statistics of targets may be new, the batch and `target_metrics`.
    """
    agent, steps, found = system.algorithm.targets(system, agent, rollout)
    carry = sequences.first(rollout.steps.carry, system.sequence_length)
    return agent, Batch(carry=carry, steps=sequences.cut(steps, system.sequence_length)), found


def run_epochs(
    system: System, agent: AgentState, rollout: Rollout, batch: Batch, keys: jax.Array
) -> tuple[AgentState, Any]:
    """Run an epoch for each of the `keys`, and return what their steps return."""
    step, refresh = make_step(system), memory.make_refresh(system, rollout)
    scan: Any = partial(scan_epochs, system, batch, keys)
    if system.stop_settled:
        least = agent.hyperparameters.min_loss_change
        scan = guards.until_settled(system, scan, no_step(system), least)
    if system.stop_early:
        scan = guards.until_stopped(system, scan, no_step(system))
    return scan(step, refresh, agent)


def scan_epochs(
    system: System, batch: Batch, keys: jax.Array, step: Any, refresh: Any, carry: Any
) -> tuple[Any, Any]:
    """Scan minibatches: each epoch goes over the batch shuffled anew.

    Each sequence is in exactly one minibatch of an epoch. `step(batch, carry, indices)` learns from
    one, `refresh(carry, batch)` is the batch of an epoch. Results are
    `[epochs, num_minibatches, ...]`.
    """
    num_sequences = jax.tree.leaves(batch.steps)[0].shape[1]

    def epoch(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        current = refresh(carry, batch)
        with jax.named_scope("shuffle"):
            order = random_permutation(key, num_sequences)
        rows = order.reshape(system.num_minibatches, num_sequences // system.num_minibatches)
        return packing.scan(partial(step, current), carry, rows)

    return packing.scan(epoch, carry, keys)


def end_update(
    system: System, before: AgentState, agent: AgentState, rollout: Rollout
) -> AgentState:
    """Count the update, draw new noise and restore the hyperparameters of the settings.

    Statistics of observations move at the end: acting and learning of one update see the same.
    """
    policy = agent.policy
    noise_key = jax.tree.map(lambda key: random_bits.split(key, 1)[0], policy.noise_key)
    agent = dataclasses.replace(
        agent,
        policy=dataclasses.replace(policy, noise_key=noise_key),
        hyperparameters=before.hyperparameters,
        update=agent.update + 1,
    )
    return opponents.update_pool(system, update_obs_statistics(system, agent, rollout))


def update_obs_statistics(system: System, agent: AgentState, rollout: Rollout) -> AgentState:
    """Merge the rollout's observations into the statistics, over `system.axes`.

    They are frozen after `obs_norm_share` of the updates, and at least one counts.
    """
    if not system.normalize_observations:
        return agent
    policy, steps = agent.policy, rollout.steps
    statistics = guards.merge_statistics(
        system, policy.obs_statistics, steps.obs, alive=steps.alive
    )
    if system.obs_norm_share < 1:
        last = jnp.maximum(system.obs_norm_share * agent.hyperparameters.num_updates, 1)
        statistics = jax.tree.map(
            partial(jnp.where, agent.update <= last), statistics, policy.obs_statistics
        )
    return dataclasses.replace(agent, policy=dataclasses.replace(policy, obs_statistics=statistics))


def warm_up(system: System, state: LearnerState, num_rollouts: jax.Array) -> LearnerState:
    """Collect `num_rollouts` rollouts to fill the observation statistics, without learning."""

    def fill(system: System, state: LearnerState) -> tuple[LearnerState, tuple[()]]:
        acting, rollout = collect(system, state.agent, state.acting)
        agent = update_obs_statistics(system, state.agent, rollout)
        return LearnerState(agent=agent, acting=acting), ()

    step = vmap_batches(fill, system)
    return jax.lax.fori_loop(0, num_rollouts, lambda _, state: step(state)[0], state)
