"""A user's head may return any distribution of distrax that has an entropy and a mode."""

from typing import Any

import jax
import numpy as np
import pytest
from phases import compiled

from jaxppo.algorithms.acting import act
from jaxppo.types import Discrete

CONTINUOUS = {"env": {"name": "Pendulum-v1", "target": None}}


def head(name: str, **settings: Any) -> dict[str, Any]:
    return {"network__actor_head": {"_target_": f"own_heads.{name}", **settings}}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {**CONTINUOUS, **head("Normal"), "system__objective": "penalty"},
        pytest.param(head("Categorical"), marks=pytest.mark.slow),
        pytest.param({**CONTINUOUS, **head("Multivariate")}, marks=pytest.mark.slow),
    ],
    ids=["normal-kl", "categorical", "multivariate"],
)
def test_an_update_learns_by_a_distribution_of_distrax(small: Any, changes: Any) -> None:
    system, state = small(**changes)
    phases = compiled(system)
    after, found = phases.update(state)
    assert np.isfinite(found.learn.steps.total_loss)
    assert found.learn.gradient_steps == system.epochs * system.num_minibatches
    before, moved = (jax.tree.leaves(s.agent.policy.params["actor_head"]) for s in (state, after))
    assert not all(map(np.array_equal, before, moved))


@pytest.mark.long
def test_every_environment_draws_with_its_own_key(small: Any) -> None:
    """Distributions of distrax that hold their batch's shape cannot be mapped over."""
    system, state = small(**CONTINUOUS, **head("Multivariate"))
    keys = jax.random.split(jax.random.key(0), system.num_envs)
    acting, policy = state.acting, state.agent.policy

    @jax.jit
    def actions(keys: Any) -> Any:
        return act(system, policy, acting.carry, acting.obs, acting.reset, keys)[1]

    drawn = actions(keys)
    wanted = jax.eval_shape(actions, jax.random.key(0))
    assert jax.tree.map(np.shape, drawn) == jax.tree.map(np.shape, wanted)
    swapped = actions(keys[::-1])
    assert not np.array_equal(drawn.action, swapped.action)
    assert np.all(np.abs(drawn.action - actions(None).action) < 8.0)  # standard deviations


@pytest.mark.long
def test_a_distribution_without_an_axis_of_categories_fits_two_actions(small: Any) -> None:
    system, _ = small(**head("Bernoulli"))
    assert system.env.action_space == Discrete(2)
