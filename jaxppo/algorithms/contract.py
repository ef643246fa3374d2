"""The contract of an algorithm, checked on shapes when a user's own is built."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act, replay, start_acting, zero_steps
from jaxppo.algorithms.gradient_steps import select
from jaxppo.algorithms.metrics import leaves
from jaxppo.algorithms.spine import make_batch, new_agent, scale_rewards, with_optimizer
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import raised
from jaxppo.types import ActorOutput, Agent, AgentState, Hyperparameters, Rollout, System, zeros


class _BrokenError(Exception):
    """What a method returns breaks the contract."""


def check_algorithm(system: System, hyperparameters: Hyperparameters) -> None:
    """Trace the functions of an algorithm that every run calls, on a rollout of zeros.

    `ConfigError` unless they return what the spine needs. `system` is without mapped axes. The
    environment is not stepped: tracing it may take long, and simulators cannot be.
    """
    key = jax.random.key(0)
    try:
        agent = jax.eval_shape(partial(_init, system, hyperparameters), key)
        output = system.algorithm.network.example()[1]
        jax.eval_shape(partial(_act, system, key), agent, output)
        rollout = jax.eval_shape(partial(_zero_rollout, system), agent, key)
        jax.eval_shape(partial(_learn, system), agent, rollout)
    except ConfigError:
        raise
    except Exception as error:  # a user's functions may raise anything
        kind = type(system.algorithm)
        why = str(error) if isinstance(error, _BrokenError) else raised(error)
        raise ConfigError(
            f"system.algorithm={kind.__module__}.{kind.__qualname__}: {why}; see docs/algorithms.md"
        ) from error


def _init(system: System, hyperparameters: Hyperparameters, key: jax.Array) -> AgentState:
    """Make an agent; each part of its parameters needs a group, and each group a rate."""
    algorithm, agent = system.algorithm, new_agent(system, hyperparameters, key)
    parts, known = agent.policy.params, set(algorithm.group_names)
    groups, rates = algorithm.groups(parts), algorithm.rates(agent)
    for part in parts:
        _require(part in groups, "groups", f"leaves out {part}, a part of the parameters")
    for group in groups.values():
        _require(group in known, "groups", f"returns {group}, which is not in group_names")
    names = f"group_names ({', '.join(algorithm.group_names)})"
    _require(set(rates) == known, "rates", f"must return one for each of {names}, not {[*rates]}")
    return with_optimizer(system, agent)


def _act(system: System, key: jax.Array, agent: AgentState, output: Any) -> None:
    _check("act", (system.algorithm.act(agent.policy, output, key),), action=ActorOutput)


def _learn(system: System, agent: AgentState, rollout: Rollout) -> None:
    algorithm = system.algorithm
    agent, rollout = scale_rewards(system, agent, rollout)
    targets = algorithm.targets(system, agent, rollout)
    _check("targets", targets, agent=Agent, steps=object, metrics=algorithm.target_metrics)
    steps, lead = targets[1], rollout.steps.reward.shape
    is_whole = hasattr(steps, "obs") and hasattr(steps, "reset")
    _require(is_whole, "targets", "its steps must be a dataclass with fields obs and reset")
    for path, x in jax.tree.leaves_with_path(steps):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        why = f"{name} is {[*jnp.shape(x)]}, and must be [T, B, ...]"
        _require(jnp.shape(x)[:2] == lead, "targets", why)
    agent, batch, _ = make_batch(system, agent, rollout)
    num_sequences = jax.tree.leaves(batch.steps)[0].shape[1]
    indices = jnp.arange(num_sequences // system.num_minibatches)
    minibatch = algorithm.prepare(system, select(system, agent, batch, indices))
    loss = algorithm.loss(system, agent, agent.policy.params, minibatch)
    _check("loss", loss, loss=object, metrics=algorithm.loss_metrics)
    _scalar("loss", "the loss", loss[0])
    finish = algorithm.finish(system, agent, batch)
    _check("finish", finish, agent=Agent, metrics=algorithm.finish_metrics)


def _zero_rollout(system: System, agent: AgentState, key: jax.Array) -> Rollout:
    """Return a rollout whose observations and rewards are zeros."""
    length, num = system.rollout_length, system.num_envs
    acting = start_acting(system, (), zeros(system.env.observation_space, (num,)), key)
    carry, acted = act(system, agent.policy, acting.carry, acting.obs, acting.reset, key)
    every = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (length, *x.shape)), (carry, acted.action, acted.extras)
    )
    return replay(system, agent, acting, every, zero_steps(system, (length, num)))[1]


def _check(method: str, returned: Any, **kinds: type) -> None:
    """A method must return a tuple of these kinds; metrics are scalars."""
    is_tuple = isinstance(returned, tuple) and len(returned) == len(kinds)
    _require(is_tuple, method, f"must return ({', '.join(kinds)})")
    for (name, kind), x in zip(kinds.items(), returned, strict=True):
        is_kind = isinstance(x, kind)
        _require(is_kind, method, f"its {name} is {type(x).__name__}, not {kind.__name__}")
        for metric, _, value in leaves(x) if name == "metrics" else ():
            _scalar(method, metric, value)


def _scalar(method: str, name: str, x: Any) -> None:
    _require(jnp.shape(x) == (), method, f"{name} is {[*jnp.shape(x)]}, and must be a scalar")


def _require(holds: bool, method: str, why: str) -> None:
    if not holds:
        raise _BrokenError(f"{method}: {why}")
