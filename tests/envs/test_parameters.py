"""Environments of jaxppo's interface: parameters, films, and spaces in either interface."""

import contextlib
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs import contract
from jaxppo.envs.forms import integers
from jaxppo.extras.drawings import drawing
from jaxppo.types import Box, Discrete, MultiDiscrete


def windy(**settings: Any) -> EnvConfig:
    return EnvConfig(name=None, target="own_envs.Windy", **settings)


def played(config: EnvConfig, steps: int = 40) -> Any:
    keys = jax.random.split(jax.random.key(1), 16)
    env = envs.make_for_evaluation(config, envs.make(config))
    run = jax.jit(partial(contract.play, env, None, steps))
    return jax.tree.map(np.asarray, run(keys)[1])


def test_with_parameters_it_steps_as_without() -> None:
    """`Count`: the same ends, also at the time limit, and the same successors."""
    plain = EnvConfig(name=None, target="own_envs.Count")
    mine, other = played(windy()), played(plain)
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
    times = [x.final_observation[..., 0] for x in (mine, other)]
    np.testing.assert_array_equal(*times)
    assert (mine.reward == 0.5).all()
    assert envs.make(windy()).time_limit == 4
    assert mine.truncated.any()
    assert all(each.findings + each.hints == [] for each in contract.check(windy(), 64))


def test_its_parameters_are_set_drawn_and_moved() -> None:
    assert (played(windy(params={"wind": 2})).reward == 2).all()
    drawn = played(windy(randomize={"wind": [1.0, 3.0]}, metrics=["wind"]))
    np.testing.assert_array_equal(drawn.reward, drawn.metrics["wind"])
    assert ((drawn.reward >= 1) & (drawn.reward <= 3)).all()
    assert len(np.unique(drawn.reward)) > 100
    over = drawn.terminated | drawn.truncated
    same = drawn.reward[1:] == drawn.reward[:-1]
    np.testing.assert_array_equal(same, ~over[:-1])  # an episode keeps its own
    moved = played(windy(curriculum={"wind": {"start": 1.0, "end": 3.0}}))
    assert (moved.reward == 3).all()  # of an evaluation: the end


@pytest.mark.parametrize(
    "config, wind",
    [
        (EnvConfig(name=None, target="own_envs.Filmed"), None),
        (windy(), 50),
        (windy(randomize={"wind": [1.0, 1.5]}), 100),
    ],
)
def test_it_is_filmed_with_the_parameters_of_the_episode(config: Any, wind: int | None) -> None:
    drawn = drawing(envs.make(config))
    state, obs = drawn.env.reset(jax.random.split(jax.random.key(0), 1))
    state, obs = jax.tree.map(lambda x: x[0], (drawn.inner(state), obs))
    picture = drawn.draw(drawn.env.advance(jax.random.key(0), state, 0), obs)[0, 0]
    if wind is None:
        assert (picture == 1).all()
    else:
        assert picture[1] == 1
        assert wind <= picture[0] <= 1.5 * wind


def test_spaces_of_jaxppo_fit_the_interface_of_gymnax() -> None:
    config = partial(EnvConfig, name=None, target="envs.Takes")
    for space in (Discrete(3), {"a": (MultiDiscrete((5, 3)), Box((2,), "float32", -1.0, 1.0))}):
        assert envs.make(config(kwargs={"space": space})).action_space == space
    copied = type("Discrete", (), {"n": 3})  # of a file that came with an environment
    assert envs.make(config(kwargs={"space": copied()})).action_space == Discrete(3)


def test_a_multi_discrete_of_one_axis_needs_no_shape() -> None:
    assert MultiDiscrete((5, 3)) == MultiDiscrete((5, 3), (2,))
    assert MultiDiscrete((5,)).shape == (1,)


def test_a_box_of_integers_is_counted_from_its_low() -> None:
    env: Any = envs.build(EnvConfig(library="gymnasium", name=None, target="simulators.Steered"))
    assert env.action_space == MultiDiscrete((8, 8), start=-2.0)
    with contextlib.closing(env.make(2)) as found:
        found.reset([0, 1], [0, 0])
        found.step([np.array([[0, 7], [3, 1]], np.int32)])
        np.testing.assert_array_equal(found.arrays.reward, [-15, 9])
    with pytest.raises(ConfigError, match="finite high"):
        integers("it", np.array([0]), np.array([np.inf]), simulated=True)
