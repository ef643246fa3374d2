"""The environment adapter: spaces, dtypes, ends of episodes, true successors, refusals."""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import envs
from jaxppo.config import ConfigError, EnvConfig
from jaxppo.types import Box, Discrete, Space, TimeStep

NEEDS_DOWNLOAD = {"MNISTBandit-bsuite"}


def make(name: str, **params: Any) -> Any:
    return envs.make(EnvConfig(name=name, params=params))


def custom(target: str, **params: Any) -> Any:
    return envs.make(EnvConfig(name=None, target=target, params=params))


def random_actions(env: Any, num: int) -> Any:
    def draw(space: Space) -> np.ndarray:
        if isinstance(space, Discrete):
            return np.arange(num, dtype=np.int32) % space.num_values
        return np.zeros((num, *space.shape), space.dtype)

    return jax.tree.map(draw, env.action_space, is_leaf=lambda s: isinstance(s, Space))


@pytest.mark.parametrize("name", sorted(set(gymnax.registered_envs) - NEEDS_DOWNLOAD))
def test_every_registered_environment_keeps_the_contract(name: str) -> None:
    env = make(name)
    keys = jax.random.split(jax.random.key(0), 3)
    state, obs = jax.jit(env.reset)(keys)
    step_fn = jax.jit(env.step)
    next_state, step = step_fn(keys, state, random_actions(env, 3))
    assert isinstance(step, TimeStep)
    for flags in (step.terminated, step.truncated):
        assert (flags.shape, flags.dtype) == ((3,), bool)
    assert (step.reward.shape, step.reward.dtype) == ((3,), np.float32)

    def check(space: Space, x: Any) -> None:
        shape, dtype = ((), "int32") if isinstance(space, Discrete) else (space.shape, space.dtype)
        assert (x.shape, x.dtype.name) == ((3, *shape), dtype)

    for seen in (obs, step.obs, step.final_observation):
        jax.tree.map(check, env.observation_space, seen, is_leaf=lambda s: isinstance(s, Space))
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, next_state)]
    assert shapes[0] == shapes[1]
    assert env.time_limit is not None
    assert env.time_limit >= 1
    again_state, again = step_fn(keys, state, random_actions(env, 3))
    for one, other in zip(
        jax.tree.leaves((next_state, step)), jax.tree.leaves((again_state, again)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_cartpole_at_both_ends_says_both() -> None:
    env = make("CartPole-v1", max_steps_in_episode=1)
    state, _ = env.reset(jax.random.split(jax.random.key(0), 2))
    state = state.replace(theta=jnp.array([0.0, 2 * env.params.theta_threshold_radians]))
    _, step = env.step(jax.random.split(jax.random.key(1), 2), state, jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(step.truncated, [True, True])
    np.testing.assert_array_equal(step.terminated, [False, True])


def test_cartpole_that_falls_early_is_terminated_only() -> None:
    env = make("CartPole-v1", max_steps_in_episode=2)
    state, _ = env.reset(jax.random.split(jax.random.key(0), 1))
    state = state.replace(theta=jnp.array([2 * env.params.theta_threshold_radians]))
    _, step = env.step(jax.random.split(jax.random.key(1), 1), state, jnp.zeros(1, jnp.int32))
    assert (bool(step.terminated[0]), bool(step.truncated[0])) == (True, False)


def test_truncation_returns_the_true_successor_and_a_fresh_observation() -> None:
    env = make("Pendulum-v1", max_steps_in_episode=1)
    keys = jax.random.split(jax.random.key(0), 4)
    state, _ = env.reset(keys)
    after, step = env.step(keys, state, jnp.full((4, 1), 2.0))
    assert not step.terminated.any()
    assert step.truncated.all()
    np.testing.assert_array_equal(after.time, 0)
    assert not np.any(np.all(step.obs == step.final_observation, axis=-1))
    theta, velocity = (np.asarray(x, np.float64) for x in (state.theta, state.theta_dot))
    # Pendulum's equations by hand: g = 10, m = l = 1, dt = 0.05, torque 2.
    velocity = np.clip(velocity + (15.0 * np.sin(theta) + 3.0 * 2.0) * 0.05, -8, 8)
    theta = theta + velocity * 0.05
    expected = np.stack([np.cos(theta), np.sin(theta), velocity], -1)
    np.testing.assert_allclose(step.final_observation, expected, rtol=1e-4, atol=1e-5)


def test_a_claimed_data_type_gives_way_to_the_real_one() -> None:
    assert make("Catch-bsuite").observation_space == Box((10, 5), "float32", 0.0, 1.0)


def test_bounds_are_per_element_where_they_differ() -> None:
    space = make("MountainCarContinuous-v0").observation_space
    assert np.asarray(space.low).shape == (2,)
    hash(space)


def test_dict_observations_and_discrete_leaves() -> None:
    env = custom("envs.Echo")
    assert env.observation_space == {
        "count": Box((2,), "int32", 0.0, 9.0),
        "shown": Discrete(3),
    }


def test_parameters_are_bound() -> None:
    assert make("CartPole-v1", max_steps_in_episode=17).time_limit == 17


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"name": "CartPoel-v1"}, ["env.name=CartPoel-v1", "CartPole-v1"]),
        ({"params": {"gravitty": 1}}, ["env.params.gravitty", "env.params.gravity"]),
        ({"kwargs": {"rows": 3}}, ["env.kwargs={'rows': 3}", "rows"]),
        ({"name": None, "target": "envs.Nothing"}, ["env.target=envs.Nothing", "no Nothing"]),
        ({"name": None, "target": "nowhere.Env"}, ["env.target=nowhere", "PYTHONPATH"]),
        ({"name": None, "target": "Env"}, ["env.target=Env", "import path"]),
        ({"name": None}, ["env.name", "env.target"]),
        ({"target": "envs.Clock"}, ["env.name", "env.target"]),
        ({"module": "no_such_module"}, ["env.module=no_such_module"]),
        ({"name": None, "target": "envs.Params"}, ["envs.Params"]),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        envs.make(EnvConfig(**settings))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("broken", ["Shape", "FiveValues", "Space"])
def test_an_environment_that_breaks_the_contract_is_refused(broken: str) -> None:
    with pytest.raises(ConfigError, match="env") as error:
        custom(f"broken_envs.{broken}")
    assert "\n" not in str(error.value)
