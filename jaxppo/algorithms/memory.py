"""Recompute memories and targets before epochs, and burn-in."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax

from jaxppo.algorithms.acting import unroll
from jaxppo.ops import sequences
from jaxppo.types import AgentState, Batch, PyTree, Rollout, System


def make_refresh(system: System, rollout: Rollout) -> Callable[[AgentState, Batch], Batch]:
    """Return the function that makes the batch of an epoch."""
    if system.recompute_carries or system.recompute_targets:
        return partial(refresh_batch, system, rollout)
    return keep_batch


def keep_batch(agent: AgentState, batch: Batch) -> Batch:
    """Return the batch as the rollout gave it."""
    del agent
    return batch


def refresh_batch(system: System, rollout: Rollout, agent: AgentState, batch: Batch) -> Batch:
    """Return the batch with carries `[S, ...]` and targets `[L, S]` of the current parameters.

    `recompute_carries` and `recompute_targets` select what is recomputed. For both, the current
    parameters unroll the memory again from the start of the rollout.
    """
    every = 1 if system.recompute_targets else system.sequence_length
    carry, steps = batch.carry, batch.steps
    if jax.tree.leaves(rollout.steps.carry):
        last, carries = recompute_carries(system, agent, rollout, every)
        if system.recompute_carries:
            carry = sequences.first(carries, system.sequence_length // every)
        if system.recompute_targets:
            rollout = dataclasses.replace(
                rollout, carry=last, steps=dataclasses.replace(rollout.steps, carry=carries)
            )
    if system.recompute_targets:
        _, found, _ = system.algorithm.targets(system, agent, rollout)
        steps = system.algorithm.retarget(steps, sequences.cut(found, system.sequence_length))
    return Batch(carry=carry, steps=steps)


def recompute_carries(
    system: System, agent: AgentState, rollout: Rollout, every: int
) -> tuple[PyTree, PyTree]:
    """Unroll the memory of the current parameters from the start of the rollout.

    Return it after the last step, `[B, ...]`, and before every `every`-th step,
    `[T / every, B, ...]`.
    """

    def through(carry: PyTree, steps: tuple[PyTree, jax.Array]) -> tuple[PyTree, PyTree]:
        return unroll(system, agent.policy, carry, *steps)[0], carry

    start = jax.tree.map(lambda x: x[0], rollout.steps.carry)
    chunks = jax.tree.map(
        lambda x: x.reshape(-1, every, *x.shape[1:]), (rollout.steps.obs, rollout.steps.reset)
    )
    last, carries = jax.lax.scan(through, start, chunks)
    return last, carries


def burn_in(system: System, agent: AgentState, minibatch: Batch) -> Batch:
    """Use the first `burn_in` steps for the carry alone, without a gradient; return the rest.

    `burn_in` is above 0. The steps that are left are `[L - burn_in, M]`.

    Kapturowski et al. 2019 (R2D2, ICLR), section 3.
    """
    first = jax.tree.map(lambda x: x[: system.burn_in], minibatch.steps)
    rest = jax.tree.map(lambda x: x[system.burn_in :], minibatch.steps)
    carry, _ = unroll(system, agent.policy, minibatch.carry, first.obs, first.reset)
    return Batch(carry=carry, steps=rest)
