"""The spine: collect a rollout, learn from it in epochs of minibatches, repeat.

It knows no algorithm by name. Every phase is a function of a `System` and arrays, and runs on its
own as well as under the mapped axes of `train_block`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxppo.algorithms import memory
from jaxppo.algorithms.acting import Ended, collect
from jaxppo.algorithms.axes import vmap_batches, vmap_members
from jaxppo.algorithms.contract import check_finish, check_groups, check_loss, check_targets
from jaxppo.algorithms.guards import Outcome, all_stopped, guarded, num_nonfinite, unless_nonfinite
from jaxppo.algorithms.metrics import (
    LAST,
    SUM,
    add,
    identity,
    metric,
    metrics,
    over_axes,
    over_first,
)
from jaxppo.algorithms.optimizers import gradient_norms, learning_rate, optimizer
from jaxppo.algorithms.schedules import scheduled
from jaxppo.kernels import packing, random_bits
from jaxppo.kernels.permutations import random_permutation
from jaxppo.kernels.platforms import forms
from jaxppo.ops import sequences
from jaxppo.ops.collectives import mean_over
from jaxppo.ops.statistics import (
    init_statistics,
    merge_statistics,
    normalized_entries,
    return_scale,
)
from jaxppo.types import (
    ActingState,
    AgentState,
    Batch,
    Hyperparameters,
    LearnerState,
    Policy,
    PyTree,
    Rollout,
    System,
    zeros,
)

# (system, agent, acting state) -> the acting state after a rollout, the rollout, ended episodes
Collect = Callable[[System, AgentState, Any], tuple[ActingState, Rollout, Ended]]


@metrics
class StepMetrics:
    """Metrics of gradient steps."""

    total_loss: jax.Array = metric()
    loss: Any  # the algorithm's loss_metrics
    norms: dict[str, jax.Array]  # of each optimiser group's gradient


@metrics
class LearnMetrics:
    """Metrics of `learn`."""

    gradient_steps: jax.Array = metric(count=True)  # fewer where the epochs ended early
    skipped_steps: jax.Array = metric(count=True)  # gradient steps that were not finite
    skipped_updates: jax.Array = metric(SUM, count=True)  # whose gradient steps all were not finite
    nonfinite_loss: jax.Array = metric(SUM, count=True)
    parameter_norm: jax.Array = metric()  # global, afterwards
    learning_rate: jax.Array = metric()  # of the first optimiser group
    scheduled: dict[str, jax.Array]  # hyperparameters that follow a schedule
    steps: StepMetrics  # averaged over the gradient steps
    targets: Any  # the algorithm's target_metrics
    finish: Any  # the algorithm's finish_metrics


@metrics
class RolloutMetrics:
    """Metrics of one rollout."""

    num_episodes: jax.Array = metric(SUM, count=True)  # that ended
    episode_return: jax.Array = metric(SUM)  # of those
    episode_length: jax.Array = metric(SUM)
    nonfinite_reward: jax.Array = metric(SUM, count=True)
    nonfinite_observation: jax.Array = metric(SUM, count=True)
    empty_mask: jax.Array = metric(SUM, count=True)  # observations whose mask allowed no action


@metrics
class Metrics:
    """Metrics of one update; `train_block` sums them over updates."""

    nonfinite_parameter: jax.Array = metric(LAST, count=True)
    rollout: RolloutMetrics
    learn: LearnMetrics


def zero_metrics(system: System) -> Metrics:
    """Return the metrics of no update."""
    algorithm = system.algorithm
    learn = identity(
        LearnMetrics,
        scheduled=scheduled_metrics(system, lambda _: jnp.zeros(())),
        steps=no_step(system),
        targets=identity(algorithm.target_metrics),
        finish=identity(algorithm.finish_metrics),
    )
    return identity(Metrics, rollout=identity(RolloutMetrics), learn=learn)


def scheduled_metrics(system: System, value: Callable[[str], jax.Array]) -> dict[str, jax.Array]:
    """Return the value of each hyperparameter that follows a schedule, by its name in the log."""
    return {f"scheduled_{name}": value(name) for name, _ in system.schedules}


def no_step(system: System) -> StepMetrics:
    """Return the metrics of no gradient step."""
    ends = ("gradient_norm", "gradient_norm_clipped")
    norms = {
        f"{name}_{end}": jnp.zeros(()) for end in ends for name in system.algorithm.group_names
    }
    loss = identity(system.algorithm.loss_metrics)
    return identity(StepMetrics, loss=loss, norms=norms)


def init_agent(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """Make an agent: initial parameters, optimiser state and empty statistics."""
    key, noise_key = jax.random.split(key)
    init = system.algorithm.init
    params = (init if forms().members_at_once else jax.custom_batching.sequential_vmap(init))(key)
    update = jnp.zeros((), jnp.int32)
    example = normalized_entries(
        jax.eval_shape(lambda: zeros(system.env.observation_space)), system.normalize_entries
    )
    agent = AgentState(
        policy=Policy(
            params=params,
            obs_statistics=init_statistics(example),
            noise_key=noise_key,
            exploration=system.algorithm.exploration(hyperparameters, update),
        ),
        opt_state=(),
        hyperparameters=hyperparameters,
        algorithm=system.algorithm.init_state(),
        reward_statistics=init_statistics(jnp.zeros(())),
        update=update,
    )
    algorithm = system.algorithm
    check_groups(algorithm, params, algorithm.groups(params), algorithm.rates(agent))
    return dataclasses.replace(agent, opt_state=optimizer(system, agent).init(params))


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


def count_nonfinite(state: LearnerState, total: Metrics) -> Metrics:
    """Return the metrics with the number of the state's parameters that are not finite."""
    count = num_nonfinite(_floats(state.agent.policy))
    return dataclasses.replace(total, nonfinite_parameter=count)


train_members = vmap_members(train_block, shared=1)


def update(
    system: System, state: LearnerState, collect: Collect = collect
) -> tuple[LearnerState, Metrics]:
    """Run one update: collect a rollout and learn from it."""
    agent = explore(system, state.agent)
    acting, rollout, ended = collect(system, agent, state.acting)
    keys = random_bits.split(acting.key, 1 + system.epochs)  # the first continues the stream
    agent, learnt = learn(system, agent, dataclasses.replace(rollout, keys=keys[1:]))
    num_episodes, episode_return, episode_length = ended
    empty = system.algorithm.network.empty_masks(rollout.steps.obs)
    of_rollout = RolloutMetrics(
        num_episodes=num_episodes,
        episode_return=episode_return,
        episode_length=episode_length.astype(jnp.float32),
        nonfinite_reward=num_nonfinite(rollout.steps.reward),
        nonfinite_observation=num_nonfinite(rollout.steps.obs),
        empty_mask=jnp.sum(empty, dtype=jnp.int32),
    )
    found = Metrics(
        nonfinite_parameter=jnp.zeros((), jnp.int32),  # counted once a block
        rollout=over_axes(system.axes, of_rollout),
        learn=learnt,
    )
    acting = dataclasses.replace(acting, key=keys[0])
    return LearnerState(agent=agent, acting=acting), found


def explore(system: System, agent: AgentState) -> AgentState:
    """Return an agent that explores as its hyperparameters say at its update."""
    hp = scheduled(system, agent).hyperparameters
    exploration = system.algorithm.exploration(hp, agent.update)
    return dataclasses.replace(
        agent, policy=dataclasses.replace(agent.policy, exploration=exploration)
    )


def learn(system: System, agent: AgentState, rollout: Rollout) -> tuple[AgentState, LearnMetrics]:
    """Learn from a rollout: compute targets, run epochs of minibatches, update statistics.

    The rollout may have been collected elsewhere.
    """
    algorithm, settings = system.algorithm, agent.hyperparameters
    agent = scheduled(system, agent)
    agent, rollout = scale_rewards(system, agent, rollout)
    lead, given = rollout.steps.reward.shape, algorithm.targets(system, agent, rollout)
    agent, steps, of_targets = check_targets(algorithm, lead, given)
    carry = sequences.first(rollout.steps.carry, system.sequence_length)
    batch = Batch(carry=carry, steps=sequences.cut(steps, system.sequence_length))
    with jax.named_scope("epochs"):
        agent, of_steps, outcomes = run_epochs(system, agent, rollout, batch)
        agent, of_finish = check_finish(algorithm, algorithm.finish(system, agent, batch))
    noise_key = jax.tree.map(lambda key: random_bits.split(key, 1)[0], agent.policy.noise_key)
    hp = agent.hyperparameters
    rate = next(iter(algorithm.rates(agent).values()))
    policy = dataclasses.replace(agent.policy, noise_key=noise_key)
    agent = dataclasses.replace(
        agent, policy=policy, hyperparameters=settings, update=agent.update + 1
    )
    found = LearnMetrics(
        gradient_steps=jnp.sum(outcomes.learnt, dtype=jnp.int32),
        skipped_steps=jnp.sum(outcomes.skipped, dtype=jnp.int32),
        skipped_updates=jnp.asarray(~jnp.any(outcomes.counted), jnp.int32),
        nonfinite_loss=num_nonfinite((of_steps.total_loss, of_steps.norms)),
        parameter_norm=jnp.linalg.norm(_floats(agent.policy.params)),
        learning_rate=learning_rate(hp, rate, agent.update - 1),
        scheduled=scheduled_metrics(system, partial(getattr, hp)),
        steps=of_steps,
        targets=of_targets,
        finish=of_finish,
    )
    # Statistics move last: acting and learning of one update see the same.
    return update_obs_statistics(system, agent, rollout), found


def scale_rewards(
    system: System, agent: AgentState, rollout: Rollout
) -> tuple[AgentState, Rollout]:
    """Normalise, scale and clip the rewards of a rollout.

    Normalisation divides by the standard deviation of G_t = r_t + gamma G_{t-1} within episodes,
    over all rollouts so far (Engstrom et al. 2020, arXiv 2005.12729, section 3), or by its size if
    it is constant.
    """
    hp, reward = agent.hyperparameters, rollout.steps.reward
    if system.normalize_rewards:
        totals = rollout.steps.discounted_return
        statistics = merge_statistics(agent.reward_statistics, totals, system.axes)
        statistics = unless_nonfinite(system, statistics, agent.reward_statistics)
        reward = reward / return_scale(statistics.mean, statistics.variance)
        agent = dataclasses.replace(agent, reward_statistics=statistics)
    reward = jnp.clip(reward * hp.reward_scale, -hp.reward_clip, hp.reward_clip)
    steps = dataclasses.replace(rollout.steps, reward=reward)
    return agent, dataclasses.replace(rollout, steps=steps)


def run_epochs(
    system: System, agent: AgentState, rollout: Rollout, batch: Batch
) -> tuple[AgentState, StepMetrics, Outcome]:
    """Run `epochs` epochs over the batch, each shuffled anew.

    Return the agent, the metrics over the minibatches that count, and the outcome of each
    minibatch, `[epochs, num_minibatches]`.
    """
    (agent, _), (found, outcomes) = packing.scan(
        partial(run_epoch, system, rollout, batch), (agent, jnp.zeros((), bool)), rollout.keys
    )
    flat_found, flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (found, outcomes))
    found = over_first(flat_found, flat.counted)
    if not reads_metrics(system):  # once, not at every minibatch
        found = dataclasses.replace(found, loss=over_axes(system.axes, found.loss))
    return agent, found, outcomes


def run_epoch(
    system: System,
    rollout: Rollout,
    batch: Batch,
    progress: tuple[AgentState, jax.Array],
    key: jax.Array,
) -> tuple[tuple[AgentState, jax.Array], tuple[StepMetrics, Outcome]]:
    """Run one epoch: each sequence is in exactly one minibatch. Metrics are `[num_minibatches]`.

    `progress` is the agent and whether its epochs have ended.
    """
    if system.recompute_carries or system.recompute_targets:
        refresh = partial(memory.refresh_batch, system, progress[0], rollout, batch)
        ended = system.stop_early
        batch = (
            jax.lax.cond(all_stopped(progress[1]), lambda: batch, refresh) if ended else refresh()
        )
    num_sequences = jax.tree.leaves(batch.steps)[0].shape[1]
    with jax.named_scope("shuffle"):
        order = random_permutation(key, num_sequences)
    step = partial(gradient_step, system, batch)
    return packing.scan(
        partial(guarded, system, step, no_step(system)),
        progress,
        order.reshape(system.num_minibatches, num_sequences // system.num_minibatches),
    )


def gradient_step(
    system: System, batch: Batch, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, StepMetrics]:
    """Take one optimiser step on the sequences `indices` `[M]`; average over `system.axes`.

    The algorithm's own metrics stay those of this device and update batch, unless a guard needs
    them now.
    """
    with jax.named_scope("shuffle"):
        minibatch = select(batch, indices)
    minibatch = memory.burn_in(system, agent, minibatch)
    minibatch = system.algorithm.prepare(system, minibatch)
    with jax.named_scope("gradients"):
        gradients, loss, found = gradient(system, agent, minibatch)
    gradients, loss = mean_over(system.axes, (gradients, loss))
    metrics = StepMetrics(
        total_loss=loss,
        loss=over_axes(system.axes, found) if reads_metrics(system) else found,
        norms=gradient_norms(system, agent.hyperparameters, gradients),
    )
    if system.algorithm.adapts:
        agent = system.algorithm.adapt(agent, metrics.loss)
    params = agent.policy.params
    with jax.named_scope("optimizer"):
        transform = optimizer(system, agent)
        updates, opt_state = transform.update(gradients, agent.opt_state, params)
        params = optax.apply_updates(params, updates)
    policy = dataclasses.replace(agent.policy, params=params)
    return dataclasses.replace(agent, policy=policy, opt_state=opt_state), metrics


def reads_metrics(system: System) -> bool:
    """Return whether gradient steps depend on their metrics."""
    return system.stop_early or system.algorithm.adapts


def gradient(system: System, agent: AgentState, minibatch: Batch) -> tuple[PyTree, jax.Array, Any]:
    """Return the gradient, the loss and its metrics on a minibatch `[L, M]`.

    With several microbatches the gradient is summed over them one after another, so that the
    activations of each fit in the processor's cache.
    """
    num, params = system.num_microbatches, agent.policy.params

    def objective(params: PyTree, minibatch: Batch) -> tuple[jax.Array, Any]:
        given = system.algorithm.loss(system, agent, params, minibatch)
        loss, found = check_loss(system.algorithm, given)
        return loss, (loss, found)

    differentiate = jax.grad(objective, has_aux=True)
    if num == 1:
        gradients, (loss, found) = differentiate(params, minibatch)
        return gradients, loss, found

    def add_one(total: PyTree, part: Batch) -> tuple[PyTree, Any]:
        gradients, found = differentiate(params, part)
        return jax.tree.map(jnp.add, total, gradients), found

    parts = split(minibatch, num)
    total, (loss, found) = jax.lax.scan(add_one, jax.tree.map(jnp.zeros_like, params), parts)
    return jax.tree.map(lambda x: x / num, total), jnp.mean(loss), over_first(found)


def select(batch: Batch, indices: jax.Array) -> Batch:
    """Select the sequences `indices` `[M]` of a batch."""
    carry = jax.tree.map(lambda x: x[indices], batch.carry)
    return Batch(carry=carry, steps=jax.tree.map(lambda x: x[:, indices], batch.steps))


def split(minibatch: Batch, num: int) -> Batch:
    """Split a minibatch into `num` microbatches: leaves are `[num, L, M / num, ...]`."""
    carry = jax.tree.map(lambda x: x.reshape(num, -1, *x.shape[1:]), minibatch.carry)

    def one(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], num, -1, *x.shape[2:]).swapaxes(0, 1)

    return Batch(carry=carry, steps=jax.tree.map(one, minibatch.steps))


def update_obs_statistics(system: System, agent: AgentState, rollout: Rollout) -> AgentState:
    """Merge the rollout's observations into the statistics, over `system.axes`."""
    if not system.normalize_observations:
        return agent
    policy = agent.policy
    statistics = merge_statistics(policy.obs_statistics, rollout.steps.obs, system.axes)
    statistics = unless_nonfinite(system, statistics, policy.obs_statistics)
    return dataclasses.replace(agent, policy=dataclasses.replace(policy, obs_statistics=statistics))


def warm_up(system: System, state: LearnerState, num_rollouts: jax.Array) -> LearnerState:
    """Collect `num_rollouts` rollouts to fill the observation statistics, without learning."""

    step = vmap_batches(watch, system)
    return jax.lax.fori_loop(0, num_rollouts, lambda _, state: step(state)[0], state)


def watch(
    system: System, state: LearnerState, collect: Collect = collect
) -> tuple[LearnerState, tuple[()]]:
    """Collect a rollout that only fills the observation statistics."""
    acting, rollout, _ = collect(system, state.agent, state.acting)
    agent = update_obs_statistics(system, state.agent, rollout)
    return LearnerState(agent=agent, acting=acting), ()


warm_up_members = vmap_members(warm_up, shared=1)


def _floats(tree: PyTree) -> jax.Array:
    """Return all floats of a tree as one vector `[n]`, which fewer kernels read."""
    leaves = jax.tree.leaves(tree)
    return ravel_pytree([x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)])[0]
