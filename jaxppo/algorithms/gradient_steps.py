"""The gradient step, and what settings add to it.

Each addition is a function that `make_step` chooses once, so the plain step can be read alone.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxppo.algorithms import guards, memory
from jaxppo.algorithms.metrics import over_axes, over_first
from jaxppo.algorithms.optimizers import gradient_norms, optimizer
from jaxppo.algorithms.report import StepMetrics, no_step, reads_metrics
from jaxppo.ops.collectives import mean_over
from jaxppo.types import AgentState, Batch, PyTree, System

# (system, agent, minibatch `[L, M]`) -> gradients, loss, the algorithm's loss_metrics
Gradient = Callable[[System, AgentState, Batch], tuple[PyTree, jax.Array, Any]]
# (system, agent, batch, indices `[M]`) -> a minibatch `[L, M]`
Select = Callable[[System, AgentState, Batch, jax.Array], Batch]
# (system, agent, gradients, the algorithm's loss_metrics) -> the agent after an optimiser step
Apply = Callable[[System, AgentState, PyTree, Any], AgentState]


def gradient(system: System, agent: AgentState, minibatch: Batch) -> tuple[PyTree, jax.Array, Any]:
    """Return the gradient, the loss and its metrics on a minibatch `[L, M]`."""
    loss_of = partial(system.algorithm.loss, system, agent)
    slope = jax.value_and_grad(loss_of, has_aux=True)
    (loss, metrics), gradients = slope(agent.policy.params, minibatch)
    return gradients, loss, metrics


def select(system: System, agent: AgentState, batch: Batch, indices: jax.Array) -> Batch:
    """Select the sequences `indices` `[M]` of a batch."""
    del system, agent
    carry = jax.tree.map(lambda x: x[indices], batch.carry)
    return Batch(carry=carry, steps=jax.tree.map(lambda x: x[:, indices], batch.steps))


def apply_gradients(
    system: System, agent: AgentState, gradients: PyTree, metrics: Any
) -> AgentState:
    """Return the agent after a step of the optimiser."""
    del metrics
    params = agent.policy.params
    with jax.named_scope("optimizer"):
        transform = optimizer(system, agent)
        updates, opt_state = transform.update(gradients, agent.opt_state, params)
        params = optax.apply_updates(params, updates)
    policy = dataclasses.replace(agent.policy, params=params)
    return dataclasses.replace(agent, policy=policy, opt_state=opt_state)


def gradient_step(
    system: System,
    batch: Batch,
    agent: AgentState,
    indices: jax.Array,
    *,
    select: Select = select,
    gradient: Gradient = gradient,
    apply: Apply = apply_gradients,
) -> tuple[AgentState, StepMetrics]:
    """Take one optimiser step on the sequences `indices` `[M]`; average over `system.axes`.

    The algorithm's own metrics stay those of this device and update batch, unless `gradient`
    averages them.
    """
    with jax.named_scope("shuffle"):
        minibatch = select(system, agent, batch, indices)
    minibatch = system.algorithm.prepare(system, minibatch)
    with jax.named_scope("gradients"):
        gradients, loss, metrics = gradient(system, agent, minibatch)
    gradients, loss = mean_over(system.axes, (gradients, loss))
    norms = gradient_norms(system, agent.hyperparameters, gradients)
    agent = apply(system, agent, gradients, metrics)
    return agent, StepMetrics(total_loss=loss, loss=metrics, norms=norms)


def make_step(system: System) -> Callable[..., tuple[AgentState, Any]]:
    """Return `step(batch, agent, indices)`: `gradient_step` with what the settings add."""
    parts: dict[str, Any] = {}
    if system.burn_in:
        parts["select"] = after_burn_in
    if system.num_microbatches > 1:
        parts["gradient"] = in_microbatches
    if reads_metrics(system):
        parts["gradient"] = averaged(parts.get("gradient", gradient))
    if system.algorithm.adapts:
        parts["apply"] = after_adapting
    step: Callable[..., Any] = partial(gradient_step, system, **parts)
    return guards.unless_nonfinite(step, no_step(system)) if system.skip_nonfinite else step


def after_burn_in(system: System, agent: AgentState, batch: Batch, indices: jax.Array) -> Batch:
    """Select sequences without their first `burn_in` steps, which only make the memory."""
    minibatch = select(system, agent, batch, indices)
    with jax.named_scope("burn_in"):
        return memory.burn_in(system, agent, minibatch)


def in_microbatches(
    system: System, agent: AgentState, minibatch: Batch
) -> tuple[PyTree, jax.Array, Any]:
    """Return what `gradient` does, averaged over microbatches, one at a time.

    So the activations of each fit in the processor's cache.
    """
    num = system.num_microbatches

    def add_one(total: PyTree, part: Batch) -> tuple[PyTree, Any]:
        gradients, *found = gradient(system, agent, part)
        return jax.tree.map(jnp.add, total, gradients), found

    zero = jax.tree.map(jnp.zeros_like, agent.policy.params)
    total, (loss, found) = jax.lax.scan(add_one, zero, split(minibatch, num))
    return jax.tree.map(lambda x: x / num, total), jnp.mean(loss), over_first(found)


def averaged(gradient: Gradient) -> Gradient:
    """Decorate a gradient: average its metrics over `system.axes`."""

    def with_means(
        system: System, agent: AgentState, minibatch: Batch
    ) -> tuple[PyTree, jax.Array, Any]:
        gradients, loss, metrics = gradient(system, agent, minibatch)
        return gradients, loss, over_axes(system.axes, metrics)

    return with_means


def split(minibatch: Batch, num: int) -> Batch:
    """Split a minibatch into `num` microbatches: leaves are `[num, L, M / num, ...]`."""
    carry = jax.tree.map(lambda x: x.reshape(num, -1, *x.shape[1:]), minibatch.carry)

    def one(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], num, -1, *x.shape[2:]).swapaxes(0, 1)

    return Batch(carry=carry, steps=jax.tree.map(one, minibatch.steps))


def after_adapting(
    system: System, agent: AgentState, gradients: PyTree, metrics: Any
) -> AgentState:
    """Let the algorithm adapt to the metrics of the minibatch, then take the step."""
    agent = system.algorithm.adapt(agent, metrics)
    return apply_gradients(system, agent, gradients, metrics)
