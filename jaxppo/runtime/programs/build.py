"""Build the static part of a run and the first state of its members."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import envs
from jaxppo.algorithms.acting import init_acting
from jaxppo.algorithms.algorithm import Algorithm
from jaxppo.algorithms.contract import check_algorithm
from jaxppo.algorithms.spine import init_agent
from jaxppo.config.fields import ConfigError, is_import_path, numbers
from jaxppo.config.parse import algorithm_class
from jaxppo.config.plan import Plan, memories
from jaxppo.config.plan import plan as make_plan
from jaxppo.config.schedules import find_schedules, schedule_numbers
from jaxppo.config.schema import BOTH_SEATS, TEAM_RETURN, Config, LoggerConfig
from jaxppo.envs import actor_settings, varying
from jaxppo.ops.collectives import BATCH_AXIS
from jaxppo.ops.statistics import normalized_entries
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import microbatches, opponents
from jaxppo.types import Environment, Hyperparameters, LearnerState, Policy, System, is_space, zeros

EnvValues = dict[str, Any]  # parameters of environments by name, arrays `[P]`, or of one member


def build(config: Config, plan: Plan) -> System:
    """Make the static part of a run; `ConfigError` if environment and network do not fit."""
    config = dataclasses.replace(config, env=actor_settings.env_config(config))
    env = envs.make(config.env)
    actor_settings.check(config, env, plan.num_envs, plan.num_devices)
    _check_entries(config, env)
    team = {TEAM_RETURN: "last"} if env.num_agents > 1 else {}
    metrics, system = team | config.env.metric_kinds, config.system
    algorithm: Algorithm = algorithm_class(system.algorithm).build(config, env)
    for line in _misfits(config, env, algorithm, metrics, plan):
        raise ConfigError(line)
    num_microbatches, num_value_chunks = microbatches.count(
        system.microbatch_size, plan, algorithm.network, env
    )
    axes = {BATCH_AXIS: plan.update_batch_size, devices.AXIS: plan.devices_per_member}
    evaluation_env = envs.make_for_evaluation(config.env, env)
    env, evaluation_env = opponents.seated(config, env, evaluation_env, _alone)
    is_pool = config.env.opponent == "pool"
    built = System(
        env=env,
        evaluation_env=evaluation_env,
        env_params=config.env.params,
        algorithm=algorithm,
        num_envs=plan.num_envs,
        rollout_length=plan.rollout_length,
        sequence_length=plan.sequence_length,
        burn_in=system.burn_in,
        recompute_carries=system.recompute_carries,
        recompute_targets=system.recompute_targets,
        epochs=system.epochs,
        num_minibatches=system.num_minibatches,
        num_microbatches=num_microbatches,
        num_value_chunks=num_value_chunks,
        stop_early=algorithm.stops_early,
        stop_settled=system.min_loss_change is not None,
        details=config.logger.details,
        learns=config.arch.learn,
        skip_nonfinite=config.arch.on_nonfinite == "skip",
        normalize_observations=system.normalize_observations,
        normalize_entries=tuple(system.normalize_entries),
        obs_clip=system.obs_clip,
        obs_min_std=system.obs_min_std,
        obs_max_std=system.obs_max_std,
        obs_norm_share=system.obs_norm_share,
        normalize_rewards=system.normalize_rewards,
        schedules=tuple((name, found.kind) for name, found in find_schedules(system).items()),
        clip_together=system.clip_together,
        evaluation_greedy=config.arch.evaluation_greedy,
        max_eval_steps=config.arch.max_eval_steps or env.time_limit or 0,
        metrics=metrics,
        num_opponents=config.env.num_opponents if is_pool else 0,
        opponent_every=plan.num_updates // config.arch.num_evaluation if is_pool else 0,
    )
    if any(map(is_import_path, (system.algorithm, getattr(system, "objective", "")))):
        check_algorithm(built, hyperparameters(config, plan))
    return dataclasses.replace(built, axes=tuple(axis for axis, size in axes.items() if size > 1))


def _misfits(
    config: Config, env: Environment, algorithm: Algorithm, metrics: Collection[str], plan: Plan
) -> Iterator[str]:
    """Yield a line for each setting that does not fit the environment or the algorithm."""
    num, total, judge = env.num_agents, config.arch.total_num_envs, config.arch.eval_metric
    if plan.num_envs % num:
        step = total // plan.num_envs * num
        yield (
            f"arch.total_num_envs={total}: counts agents, and {plan.num_envs} for each device and "
            f"update batch are not whole worlds of {num} agents ({env.name}); the nearest that "
            f"are: {max(round(total / step), 1) * step}"
        )
    if config.arch.max_eval_steps is None and env.time_limit is None:
        yield (
            f"arch.max_eval_steps=null: {env.name} has no time limit, so evaluation might not end; "
            "set it to a number of steps"
        )
    if judge is not None and judge not in metrics:
        yield (
            f"arch.eval_metric={judge}: must be a name of env.metrics "
            f"({', '.join(metrics) or '[]'}); add it there, as in env.metrics=[{judge}], or set "
            "this to null for the return"
        )
    if env.pads and not algorithm.weighs:
        yield (
            f"system.algorithm={config.system.algorithm}: learns from every step, but agents of "
            f"{env.name} may end before their world; take ppo, or in a world of JAX let all agents "
            "end together (flags of shape ())"
        )
    if config.env.opponent in BOTH_SEATS:
        yield from _misfits_of_games(config, env, algorithm, plan)
    if env.pads and config.logger.details:
        yield (
            f"logger.details=true: is not for worlds whose agents may end early ({env.name}); "
            "set it to false"
        )


def _misfits_of_games(
    config: Config, games: Any, algorithm: Algorithm, plan: Plan
) -> Iterator[str]:
    """Yield a line for each setting that does not fit games with one policy on both seats."""
    opponent, settings = f"env.opponent={config.env.opponent}", config.system
    if not algorithm.signs:
        yield (
            f"system.algorithm={settings.algorithm}: with {opponent} values must change their sign "
            "between the players, which its targets do not support; take ppo (or pqn with a scalar "
            "head, without munchausen), or env.opponent=random"
        )
    if found := memories(config.network):
        yield (
            f"network.{found[0]}: with {opponent} one memory would see the observations of both "
            "players; take a network without memory, or env.opponent=random"
        )
    if config.env.opponent == "pool" and not games.num_against(plan.num_envs):
        least = math.ceil(config.env.num_opponents / config.env.opponent_share)
        yield (
            f"env.num_opponents={config.env.num_opponents}: a share of {config.env.opponent_share} "
            f"of {plan.num_envs} games on each device and update batch is less than a game for "
            f"each; take at least {least} games (arch.total_num_envs), or fewer opponents"
        )


def _check_entries(config: Config, env: Environment) -> None:
    """Raise `ConfigError` if normalize_entries names nothing, or what is never normalised."""
    paths = jax.tree_util.tree_leaves_with_path(env.observation_space, is_leaf=is_space)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    parts = [name.split(".") for name in names if name]
    known = sorted({".".join(part[: n + 1]) for part in parts for n in range(len(part))})
    for entry in config.system.normalize_entries:
        if entry not in known:
            has = f"which has {', '.join(known)}" if known else "which is one array"
            raise ConfigError(
                f"system.normalize_entries={entry}: no entry of the observation, {has}; "
                "[] normalises all"
            )
        example = jax.eval_shape(lambda: zeros(env.observation_space))
        chosen = jax.tree.leaves(normalized_entries(example, (entry,)))
        if not any(jnp.issubdtype(x.dtype, jnp.floating) for x in chosen):
            raise ConfigError(
                f"system.normalize_entries={entry}: it holds no floating-point numbers, and "
                "only those are normalised; leave it out"
            )


def _alone(config: Config) -> tuple[System, Policy]:
    """Return what `build_alone` does, and the shapes of the agent's policy."""
    system = build_alone(config)
    return system, policy_shapes(config, system)


def policy_shapes(config: Config, system: System) -> Policy:
    """Return the shapes of an agent's policy."""
    hp = hyperparameters(config, make_plan(config, 1, 1))
    shapes: Policy = jax.eval_shape(partial(init_agent, system), hp, jax.random.key(0)).policy
    return shapes


def build_alone(config: Config) -> System:
    """Return the system of one agent that acts and evaluates outside of training's mapped axes."""
    return dataclasses.replace(build(config, make_plan(config, 1, 1)), axes=())


def hyperparameters(config: Config, plan: Plan) -> Hyperparameters:
    """Return the hyperparameters of a run, scalars."""
    return jax.tree.map(lambda x: jnp.asarray(x[0]), stacked_hyperparameters([config], plan))


def stacked_hyperparameters(members: Sequence[Config], plan: Plan) -> Hyperparameters:
    """Return the hyperparameters of members, `[P]`, in NumPy."""
    each = [{**numbers(member.system), **schedule_numbers(member.system)} for member in members]
    return Hyperparameters(
        **{name: np.asarray([row[name] for row in each], np.float32) for name in each[0]},
        num_updates=np.full(len(members), plan.num_updates, np.int32),
    )


def env_values(system: System, members: Sequence[Config]) -> EnvValues:
    """Return the `env.params` of members, `[P]`, that are not those which `system` was built with.

    {} unless a sweep varies them: then they are constants of the program.
    """
    each = [member.env.params for member in members]
    built = system.env_params.items()
    names = [name for name, value in built if any(own[name] != value for own in each)]
    return {name: varying.typed(system.env, name, [own[name] for own in each]) for name in names}


def with_values(system: System, values: EnvValues) -> System:
    """Return the system of one member, whose environments have these parameters."""
    if not values:
        return system
    env = varying.with_params(system.env, values)
    evaluation_env = varying.with_params(system.evaluation_env, values)
    return dataclasses.replace(system, env=env, evaluation_env=evaluation_env)


def program_key(config: Config) -> Config:
    """Return the settings that shape the program. Runs with equal keys can share one program."""
    schedules = {name: each.kind for name, each in find_schedules(config.system).items()}
    neutral: dict[str, Any] = {"schedules": schedules}
    for field in dataclasses.fields(config.system):
        if "traced" in field.metadata:
            value = getattr(config.system, field.name)
            neutral[field.name] = field.default
            if field.metadata.get("switch") and value is not None and math.isfinite(value):
                neutral[field.name] = 1.0  # any finite number
    return dataclasses.replace(
        config,
        arch=dataclasses.replace(config.arch, seed=0, num_seeds=1, profile=None, distributed={}),
        system=dataclasses.replace(config.system, **neutral),
        logger=LoggerConfig(  # windows and details are part of the state
            every=config.logger.every, details=config.logger.details
        ),
        init_from=None,  # the parameters are data
        init_which="best",
        init_parts=[],
        resume=None,
        resume_allow=[],
        trust=[],
    )


@partial(jax.jit, inline=True)  # called eagerly too, where each operation would be a program
def streams(seeds: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return keys `[P]` for initialisation, acting, evaluation and the absolute metric.

    `seeds` are uint32 `[P]`, which may be traced.
    """
    keys = jax.vmap(jax.random.key)(seeds)
    each = jnp.moveaxis(jax.vmap(partial(jax.random.split, num=4))(keys), 1, 0)
    return each[0], each[1], each[2], each[3]


def begin(
    system: System,
    members: Sequence[Config],
    plan: Plan,
    *,
    steps: int = 0,
    arrange: Callable[[LearnerState], LearnerState] | None = None,
) -> LearnerState:
    """Return the first state of members: agents `[P, ...]`, acting `[P, D, U, ...]`.

    Members differ in seed and hyperparameters, and start as they would alone. `D` is the number of
    devices per member: 1 if each device has its own members. Environments that start after `steps`
    steps have other random streams than at the start. `arrange` changes the form in the same
    program.
    """
    grid = plan.devices_per_member, plan.update_batch_size
    return beginning(system, grid, arrange)(*start_arguments(system, members, plan), steps)


def start_arguments(
    system: System, members: Sequence[Config], plan: Plan
) -> tuple[Hyperparameters, np.ndarray, EnvValues]:
    """Return what `beginning` takes before `steps`: of members hyperparameters, seeds, `[P]`."""
    seeds = np.asarray([member.arch.seed for member in members], np.uint32)
    return stacked_hyperparameters(members, plan), seeds, env_values(system, members)


@lru_cache(8)  # JAX would keep every system that is a static argument
def beginning(
    system: System, grid: tuple[int, int], arrange: Callable[[LearnerState], LearnerState] | None
) -> Any:
    """Return the program of `begin`, a `jax.jit`, for `D` and `U` of `grid`.

    JAX keeps its trace, so that its shapes cost no other.
    """

    def start(
        hp: Hyperparameters, agent_key: jax.Array, acting_key: jax.Array, values: EnvValues
    ) -> LearnerState:
        acting = jax.vmap(jax.vmap(partial(init_acting, with_values(system, values))))(
            jax.random.split(acting_key, grid)
        )
        return LearnerState(agent=init_agent(system, hp, agent_key), acting=acting)

    def start_all(
        numbers: Hyperparameters, seeds: jax.Array, values: EnvValues, steps: int
    ) -> LearnerState:
        agent_keys, acting_keys, _, _ = streams(seeds)
        if steps:
            acting_keys = jax.vmap(jax.random.fold_in, (0, None))(acting_keys, steps)
        started = jax.vmap(start)(numbers, agent_keys, acting_keys, values)
        # Remove JAX's weak types, since the outputs of the program do not have them
        started = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), started)
        return started if arrange is None else arrange(started)

    return jax.jit(start_all, static_argnums=3)
