"""Minibatches in microbatches: the same numbers as at once, and how many there are."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from conftest import NETWORK, close, refused, small_config
from phases import add_targets, collect, collect_with_keys, compiled, with_steps

from jaxppo.algorithms import gradient_steps
from jaxppo.config.plan import plan
from jaxppo.runtime.programs import microbatches
from jaxppo.runtime.programs.build import build
from jaxppo.types import System

GRU = {"_target_": "jaxppo.networks.memory.Recurrent", "cell": "gru", "size": 8}
MEMORY = {**NETWORK, "actor_memory": GRU, "critic_memory": GRU}


@pytest.mark.long
def test_learning_in_parts_is_learning_at_once(small: Any) -> None:
    """Of a memory with burn-in, and of advantages standardised by minibatch."""
    lengths = {"sequence_length": 4, "burn_in": 1, "num_minibatches": 1}
    system, state = small(
        env__params={"terminates": True},
        network=MEMORY,
        system={"standardize_advantages": "minibatch", **lengths},
    )
    at_once = compiled(dataclasses.replace(system, num_microbatches=1, num_value_chunks=1))
    state, rollout, keys = collect_with_keys(at_once, state)
    in_parts = compiled(dataclasses.replace(system, num_microbatches=4, num_value_chunks=4))
    found = []
    for phases in (at_once, in_parts):
        agent, learnt = phases.learn(state.agent, rollout, keys)
        found.append((agent.policy.params, learnt.steps, learnt.targets, learnt.finish))
    close(found[1], found[0], rtol=2e-4, atol=1e-6)


@pytest.mark.long
def test_extremes_are_of_all_microbatches_and_losses_their_means(small: Any) -> None:
    system, state = small(system={"num_minibatches": 1})
    phases = compiled(system)
    state, rollout = collect(phases, state)
    agent, batch = add_targets(phases, state.agent, rollout)
    shifted = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    batch = with_steps(batch, log_prob=batch.steps.log_prob + shifted)
    whole = jax.jit(gradient_steps.gradient, static_argnums=0)(system, agent, batch)
    system = dataclasses.replace(system, num_microbatches=8)
    parts = jax.jit(gradient_steps.in_microbatches, static_argnums=0)(system, agent, batch)
    assert whole[2].ratio_max > 2 * whole[2].ratio_min
    close(whole, parts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "number, wanted, found",
    [
        *((8192, 2.8, 4), (8192, 1.0, 1), (8192, 0.1, 1), (12, 5, 6), (6, 99, 6), (1, 3, 1)),
        *((7, 2, 1), (7, 4, 7), (1499, 4.5, 1), (1499, 900, 1499), (2 * 1499, 4.5, 2)),
    ],
)
def test_microbatches_are_equal_and_about_as_many_as_wanted(
    number: int, wanted: float, found: int
) -> None:
    assert microbatches.near_divisor(number, wanted) == found


def built(**changes: Any) -> System:
    settings = small_config(**changes)
    return build(settings, plan(settings, 1))


@pytest.mark.parametrize("transitions, num", [(64, 1), (1024, 8)])
def test_about_128_transitions_stay_together_however_large_their_activations(
    transitions: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatches, "step_bytes", lambda *_: 10**6)
    rows = {"system": {"rollout_length": 1, "num_minibatches": 1}}
    steps = {"system": {"rollout_length": transitions, "num_minibatches": 1}}
    assert built(arch__total_num_envs=transitions, **rows).num_microbatches == num
    assert built(arch__total_num_envs=1, **steps).num_value_chunks == num


WIDE = {"arch__total_num_envs": 1024, "system": {"rollout_length": 128, "num_minibatches": 16}}
PRIME = {"arch__total_num_envs": 1499, "system": {"rollout_length": 1, "num_minibatches": 1}}


def widths(*sizes: int) -> dict[str, Any]:
    torso = {**NETWORK["actor_torso"], "layer_sizes": list(sizes)}
    return {**NETWORK, "actor_torso": torso, "critic_torso": torso}


@pytest.mark.parametrize(
    "changes, num, num_chunks",
    [
        ({"network": widths(256, 256), **WIDE}, 8, 128),  # 34 MB of activations a minibatch
        ({"network": widths(64, 64), **WIDE, "system__microbatch_size": 1000}, 16, 32),
        ({"network": MEMORY, **WIDE, "system__sequence_length": 4}, 1, 1),
        ({"system__microbatch_size": 3}, 4, 1),
        ({"network": widths(256, 256), **PRIME}, 1, 1),  # not a gradient of each row
    ],
)
def test_how_many(changes: dict[str, Any], num: int, num_chunks: int) -> None:
    system = built(**changes)
    assert (system.num_microbatches, system.num_value_chunks) == (num, num_chunks)


def test_a_size_that_would_leave_microbatches_of_a_row_is_refused() -> None:
    with refused("microbatch_size=128: "):
        built(**PRIME, system__microbatch_size=128)
