"""A whole training run as one pure function of a key and hyperparameters."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.algorithms.acting import init_acting
from jaxppo.algorithms.axes import vmap_batches
from jaxppo.algorithms.evaluation import FIRST, Episodes, episode_keys, evaluate, evaluation_stream
from jaxppo.algorithms.metrics import leaves
from jaxppo.algorithms.report import Metrics, zero_metrics
from jaxppo.algorithms.spine import init_agent, update, warm_up
from jaxppo.config.schema import key_of
from jaxppo.ops.sequences import where
from jaxppo.types import Hyperparameters, LearnerState, Policy, System, pytree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a whole run does. It has `R` rounds; each trains, then evaluates."""

    evaluate_first: bool  # whether the first round only evaluates, the untrained policy
    updates: tuple[int, ...]  # of each round that trains
    num_eval_episodes: int
    absolute: int  # evaluations of the best policy at the end, for the absolute metric; or 0
    num_update_batches: int  # U
    warmup_rollouts: int  # that only fill the observation statistics
    eval_metric: str | None  # by which policies are compared; None: the return


@pytree
class Evaluations:
    """Results of `R` evaluations of `E` episodes each, with the keys of the command line's."""

    updates: jax.Array  # [R] int32, updates before it; times `steps_per_update`: environment steps
    episode_return: jax.Array  # [R] float32, mean over the episodes
    returns: jax.Array  # [R, E] float32, of each episode
    lengths: jax.Array  # [R, E] int32
    finished: jax.Array  # [R, E] bool; False where arch.max_eval_steps came first
    metrics: dict[str, jax.Array]  # [R, E] float32, of env.metrics; NaN where nothing was told


@pytree
class TrainOutput:
    """Result of a training run; under `vmap` every array has one more leading axis."""

    policy: Policy  # after the last update
    best: Policy  # of the best finite evaluation after updates; the untrained one if there is none
    best_updates: jax.Array  # int32, updates before that evaluation; 0 if there is none
    metrics: dict[str, jax.Array]  # [num_updates] float32 each, by the names of the command line;
    # episode_return and episode_length are NaN for an update in which no episode ended
    evaluations: Evaluations
    # float32, mean return (or arch.eval_metric) of `best` over 10 E new episodes; or NaN
    absolute_metric: jax.Array


@pytree
class _Run:
    """The state between rounds."""

    learner: LearnerState
    best: Policy
    best_score: jax.Array  # float32
    best_updates: jax.Array  # int32
    done: jax.Array  # int32, updates
    log: jax.Array  # [num_updates, metrics] float32


def train_whole(
    system: System, schedule: Schedule, key: jax.Array, hyperparameters: Hyperparameters
) -> TrainOutput:
    """Train one agent from start to end, with all evaluations, on one device.

    `key` is a typed key: `jax.random.key(seed)` gives the run of `arch.seed=seed`.
    """
    agent_key, acting_key, evaluation_key, absolute_key = jax.random.split(key, 4)
    acting_keys = jax.random.split(acting_key, (1, schedule.num_update_batches))[0]
    agent = init_agent(system, hyperparameters, agent_key)
    learner = LearnerState(agent=agent, acting=jax.vmap(partial(init_acting, system))(acting_keys))
    # The carry of the scan must keep its types: remove JAX's weak ones
    learner = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), learner)
    if schedule.warmup_rollouts:
        learner = warm_up(system, learner, jnp.int32(schedule.warmup_rollouts))
    names = list(_row(system, zero_metrics(system)))
    run = _Run(
        learner=learner,
        best=learner.agent.policy,
        best_score=jnp.float32(-jnp.inf),
        best_updates=jnp.int32(0),
        done=jnp.int32(0),
        log=jnp.zeros((sum(schedule.updates), len(names)), jnp.float32),
    )
    # The absolute metric is more rounds without updates, so evaluation is compiled once
    first = schedule.evaluate_first
    num_episodes, num_rounds = schedule.num_eval_episodes, first + len(schedule.updates)
    numbers = np.asarray([*[FIRST] * first, *range(len(schedule.updates))], np.int32)
    streams = jax.vmap(evaluation_stream, (None, 0))(evaluation_key, numbers)
    keys = jax.vmap(episode_keys, (0, None))(streams, np.arange(num_episodes))
    again = episode_keys(absolute_key, np.arange(schedule.absolute * num_episodes))
    rounds = (
        jnp.asarray([*[0] * first, *schedule.updates, *[0] * schedule.absolute], jnp.int32),
        jnp.arange(num_rounds + schedule.absolute) < num_rounds,
        jnp.concatenate([keys, again.reshape(schedule.absolute, num_episodes)]),
    )
    run, (done, found) = jax.lax.scan(partial(_round, system, schedule, names), run, rounds)
    means = jnp.mean(found.returns, axis=1)
    evaluations = Evaluations(
        updates=done[:num_rounds],
        episode_return=means[:num_rounds],
        returns=found.returns[:num_rounds],
        lengths=found.lengths[:num_rounds],
        finished=found.finished[:num_rounds],
        metrics={name: x[:num_rounds] for name, x in found.metrics.items()},
    )
    absolute = jnp.float32(jnp.nan)
    if schedule.absolute and schedule.eval_metric is None:
        absolute = jnp.mean(means[num_rounds:])
    elif schedule.absolute:
        absolute = _score(schedule, jax.tree.map(lambda x: x[num_rounds:], found))
    return TrainOutput(
        policy=run.learner.agent.policy,
        best=run.best,
        best_updates=run.best_updates,
        metrics={name: run.log[:, column] for column, name in enumerate(names)},
        evaluations=evaluations,
        absolute_metric=absolute,
    )


def _score(schedule: Schedule, episodes: Episodes) -> jax.Array:
    """Return the mean by which policies are compared, of the episodes that told it."""
    metric = schedule.eval_metric
    return jnp.mean(episodes.returns) if metric is None else jnp.nanmean(episodes.metrics[metric])


def _round(
    system: System,
    schedule: Schedule,
    names: list[str],
    run: _Run,
    given: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[_Run, tuple[jax.Array, Episodes]]:
    """Run updates, then evaluate: the current policy, which may be the best, or the best one."""
    updates, is_current, keys = given
    step = vmap_batches(update, system)

    def iterate(i: jax.Array, carry: tuple[LearnerState, jax.Array]) -> Any:
        learner, found = step(carry[0])
        found = _row(system, found)
        row = jnp.stack([jnp.asarray(found[name], jnp.float32) for name in names])
        return learner, jax.lax.dynamic_update_index_in_dim(carry[1], row, run.done + i, 0)

    learner, log = jax.lax.fori_loop(0, updates, iterate, (run.learner, run.log))
    policy = where(is_current, learner.agent.policy, run.best)
    episodes = evaluate(system, policy, keys)
    score = _score(schedule, episodes)
    better = (updates > 0) & jnp.isfinite(score) & (score > run.best_score)
    run = _Run(
        learner=learner,
        best=where(better, policy, run.best),
        best_score=jnp.where(better, score, run.best_score),
        best_updates=jnp.where(better, run.done + updates, run.best_updates),
        done=run.done + updates,
        log=log,
    )
    return run, (run.done, episodes)


def _row(system: System, found: Metrics) -> dict[str, jax.Array]:
    """Return the metrics of one update by name; the returns are means over the ended episodes."""
    learn = found.learn
    means = (learn.steps, learn.targets, learn.finish) if system.skip_nonfinite else (learn.steps,)
    rollout, num = found.rollout, found.rollout.num_episodes
    per_episode = jnp.where(num > 0, 1 / num, jnp.nan)
    return {
        "episodes": num,
        "episode_return": rollout.episode_return * per_episode,
        "episode_length": rollout.episode_length * per_episode,
        "nonfinite_reward": rollout.nonfinite_reward,
        "nonfinite_observation": rollout.nonfinite_observation,
        "empty_mask": rollout.empty_mask,
        **rollout.reused_starts,
        **{
            key_of(name): jnp.where(told > 0, rollout.metrics[name] / told, jnp.nan)
            for name, told in rollout.told.items()
        },
        **{name: value for name, _, value in leaves(learn) if not jnp.ndim(value)},
        **{
            name: jnp.where(learn.skipped_updates > 0, jnp.nan, value)
            for part in means
            for name, _, value in leaves(part)
        },
    }
