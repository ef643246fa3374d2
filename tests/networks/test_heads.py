"""A user's head may return any distribution of distrax that has an entropy and a mode."""

from typing import Any

import jax
import numpy as np
import pytest
from phases import compiled

from jaxppo.algorithms.acting import act
from jaxppo.config.fields import ConfigError
from jaxppo.types import Discrete

DISCRETE: dict[str, Any] = {}
CONTINUOUS = {"env": {"name": "Pendulum-v1", "target": None}}


def head(name: str, **settings: Any) -> dict[str, Any]:
    return {"network__actor_head": {"_target_": f"own_heads.{name}", **settings}}


@pytest.mark.parametrize(
    "changes",
    [
        {**DISCRETE, **head("Categorical")},
        pytest.param(
            {**CONTINUOUS, **head("Normal"), "system__objective": "penalty"}, marks=pytest.mark.long
        ),
        {**CONTINUOUS, **head("Multivariate")},
    ],
    ids=["categorical", "normal-kl", "multivariate"],
)
def test_an_update_learns_by_a_distribution_of_distrax(small: Any, changes: Any) -> None:
    system, state = small(**changes)
    phases = compiled(system)
    after, found = phases.update(state)
    assert np.isfinite(found.learn.steps.total_loss)
    assert found.learn.gradient_steps == system.epochs * system.num_minibatches
    before, moved = (jax.tree.leaves(s.agent.policy.params["actor_head"]) for s in (state, after))
    assert not all(map(np.array_equal, before, moved))


def test_every_environment_draws_with_its_own_key(small: Any) -> None:
    """Distributions of distrax that hold their batch's shape cannot be mapped over."""
    system, state = small(**CONTINUOUS, **head("Multivariate"))
    keys = jax.random.split(jax.random.key(0), system.num_envs)
    acting, policy = state.acting, state.agent.policy

    def actions(keys: Any) -> Any:
        return act(system, policy, acting.carry, acting.obs, acting.reset, keys)[1]

    drawn = actions(keys)
    wanted = jax.eval_shape(actions, jax.random.key(0))
    assert jax.tree.map(np.shape, drawn) == jax.tree.map(np.shape, wanted)
    swapped = actions(keys[::-1])
    assert not np.array_equal(drawn.action, swapped.action)
    assert np.all(np.abs(drawn.action - actions(None).action) < 8.0)  # standard deviations


def test_a_distribution_without_an_axis_of_categories_fits_two_actions(small: Any) -> None:
    system, _ = small(**DISCRETE, **head("Bernoulli"))
    assert system.env.action_space == Discrete(2)


@pytest.mark.parametrize(
    "changes, line",
    [
        (
            {**CONTINUOUS, **head("Squashed")},
            r"network.actor_head .*mode. is not implemented.*network/actor_head=auto",
        ),
        (
            {**CONTINUOUS, **head("Normal", broadcast=False), "system__objective": "penalty"},
            r"system.objective=penalty: .*\[L, S, \.\.\.\], or take objective=clip",
        ),
        (
            {**DISCRETE, **head("Categorical", more=5)},
            r"gives 7 categories, but .* takes Discrete\(num_values=2\); network/actor_head=auto",
        ),
        ({**DISCRETE, **head("Categorical", size=3)}, r"leave it out: '~network.actor_head.size'"),
    ],
    ids=["no mode", "not of each step", "more actions", "a setting that it has not"],
)
def test_what_cannot_be_used_is_refused_in_one_line(small: Any, changes: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        small(**changes)
    assert "\n" not in str(error.value)
