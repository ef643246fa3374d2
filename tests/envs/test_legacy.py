"""Environments for gymnax before 1.0: ends of the task and of time are told apart."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import contract
from jaxppo.extras.drawings import drawing


def old(name: str, **settings: Any) -> EnvConfig:
    return EnvConfig(name=None, target=f"old_envs.{name}", gymnax_legacy=True, **settings)


def played(config: EnvConfig, steps: int = 80) -> Any:
    keys = jax.random.split(jax.random.key(1), 6)
    run = jax.jit(partial(contract.play, envs.make(config), None, steps))
    return jax.tree.map(np.asarray, run(keys))


def test_an_old_copy_is_the_environment_of_gymnax_1() -> None:
    """The same transitions, with ends of both kinds, also where its parameters are drawn."""
    for settings in ({}, {"randomize": {"length": [0.4, 0.6]}}):
        more: Any = {"params": {"max_steps_in_episode": 15}, **settings}
        (obs, mine), (obs_new, new) = played(old("CartPole", **more)), played(EnvConfig(**more))
        np.testing.assert_array_equal(obs, obs_new)
        jax.tree.map(np.testing.assert_array_equal, mine, new)
        assert mine.truncated.any()
        assert mine.terminated.any()


def test_a_copy_of_the_base_class_truncates_at_its_limit_with_the_true_successor() -> None:
    env = envs.make(old("Chain"))
    assert env.time_limit == 5
    _, steps = played(old("Chain"))
    time, position = np.moveaxis(steps.final_observation, -1, 0)
    np.testing.assert_array_equal(steps.terminated, position == 3)
    np.testing.assert_array_equal(steps.truncated, time == 5)
    over = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.obs, np.where(over[..., None], 0, steps.final_observation))
    assert steps.truncated.any()
    assert all(each.findings + each.hints == [] for each in contract.check(old("Chain"), 64))


def test_it_is_drawn_with_its_own_state() -> None:
    env = envs.make(old("Chain"))
    drawn = drawing(env)
    state, obs = jax.tree.map(lambda x: x[0], env.reset(jax.random.split(jax.random.key(0), 1)))
    state = drawn.env.advance(jax.random.key(0), drawn.inner(state), 1)
    assert (drawn.draw(state, obs) == 1).all()


def test_a_limit_that_done_does_not_hold_is_none() -> None:
    """Gymnax's default of one step is not a limit."""
    assert envs.make(old("Endless")).time_limit is None
    _, steps = played(old("Endless"))
    assert not (steps.truncated & ~steps.terminated).any()


def said(config: EnvConfig, steps: int = 8) -> str:
    """What is wrong or doubted, but for ends that were not seen."""
    checks = contract.check(config, steps)
    lines = [x for each in checks for x in each.findings or each.hints if "not checked" not in x]
    return " | ".join(lines)


ASKS = "env.gymnax_legacy=true runs it"


@pytest.mark.parametrize(
    "name, asks", [("Chain", True), ("CartPole", True), ("Branches", False), ("FiveValues", False)]
)
def test_errors_name_the_setting_where_it_helps(name: str, asks: bool) -> None:
    """And those that it would not mend say what would."""
    config = EnvConfig(name=None, target=f"old_envs.{name}")
    with pytest.raises(ConfigError) as error:
        envs.make(config)
    for words in (str(error.value), said(config)):
        assert (ASKS in words) == asks
        assert ("legacy" in words) == asks
        assert ("jnp.where" in words) == (name == "Branches")


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", ["Fixed", "Longer"])
def test_a_limit_that_is_a_number_in_the_code_is_doubted(name: str) -> None:
    """By the check and by a run, also where no episode is as long as that."""
    assert "params.max_steps_in_episode" in said(old(name), 2)
    assert any("max_steps_in_episode" in line for line in contract.glance(old(name)))
    for right in ("Chain", "CartPole", "Endless"):
        assert contract.glance(old(right)) == []


@pytest.mark.long_but(1)
@pytest.mark.parametrize("target, steps", [("envs.Clock", 16), ("envs.Clock", 2)])
def test_a_class_of_gymnax_1_is_told_to_leave_the_setting_out(target: str, steps: int) -> None:
    config = EnvConfig(name=None, target=target, gymnax_legacy=True)
    assert re.search("leave .*out", said(config, steps))
    assert any(re.search("leave .*out", line) for line in contract.glance(config))
    assert said(dataclasses.replace(config, gymnax_legacy=False), 16) == ""
