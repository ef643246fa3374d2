"""Acting in many environments: unroll the network, collect rollouts, compute state values."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxppo.algorithms.schedules import begin_update
from jaxppo.kernels import packing, random_bits
from jaxppo.kernels.precisions import precision
from jaxppo.ops import sequences, tallies
from jaxppo.ops.collectives import BATCH_AXIS, any_over
from jaxppo.ops.statistics import normalize
from jaxppo.types import (
    ActingState,
    ActorOutput,
    AgentState,
    Ended,
    Opponents,
    Policy,
    PolicyInfo,
    Pool,
    PyTree,
    Rollout,
    RunProgress,
    System,
    TimeStep,
    Transition,
    zeros,
)

Node = TypeVar("Node")
STEPS_PER_START = 128  # if pool_size is None; episodes of Craftax Classic are longer


def init_acting(system: System, key: jax.Array) -> ActingState:
    """Reset `B` environments and start their random stream."""
    key, reset_key = jax.random.split(key)
    with precision("highest"):
        env_state, obs = system.env.reset(jax.random.split(reset_key, system.num_envs))
    return start_acting(system, env_state, obs, key)


def start_acting(system: System, env_state: PyTree, obs: PyTree, key: jax.Array) -> ActingState:
    """Return the state of `B` environments whose episodes start at `obs` `[B, O...]`."""
    return ActingState(
        env_state=env_state,
        obs=obs,
        reset=jnp.ones(system.num_envs, bool),
        carry=system.algorithm.network.initial_carry(system.num_envs),
        episode_return=jnp.zeros(system.num_envs, jnp.float32),
        episode_length=jnp.zeros(system.num_envs, jnp.int32),
        discounted_return=jnp.zeros(system.num_envs, jnp.float32),
        key=key,
        tallies=tallies.init(system.metrics, (system.num_envs,)),
    )


def unroll(
    system: System, policy: Policy, carry: PyTree, obs: PyTree, reset: jax.Array
) -> tuple[PyTree, Any]:
    """Apply the network to raw `obs` `[L, S, O...]`. Observations are normalised only here."""
    if system.normalize_observations:
        obs = normalize(
            policy.obs_statistics,
            obs,
            max_abs=system.obs_clip,
            min_std=system.obs_min_std,
            max_std=system.obs_max_std,
            keep_constant=system.obs_norm_share < 1,  # what changes later has no known scale
        )
    return system.algorithm.network.unroll(policy.params, carry, obs, reset, policy.noise_key)


def unroll_once(
    system: System, policy: Policy, carry: PyTree, obs: PyTree, reset: jax.Array
) -> tuple[PyTree, Any]:
    """Apply the network to raw `obs` `[B, O...]` of one step; its output is `[1, B, ...]`."""
    return unroll(system, policy, carry, jax.tree.map(lambda x: x[None], obs), reset[None])


def act(
    system: System,
    policy: Policy,
    carry: PyTree,
    obs: PyTree,
    reset: jax.Array,
    key: jax.Array | None,
) -> tuple[PyTree, ActorOutput]:
    """Choose actions for raw `obs` `[B, O...]`; return the next carry and the actions.

    With a `key` the actions are sampled; with keys `[B]` each environment uses its own; with None
    the actions are greedy.
    """
    if key is not None and key.ndim:
        return each_alone(partial(act, system, policy), carry, obs, reset, key)
    carry, output = unroll_once(system, policy, carry, obs, reset)
    return carry, jax.tree.map(lambda x: x[0], choose(system, policy, output, key))


def act_and_describe(
    system: System,
    policy: Policy,
    carry: PyTree,
    obs: PyTree,
    reset: jax.Array,
    key: jax.Array | None,
) -> tuple[PyTree, ActorOutput, PolicyInfo]:
    """Return what `act` does, and what led to the actions."""
    if key is not None and key.ndim:
        return each_alone(partial(act_and_describe, system, policy), carry, obs, reset, key)
    carry, output = unroll_once(system, policy, carry, obs, reset)
    acted = choose(system, policy, output, key)
    sampled = None if key is None else acted.action
    info = system.algorithm.describe(policy, output, sampled)
    return carry, *jax.tree.map(lambda x: x[0], (acted, info))


def choose(system: System, policy: Policy, output: PyTree, key: jax.Array | None) -> ActorOutput:
    """Sample actions `[L, B, ...]` from the network's output, or take the greedy ones."""
    if key is not None:
        return system.algorithm.act(policy, output, key)
    best = system.algorithm.greedy(policy, output)
    return ActorOutput(action=best, env_action=best, extras=())


def each_alone(function: Callable[..., Any], *args: PyTree) -> Any:
    """Map a function of `[B, ...]` over `B`; it gets one environment at a time, `[1, ...]`."""

    def alone(*args: PyTree) -> Any:
        *rest, key = args
        return jax.tree.map(lambda x: x[0], function(*jax.tree.map(lambda x: x[None], rest), key))

    return jax.vmap(alone)(*args)


def collect(system: System, agent: AgentState, acting: ActingState) -> tuple[ActingState, Rollout]:
    """Act for `T` steps in `B` environments."""
    agent = begin_update(system, agent)
    system = with_opponents(system, agent)
    with jax.named_scope("collect"):
        keys = rollout_keys(system, acting.key)
        env_state = update_progress(agent, acting.env_state)
        acting = dataclasses.replace(acting, env_state=fill_pool(system, env_state, keys))
        acting, (steps, ended) = packing.scan(
            partial(act_and_step, system, agent), acting, keys[1:]
        )
        env_state, reused = empty_pool(system, acting.env_state)
    acting = dataclasses.replace(acting, env_state=env_state, key=keys[0, 0])
    return _rollout(acting, steps, ended, reused)


def with_opponents(system: System, agent: AgentState) -> System:
    """Return the system whose games are played against the agent's pool of policies, if any."""
    if not system.num_opponents:
        return system
    pool: Opponents = agent.opponents

    def choose(obs: PyTree, keys: jax.Array) -> PyTree:
        """Map `obs` `[R, O...]` to actions; of the `N` policies each acts in `R / N` in a row."""
        split = jax.tree.map(lambda x: x.reshape(system.num_opponents, -1, *x.shape[1:]), obs)
        keys = keys.reshape(system.num_opponents, -1)
        found = jax.vmap(partial(sample_actions, system))(pool.policies, split, keys)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    env: Any = system.env
    return dataclasses.replace(system, env=env.seated(choose, pool.since))


def sample_actions(system: System, policy: Policy, obs: PyTree, keys: jax.Array) -> PyTree:
    """Return actions `[R, A...]` that a policy without memory samples for `obs` `[R, O...]`."""
    num = keys.shape[0]
    carry = system.algorithm.network.initial_carry(num)
    return act(system, policy, carry, obs, jnp.zeros(num, bool), keys)[1].env_action


def map_nodes(kind: type[Node], function: Callable[[Node], PyTree], tree: PyTree) -> PyTree:
    """Replace every node of a kind in a tree, such as the state of environments."""

    def one(node: PyTree) -> PyTree:
        return function(node) if isinstance(node, kind) else node

    return jax.tree.map(one, tree, is_leaf=lambda node: isinstance(node, kind))


def update_progress(agent: AgentState, env_state: PyTree) -> PyTree:
    """Set every `RunProgress` in the state of environments to the progress of the agent's run."""

    def now(node: RunProgress) -> RunProgress:
        share = agent.update / agent.hyperparameters.num_updates
        return RunProgress(share=jnp.full_like(node.share, share))

    return map_nodes(RunProgress, now, env_state)


def fill_pool(system: System, env_state: PyTree, keys: jax.Array) -> PyTree:
    """Give every `Pool` in the state of environments fresh starts, from a key of `rollout_keys`."""
    env: Any = system.env

    def filled(_: Pool) -> Pool:
        steps = system.rollout_length * system.num_envs // env.num_agents
        size = env.pool_size or math.ceil(steps / STEPS_PER_START)
        return Pool(starts=env.starts(random_bits.split(keys[0, 1], size)), taken=jnp.int32(0))

    return env_state if env.pool_size == 0 else map_nodes(Pool, filled, env_state)


def empty_pool(system: System, env_state: PyTree) -> tuple[PyTree, dict[str, jax.Array]]:
    """Empty every `Pool` after a rollout; return how many episodes began with a used start."""
    if system.env.pool_size == 0:
        return env_state, {}
    reused = []

    def empty(pool: Pool) -> Pool:
        reused.append(jnp.maximum(pool.taken - pool.size, 0))
        return Pool(starts=(), taken=())

    env_state = map_nodes(Pool, empty, env_state)
    return env_state, {"reused_starts": jnp.asarray(sum(reused), jnp.float32)}


def rollout_keys(system: System, key: jax.Array) -> jax.Array:
    """Return keys `[1 + T, 1 + B]`: row 0, whose first key continues the stream; a row per step."""
    return random_bits.split(key, (1 + system.rollout_length, 1 + system.num_envs))


def replay(
    system: System,
    agent: AgentState,
    acting: ActingState,
    acted: tuple[PyTree, PyTree, PyTree],
    steps: TimeStep,
) -> tuple[ActingState, Rollout]:
    """Return what `collect` returns, of steps `[T, B, ...]` that were taken outside of JAX.

    `acted` is as in `record`. The actions were drawn with `rollout_keys`.
    """

    def one(acting: ActingState, found: PyTree) -> tuple[ActingState, tuple[Transition, Ended]]:
        return record(system, agent, acting, *found)

    agent = begin_update(system, agent)
    key = rollout_keys(system, acting.key)[0, 0]
    acting, (transitions, ended) = packing.scan(one, acting, (acted, (), steps))
    return _rollout(dataclasses.replace(acting, key=key), transitions, ended, {})


def _rollout(
    acting: ActingState, steps: Transition, ended: Ended, reused: dict[str, jax.Array]
) -> tuple[ActingState, Rollout]:
    """Return the state after a rollout, and the rollout; `ended` is by step, `[T]`."""
    rollout = Rollout(
        steps=steps,
        obs=acting.obs,
        reset=acting.reset,
        carry=acting.carry,
        ended=jax.tree.map(jnp.sum, ended),
        reused_starts=reused,
    )
    return acting, rollout


def act_and_step(
    system: System, agent: AgentState, acting: ActingState, keys: jax.Array
) -> tuple[ActingState, tuple[Transition, Ended]]:
    """Take one step in `B` environments.

    Of the keys `[1 + B]` the first samples actions and the others go to the environments.
    """
    with jax.named_scope("act"):
        now = acting.carry, acting.obs, acting.reset
        carry, acted = act(system, agent.policy, *now, keys[0])
    with jax.named_scope("environment"), precision("highest"):
        env_state, step = system.env.step(keys[1:], acting.env_state, acted.env_action)
    return record(system, agent, acting, (carry, acted.action, acted.extras), env_state, step)


def record(
    system: System,
    agent: AgentState,
    acting: ActingState,
    acted: tuple[PyTree, PyTree, PyTree],
    env_state: PyTree,
    step: TimeStep,
) -> tuple[ActingState, tuple[Transition, Ended]]:
    """Return the state of `B` environments after a step, its transition and the ended episodes.

    `acted` is the memory after the step, and `action` and `extras` of `ActorOutput`.
    """
    carry, action, extras = acted
    done = step.terminated | step.truncated
    ends = done if step.alive is None else done & step.alive
    episode_return = acting.episode_return + step.reward
    episode_length = acting.episode_length + 1
    counted = tallies.add(system.metrics, acting.tallies, step.metrics)
    found = tallies.results(system.metrics, counted)
    tells = {name: ends & ~jnp.isnan(x) for name, x in found.items()}
    discounted: PyTree = ()
    past = acting.discounted_return
    if system.normalize_rewards:
        discounted = step.reward + agent.hyperparameters.gamma * past
        # -1 if the other player moves next: the sum is from the view of who moves
        passed = discounted if step.sign is None else step.sign * discounted
        past = jnp.where(done, 0.0, passed)
    transition = Transition(
        obs=acting.obs,
        reset=acting.reset,
        carry=acting.carry,
        action=action,
        extras=extras,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        final_observation=step.final_observation,
        discounted_return=discounted,
        alive=step.alive,
        sign=step.sign,
    )
    acting = dataclasses.replace(
        acting,
        env_state=env_state,
        obs=step.obs,
        reset=done,
        carry=carry,
        episode_return=jnp.where(done, 0.0, episode_return),
        episode_length=jnp.where(done, 0, episode_length),
        discounted_return=past,
        tallies=jax.tree.map(lambda x: jnp.where(done, 0, x), counted),
    )
    ended = Ended(
        count=jnp.sum(ends, dtype=jnp.int32),
        episode_return=jnp.sum(jnp.where(ends, episode_return, 0.0)),
        episode_length=jnp.sum(jnp.where(ends, episode_length, 0)),
        metrics={name: jnp.sum(jnp.where(tells[name], x, 0.0)) for name, x in found.items()},
        told={name: jnp.sum(x, dtype=jnp.float32) for name, x in tells.items()},
    )
    return acting, (transition, ended)


def state_values(
    system: System, policy: Policy, rollout: Rollout, value: Callable[[Any], jax.Array]
) -> tuple[Any, jax.Array, jax.Array]:
    """Return the network's outputs, the values and the values of the true successors, `[T, B]`.

    `value` maps the network's output to values `[L, S]`. Values may have more axes at the end. The
    network is applied once to the stored observations.
    """
    with jax.named_scope("values"):
        output = unroll_again(system, policy, rollout)
        values = value(output)
    return output, values, next_values(system, policy, rollout, values, value)


def unroll_again(system: System, policy: Policy, rollout: Rollout) -> Any:
    """Return the network's outputs for the stored observations, `[T, B, ...]`."""
    steps = rollout.steps

    def look(carry: PyTree, seen: tuple[PyTree, jax.Array]) -> tuple[PyTree, Any]:
        return unroll(system, policy, carry, *seen)

    start = jax.tree.map(lambda x: x[0], steps.carry)
    seen = steps.obs, steps.reset
    return sequences.scan_chunks(look, start, seen, system.num_value_chunks)[1]


def next_values(
    system: System,
    policy: Policy,
    rollout: Rollout,
    values: jax.Array,
    value: Callable[[Any], jax.Array],
) -> jax.Array:
    """Return the values of the true successors, `[T, B]`, given the values of the stored steps.

    `value` is as in `state_values`; only the last observation and truncated ones are given to it,
    so it may sample actions. The successor of a step is the next observation. At a
    truncation it is `final_observation`, which is evaluated with the memory after that step, in a
    branch that runs only if some step was truncated.
    """
    steps, chunks = rollout.steps, system.num_value_chunks

    def bootstrap(
        truncated: jax.Array, next_value: jax.Array, after: PyTree, final_observation: PyTree
    ) -> jax.Array:
        obs, reset = sequences.cut((final_observation, jnp.zeros_like(truncated)), 1)
        final = unroll(system, policy, sequences.first(after, 1), obs, reset)[1]
        here = truncated.reshape(*truncated.shape, *(1,) * (next_value.ndim - truncated.ndim))
        return jnp.where(here, value(final).reshape(next_value.shape), next_value)

    def bootstrap_some(_: tuple[()], seen: PyTree) -> tuple[tuple[()], jax.Array]:
        some, *given = seen
        return (), jax.lax.cond(some[0], bootstrap, lambda _, next_value, *__: next_value, *given)

    with jax.named_scope("values"):
        last_obs = jax.tree.map(lambda x: x[None], rollout.obs)
        last = unroll(system, policy, rollout.carry, last_obs, rollout.reset[None])[1]
        next_value = jnp.concatenate([values[1:], value(last)])
        truncated = steps.truncated & ~steps.terminated
        # Each device takes its own branch, so only update batches must agree
        mapped = tuple(axis for axis in system.axes if axis == BATCH_AXIS)
        some = any_over(mapped, truncated.reshape(chunks, -1), axis=1)
        after = jax.tree.map(
            lambda stored, last: jnp.concatenate([stored[1:], last[None]]),
            steps.carry,
            rollout.carry,
        )
        seen = some, truncated, next_value, after, steps.final_observation
        _, next_value = sequences.scan_chunks(bootstrap_some, (), seen, chunks)
    return next_value


def zero_steps(system: System, lead: tuple[int, ...]) -> TimeStep:
    """Return what environments would return for steps `lead`, all zeros."""
    obs = zeros(system.env.observation_space, lead)
    flag = jnp.zeros(lead, bool)
    reward = jnp.zeros(lead, jnp.float32)
    return TimeStep(
        obs=obs,
        final_observation=obs,
        reward=reward,
        terminated=flag,
        truncated=flag,
        metrics=dict.fromkeys(system.metrics, reward),
        alive=flag if system.env.pads else None,
    )
