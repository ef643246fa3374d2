"""What `logger.details=true` adds to the metrics of an update, computed after its epochs.

Nothing of it is computed otherwise, and what is learnt does not depend on it.
"""

import dataclasses
from typing import Any

import jax

from jaxppo.algorithms import memory
from jaxppo.algorithms.metrics import GREATEST, NoMetrics, identity, metric, metrics, over_axes
from jaxppo.algorithms.optimizers import greatest_second_moment
from jaxppo.types import AgentState, Batch, System


@metrics
class Details:
    """Details of an update."""

    second_moment_max: jax.Array = metric(GREATEST)  # of Adam and its kin; 0 if there is none
    own: Any  # the algorithm's detail_metrics


def of_update(system: System, agent: AgentState, batch: Batch) -> Any:
    """Return the details of an update from the agent after its epochs and their batch `[L, S]`."""
    if not system.details:
        return NoMetrics()
    # Without this, the compiler could fuse these sums with those of learning, in another order
    params, batch = jax.lax.optimization_barrier((agent.policy.params, batch))
    agent = dataclasses.replace(agent, policy=dataclasses.replace(agent.policy, params=params))
    if system.burn_in:
        batch = memory.burn_in(system, agent, batch)
    own = over_axes(system.axes, system.algorithm.details(system, agent, batch))
    return Details(second_moment_max=greatest_second_moment(agent.opt_state), own=own)


def no_details(system: System) -> Any:
    """Return the details of no update."""
    if not system.details:
        return NoMetrics()
    return identity(Details, own=identity(system.algorithm.detail_metrics))
