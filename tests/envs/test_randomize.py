"""Parameters of environments that are drawn or change: values, keys, evaluations."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import alone, build, small_config
from rollouts import rollout

from jaxppo import envs
from jaxppo.algorithms import acting, evaluation, spine
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.gymnax import GymnaxEnvironment, Randomized
from jaxppo.envs.ranges import Range, ranges
from jaxppo.extras.drawings import drawing
from jaxppo.launch.composing import compose
from jaxppo.types import LearnerState, RunProgress, System

WEIGHT, COUNT = 2, 3  # entries of the observation of `envs.Shown`


def shown(**settings: Any) -> EnvConfig:
    return EnvConfig(name=None, target="envs.Shown", **settings)


def seen(env: Any, num_envs: int, num_steps: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """What the policy sees `[T + 1, B, O]`, which of these start an episode, and the steps."""
    first, steps = rollout(env, np.zeros((num_steps, num_envs), np.int32))
    over = steps.terminated | steps.truncated
    starts = np.concatenate([np.ones((1, num_envs), bool), over])
    return np.concatenate([first[None], steps.obs]), starts, steps


@pytest.mark.parametrize(
    ("progress", "low", "high"),
    [(0.0, 9.8, 9.8), (0.125, 9.35, 10.35), (0.5, 8.0, 12.0), (1.0, 8.0, 12.0)],
)
def test_bounds_move_linearly_over_a_share_of_the_run(
    progress: float, low: float, high: float
) -> None:
    bounds = Range(start=(9.8, 9.8), end=(8.0, 12.0), share=0.5)
    draws = jnp.array([0.0, 0.5, 1.0 - 2**-24])
    found = bounds.value(draws, jnp.float32(progress))
    np.testing.assert_allclose(found, [low, (low + high) / 2, high], rtol=1e-6)
    if progress >= 0.5:
        assert found.max() <= 12


def test_integers_between_bounds_are_equally_likely() -> None:
    draws = jnp.arange(4096) / 4096
    found = Range(start=(2, 5), end=(2, 5), whole=True).value(draws, jnp.float32(0))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(np.bincount(found), [0, 0, 1024, 1024, 1024, 1024])
    late = Range(start=(1, 1), end=(9, 9), share=0.5, whole=True).value(draws, jnp.float32(0.25))
    np.testing.assert_array_equal(np.unique(late), [5])


def test_each_episode_draws_its_own_values() -> None:
    env = envs.make(shown(randomize={"weight": [8, 12], "count": [2, 5]}))
    obs, starts, steps = seen(env, 64, 200)
    weight, time, count = obs[..., WEIGHT], steps.final_observation[..., 0], obs[..., COUNT]
    same = weight[1:] == weight[:-1]
    np.testing.assert_array_equal(same, ~starts[1:])  # constant within an episode, new after it
    np.testing.assert_array_equal(steps.reward, weight[:-1])  # the step has what the reset drew
    np.testing.assert_array_equal(steps.truncated, time == count[:-1])  # of its own length
    assert env.time_limit == 5
    drawn, opening = weight[starts], obs[starts][:, 1]
    assert np.unique(drawn).size > 0.99 * drawn.size > 3000
    assert drawn.min() >= 8
    assert drawn.max() <= 12
    assert abs(drawn.mean() - 10) < 4 * 4 / np.sqrt(12 * drawn.size)
    quantiles = np.quantile(drawn, [0.1, 0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose(quantiles, [8.4, 9.0, 10.0, 11.0, 11.6], atol=0.15)
    # Short episodes are over-represented among those that start in a given time, so: the first
    _, whole = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 4096))
    shares = np.bincount(np.asarray(whole)[:, COUNT].astype(int)) / 4096
    np.testing.assert_allclose(shares, [0, 0, *[0.25] * 4], atol=0.03)
    related = np.corrcoef([drawn, count[starts], opening])  # the last is of the reset's own numbers
    assert np.abs(related - np.eye(3)).max() < 0.07


def test_neighbours_and_later_episodes_are_independent() -> None:
    obs, starts, _ = seen(envs.make(shown(randomize={"weight": [8, 12]})), 64, 300)
    weight = obs[..., WEIGHT][starts.all(1)]  # episodes of all are 3 steps long
    assert weight.shape == (101, 64)
    for one, other in ((weight[1:], weight[:-1]), (weight[:, 1:], weight[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05


def test_each_environment_keeps_what_it_drew() -> None:
    env = envs.make(shown(randomize={"weight": [8, 12]}, randomize_per="environment"))
    obs, starts, _ = seen(env, 64, 50)
    assert starts[1:].any()
    weight = obs[..., WEIGHT]
    np.testing.assert_array_equal(weight, np.broadcast_to(weight[0], weight.shape))
    assert np.unique(weight[0]).size == 64


def test_shared_starts_share_their_values() -> None:
    randomize = {"weight": [8, 12]}
    obs, _, steps = seen(
        envs.make(shown(randomize=randomize, resets="optimistic", reset_ratio=4)), 8, 30
    )
    weight = obs[..., WEIGHT]
    np.testing.assert_array_equal(steps.reward, weight[:-1])
    _, once = np.unique(weight[3], return_counts=True)
    np.testing.assert_array_equal(once, [4, 4])


def test_numbers_have_the_type_of_the_default() -> None:
    fixed = {"randomize_evaluation": "fixed"}
    config = shown(randomize={"weight": [8, 12.5]}, params={"weight": 10, "count": 4.0}, **fixed)
    env = envs.make(config)
    assert (repr(env.params.weight), repr(env.params.count)) == ("10.0", "4")
    _, obs = env.reset(jax.random.split(jax.random.key(0), 64))
    assert np.unique(obs[:, WEIGHT] % 1).size == 64


def test_a_whole_default_of_a_float_is_a_float() -> None:
    @dataclasses.dataclass(frozen=True)
    class Params:
        length: float = 1
        mass: "float" = 2
        count: int = 3

        gravity: Any = 10

    given = {"length": np.float32(1.5), "mass": np.int64(3), "count": 4.0, "gravity": 9.8}
    found = envs.replace_params("E", Params(), given)
    assert repr((found.length, found.mass, found.count)) == "(1.5, 3.0, 4)"
    assert found.gravity == 9.8
    drawn = ranges("E", Params(), EnvConfig(randomize={"length": [0.5, 2], "count": [1, 3]}))
    assert (drawn["length"].whole, drawn["count"].whole) == (False, True)


@pytest.mark.parametrize("per", ["episode", "environment"])
def test_values_that_do_not_vary_step_bit_for_bit_as_fixed_ones(per: str) -> None:
    config = shown(params={"weight": 7.3, "count": 4}, randomize_per=per)
    fixed = envs.make(config)
    equal = envs.make(shown(randomize={"weight": [7.3, 7.3]}, params={"count": 4}))
    assert type(fixed) is type(equal) is GymnaxEnvironment
    assert fixed.params == equal.params
    same = {"weight": Range(start=(7.3,) * 2, end=(7.3,) * 2)}
    same["count"] = Range(start=(4, 4), end=(4, 4), whole=True)
    drawn = Randomized("drawn", fixed.env, fixed.env.default_params, config, same)
    actions = np.zeros((30, 8), np.int32)
    pair = rollout(drawn, actions), rollout(fixed, actions)
    jax.tree.map(np.testing.assert_array_equal, *pair)


def begun(**env: Any) -> tuple[System, LearnerState]:
    """A run of 4 updates that has not begun."""
    system, state, _ = build(small_config(env={"target": "envs.Shown", **env}))
    return alone(system, state)


@pytest.mark.long
def test_curriculum_follows_the_updates() -> None:
    """Episodes have 3 steps, rollouts 8: the last episodes of an update began during it.

    The environment is below others, which show it in another way.
    """
    curriculum = {"weight": {"start": 5, "end": 9, "share": 0.5}, "count": {"start": 3, "end": 3}}
    system, state = begun(curriculum=curriculum, mask=[0], extras=["last_reward"])
    update = jax.jit(lambda state: spine.update(system, state)[0])
    for value in (5.0, 5.0, 7.0, 9.0, 9.0):
        inner = state.acting.env_state.inner
        np.testing.assert_array_equal(inner.values["weight"], np.full(4, value, np.float32))
        state = update(state)


def test_bounds_of_a_curriculum_widen_about_the_same_draws() -> None:
    moves = {"weight": {"start": [10, 10], "end": [8, 12]}}
    env = envs.make(shown(curriculum=moves, randomize_per="environment"))
    keys = jax.random.split(jax.random.key(0), 4)
    state, _ = jax.jit(env.reset)(keys)
    draws, step = np.asarray(state.draws)[:, 0], jax.jit(env.step)
    assert np.unique(draws).size == 4
    for share in (0.0, 0.25, 0.5, 1.0):
        state = dataclasses.replace(state, progress=RunProgress(share=jnp.full(4, share)))
        for _ in range(3):  # an episode
            state, _ = step(keys, state, jnp.zeros(4, jnp.int32))
        wanted = 10 - 2 * share + 4 * share * draws
        np.testing.assert_allclose(state.values["weight"], wanted, rtol=1e-6)


@pytest.mark.long
def test_seeds_and_update_batches_draw_for_themselves() -> None:
    env = {"target": "envs.Shown", "randomize": {"weight": [8, 12]}}
    states = [
        build(small_config(env=env, arch={"update_batch_size": 2, "seed": seed}))[1]
        for seed in (42, 43)
    ]
    values = [np.asarray(x.acting.env_state.values["weight"]).ravel() for x in states]
    assert np.unique(values).size == sum(x.size for x in values)


def evaluated(system: System, state: LearnerState, num: int) -> np.ndarray:
    keys = evaluation.episode_keys(jax.random.key(3), np.arange(num))
    play = jax.jit(lambda policy, keys: evaluation.evaluate(system, policy, keys))
    return np.asarray(play(state.agent.policy, keys).returns)


@pytest.mark.long
def test_evaluations_draw_for_each_episode_from_its_own_key_at_the_end_of_a_curriculum() -> None:
    system, state = begun(curriculum={"weight": {"start": 1, "end": [8, 12]}})
    np.testing.assert_array_equal(state.acting.env_state.values["weight"], np.ones(4))
    returns = evaluated(system, state, 64)
    assert np.unique(returns).size == 64
    assert returns.min() >= 3 * 8
    assert returns.max() <= 3 * 12
    np.testing.assert_array_equal(evaluated(system, state, 16), returns[:16])


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({"randomize": {"weight": [8, 12]}}, 2.0),
        ({"randomize": {"weight": [8, 12]}, "params": {"weight": 6.5}}, 6.5),
        ({"curriculum": {"weight": {"start": 1, "end": [8, 12]}}}, 2.0),
        ({"curriculum": {"weight": {"start": 1, "end": 9}}}, 9.0),
    ],
)
def test_fixed_evaluations_have_the_default_values(settings: Any, weight: float) -> None:
    config = shown(randomize_evaluation="fixed", **settings)
    env = envs.make_for_evaluation(config, envs.make(config))
    assert type(env) is GymnaxEnvironment
    assert repr(env.params.weight) == repr(weight)


def test_switched_off_it_adds_nothing() -> None:
    system, state = begun(randomize_per="environment", randomize_evaluation="fixed")
    assert type(system.env) is GymnaxEnvironment
    assert system.evaluation_env is system.env
    traced = jax.make_jaxpr(acting.update_progress)(state.agent, state.acting.env_state)
    assert traced.eqns == []
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, RunProgress))
    assert not any(isinstance(node, RunProgress) for node in nodes)


def test_films_have_the_parameters_of_the_episode() -> None:
    env = envs.make(EnvConfig(name="Pendulum-v1", randomize={"l": [0.5, 2.0], "g": [5, 15]}))
    drawn = drawing(env)
    keys = jax.random.split(jax.random.key(0), 8)
    state, _ = jax.jit(env.reset)(keys)
    action = jnp.ones((8, 1))
    after = jax.jit(jax.vmap(drawn.env.advance))(keys, drawn.inner(state), action)
    jax.tree.map(np.testing.assert_array_equal, after, jax.jit(env.step)(keys, state, action)[0])
    view, _ = drawn.env.view(jax.tree.map(lambda x: x[2], state))
    assert view.params.l == state.values["l"][2] != env.params.l == 1.0


def test_command_line_takes_them_whole_or_by_part() -> None:
    whole = ["env.randomize={g:[5,15]}", "env.curriculum={l:{start:0.5,end:1,share:0.3}}"]
    parts = ["env.randomize.g=[5,15]", "env.curriculum.l.start=0.5", "env.curriculum.l.end=1"]
    one, other = (
        compose("ff_ppo", ["env=pendulum", *given]).env
        for given in (whole, [*parts, "env.curriculum.l.share=0.3"])
    )
    assert one == other
    assert one.randomize == {"g": [5, 15]}
    assert one.curriculum == {"l": {"start": 0.5, "end": 1, "share": 0.3}}
