"""The algorithm: collect, advantages, epochs of minibatches; proximal policy optimisation.

Schulman et al. 2017 (arXiv 1707.06347). Every phase is a function of a `System` and arrays that
runs on its own as well as under the mapped axes of `train_block`.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import optax

from jaxppo import sequences
from jaxppo.advantages import gae
from jaxppo.losses import (
    approximate_kl,
    clip_fraction,
    clipped_squared_error,
    clipped_surrogate,
    explained_variance,
    squared_error,
)
from jaxppo.permutations import random_permutation
from jaxppo.statistics import (
    any_over,
    init_statistics,
    mean_over,
    merge_statistics,
    normalize,
    standardize,
    sum_over,
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
)

BATCH_AXIS = "batch"  # the update batches U of one device


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Losses:
    """Scalars of gradient steps, averaged over an iteration (float32)."""

    total_loss: jax.Array
    actor_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array  # nats
    approximate_kl: jax.Array  # KL(old || new), estimator k3
    clip_fraction: jax.Array
    gradient_norm: jax.Array  # global, before clipping


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Scalars of iterations, over the whole agent, that add up over a block."""

    losses: Losses
    explained_variance: jax.Array
    learning_rate: jax.Array  # of the actor
    num_episodes: jax.Array  # int32, episodes that ended
    episode_return: jax.Array  # summed over those
    episode_length: jax.Array  # summed over those
    nonfinite_reward: jax.Array  # int32 counts
    nonfinite_observation: jax.Array
    nonfinite_loss: jax.Array
    nonfinite_parameter: jax.Array


def optimizer(hyperparameters: Hyperparameters, update: jax.Array) -> optax.GradientTransformation:
    """Adam (eps 1e-5) after clipping by global norm, apart for actor and critic.

    Shared parameters belong to the actor's group. One norm over both would let a critic whose
    errors are large (returns in the hundreds) shrink the actor's steps to nothing. Step sizes are
    those of iteration `update` and constant within it.
    """
    hp = hyperparameters

    def group(lr: jax.Array) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(hp.max_grad_norm),
            optax.scale_by_adam(eps=1e-5),
            optax.scale_by_learning_rate(learning_rate(hp, lr, update)),
        )

    return optax.partition(
        {"actor": group(hp.actor_lr), "critic": group(hp.critic_lr)},
        lambda params: {part: "critic" if part == "critic" else "actor" for part in params},
    )


def learning_rate(hp: Hyperparameters, lr: jax.Array, update: jax.Array) -> jax.Array:
    """`lr` at iteration `update` (0-based): falling linearly to zero, where it decays."""
    left = (hp.num_updates - update).astype(jnp.float32) / hp.num_updates.astype(jnp.float32)
    return lr * jnp.where(hp.decay_learning_rates > 0, jnp.maximum(left, 0.0), 1.0)


def init_agent(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """A fresh agent: parameters, optimiser, identity statistics."""
    params = system.actor_critic.init(key)
    update = jnp.zeros((), jnp.int32)
    example = jax.eval_shape(system.env.reset, jax.random.split(key, 1))[1]
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example)
    return AgentState(
        policy=Policy(params=params, obs_statistics=init_statistics(example)),
        opt_state=optimizer(hyperparameters, update).init(params),
        hyperparameters=hyperparameters,
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
        key=key,
    )


def train_block(
    system: System, state: LearnerState, num_updates: jax.Array
) -> tuple[LearnerState, Metrics]:
    """`num_updates` iterations; agent `[...]`, acting `[U, ...]`, metrics summed over iterations.

    The count is traced: blocks of any length are one program.
    """
    layout = LearnerState(agent=None, acting=0)  # type: ignore[arg-type]
    step = jax.vmap(
        partial(update, system), in_axes=(layout,), out_axes=(layout, None), axis_name=BATCH_AXIS
    )

    def iterate(_: int, carry: tuple[LearnerState, Metrics]) -> tuple[LearnerState, Metrics]:
        state, total = carry
        state, metrics = step(state)
        return state, jax.tree.map(jnp.add, total, metrics)

    state, metrics = jax.lax.fori_loop(0, num_updates, iterate, (state, _zero_metrics()))
    return state, dataclasses.replace(
        metrics, nonfinite_parameter=_num_nonfinite(state.agent.policy)
    )


def update(system: System, state: LearnerState) -> tuple[LearnerState, Metrics]:
    """One PPO iteration: collect -> advantages -> epochs of minibatches."""
    state, rollout, metrics = collect(system, state)
    batch = add_targets(system, state, rollout)
    state, losses = run_epochs(system, state, batch)
    metrics = add_losses(system, state, batch, losses, metrics)
    return observe(system, state, rollout), metrics  # statistics move last: one set per iteration


def collect(system: System, state: LearnerState) -> tuple[LearnerState, Transition, Metrics]:
    """Act for `T` steps in `B` environments; the rollout's leaves are `[T, B, ...]`."""
    with jax.named_scope("collect"):
        key, action_key, env_key = jax.random.split(state.acting.key, 3)
        keys = (
            jax.random.split(action_key, system.rollout_length),
            jax.random.split(env_key, (system.rollout_length, system.num_envs)),
        )
        acting, (rollout, episodes) = jax.lax.scan(
            partial(act_and_step, system, state.agent.policy), state.acting, keys
        )
    num_episodes, episode_return, episode_length = jax.tree.map(
        lambda x: sum_over(system.axes, jnp.sum(x)), episodes
    )
    metrics = dataclasses.replace(
        _zero_metrics(),
        num_episodes=num_episodes,
        episode_return=episode_return,
        episode_length=episode_length.astype(jnp.float32),
        nonfinite_reward=sum_over(system.axes, _num_nonfinite(rollout.reward)),
        nonfinite_observation=sum_over(system.axes, _num_nonfinite(rollout.obs)),
    )
    acting = dataclasses.replace(acting, key=key)
    return dataclasses.replace(state, acting=acting), rollout, metrics


def act_and_step(
    system: System, policy: Policy, acting: ActingState, keys: tuple[jax.Array, jax.Array]
) -> tuple[ActingState, tuple[Transition, tuple[jax.Array, jax.Array, jax.Array]]]:
    """One step of `B` environments, with (count, return, length) sums of episodes that ended."""
    action_key, env_keys = keys
    carry, distribution, _ = unroll(
        system, policy, acting.carry, _add_time(acting.obs), acting.reset[None]
    )
    action, log_prob = distribution.sample_and_log_prob(seed=action_key)
    action, log_prob = jax.tree.map(lambda x: x[0], (action, log_prob))
    env_state, step = system.env.step(env_keys, acting.env_state, action)
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
) -> tuple[PyTree, Distribution, jax.Array]:
    """The actor-critic on raw `obs` `[L, S, O...]`: normalised here, and only here."""
    if system.normalize_observations:
        obs = normalize(policy.obs_statistics, obs)
    return system.actor_critic.unroll(policy.params, carry, obs, reset)


def add_targets(system: System, state: LearnerState, rollout: Transition) -> Batch:
    """Values, advantages and value targets of a rollout, cut into sequences `[L, S, ...]`.

    Values are taken once, over the stored observations. The successor of a step is the next stored
    observation; where the clock ended the episode it is `final_observation`, whose values are
    taken in a branch that runs only when some step was truncated.
    """
    hp = state.agent.hyperparameters
    value, next_value = rollout_values(system, state, rollout)
    with jax.named_scope("advantages"):
        advantage, target = gae(
            rollout.reward * hp.reward_scale,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            gamma=hp.gamma,
            gae_lambda=hp.gae_lambda,
        )
        if system.standardize_advantages:
            advantage = standardize(advantage, system.axes)
    steps = (rollout.obs, rollout.reset, rollout.action, rollout.log_prob, value, advantage, target)
    obs, reset, action, log_prob, value, advantage, target = sequences.cut(
        steps, system.sequence_length
    )
    return Batch(
        obs=obs,
        reset=reset,
        carry=sequences.first(rollout.carry, system.sequence_length),
        action=action,
        log_prob=log_prob,
        value=value,
        advantage=advantage,
        target=target,
    )


def rollout_values(
    system: System, state: LearnerState, rollout: Transition
) -> tuple[jax.Array, jax.Array]:
    """V of each step's observation and of its true successor, both `[T, B]`."""
    policy, acting = state.agent.policy, state.acting
    with jax.named_scope("values"):
        opening = jax.tree.map(lambda x: x[0], rollout.carry)
        value = unroll(system, policy, opening, rollout.obs, rollout.reset)[2]
        last = unroll(system, policy, acting.carry, _add_time(acting.obs), acting.reset[None])[2]
        next_value = jnp.concatenate([value[1:], last])
        truncated = rollout.truncated & ~rollout.terminated

        def bootstrap_truncated() -> jax.Array:
            final = unroll(
                system, policy, opening, rollout.final_observation, jnp.zeros_like(truncated)
            )[2]
            return jnp.where(truncated, final, next_value)

        next_value = jax.lax.cond(
            any_over(system.axes, truncated), bootstrap_truncated, lambda: next_value
        )
    return value, next_value


def run_epochs(system: System, state: LearnerState, batch: Batch) -> tuple[LearnerState, Losses]:
    """`epochs` passes over the batch, each in `num_minibatches` gradient steps of fresh order."""
    key, shuffle_key = jax.random.split(state.acting.key)
    with jax.named_scope("epochs"):
        agent, losses = jax.lax.scan(
            partial(run_epoch, system, batch),
            state.agent,
            jax.random.split(shuffle_key, system.epochs),
        )
    agent = dataclasses.replace(agent, update=agent.update + 1)
    acting = dataclasses.replace(state.acting, key=key)
    return LearnerState(agent=agent, acting=acting), jax.tree.map(jnp.mean, losses)


def run_epoch(
    system: System, batch: Batch, agent: AgentState, key: jax.Array
) -> tuple[AgentState, Losses]:
    """Every sequence of the batch in exactly one minibatch; losses `[num_minibatches]`."""
    num_sequences = batch.log_prob.shape[1]
    order = random_permutation(key, num_sequences)
    return jax.lax.scan(
        partial(gradient_step, system, batch),
        agent,
        order.reshape(system.num_minibatches, num_sequences // system.num_minibatches),
    )


def gradient_step(
    system: System, batch: Batch, agent: AgentState, indices: jax.Array
) -> tuple[AgentState, Losses]:
    """One step of the optimiser on the sequences `indices` `[M]`, averaged over `system.axes`."""
    minibatch = select(batch, indices)
    gradients, losses = jax.grad(partial(loss, system, agent), has_aux=True)(
        agent.policy.params, minibatch
    )
    gradients, losses = mean_over(system.axes, (gradients, losses))
    losses = dataclasses.replace(losses, gradient_norm=optax.tree.norm(gradients))
    params = agent.policy.params
    updates, opt_state = optimizer(agent.hyperparameters, agent.update).update(
        gradients, agent.opt_state, params
    )
    policy = dataclasses.replace(agent.policy, params=optax.apply_updates(params, updates))
    return dataclasses.replace(agent, policy=policy, opt_state=opt_state), losses


def select(batch: Batch, indices: jax.Array) -> Batch:
    """The sequences `indices` `[M]` of a batch: leaves `[L, M, ...]`, carry `[M, ...]`."""
    carry = jax.tree.map(lambda x: x[indices], batch.carry)
    rest = dataclasses.replace(batch, carry=())
    return dataclasses.replace(jax.tree.map(lambda x: x[:, indices], rest), carry=carry)


def loss(
    system: System, agent: AgentState, params: PyTree, minibatch: Batch
) -> tuple[jax.Array, Losses]:
    """actor + vf_coef * value - ent_coef * entropy, averaged over a minibatch `[L, M]`."""
    hp = agent.hyperparameters
    policy = dataclasses.replace(agent.policy, params=params)
    _, distribution, value = unroll(system, policy, minibatch.carry, minibatch.obs, minibatch.reset)
    log_prob = distribution.log_prob(minibatch.action)
    old_log_prob = minibatch.log_prob
    actor_loss = jnp.mean(
        clipped_surrogate(log_prob, old_log_prob, minibatch.advantage, hp.clip_eps)
    )
    if system.clip_value_loss:
        value_loss = clipped_squared_error(value, minibatch.value, minibatch.target, hp.clip_eps)
    else:
        value_loss = squared_error(value, minibatch.target)
    value_loss = jnp.mean(value_loss)
    entropy = jnp.mean(distribution.entropy())
    total = actor_loss + hp.vf_coef * value_loss - hp.ent_coef * entropy
    return total, Losses(
        total_loss=total,
        actor_loss=actor_loss,
        value_loss=value_loss,
        entropy=entropy,
        approximate_kl=jnp.mean(approximate_kl(log_prob, old_log_prob)),
        clip_fraction=jnp.mean(clip_fraction(log_prob, old_log_prob, hp.clip_eps)),
        gradient_norm=jnp.zeros(()),  # known after the gradient
    )


def observe(system: System, state: LearnerState, rollout: Transition) -> LearnerState:
    """Merge the rollout's observations, of all update batches and devices, into the statistics."""
    if not system.normalize_observations:
        return state
    policy = state.agent.policy
    statistics = merge_statistics(policy.obs_statistics, rollout.obs, system.axes)
    policy = dataclasses.replace(policy, obs_statistics=statistics)
    return dataclasses.replace(state, agent=dataclasses.replace(state.agent, policy=policy))


def warm_up(system: System, state: LearnerState, num_rollouts: jax.Array) -> LearnerState:
    """Collect `num_rollouts` rollouts for the observation statistics alone: nothing is learnt."""
    layout = LearnerState(agent=None, acting=0)  # type: ignore[arg-type]

    def watch(state: LearnerState) -> LearnerState:
        state, rollout, _ = collect(system, state)
        return observe(system, state, rollout)

    step = jax.vmap(watch, in_axes=(layout,), out_axes=layout, axis_name=BATCH_AXIS)
    return jax.lax.fori_loop(0, num_rollouts, lambda _, state: step(state), state)


def add_losses(
    system: System, state: LearnerState, batch: Batch, losses: Losses, metrics: Metrics
) -> Metrics:
    """The metrics of one iteration, equal on every device and update batch."""
    hp = state.agent.hyperparameters
    return dataclasses.replace(
        metrics,
        losses=losses,
        explained_variance=mean_over(system.axes, explained_variance(batch.value, batch.target)),
        learning_rate=learning_rate(hp, hp.actor_lr, state.agent.update - 1),
        nonfinite_loss=_num_nonfinite((losses.total_loss, losses.gradient_norm)),
    )


def _add_time(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


def _num_nonfinite(tree: PyTree) -> jax.Array:
    counts = [
        jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)
        for x in jax.tree.leaves(tree)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    return sum(counts, jnp.zeros((), jnp.int32))


def _zero_metrics() -> Metrics:
    real, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return Metrics(
        losses=Losses(**{field.name: real for field in dataclasses.fields(Losses)}),
        explained_variance=real,
        learning_rate=real,
        num_episodes=count,
        episode_return=real,
        episode_length=real,
        nonfinite_reward=count,
        nonfinite_observation=count,
        nonfinite_loss=count,
        nonfinite_parameter=count,
    )
