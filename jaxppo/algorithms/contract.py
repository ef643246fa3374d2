"""The contract of an algorithm, checked on shapes when a user's own is built."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jaxppo.algorithms.acting import act, replay, zero_steps
from jaxppo.algorithms.gradient_steps import select
from jaxppo.algorithms.metrics import leaves
from jaxppo.algorithms.spine import make_batch, new_agent, scale_rewards, with_optimizer
from jaxppo.config.fields import ConfigError
from jaxppo.config.messages import raised
from jaxppo.ops import tallies
from jaxppo.types import (
    ActingState,
    ActorOutput,
    Agent,
    AgentState,
    Hyperparameters,
    Rollout,
    System,
    zeros,
)


def check_algorithm(system: System, hyperparameters: Hyperparameters) -> None:
    """Trace the functions of an algorithm that every run calls, on a rollout of zeros.

    `ConfigError` unless they return what the spine needs. `system` is without mapped axes. The
    environment is not stepped: tracing it may take long, and simulators cannot be.
    """
    algorithm, key = system.algorithm, jax.random.key(0)

    def init(key: jax.Array) -> AgentState:
        agent = new_agent(system, hyperparameters, key)
        params = agent.policy.params
        _check_groups(algorithm, params, algorithm.groups(params), algorithm.rates(agent))
        return with_optimizer(system, agent)

    def choose(agent: AgentState, output: Any) -> None:
        found = algorithm.act(agent.policy, output, key)
        if not isinstance(found, ActorOutput):
            kind = type(found).__name__
            _refuse(algorithm, "act", f"must return jaxppo.types.ActorOutput, not {kind}")

    def learn(agent: AgentState, rollout: Any) -> None:
        agent, rollout = scale_rewards(system, agent, rollout)
        _check_targets(algorithm, rollout, algorithm.targets(system, agent, rollout))
        agent, batch, _ = make_batch(system, agent, rollout)
        num_sequences = jax.tree.leaves(batch.steps)[0].shape[1]
        indices = jnp.arange(num_sequences // system.num_minibatches)
        minibatch = select(system, agent, batch, indices)
        minibatch = algorithm.prepare(system, minibatch)
        _check_loss(algorithm, algorithm.loss(system, agent, agent.policy.params, minibatch))
        _check_finish(algorithm, algorithm.finish(system, agent, batch))

    try:
        agent = jax.eval_shape(init, key)
        jax.eval_shape(choose, agent, algorithm.network.example()[1])
        jax.eval_shape(learn, agent, jax.eval_shape(partial(_zero_rollout, system), agent, key))
    except ConfigError:
        raise
    except Exception as error:  # a user's functions may raise anything
        raise ConfigError(f"{_name(algorithm)}: {raised(error)}; see docs/algorithms.md") from error


def _zero_rollout(system: System, agent: AgentState, key: jax.Array) -> Rollout:
    """Return a rollout whose observations and rewards are zeros."""
    length, num = system.rollout_length, system.num_envs
    none = jnp.zeros(num, jnp.float32)
    acting = ActingState(
        env_state=(),
        obs=zeros(system.env.observation_space, (num,)),
        reset=jnp.ones(num, bool),
        carry=system.algorithm.network.initial_carry(num),
        episode_return=none,
        episode_length=jnp.zeros(num, jnp.int32),
        discounted_return=none,
        key=key,
        tallies=tallies.init(system.metrics, (num,)),
    )
    carry, acted = act(system, agent.policy, acting.carry, acting.obs, acting.reset, key)
    every = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (length, *x.shape)), (carry, acted.action, acted.extras)
    )
    return replay(system, agent, acting, every, zero_steps(system, (length, num)))[1]


def _check_groups(
    algorithm: Any, parts: Iterable[str], groups: dict[str, str], rates: dict[str, Any]
) -> None:
    """Each part of the parameters needs a group, and each group a rate."""
    known = set(algorithm.group_names)
    if missing := sorted(set(parts) - set(groups)):
        _refuse(algorithm, "groups", f"leaves out {missing[0]}, a part of the parameters")
    if unknown := sorted(set(groups.values()) - known):
        _refuse(algorithm, "groups", f"returns {unknown[0]}, which is not in group_names")
    if set(rates) != known:
        wanted = f"group_names ({', '.join(algorithm.group_names)})"
        _refuse(algorithm, "rates", f"must return one for each of {wanted}, not {', '.join(rates)}")


def _check_targets(algorithm: Any, rollout: Any, found: Any) -> None:
    if not (isinstance(found, tuple) and len(found) == 3):
        _refuse(algorithm, "targets", "must return (agent, steps, target_metrics)")
    _check_agent(algorithm, "targets", found[0])
    if not all(hasattr(found[1], name) for name in ("obs", "reset")):
        _refuse(algorithm, "targets", "its steps must be a dataclass with fields obs and reset")
    for path, x in jax.tree.leaves_with_path(found[1]):
        if jnp.shape(x)[:2] != rollout.steps.reward.shape:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            _refuse(algorithm, "targets", f"{name} is {[*jnp.shape(x)]}, and must be [T, B, ...]")
    _check_metrics(algorithm, "targets", found[2], algorithm.target_metrics)


def _check_loss(algorithm: Any, found: Any) -> None:
    if not (isinstance(found, tuple) and len(found) == 2):
        _refuse(algorithm, "loss", "must return (loss, loss_metrics)")
    if jnp.shape(found[0]) != ():
        shape = [*jnp.shape(found[0])]
        _refuse(algorithm, "loss", f"returns a loss {shape}, and must return a scalar: average it")
    _check_metrics(algorithm, "loss", found[1], algorithm.loss_metrics)


def _check_finish(algorithm: Any, found: Any) -> None:
    if not (isinstance(found, tuple) and len(found) == 2):
        _refuse(algorithm, "finish", "must return (agent, finish_metrics)")
    _check_agent(algorithm, "finish", found[0])
    _check_metrics(algorithm, "finish", found[1], algorithm.finish_metrics)


def _check_agent(algorithm: Any, method: str, found: Any) -> None:
    if not isinstance(found, Agent):
        _refuse(algorithm, method, f"its agent is a {type(found).__name__}, not an AgentState")


def _check_metrics(algorithm: Any, method: str, found: Any, wanted: type) -> None:
    if not isinstance(found, wanted):
        kind = type(found).__name__
        _refuse(algorithm, method, f"its metrics are a {kind}, not a {wanted.__name__}")
    for name, _, x in leaves(found):
        if jnp.shape(x) != ():
            _refuse(algorithm, method, f"{name} is {[*jnp.shape(x)]}, and must be a scalar")


def _refuse(algorithm: Any, method: str, why: str) -> NoReturn:
    raise ConfigError(f"{_name(algorithm)}: {method}: {why}; see docs/algorithms.md")


def _name(algorithm: Any) -> str:
    return f"system.algorithm={type(algorithm).__module__}.{type(algorithm).__qualname__}"
