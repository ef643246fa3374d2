"""Parameters of environments that are drawn or change: values, keys, evaluations, refusals."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import alone, build, small_config

from jaxppo import envs
from jaxppo.algorithms import acting, evaluation, spine
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.gymnax import GymnaxEnvironment, Randomized
from jaxppo.envs.ranges import Range, ranges
from jaxppo.extras.drawings import drawing
from jaxppo.launch.composing import compose
from jaxppo.types import LearnerState, RunProgress, System

WEIGHT, COUNT = 2, 3  # entries of the observation of `envs.Shown`


def shown(**settings: Any) -> EnvConfig:
    return EnvConfig(name=None, target="envs.Shown", **settings)


def play(env: Any, num_envs: int, num_steps: int, seed: int = 0) -> Any:
    """First observations, and all time steps `[T, B, ...]`."""
    keys = jax.random.split(jax.random.key(seed), (1 + num_steps, num_envs))

    @jax.jit
    def run(keys: jax.Array) -> Any:
        state, obs = env.reset(keys[0])

        def step(state: Any, keys: jax.Array) -> Any:
            return env.step(keys, state, jnp.zeros(num_envs, jnp.int32))

        return obs, jax.lax.scan(step, state, keys[1:])[1]

    first, steps = jax.tree.map(np.asarray, run(keys))
    return first, steps


def seen(env: Any, num_envs: int, num_steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What the policy sees, `[T + 1, B, O]`, and which of these start an episode."""
    first, steps = play(env, num_envs, num_steps, seed)
    over = steps.terminated | steps.truncated
    starts = np.concatenate([np.ones((1, num_envs), bool), over])
    return np.concatenate([first[None], steps.obs]), starts


@pytest.mark.parametrize(
    ("progress", "low", "high"),
    [(0.0, 9.8, 9.8), (0.125, 9.35, 10.35), (0.25, 8.9, 10.9), (0.5, 8.0, 12.0), (1.0, 8.0, 12.0)],
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
    obs, starts = seen(env, 64, 200)
    steps = play(env, 64, 200)[1]
    weight = obs[..., WEIGHT]
    same = weight[1:] == weight[:-1]
    np.testing.assert_array_equal(same, ~starts[1:])  # constant within an episode, new after it
    np.testing.assert_array_equal(steps.reward, weight[:-1])  # the step has what the reset drew
    drawn, count, opening = weight[starts], obs[starts][:, COUNT], obs[starts][:, 1]
    assert np.unique(drawn).size > 0.99 * drawn.size > 3000
    assert drawn.min() >= 8
    assert drawn.max() <= 12
    assert abs(drawn.mean() - 10) < 4 * 4 / np.sqrt(12 * drawn.size)
    quantiles = np.quantile(drawn, [0.1, 0.25, 0.5, 0.75, 0.9])
    np.testing.assert_allclose(quantiles, [8.4, 9.0, 10.0, 11.0, 11.6], atol=0.15)
    # Short episodes are over-represented among those that start in a given time, so: the first
    whole = seen(env, 4096, 1)[0][0, :, COUNT]
    np.testing.assert_allclose(
        np.bincount(whole.astype(int)) / 4096, [0, 0, *[0.25] * 4], atol=0.03
    )
    related = np.corrcoef([drawn, count, opening])  # the last is of the reset's own numbers
    assert np.abs(related - np.eye(3)).max() < 0.07


def test_numbers_have_the_type_of_the_default() -> None:
    fixed = {"randomize_evaluation": "fixed"}
    config = shown(randomize={"weight": [8, 12.5]}, params={"weight": 10, "count": 4.0}, **fixed)
    env = envs.make(config)
    assert (repr(env.params.weight), repr(env.params.count)) == ("10.0", "4")
    weight = seen(env, 64, 1)[0][0, :, WEIGHT]
    assert np.unique(weight % 1).size == 64
    moving = shown(curriculum={"weight": {"start": 1.5, "end": 3}})
    evaluated = envs.make_for_evaluation(moving, envs.make(moving))
    assert repr(evaluated.params.weight) == "3.0"


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


def test_episodes_last_as_their_own_parameters_say() -> None:
    env = envs.make(shown(randomize={"count": [2, 5]}))
    _, steps = play(env, 32, 100)
    time, count = steps.final_observation[..., 0], steps.final_observation[..., COUNT]
    np.testing.assert_array_equal(steps.truncated, time == count)
    assert not steps.terminated.any()
    assert env.time_limit == 5


def test_neighbours_and_later_episodes_are_independent() -> None:
    obs, starts = seen(envs.make(shown(randomize={"weight": [8, 12]})), 64, 300)
    weight = obs[..., WEIGHT][starts.all(1)]  # episodes of all are 3 steps long
    assert weight.shape == (101, 64)
    for one, other in ((weight[1:], weight[:-1]), (weight[:, 1:], weight[:, :-1])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05


def test_each_environment_keeps_what_it_drew() -> None:
    env = envs.make(shown(randomize={"weight": [8, 12]}, randomize_per="environment"))
    obs, starts = seen(env, 64, 50)
    assert starts[1:].any()
    weight = obs[..., WEIGHT]
    np.testing.assert_array_equal(weight, np.broadcast_to(weight[0], weight.shape))
    assert np.unique(weight[0]).size == 64


def test_shared_starts_share_their_values() -> None:
    randomize = {"weight": [8, 12]}
    env = envs.make(shown(randomize=randomize, resets="optimistic", reset_ratio=4))
    first, steps = play(env, 8, 30)
    weight = np.concatenate([first[None], steps.obs])[..., WEIGHT]
    np.testing.assert_array_equal(steps.reward, weight[:-1])
    _, once = np.unique(weight[3], return_counts=True)
    np.testing.assert_array_equal(once, [4, 4])


@pytest.mark.parametrize("per", ["episode", "environment"])
def test_values_that_do_not_vary_step_bit_for_bit_as_fixed_ones(per: str) -> None:
    config = shown(params={"weight": 7.3, "count": 4}, randomize_per=per)
    fixed = envs.make(config)
    assert type(fixed) is GymnaxEnvironment
    same = {"weight": Range(start=(7.3,) * 2, end=(7.3,) * 2)}
    same["count"] = Range(start=(4, 4), end=(4, 4), whole=True)
    params = fixed.env.default_params
    drawn = Randomized("drawn", fixed.env, params, config, same)
    jax.tree.map(np.testing.assert_array_equal, play(drawn, 8, 30), play(fixed, 8, 30))


def begun(**env: Any) -> tuple[System, LearnerState]:
    """A run of 4 updates that has not begun."""
    system, state, _ = build(small_config(env={"target": "envs.Shown", **env}))
    return alone(system, state)


def trained(**env: Any) -> list[LearnerState]:
    """The states after 0 to 4 updates."""
    system, state = begun(**env)
    update = jax.jit(lambda state: spine.update(system, state)[0])
    states = [state]
    for _ in range(4):
        states.append(update(states[-1]))
    return states


def test_equal_bounds_train_bit_for_bit_as_the_value() -> None:
    state = trained(params={"weight": 7.3})[-1]
    found = trained(randomize={"weight": [7.3, 7.3]})[-1]

    def numbers(x: jax.Array) -> np.ndarray:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    jax.tree.map(
        lambda one, other: np.testing.assert_array_equal(numbers(one), numbers(other)), found, state
    )


def test_curriculum_follows_the_updates() -> None:
    """Episodes have 3 steps, rollouts 8: the last episodes of an update began during it."""
    curriculum = {"weight": {"start": 5, "end": 9, "share": 0.5}, "count": {"start": 3, "end": 3}}
    states = [state.acting.env_state for state in trained(curriculum=curriculum)]
    for state, value in zip(states, (5.0, 5.0, 7.0, 9.0, 9.0), strict=True):
        np.testing.assert_array_equal(state.values["weight"], np.full(4, value, np.float32))


def test_bounds_of_a_curriculum_widen_about_the_same_draws() -> None:
    moving = {"weight": {"start": [10, 10], "end": [8, 12]}}
    settings = {"curriculum": moving, "randomize_per": "environment"}
    states = [state.acting.env_state for state in trained(**settings)][1:]
    draws = np.asarray(states[0].draws)[:, 0]
    for update, state in enumerate(states):
        half = 2 * update / 4
        wanted = 10 - half + 2 * half * draws
        np.testing.assert_allclose(state.values["weight"], wanted, rtol=1e-6)


def test_progress_is_found_below_other_layers() -> None:
    curriculum = {"weight": {"start": 5, "end": 9}}
    state = trained(curriculum=curriculum, mask=[0], extras=["last_reward"])[3]
    inner = state.acting.env_state.inner
    np.testing.assert_array_equal(inner.progress.share, np.full(4, 0.5, np.float32))
    np.testing.assert_array_equal(inner.values["weight"], np.full(4, 7.0, np.float32))


def test_seeds_and_update_batches_draw_for_themselves() -> None:
    env = {"target": "envs.Shown", "randomize": {"weight": [8, 12]}}
    state = build(small_config(env=env, arch__update_batch_size=2))[1]
    other = build(small_config(env=env, arch__update_batch_size=2, arch__seed=43))[1]
    values = [np.asarray(x.acting.env_state.values["weight"]).ravel() for x in (state, other)]
    assert np.unique(values).size == sum(x.size for x in values)


def evaluated(system: System, state: LearnerState, num: int) -> np.ndarray:
    keys = evaluation.episode_keys(jax.random.key(3), np.arange(num))
    play = jax.jit(lambda policy, keys: evaluation.evaluate(system, policy, keys))
    return np.asarray(play(state.agent.policy, keys).returns)


def test_evaluations_draw_for_each_episode_from_its_own_key() -> None:
    system, state = begun(randomize={"weight": [8, 12]})
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
    system, state = begun(randomize_evaluation="fixed", **settings)
    assert type(system.evaluation_env) is GymnaxEnvironment
    np.testing.assert_array_equal(evaluated(system, state, 8), np.full(8, 3 * weight))


def test_evaluations_are_at_the_end_of_a_curriculum() -> None:
    system, state = begun(curriculum={"weight": {"start": 1, "end": [8, 12]}})
    returns = evaluated(system, state, 64)
    assert returns.min() >= 3 * 8
    assert np.unique(returns).size == 64
    np.testing.assert_array_equal(state.acting.env_state.values["weight"], np.ones(4))


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
    state, _ = env.reset(keys)
    action = jnp.ones((8, 1))
    after = jax.vmap(drawn.env.advance)(keys, drawn.inner(state), action)
    jax.tree.map(np.testing.assert_array_equal, after, env.step(keys, state, action)[0])
    view, _ = drawn.env.view(jax.tree.map(lambda x: x[2], state))
    assert view.params.l == state.values["l"][2] != env.params.l == 1.0
    assert drawn.draw(jax.tree.map(lambda x: x[2], state), None).dtype == np.uint8


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


START = {"start": 5, "end": 9}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown": (
        {"randomize": {"wieght": [1, 2]}},
        ["env.randomize.wieght: envs.Shown has no such", "did you mean env.randomize.weight?"],
    ),
    "unknown of curriculum": (
        {"curriculum": {"wait": START}},
        ["did you mean env.curriculum.weight?"],
    ),
    "nested": ({"randomize": {"weight.x": [1, 2]}}, ["env.randomize.weight.x: ", "weight?"]),
    "a number": ({"randomize": {"weight": 3}}, ["env.randomize.weight=3", "[low, high]"]),
    "three": ({"randomize": {"weight": [1, 2, 3]}}, ["weight=[1, 2, 3]", "[low, high]"]),
    "text": ({"randomize": {"weight": ["a", 2]}}, ["env.randomize.weight=a: must be a number"]),
    "infinite": ({"randomize": {"weight": [0.0, float("inf")]}}, ["weight=inf", "finite"]),
    "turned": ({"randomize": {"weight": [3, 2]}}, ["weight=[3, 2]: low must be at most high"]),
    "a float": ({"params": {"count": 2.5}}, ["env.params.count=2.5: must be an integer"]),
    "a number for a flag": (
        {"params": {"loud": 1}},
        ["env.params.loud=1: must be true or false; envs.Shown has False"],
    ),
    "halves": ({"randomize": {"count": [1.5, 3]}}, ["count=1.5: must be an integer"]),
    "a flag": ({"randomize": {"loud": [0, 1]}}, ["only numbers", "loud of envs.Shown is bool"]),
    "a time limit": (
        {"randomize": {"max_steps_in_episode": [1, 9]}},
        ["env.randomize.max_steps_in_episode: the time limit is the same", "set env.params."],
    ),
    "two values": (
        {"randomize": {"weight": [1, 2]}, "params": {"weight": 3.0}},
        [
            "env.params.weight=3.0 and env.randomize.weight: no episode",
            "randomize_evaluation=fixed",
        ],
    ),
    "a value and a curriculum": (
        {"curriculum": {"weight": START}, "params": {"weight": 3.0}},
        ["env.params.weight=3.0 and env.curriculum.weight: no episode would use", "leave one"],
    ),
    "two ends": (
        {"randomize": {"weight": [8, 12]}, "curriculum": {"weight": START}},
        ["env.curriculum.weight.end=9 and env.randomize.weight=[8, 12]", "leave one"],
    ),
    "no start": ({"curriculum": {"weight": {"end": 3}}}, ["weight: has no start; it must be {"]),
    "no end": ({"curriculum": {"weight": {"start": 3}}}, ["weight: has no end; it must be {"]),
    "no dict": ({"curriculum": {"weight": 3}}, ["env.curriculum.weight=3: must be {start: "]),
    "a part": (
        {"curriculum": {"weight": {**START, "shares": 1}}},
        ["weight.shares: no such key; did you mean env.curriculum.weight.share?"],
    ),
    "a share": (
        {"curriculum": {"weight": {**START, "share": 2}}},
        ["weight.share=2.0", "at most 1"],
    ),
    "shared starts": (
        {"randomize": {"weight": [1, 2]}, "randomize_per": "environment", "resets": "optimistic"},
        ["env.randomize_per=environment", "set env.resets=each"],
    ),
    "cached starts": ({"randomize": {"weight": [1, 2]}, "resets": "cached"}, ["env.resets=cached"]),
    "own step": (
        {"target": None, "name": "DeepSea-bsuite", "randomize": {"unscaled_move_cost": [0, 1]}},
        ["DeepSea-bsuite has a step of its own", "define step_env and reset_env only"],
    ),
    "jaxppo's contract": (
        {"target": "own_envs.Count", "randomize": {"weight": [1, 2]}},
        ["env.randomize={'weight': [1, 2]}: is for gymnax and", "own_envs.Count", "leave it out"],
    ),
    "a vector": (
        {"target": None, "name": "Acrobot-v1", "randomize": {"available_torque": [1, 2]}},
        ["only numbers can be drawn, and available_torque of Acrobot-v1 is Array"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_says_key_value_rule_and_way_out(case: str) -> None:
    settings, parts = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        envs.make(dataclasses.replace(shown(), **settings))
    line = str(refused.value)
    assert "\n" not in line
    assert [part for part in parts if part not in line] == []


def test_parameter_that_shapes_the_program_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_values: .* does not run") as refused:
        envs.make(EnvConfig(name=None, target="envs.Sized", randomize={"num_values": [1, 2]}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("library", ["brax", "jumanji", "xminigrid"])
def test_libraries_without_parameters_are_refused(library: str) -> None:
    config = EnvConfig(library=library, randomize={"gravity": [1, 2]})
    with pytest.raises(ConfigError) as refused:
        envs.refuse_ranges(config, f"environments of {library}")
    assert f"not for environments of {library}" in str(refused.value)


def test_simulators_are_refused() -> None:
    pytest.importorskip("gymnasium")
    for setting in ({"randomize": {"g": [1, 2]}}, {"curriculum": {"g": START}}):
        with pytest.raises(ConfigError, match=r"env\.(randomize|curriculum)=.*env.wrappers="):
            envs.make(EnvConfig(library="gymnasium", name="CartPole-v1", **setting))
