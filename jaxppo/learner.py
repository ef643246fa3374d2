"""The algorithm: collect, advantages, epochs of minibatches; proximal policy optimisation.

Schulman et al. 2017 (arXiv 1707.06347). Every phase is a function of a `System` and arrays that
runs on its own as well as under the mapped axes of `train_block`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxppo import random_bits, sequences
from jaxppo.losses import approximate_kl, clip_fraction, clipped_error, explained_variance, ratio
from jaxppo.objectives import ESTIMATORS, VALUE_LOSSES, reads_distribution
from jaxppo.permutations import random_permutation
from jaxppo.statistics import (
    any_over,
    deviation,
    from_units,
    init_statistics,
    max_over,
    mean_over,
    merge_statistics,
    min_over,
    normalize,
    standardize,
    sum_over,
    to_units,
)
from jaxppo.types import (
    ActingState,
    AgentState,
    Batch,
    Distribution,
    Hyperparameters,
    LearnerState,
    Policy,
    PyTree,
    System,
    Transition,
    ValueEstimate,
)

BATCH_AXIS = "batch"  # the update batches U of one member and device
MEMBER_AXIS = "member"  # the members P of one device


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """Scalars of gradient steps, averaged over an iteration's but for the extremes (float32)."""

    total_loss: jax.Array
    actor_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array  # nats
    approximate_kl: jax.Array  # KL(old || new), estimator k3
    clip_fraction: jax.Array
    ratio_min: jax.Array  # pi / pi_old, the least of the iteration, and then of the block
    ratio_max: jax.Array  # the greatest
    actor_gradient_norm: jax.Array  # of everything but the critic, before clipping
    critic_gradient_norm: jax.Array
    actor_gradient_norm_clipped: jax.Array  # after clipping
    critic_gradient_norm_clipped: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Scalars of iterations, over the whole agent; they add up over a block, but for extremes."""

    losses: Losses
    gradient_steps: jax.Array  # int32, fewer than epochs x minibatches where the KL stopped them
    explained_variance: jax.Array
    advantage_std: jax.Array  # before any standardisation
    parameter_norm: jax.Array  # global, after the iteration
    kl_coef: jax.Array  # after the iteration
    learning_rate: jax.Array  # of the actor
    num_episodes: jax.Array  # int32, episodes that ended
    episode_return: jax.Array  # summed over those
    episode_length: jax.Array  # summed over those
    nonfinite_reward: jax.Array  # int32 counts
    nonfinite_observation: jax.Array
    nonfinite_loss: jax.Array
    nonfinite_parameter: jax.Array
    skipped_steps: jax.Array  # int32, gradient steps that were dropped since they were not finite
    empty_mask: jax.Array  # observations whose mask allowed no action


def optimizer(
    hyperparameters: Hyperparameters, update: jax.Array, *, clip_together: bool = False
) -> optax.GradientTransformation:
    """Adam (eps 1e-5) after clipping by global norm, for actor and critic apart or together.

    Shared parameters belong to the actor's group. One norm over both lets a critic whose errors are
    large (returns in the hundreds) shrink the actor's gradient. Step sizes are those of iteration
    `update` and constant within it.
    """
    hp = hyperparameters
    clip = optax.clip_by_global_norm(hp.max_grad_norm)

    def group(lr: jax.Array) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(eps=1e-5)
        scale = optax.scale_by_learning_rate(learning_rate(hp, lr, update))
        return optax.chain(adam, scale) if clip_together else optax.chain(clip, adam, scale)

    groups = optax.partition(
        {"actor": group(hp.actor_lr), "critic": group(hp.critic_lr)},
        lambda params: {part: _group_of(part) for part in params},
    )
    return optax.chain(clip, groups) if clip_together else groups


def _group_of(part: str) -> str:
    return "critic" if part.startswith("critic") else "actor"


def learning_rate(hp: Hyperparameters, lr: jax.Array, update: jax.Array) -> jax.Array:
    """`lr` at iteration `update` (0-based): falling linearly to zero, where it decays."""
    left = (hp.num_updates - update).astype(jnp.float32) / hp.num_updates.astype(jnp.float32)
    return lr * jnp.where(hp.decay_learning_rates > 0, jnp.maximum(left, 0.0), 1.0)


def init_agent(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """A fresh agent: parameters, optimiser, identity statistics."""
    key, noise_key = jax.random.split(key)
    params = system.actor_critic.init(key)
    update = jnp.zeros((), jnp.int32)
    example = jax.eval_shape(system.env.reset, jax.random.split(key, 1))[1]
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example)
    return AgentState(
        policy=Policy(params=params, obs_statistics=init_statistics(example), noise_key=noise_key),
        opt_state=optimizer(hyperparameters, update, clip_together=system.clip_together).init(
            params
        ),
        hyperparameters=hyperparameters,
        value_statistics=init_statistics(jnp.zeros(())),
        reward_statistics=init_statistics(jnp.zeros(())),
        kl_factor=jnp.ones((), jnp.float32),
        update=update,
    )


def init_acting(system: System, key: jax.Array) -> ActingState:
    """`B` fresh environments and their random stream."""
    key, reset_key = jax.random.split(key)
    env_state, obs = system.env.reset(jax.random.split(reset_key, system.num_envs))
    return ActingState(
        env_state=env_state,
        obs=obs,
        reset=jnp.ones(system.num_envs, bool),
        carry=system.actor_critic.initial_carry(system.num_envs),
        episode_return=jnp.zeros(system.num_envs, jnp.float32),
        episode_length=jnp.zeros(system.num_envs, jnp.int32),
        discounted_return=jnp.zeros(system.num_envs, jnp.float32),
        key=key,
    )


def over_members(phase: Callable[..., Any], *, shared: int = 0) -> Callable[..., Any]:
    """`phase(system, ...)` of members: arguments and results `[P, ...]`, nothing between them.

    Its last `shared` arguments are the same for all members. A single member is not mapped.
    """

    def mapped(system: System, *args: PyTree) -> PyTree:
        own = len(args) - shared
        if system.member_axes:
            axes = (0,) * own + (None,) * shared
            return jax.vmap(partial(phase, system), axes, axis_name=MEMBER_AXIS)(*args)
        one = jax.tree.map(lambda x: x[0], args[:own])
        return jax.tree.map(lambda x: x[None], phase(system, *one, *args[own:]))

    return mapped


def over_batches(
    phase: Callable[..., Any], system: System
) -> Callable[[LearnerState], tuple[LearnerState, PyTree]]:
    """`phase(system, state)` of the update batches of an agent: acting states `[U, ...]`.

    What it returns beside the state is equal in all of them. A single one is not mapped.
    """
    if BATCH_AXIS in system.axes:
        layout = LearnerState(agent=None, acting=0)  # type: ignore[arg-type]
        mapped: Callable[[LearnerState], tuple[LearnerState, PyTree]] = jax.vmap(
            partial(phase, system), (layout,), (layout, None), axis_name=BATCH_AXIS
        )
        return mapped

    def alone(state: LearnerState) -> tuple[LearnerState, PyTree]:
        acting = jax.tree.map(lambda x: x[0], state.acting)
        state, rest = phase(system, dataclasses.replace(state, acting=acting))
        acting = jax.tree.map(lambda x: x[None], state.acting)
        return dataclasses.replace(state, acting=acting), rest

    return alone


def train_block(
    system: System, state: LearnerState, total: Metrics, num_updates: jax.Array
) -> tuple[LearnerState, Metrics]:
    """`num_updates` iterations; agent `[...]`, acting `[U, ...]`, metrics summed over iterations.

    The count is traced: blocks of any length are one program. `total` is what the metrics add up
    to so far, `zero_metrics()` at first: a block in several calls is the block in one, bit for bit.
    """
    step = over_batches(update, system)

    def iterate(_: int, carry: tuple[LearnerState, Metrics]) -> tuple[LearnerState, Metrics]:
        state, total = carry
        state, metrics = step(state)
        return state, _accumulate(total, metrics)

    state, metrics = jax.lax.fori_loop(0, num_updates, iterate, (state, total))
    return state, dataclasses.replace(
        metrics, nonfinite_parameter=_num_nonfinite(_floats(state.agent.policy))
    )


train_members = over_members(train_block, shared=1)


def update(system: System, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """One PPO iteration: collect -> advantages -> epochs of minibatches."""
    state, rollout, metrics = collect(system, state)
    state, rollout = scale_rewards(system, state, rollout)
    batch, advantage_std = add_targets(system, state, rollout)
    state = observe_targets(system, state, batch)
    state, losses, taken, skipped = run_epochs(system, state, rollout, batch)
    metrics = add_losses(system, state, batch, losses, metrics)
    metrics = dataclasses.replace(
        metrics, advantage_std=advantage_std, gradient_steps=taken, skipped_steps=skipped
    )
    return observe(system, state, rollout), metrics  # statistics move last: one set per iteration


def collect(system: System, state: LearnerState) -> tuple[LearnerState, Transition, Metrics]:
    """Act for `T` steps in `B` environments; the rollout's leaves are `[T, B, ...]`."""
    with jax.named_scope("collect"):
        # One hash for all: a row a step, after one whose first key the stream goes on from.
        keys = random_bits.split(state.acting.key, (1 + system.rollout_length, 1 + system.num_envs))
        acting, (rollout, episodes) = jax.lax.scan(
            partial(act_and_step, system, state.agent.policy), state.acting, keys[1:]
        )
    num_episodes, episode_return, episode_length = jax.tree.map(
        lambda x: sum_over(system.axes, jnp.sum(x)), episodes
    )
    metrics = dataclasses.replace(
        zero_metrics(),
        num_episodes=num_episodes,
        episode_return=episode_return,
        episode_length=episode_length.astype(jnp.float32),
        nonfinite_reward=sum_over(system.axes, _num_nonfinite(rollout.reward)),
        nonfinite_observation=sum_over(system.axes, _num_nonfinite(rollout.obs)),
        empty_mask=sum_over(
            system.axes,
            jnp.sum(system.actor_critic.empty_masks(rollout.obs), dtype=jnp.int32),
        ),
    )
    acting = dataclasses.replace(acting, key=keys[0, 0])
    return dataclasses.replace(state, acting=acting), rollout, metrics


def act_and_step(
    system: System, policy: Policy, acting: ActingState, keys: jax.Array
) -> tuple[ActingState, tuple[Transition, tuple[jax.Array, jax.Array, jax.Array]]]:
    """One step of `B` environments, with (count, return, length) sums of episodes that ended.

    Of the keys `[1 + B]` the first draws actions, the others belong to the environments.
    """
    action_key, env_keys = keys[0], keys[1:]
    with jax.named_scope("act"):
        carry, distribution, _ = unroll(
            system, policy, acting.carry, _add_time(acting.obs), acting.reset[None]
        )
        action, log_prob, distribution = jax.tree.map(
            lambda x: x[0], (*distribution.sample_and_log_prob(seed=action_key), distribution)
        )
    with jax.named_scope("environment"):
        env_action = distribution.to_action(action)
        env_state, step = system.env.step(env_keys, acting.env_state, env_action)
    done = step.terminated | step.truncated
    episode_return = acting.episode_return + step.reward
    episode_length = acting.episode_length + 1
    transition = Transition(
        obs=acting.obs,
        reset=acting.reset,
        carry=acting.carry,
        action=action,
        log_prob=log_prob,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        final_observation=step.final_observation,
    )
    acting = dataclasses.replace(
        acting,
        env_state=env_state,
        obs=step.obs,
        reset=done,
        carry=carry,
        episode_return=jnp.where(done, 0.0, episode_return),
        episode_length=jnp.where(done, 0, episode_length),
    )
    ended = (
        jnp.sum(done, dtype=jnp.int32),
        jnp.sum(jnp.where(done, episode_return, 0.0)),
        jnp.sum(jnp.where(done, episode_length, 0)),
    )
    return acting, (transition, ended)


def unroll(
    system: System, policy: Policy, carry: PyTree, obs: PyTree, reset: jax.Array
) -> tuple[PyTree, Distribution, ValueEstimate]:
    """The actor-critic on raw `obs` `[L, S, O...]`: normalised here, and only here."""
    if system.normalize_observations:
        obs = normalize(policy.obs_statistics, obs)
    return system.actor_critic.unroll(policy.params, carry, obs, reset, policy.noise_key)


def scale_rewards(
    system: System, state: LearnerState, rollout: Transition
) -> tuple[LearnerState, Transition]:
    """Rewards as they are learnt from: normalised, scaled, clipped.

    Normalisation divides by the standard deviation of G_t = r_t + gamma G_{t-1} within episodes,
    over all rollouts up to this one (Engstrom et al. 2020, arXiv 2005.12729, section 3).
    """
    hp, agent = state.agent.hyperparameters, state.agent
    reward = rollout.reward
    if system.normalize_rewards:

        def discount(past: jax.Array, step: Transition) -> tuple[jax.Array, jax.Array]:
            total = step.reward + hp.gamma * past
            return jnp.where(step.terminated | step.truncated, 0.0, total), total

        past, totals = jax.lax.scan(discount, state.acting.discounted_return, rollout)
        statistics = merge_statistics(agent.reward_statistics, totals, system.axes)
        statistics = unless_nonfinite(system, statistics, agent.reward_statistics)
        reward = reward / deviation(statistics.mean, statistics.variance)
        state = dataclasses.replace(
            state,
            agent=dataclasses.replace(agent, reward_statistics=statistics),
            acting=dataclasses.replace(state.acting, discounted_return=past),
        )
    reward = jnp.clip(reward * hp.reward_scale, -hp.reward_clip, hp.reward_clip)
    return state, dataclasses.replace(rollout, reward=reward)


def add_targets(
    system: System, state: LearnerState, rollout: Transition
) -> tuple[Batch, jax.Array]:
    """Values, advantages and value targets of a rollout, cut into sequences `[L, S, ...]`.

    Values are taken once, over the stored observations. The successor of a step is the next stored
    observation; where the clock ended the episode it is `final_observation`, seen with the memory
    after that step, whose values are taken in a branch that runs only when some step was truncated.
    Also returns the standard deviation of the advantages, before they are standardised.
    """
    distribution, critic_value, value, next_value = rollout_values(system, state, rollout)
    with jax.named_scope("advantages"):
        log_ratio = distribution.log_prob(rollout.action) - rollout.log_prob
        advantage, target = ESTIMATORS[system.advantages](
            state.agent.hyperparameters, rollout, log_ratio, value, next_value
        )
        standardized, spread = standardize(advantage, system.axes)
        if system.standardize_advantages == "batch":
            advantage = standardized
    steps = Batch(
        obs=rollout.obs,
        reset=rollout.reset,
        carry=(),
        action=rollout.action,
        log_prob=rollout.log_prob,
        distribution=distribution if reads_distribution(system.objective) else (),
        value=value,
        critic_value=critic_value,
        advantage=advantage,
        target=target,
    )
    carry = sequences.first(rollout.carry, system.sequence_length)
    batch: Batch = sequences.cut(steps, system.sequence_length)
    return dataclasses.replace(batch, carry=carry), spread


def rollout_values(
    system: System, state: LearnerState, rollout: Transition
) -> tuple[Distribution, jax.Array, jax.Array, jax.Array]:
    """The policy at each step, V as the critic says it, and V and V of the successor, `[T, B]`.

    The last two are in units of reward, whatever the critic's are; the successor is the true one.
    """
    policy, acting, pieces = state.agent.policy, state.acting, system.value_pieces

    def mean(estimate: ValueEstimate) -> jax.Array:
        value = estimate.mean()
        return from_units(state.agent.value_statistics, value) if system.normalize_values else value

    def look(
        carry: PyTree, steps: tuple[PyTree, jax.Array]
    ) -> tuple[PyTree, tuple[Distribution, ValueEstimate]]:
        carry, distribution, estimate = unroll(system, policy, carry, *steps)
        return carry, (distribution, estimate)

    def bootstrap(truncated: jax.Array, next_value: jax.Array, *seen: PyTree) -> jax.Array:
        after, final_observation = seen
        obs, reset = sequences.cut((final_observation, jnp.zeros_like(truncated)), 1)
        final = unroll(system, policy, sequences.first(after, 1), obs, reset)[2]
        return jnp.where(truncated, mean(final).reshape(truncated.shape), next_value)

    def bootstrap_some(_: tuple[()], steps: PyTree) -> tuple[tuple[()], jax.Array]:
        some, *operands = steps
        return (), jax.lax.cond(some[0], bootstrap, lambda *given: given[1], *operands)

    with jax.named_scope("values"):
        opening = jax.tree.map(lambda x: x[0], rollout.carry)
        _, (distribution, estimate) = sequences.scan_pieces(
            look, opening, (rollout.obs, rollout.reset), pieces
        )
        value = mean(estimate)
        last = unroll(system, policy, acting.carry, _add_time(acting.obs), acting.reset[None])[2]
        next_value = jnp.concatenate([value[1:], mean(last)])
        truncated = rollout.truncated & ~rollout.terminated
        everywhere = (*system.axes, *system.member_axes)
        some = any_over(everywhere, truncated.reshape(pieces, -1), axis=1)
        after = jax.tree.map(
            lambda stored, last: jnp.concatenate([stored[1:], last[None]]),
            rollout.carry,
            acting.carry,
        )
        steps = some, truncated, next_value, after, rollout.final_observation
        _, next_value = sequences.scan_pieces(bootstrap_some, (), steps, pieces)
    return distribution, estimate.mean(), value, next_value


def observe_targets(system: System, state: LearnerState, batch: Batch) -> LearnerState:
    """Move the critic's units by the batch's value targets, before it learns them.

    The critic is trained in the units in which it is read from then on.
    """
    if not system.normalize_values:
        return state
    agent = state.agent
    statistics = merge_statistics(
        agent.value_statistics, batch.target, system.axes, agent.hyperparameters.value_norm_decay
    )
    statistics = unless_nonfinite(system, statistics, agent.value_statistics)
    return dataclasses.replace(state, agent=dataclasses.replace(agent, value_statistics=statistics))


def unless_nonfinite(system: System, new: PyTree, old: PyTree) -> PyTree:
    """`new`, or `old` where a number of `new` is not finite and the system skips such."""
    if not system.skip_nonfinite:
        return new
    return jax.tree.map(partial(jnp.where, _num_nonfinite(new) == 0), new, old)


def run_epochs(
    system: System, state: LearnerState, rollout: Transition, batch: Batch
) -> tuple[LearnerState, Losses, jax.Array, jax.Array]:
    """`epochs` passes over the batch, each in `num_minibatches` gradient steps of fresh order.

    Also returns the losses, averaged over the minibatches that were looked at, the number of
    gradient steps, which is the same but where the KL ended the passes, and the number of those
    that were skipped.
    """
    keys = random_bits.split(state.acting.key, 1 + system.epochs)  # the stream goes on from keys[0]
    with jax.named_scope("epochs"):
        (agent, _), (losses, seen, taken, skipped) = jax.lax.scan(
            partial(run_epoch, system, state, rollout, batch),
            (state.agent, jnp.zeros((), bool)),
            keys[1:],
        )
        if system.adapt_kl_coef:
            agent = adapt_kl_coef(system, agent, batch)
    noise_key = jax.tree.map(lambda key: random_bits.split(key, 1)[0], agent.policy.noise_key)
    policy = dataclasses.replace(agent.policy, noise_key=noise_key)
    agent = dataclasses.replace(agent, policy=policy, update=agent.update + 1)
    acting = dataclasses.replace(state.acting, key=keys[0])
    num_seen = jnp.maximum(jnp.sum(seen), 1)
    mean = jax.tree.map(lambda x: jnp.sum(jnp.where(seen, x, 0.0)) / num_seen, losses)
    losses = dataclasses.replace(
        mean, ratio_min=jnp.min(losses.ratio_min), ratio_max=jnp.max(losses.ratio_max)
    )
    taken, skipped = (jnp.sum(x, dtype=jnp.int32) for x in (taken, skipped))
    return LearnerState(agent=agent, acting=acting), losses, taken, skipped


def run_epoch(
    system: System,
    state: LearnerState,
    rollout: Transition,
    batch: Batch,
    progress: tuple[AgentState, jax.Array],
    key: jax.Array,
) -> tuple[tuple[AgentState, jax.Array], tuple[Losses, jax.Array, jax.Array, jax.Array]]:
    """Every sequence of the batch in exactly one minibatch; losses `[num_minibatches]`.

    `progress` is the agent and whether its passes have ended; beside the losses of each minibatch
    stands whether it was looked at, learnt from, and skipped.
    """
    if system.refresh_carries or system.recompute_advantages:
        now = dataclasses.replace(state, agent=progress[0])
        renew = partial(bring_up_to_date, system, now, rollout, batch)
        carry, advantage, target = (
            jax.lax.cond(
                _all_stopped(system, progress[1]),
                lambda: (batch.carry, batch.advantage, batch.target),
                renew,
            )
            if system.stop_by_kl
            else renew()
        )
        batch = dataclasses.replace(batch, carry=carry, advantage=advantage, target=target)
    num_sequences = batch.log_prob.shape[1]
    with jax.named_scope("shuffle"):
        order = random_permutation(key, num_sequences)
    return jax.lax.scan(
        partial(step_unless_stopped, system, batch),
        progress,
        order.reshape(system.num_minibatches, num_sequences // system.num_minibatches),
    )


def bring_up_to_date(
    system: System, state: LearnerState, rollout: Transition, batch: Batch
) -> tuple[PyTree, jax.Array, jax.Array]:
    """Carries `[S, ...]`, advantages and targets `[L, S]` of the batch, by the parameters of now.

    Each only where the system says so. Whatever is recomputed sees the memory that these parameters
    would have had.
    """
    carry, targets = batch.carry, batch
    every = 1 if system.recompute_advantages else system.sequence_length
    if jax.tree.leaves(rollout.carry):
        state, carries = remember(system, state, rollout, every)
        if system.refresh_carries:
            carry = sequences.first(carries, system.sequence_length // every)
        if system.recompute_advantages:
            rollout = dataclasses.replace(rollout, carry=carries)
    if system.recompute_advantages:
        targets, _ = add_targets(system, state, rollout)
    return carry, targets.advantage, targets.target


def remember(
    system: System, state: LearnerState, rollout: Transition, every: int
) -> tuple[LearnerState, PyTree]:
    """The memory that the agent's parameters would have had, from the rollout's opening on.

    Before each `every`th step, `[T / every, B, ...]`; and after the last, in the state.
    """

    def through(carry: PyTree, steps: tuple[PyTree, jax.Array]) -> tuple[PyTree, PyTree]:
        return unroll(system, state.agent.policy, carry, *steps)[0], carry

    opening = jax.tree.map(lambda x: x[0], rollout.carry)
    chunks = jax.tree.map(
        lambda x: x.reshape(-1, every, *x.shape[1:]), (rollout.obs, rollout.reset)
    )
    last, carries = jax.lax.scan(through, opening, chunks)
    return dataclasses.replace(state, acting=dataclasses.replace(state.acting, carry=last)), carries


def step_unless_stopped(
    system: System, batch: Batch, progress: tuple[AgentState, jax.Array], indices: jax.Array
) -> tuple[tuple[AgentState, jax.Array], tuple[Losses, jax.Array, jax.Array, jax.Array]]:
    """A gradient step, until a minibatch's KL has passed `kl_stop`; then nothing is computed.

    The minibatch that passes it is looked at but not learnt from. While other members go on, what
    is computed for a member that has stopped is dropped.
    """
    if not system.stop_by_kl:
        agent, losses, healthy = healthy_step(system, batch, progress[0], indices)
        return (agent, progress[1]), (losses, healthy, healthy, ~healthy)

    agent, stopped = progress

    def step(agent: AgentState) -> tuple[AgentState, jax.Array, Losses, jax.Array]:
        moved, losses, healthy = healthy_step(system, batch, agent, indices)
        stop = stopped | (losses.approximate_kl > agent.hyperparameters.kl_stop)
        kept = jax.tree.map(partial(jnp.where, stop), agent.policy.params, moved.policy.params)
        opt_state = jax.tree.map(partial(jnp.where, stop), agent.opt_state, moved.opt_state)
        policy = dataclasses.replace(agent.policy, params=kept)
        losses = jax.tree.map(partial(jnp.where, stopped), _zero_losses(), losses)
        return dataclasses.replace(agent, policy=policy, opt_state=opt_state), stop, losses, healthy

    def skip(agent: AgentState) -> tuple[AgentState, jax.Array, Losses, jax.Array]:
        return agent, jnp.ones((), bool), _zero_losses(), jnp.ones((), bool)

    moved, stop, losses, healthy = jax.lax.cond(_all_stopped(system, stopped), skip, step, agent)
    return (moved, stop), (losses, ~stopped & healthy, ~stop & healthy, ~stopped & ~healthy)


def _all_stopped(system: System, stopped: jax.Array) -> jax.Array:
    return ~any_over(system.member_axes, ~stopped)


def adapt_kl_coef(system: System, agent: AgentState, batch: Batch) -> AgentState:
    """Double `kl_factor` where KL(old || new) of the update is above 1.5 `kl_target`, halve it
    where it is below kl_target / 1.5. Schulman et al. 2017 (arXiv 1707.06347), section 4.
    """
    hp, batch = agent.hyperparameters, burn_in(system, agent, batch)
    _, distribution, _ = unroll(system, agent.policy, batch.carry, batch.obs, batch.reset)
    kl = mean_over(system.axes, jnp.mean(batch.distribution.kl_divergence(distribution)))
    factor = jnp.where(kl > 1.5 * hp.kl_target, 2.0, jnp.where(kl < hp.kl_target / 1.5, 0.5, 1.0))
    return dataclasses.replace(agent, kl_factor=jnp.clip(agent.kl_factor * factor, 1e-6, 1e6))


def healthy_step(
    system: System, batch: Batch, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, Losses, jax.Array]:
    """A gradient step and whether it was taken.

    Where the system skips such, a step whose loss or gradient is not finite leaves the agent as it
    was and counts no losses.
    """
    moved, losses = gradient_step(system, batch, agent, indices)
    if not system.skip_nonfinite:
        return moved, losses, jnp.ones((), bool)
    healthy = num_nonfinite_losses(losses) == 0
    pick = partial(jnp.where, healthy)
    params = jax.tree.map(pick, moved.policy.params, agent.policy.params)
    opt_state = jax.tree.map(pick, moved.opt_state, agent.opt_state)
    policy = dataclasses.replace(agent.policy, params=params)
    agent = dataclasses.replace(agent, policy=policy, opt_state=opt_state)
    return agent, jax.tree.map(pick, losses, _zero_losses()), healthy


def num_nonfinite_losses(losses: Losses) -> jax.Array:
    """How many of the loss and the gradients are NaN or infinite."""
    return _num_nonfinite(
        (losses.total_loss, losses.actor_gradient_norm, losses.critic_gradient_norm)
    )


def gradient_step(
    system: System, batch: Batch, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, Losses]:
    """One step of the optimiser on the sequences `indices` `[M]`, averaged over `system.axes`."""
    with jax.named_scope("shuffle"):
        minibatch = select(batch, indices)
    minibatch = burn_in(system, agent, minibatch)
    if system.standardize_advantages == "minibatch":
        advantage, _ = standardize(minibatch.advantage, system.axes)
        minibatch = dataclasses.replace(minibatch, advantage=advantage)
    with jax.named_scope("gradients"):
        gradients, losses = gradient(system, agent, minibatch)
    ratios = min_over(system.axes, losses.ratio_min), max_over(system.axes, losses.ratio_max)
    gradients, losses = mean_over(system.axes, (gradients, losses))
    actor_norm, critic_norm = (
        optax.tree.norm({part: x for part, x in gradients.items() if _group_of(part) == group})
        for group in ("actor", "critic")
    )
    limit = agent.hyperparameters.max_grad_norm
    norms = actor_norm, critic_norm
    if system.clip_together:
        whole = jnp.hypot(actor_norm, critic_norm)
        share = jnp.minimum(1.0, limit / jnp.maximum(whole, 1e-30))
        clipped = [norm * share for norm in norms]
    else:
        clipped = [jnp.minimum(norm, limit) for norm in norms]
    losses = dataclasses.replace(
        losses,
        ratio_min=ratios[0],
        ratio_max=ratios[1],
        actor_gradient_norm=actor_norm,
        critic_gradient_norm=critic_norm,
        actor_gradient_norm_clipped=clipped[0],
        critic_gradient_norm_clipped=clipped[1],
    )
    params = agent.policy.params
    with jax.named_scope("optimizer"):
        transform = optimizer(
            agent.hyperparameters, agent.update, clip_together=system.clip_together
        )
        updates, opt_state = transform.update(gradients, agent.opt_state, params)
        params = optax.apply_updates(params, updates)
    policy = dataclasses.replace(agent.policy, params=params)
    return dataclasses.replace(agent, policy=policy, opt_state=opt_state), losses


def gradient(system: System, agent: AgentState, minibatch: Batch) -> tuple[PyTree, Losses]:
    """Of the loss with respect to the parameters, averaged over a minibatch `[L, M]`.

    Piece by piece of its sequences where the system says so, so that what one piece leaves for its
    backward pass stays in the cache: the same sum in another order.
    """
    params, pieces = agent.policy.params, system.gradient_pieces
    differentiate = jax.grad(partial(loss, system, agent), has_aux=True)
    if pieces == 1:
        return differentiate(params, minibatch)

    def add(total: PyTree, piece: Batch) -> tuple[PyTree, Losses]:
        gradients, losses = differentiate(params, piece)
        return jax.tree.map(jnp.add, total, gradients), losses

    total, each = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), split(minibatch, pieces))
    losses = dataclasses.replace(
        jax.tree.map(jnp.mean, each),
        ratio_min=jnp.min(each.ratio_min),
        ratio_max=jnp.max(each.ratio_max),
    )
    return jax.tree.map(lambda x: x / pieces, total), losses


def select(batch: Batch, indices: jax.Array) -> Batch:
    """The sequences `indices` `[M]` of a batch: leaves `[L, M, ...]`, carry `[M, ...]`."""
    carry = jax.tree.map(lambda x: x[indices], batch.carry)
    rest = dataclasses.replace(batch, carry=())
    return dataclasses.replace(jax.tree.map(lambda x: x[:, indices], rest), carry=carry)


def split(minibatch: Batch, pieces: int) -> Batch:
    """A minibatch in equal parts: leaves `[pieces, L, M / pieces, ...]`, carry without the L."""
    carry = jax.tree.map(lambda x: x.reshape(pieces, -1, *x.shape[1:]), minibatch.carry)

    def one(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], pieces, -1, *x.shape[2:]).swapaxes(0, 1)

    steps = jax.tree.map(one, dataclasses.replace(minibatch, carry=()))
    return dataclasses.replace(steps, carry=carry)


def burn_in(system: System, agent: AgentState, minibatch: Batch) -> Batch:
    """Spend the first `burn_in` steps on the carry, without a gradient: `[L - burn_in, M]` is left.

    Kapturowski et al. 2019 (R2D2, ICLR), section 3.
    """
    if not system.burn_in:
        return minibatch
    steps = dataclasses.replace(minibatch, carry=())
    first = jax.tree.map(lambda x: x[: system.burn_in], steps)
    rest = jax.tree.map(lambda x: x[system.burn_in :], steps)
    carry, _, _ = unroll(system, agent.policy, minibatch.carry, first.obs, first.reset)
    return dataclasses.replace(rest, carry=carry)


def loss(
    system: System, agent: AgentState, params: PyTree, minibatch: Batch
) -> tuple[jax.Array, Losses]:
    """actor + vf_coef * value - ent_coef * entropy, averaged over a minibatch `[L, M]`."""
    hp = agent.hyperparameters
    policy = dataclasses.replace(agent.policy, params=params)
    _, distribution, estimate = unroll(
        system, policy, minibatch.carry, minibatch.obs, minibatch.reset
    )
    log_prob = distribution.log_prob(minibatch.action)
    old_log_prob = minibatch.log_prob
    actor_loss = jnp.mean(system.objective(agent, minibatch, distribution, log_prob))
    value_loss = jnp.mean(critic_loss(system, agent, minibatch, estimate))
    entropy = jnp.mean(distribution.entropy())
    total = actor_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    ratios = ratio(log_prob, old_log_prob)
    unknown = jnp.zeros(())  # until the gradient is known
    return total, Losses(
        total_loss=total,
        actor_loss=actor_loss,
        value_loss=value_loss,
        entropy=entropy,
        approximate_kl=jnp.mean(approximate_kl(log_prob, old_log_prob)),
        clip_fraction=jnp.mean(
            clip_fraction(log_prob, old_log_prob, hp.clip_eps, hp.clip_eps_high)
        ),
        ratio_min=jnp.min(ratios),
        ratio_max=jnp.max(ratios),
        actor_gradient_norm=unknown,
        critic_gradient_norm=unknown,
        actor_gradient_norm_clipped=unknown,
        critic_gradient_norm_clipped=unknown,
    )


def critic_loss(
    system: System, agent: AgentState, minibatch: Batch, estimate: ValueEstimate
) -> jax.Array:
    """The loss of value estimates `[L, M]`, in the critic's units."""
    hp = agent.hyperparameters
    target = minibatch.target
    if system.normalize_values:
        target = to_units(agent.value_statistics, target)
    error = partial(VALUE_LOSSES[system.value_loss], hp)
    if not system.clip_value_loss:
        return estimate.loss(target, error)
    return estimate.loss(
        target,
        lambda value, target: clipped_error(
            error, value, minibatch.critic_value, target, hp.clip_eps
        ),
    )


def observe(system: System, state: LearnerState, rollout: Transition) -> LearnerState:
    """Merge the rollout's observations, of all update batches and devices, into the statistics."""
    if not system.normalize_observations:
        return state
    policy = state.agent.policy
    statistics = merge_statistics(policy.obs_statistics, rollout.obs, system.axes)
    statistics = unless_nonfinite(system, statistics, policy.obs_statistics)
    policy = dataclasses.replace(policy, obs_statistics=statistics)
    return dataclasses.replace(state, agent=dataclasses.replace(state.agent, policy=policy))


def warm_up(system: System, state: LearnerState, num_rollouts: jax.Array) -> LearnerState:
    """Collect `num_rollouts` rollouts for the observation statistics alone: nothing is learnt."""

    def watch(system: System, state: LearnerState) -> tuple[LearnerState, tuple[()]]:
        state, rollout, _ = collect(system, state)
        return observe(system, state, rollout), ()

    step = over_batches(watch, system)
    return jax.lax.fori_loop(0, num_rollouts, lambda _, state: step(state)[0], state)


warm_up_members = over_members(warm_up, shared=1)


def add_losses(
    system: System, state: LearnerState, batch: Batch, losses: Losses, metrics: Metrics
) -> Metrics:
    """The metrics of one iteration, equal on every device and update batch."""
    hp = state.agent.hyperparameters
    return dataclasses.replace(
        metrics,
        losses=losses,
        explained_variance=mean_over(system.axes, explained_variance(batch.value, batch.target)),
        parameter_norm=jnp.linalg.norm(_floats(state.agent.policy.params)),
        kl_coef=hp.kl_coef * state.agent.kl_factor,
        learning_rate=learning_rate(hp, hp.actor_lr, state.agent.update - 1),
        nonfinite_loss=num_nonfinite_losses(losses),
    )


def _add_time(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


def _floats(tree: PyTree) -> jax.Array:
    """All floating-point numbers of a tree as one vector `[n]`: fewer kernels read them."""
    leaves = jax.tree.leaves(tree)
    return ravel_pytree([x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)])[0]


def _num_nonfinite(tree: PyTree) -> jax.Array:
    counts = [
        jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return sum(counts, jnp.zeros((), jnp.int32))


def _accumulate(total: Metrics, metrics: Metrics) -> Metrics:
    """Sums, but for the extremes."""
    summed = jax.tree.map(jnp.add, total, metrics)
    losses = dataclasses.replace(
        summed.losses,
        ratio_min=jnp.minimum(total.losses.ratio_min, metrics.losses.ratio_min),
        ratio_max=jnp.maximum(total.losses.ratio_max, metrics.losses.ratio_max),
    )
    return dataclasses.replace(summed, losses=losses)


def _zero_losses() -> Losses:
    """What adds nothing."""
    zeros = {field.name: jnp.zeros(()) for field in dataclasses.fields(Losses)}
    infinity = jnp.full((), jnp.inf, jnp.float32)
    return Losses(**{**zeros, "ratio_min": infinity, "ratio_max": -infinity})


def zero_metrics() -> Metrics:
    """What adds nothing."""
    real, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    counts = {"num_episodes", "gradient_steps", "skipped_steps", "empty_mask"}
    values: dict[str, Any] = {
        field.name: count if field.name in counts or field.name.startswith("nonfinite") else real
        for field in dataclasses.fields(Metrics)
    }
    return Metrics(**{**values, "losses": _zero_losses()})
