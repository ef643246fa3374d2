"""Environments: spaces, data types, ends of episodes, true successors, extras, refusals."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import alone, build, small_config
from gymnax.environments import spaces

from jaxppo import envs
from jaxppo.algorithms import spine
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.extras import Extras
from jaxppo.types import (
    Box,
    Discrete,
    LearnerState,
    MultiDiscrete,
    Space,
    System,
    TimeStep,
    is_space,
)

NEEDS_DOWNLOAD = {"MNISTBandit-bsuite"}
REGISTERED = sorted(set(gymnax.registered_envs) - NEEDS_DOWNLOAD)


def make(name: str, **params: Any) -> Any:
    return envs.make(EnvConfig(name=name, params=params))


def custom(target: str, kwargs: dict[str, Any] | None = None, **params: Any) -> Any:
    return envs.make(EnvConfig(name=None, target=target, kwargs=kwargs or {}, params=params))


def some_actions(env: Any, num: int) -> Any:
    """Legal actions in the space's form, the largest integers among them."""

    def draw(space: Space) -> np.ndarray:
        if isinstance(space, Discrete):
            return np.arange(num, dtype=np.int32) % space.num_values
        if isinstance(space, MultiDiscrete):
            top = np.reshape(space.num_values, space.shape) - 1
            return np.broadcast_to(top, (num, *space.shape)).astype(np.int32)
        return np.broadcast_to(space.low, (num, *space.shape)).astype(space.dtype)

    return jax.tree.map(draw, env.action_space, is_leaf=is_space)


def check_contract(env: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    state, obs = jax.jit(env.reset)(keys)
    step_fn = jax.jit(env.step)
    next_state, step = step_fn(keys, state, some_actions(env, 3))
    assert isinstance(step, TimeStep)
    for flags in (step.terminated, step.truncated):
        assert (flags.shape, flags.dtype) == ((3,), bool)
    assert (step.reward.shape, step.reward.dtype) == ((3,), np.float32)

    def check(space: Space, x: Any) -> None:
        shape, dtype = ((), "int32") if isinstance(space, Discrete) else (space.shape, space.dtype)
        assert (x.shape, x.dtype.name) == ((3, *shape), dtype)

    for seen in (obs, step.obs, step.final_observation):
        jax.tree.map(check, env.observation_space, seen, is_leaf=is_space)
    forms = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, next_state)]
    assert forms[0] == forms[1]
    assert env.time_limit is not None
    assert env.time_limit >= 1
    again_state, again = step_fn(keys, state, some_actions(env, 3))
    for one, other in zip(
        jax.tree.leaves((next_state, step)), jax.tree.leaves((again_state, again)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_environment_keeps_the_contract(name: str) -> None:
    check_contract(make(name))


@pytest.mark.long
@pytest.mark.parametrize("name", ["CartPole-v1", "Catch-bsuite", "Asterix-MinAtar"])
def test_resets_in_a_branch_are_gymnaxs_own(name: str) -> None:
    env = make(name, max_steps_in_episode=7)
    keys = jax.random.split(jax.random.key(1), (20, 5))

    def ours(state: Any, key: jax.Array) -> Any:
        state, step = env.step(key, state, some_actions(env, 5))
        return state, (step.obs, step.final_observation, step.reward, step.terminated)

    def theirs(state: Any, key: jax.Array) -> Any:
        obs, state, reward, terminated, _, info = jax.vmap(env.env.step, (0, 0, 0, None))(
            key, state, some_actions(env, 5), env.params
        )
        return state, (obs, info["final_observation"], reward.astype(jnp.float32), terminated)

    opening, _ = env.reset(keys[0])
    found, wanted = (jax.jit(partial(jax.lax.scan, step))(opening, keys) for step in (ours, theirs))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, wanted)


def test_resets_stay_a_branch_where_agents_are_mapped() -> None:
    env = make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), (3, 2, 4))
    state, _ = jax.vmap(jax.vmap(env.reset))(keys)
    jaxpr = jax.make_jaxpr(jax.vmap(jax.vmap(env.step)))(keys, state, jnp.zeros((3, 2, 4), int))
    (branch,) = (e for e in jaxpr.jaxpr.eqns if e.primitive.name == "cond")
    assert branch.invars[0].aval.shape == ()


@pytest.mark.long
@pytest.mark.parametrize("name", REGISTERED)
def test_every_registered_environment_fits_the_learner_by_its_name_alone(name: str) -> None:
    """Traced, not compiled: an update returns a state like the one that it was given."""
    built, state = by_name(name)
    after, _ = jax.eval_shape(partial(spine.update, built), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    forms = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (after, state)]
    assert forms[0] == forms[1]


QUICK_TO_COMPILE = ("CartPole-v1", "Pendulum-v1", "Catch-bsuite", "Breakout-MinAtar")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK_TO_COMPILE else pytest.param(name, marks=pytest.mark.slow)
        for name in REGISTERED
    ],
)
def test_every_registered_environment_trains_by_its_name_alone(name: str) -> None:
    built, state = by_name(name)
    before, update = state.agent.policy.params, jax.jit(partial(spine.update, built))
    for _ in range(3):
        state, metrics = update(state)
        for path, x in jax.tree.leaves_with_path((metrics, state.agent.policy.params)):
            assert np.isfinite(x).all(), jax.tree_util.keystr(path)
    assert any(
        jax.tree.leaves(
            jax.tree.map(lambda x, y: (x != y).any(), before, state.agent.policy.params)
        )
    )


def by_name(name: str) -> tuple[System, LearnerState]:
    system = {"rollout_length": 4, "epochs": 1, "num_minibatches": 2}
    settings = small_config(env={"name": name, "target": None}, system=system)
    return alone(*build(settings)[:2])


OWN = ["Clock", "Echo", "Aim", "Parts", "Mixed", "Masked", "Picture"]


@pytest.mark.long_but(2)
@pytest.mark.parametrize("name", OWN)
def test_the_extras_keep_the_contract_of_every_action_space(name: str) -> None:
    check_contract(Extras(custom(f"envs.{name}"), ("last_action", "last_reward", "step")))


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
    assert env.observation_space == {"count": Box((2,), "int32", 0.0, 9.0), "shown": Discrete(3)}


AIM = Box((2,), "float32", (-1.0, 0.0), (3.0, 10.0))


@pytest.mark.parametrize(
    "space, ours",
    [
        (spaces.Box(0, 3, (2,), jnp.int32), MultiDiscrete((4, 4), (2,))),
        (spaces.Box(0, 3, (), jnp.int8), MultiDiscrete((4,), ())),
        (spaces.Box(0, 1, (2,), jnp.bool_), MultiDiscrete((2, 2), (2,))),
        (
            spaces.Box(jnp.zeros((2, 2)), jnp.array([[1, 2], [3, 4]]), (2, 2), jnp.uint8),
            MultiDiscrete((2, 3, 4, 5), (2, 2)),
        ),
        (SimpleNamespace(nvec=np.array([3, 5])), MultiDiscrete((3, 5), (2,))),
        (
            SimpleNamespace(nvec=np.array([[3], [5]]), start=np.zeros((2, 1), int)),
            MultiDiscrete((3, 5), (2, 1)),
        ),
        (spaces.Box(jnp.array([-1, 0]), jnp.array([3, 10]), (2,), jnp.float16), AIM),
        (spaces.Box(jnp.array([[1.0]]), 2, (3, 1)), Box((3, 1), "float32", 1.0, 2.0)),
        (
            spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,), int)])}),
            {"a": (Discrete(2), MultiDiscrete((2,), (1,)))},
        ),
    ],
)
def test_action_spaces(space: Any, ours: Any) -> None:
    found = custom("envs.Takes", {"space": space}).action_space
    assert found == ours
    for leaf in jax.tree.leaves(found, is_leaf=is_space):
        hash(leaf)


def test_an_integer_observation_stays_a_box() -> None:
    assert custom("envs.Picture", {"dtype": "uint8"}).observation_space == Box(
        (6, 6, 2), "uint8", 0.0, 255.0
    )
    assert custom("envs.Masked").observation_space["action_mask"] == Box((5,), "bool", 0.0, 1.0)


def one_step(env: Any, num: int, act: Any) -> tuple[Any, Any]:
    """First observations of `num` environments and the rewards of what `act` makes of them."""
    keys = jax.random.split(jax.random.key(3), num)
    state, obs = env.reset(keys)
    return obs, np.asarray(env.step(keys, state, act(obs))[1].reward)


def test_aim_has_the_best_return_zero_and_catches_an_action_out_of_bounds() -> None:
    env = custom("envs.Aim")
    assert env.action_space == AIM
    _, reward = one_step(env, 8, lambda obs: np.array([-1, 0]) + obs * np.array([4, 10]))
    np.testing.assert_allclose(reward, 0, atol=1e-6)
    _, reward = one_step(env, 8, lambda obs: jnp.broadcast_to(jnp.array([3.0, 10.1]), (8, 2)))
    assert np.isnan(reward).all()


@pytest.mark.long
def test_parts_and_mixed_pay_for_each_part() -> None:
    def shown(row: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
        cuts = np.split(np.asarray(row), np.cumsum(sizes)[:-1], axis=-1)
        return np.stack([cut.argmax(-1) for cut in cuts], -1).astype(np.int32)

    env = custom("envs.Parts")
    assert env.action_space == MultiDiscrete((2, 3, 4), (3,))
    obs, reward = one_step(env, 16, lambda obs: shown(obs, (2, 3, 4)))
    np.testing.assert_array_equal(reward, 1)
    _, reward = one_step(env, 16, lambda obs: jnp.zeros((16, 3), jnp.int32))
    np.testing.assert_allclose(reward, (shown(obs, (2, 3, 4)) == 0).mean(-1), rtol=1e-6)

    env = custom("envs.Mixed")
    assert env.action_space == {
        "move": Discrete(3),
        "aim": AIM,
        "more": (Discrete(2), MultiDiscrete((3, 2), (2,))),
    }

    def best(obs: Any) -> Any:
        parts = shown(obs[:, 2:], (3, 2, 3, 2))
        aim = np.array([-1, 0]) + obs[:, :2] * np.array([4, 10])
        return {"move": parts[:, 0], "aim": aim, "more": (parts[:, 1], parts[:, 2:])}

    np.testing.assert_allclose(one_step(env, 16, best)[1], 1, rtol=1e-6)
    obs, reward = one_step(env, 16, lambda obs: {**best(obs), "move": (best(obs)["move"] + 1) % 3})
    np.testing.assert_allclose(reward, 2 / 3, rtol=1e-6)


def test_masked_pays_for_the_largest_legal_action_and_catches_an_illegal_one() -> None:
    env = custom("envs.Masked")
    obs, reward = one_step(env, 64, lambda obs: obs["observation"].argmax(-1))
    mask = np.asarray(obs["action_mask"])
    np.testing.assert_array_equal(reward, 1)
    np.testing.assert_array_equal(obs["observation"].argmax(-1), 4 - mask[:, ::-1].argmax(-1))
    assert mask.any(-1).all()
    _, reward = one_step(env, 64, lambda obs: jnp.full(64, 4))
    np.testing.assert_array_equal(reward, np.where(mask[:, 4], 1, np.nan))
    env.params = env.params.replace(empty=True)
    obs, reward = one_step(env, 64, lambda obs: jnp.full(64, 4))
    empty = ~np.asarray(obs["action_mask"]).any(-1)
    assert 4 < empty.sum() < 32
    np.testing.assert_array_equal(reward[empty], 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "dtype, lit, channels_first",
    [("float32", 1, False), ("bool", True, False), ("uint8", 255, True)],
)
def test_picture_pays_for_the_quadrant_of_its_lit_pixel(
    dtype: str, lit: Any, channels_first: bool
) -> None:
    def quadrant(obs: Any) -> np.ndarray:
        flat = np.asarray(obs).max(1 if channels_first else 3)
        assert (flat.max((1, 2)) == lit).all()
        assert ((flat != 0).sum((1, 2)) == 1).all()
        row, column = np.divmod(flat.reshape(-1, 36).argmax(-1), 6)
        return (2 * (row >= 3) + (column >= 3)).astype(np.int32)

    env = custom("envs.Picture", {"dtype": dtype, "channels_first": channels_first})
    obs, reward = one_step(env, 32, quadrant)
    assert (obs.dtype, obs.shape) == (dtype, (32, 2, 6, 6) if channels_first else (32, 6, 6, 2))
    np.testing.assert_array_equal(reward, 1)
    assert set(quadrant(obs)) == {0, 1, 2, 3}


def play(env: Any, actions: Any, num_envs: int) -> tuple[Any, list[TimeStep]]:
    """The first observation and every step of `actions`, a list of `[B, A...]`."""
    key = jax.random.key(7)
    state, obs = env.reset(jax.random.split(key, num_envs))
    step_fn, steps = jax.jit(env.step), []
    for i, action in enumerate(actions):
        keys = jax.random.split(jax.random.fold_in(key, i), num_envs)
        state, step = step_fn(keys, state, action)
        steps.append(step)
    return obs, steps


@pytest.mark.parametrize("terminates", [False, True])
def test_extras_open_anew_at_each_end_and_keep_the_last_step_in_the_successor(
    terminates: bool,
) -> None:
    # Clock: episodes of 3 steps, by the clock or by the MDP; rewards 1, 2, 3.
    env = custom("envs.Clock", max_steps_in_episode=3, terminates=terminates)
    extras = Extras(env, ("last_action", "last_reward", "step"))
    actions = [np.array([i % 2, 1], np.int32) for i in range(7)]
    obs, steps = play(extras, actions, 2)
    plain_obs, plain = play(env, actions, 2)
    np.testing.assert_array_equal(obs["observation"], plain_obs)
    openings = {"last_action": [-1, -1], "last_reward": [[0], [0]], "step": [[0], [0]]}
    for name, value in openings.items():
        np.testing.assert_array_equal(obs[name], value)
    for i, (step, base) in enumerate(zip(steps, plain, strict=True)):
        after = {
            "last_action": actions[i],
            "last_reward": np.full((2, 1), i % 3 + 1),
            "step": np.full((2, 1), (i % 3 + 1) / 3),
        }
        end = i % 3 == 2
        assert bool(step.terminated.all()) == (end and terminates)
        assert bool(step.truncated.all()) == end
        for name, value in after.items():
            np.testing.assert_allclose(step.final_observation[name], value, rtol=1e-6)
            np.testing.assert_allclose(
                step.obs[name], openings[name] if end else value, rtol=1e-6, err_msg=f"{name} {i}"
            )
        np.testing.assert_array_equal(step.obs["observation"], base.obs)
        np.testing.assert_array_equal(step.final_observation["observation"], base.final_observation)
        np.testing.assert_array_equal(step.reward, base.reward)


def test_extras_open_anew_one_environment_at_a_time() -> None:
    # Coin: each environment ends by chance, so that the clocks drift apart.
    env = custom("envs.Coin")
    env.time_limit = None  # then steps are counted
    obs, steps = play(Extras(env, ("step",)), [np.zeros(8, np.int32)] * 12, 8)
    time = np.zeros(8)
    assert set(obs) == {"observation", "step"}
    for step in steps:
        np.testing.assert_array_equal(step.final_observation["step"][:, 0], time + 1)
        time = np.where(step.terminated, 0, time + 1)
        np.testing.assert_array_equal(step.obs["step"][:, 0], time)
    assert len(set(time)) > 1


def test_extras_give_the_last_action_in_the_form_of_its_space() -> None:
    many = spaces.Box(0, jnp.array([[1], [2]]), (2, 1), jnp.int32)
    box = spaces.Box(jnp.array([2.0, 0.0]), 5.0, (2,))
    space = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(4), many]), "b": box})
    env = Extras(custom("envs.Takes", {"space": space}), ("last_action",))
    assert env.observation_space["last_action"] == {
        "a": (Discrete(4), Box((5,), "float32", 0.0, 1.0)),
        "b": Box((2,), "float32"),
    }
    action = {
        "a": (np.array([3], np.int32), np.array([[[1], [0]]], np.int32)),
        "b": np.array([[2.5, 4.0]], np.float32),
    }
    obs, steps = play(env, [action], 1)
    after = {"a": (np.array([3]), np.array([[0, 1, 1, 0, 0]])), "b": np.array([[2.5, 4.0]])}
    opening = {"a": (np.array([-1]), np.zeros((1, 5))), "b": np.zeros((1, 2))}
    for seen, expected in [
        (obs, opening),
        (steps[0].final_observation, after),
        (steps[0].obs, opening),
    ]:
        jax.tree.map(np.testing.assert_array_equal, seen["last_action"], expected)


def test_extras_join_a_dict_and_keep_the_rest() -> None:
    env = custom("envs.Masked")
    extras = envs.make(EnvConfig(name=None, target="envs.Masked", extras=["last_reward", "step"]))
    assert extras.observation_space == {
        **env.observation_space,
        "last_reward": Box((1,), "float32"),
        "step": Box((1,), "float32", 0.0, 1.0),
    }
    assert (extras.name, extras.action_space, extras.time_limit) == ("envs.Masked", Discrete(5), 3)


@pytest.mark.long
@pytest.mark.parametrize("extra", ["last_action", "last_reward", "step"])
def test_any_extra_solves_recall_and_nothing_else_does(extra: str) -> None:
    env = Extras(custom("envs.Recall"), (extra,))
    keys = jax.random.split(jax.random.key(0), 2)
    state, obs = env.reset(keys)
    openings, total = obs[extra], 0.0
    for _ in range(4):
        first = np.reshape(obs[extra] == openings, (2, -1)).all(-1)
        state, step = env.step(keys, state, np.where(first, 0, 1))
        obs, total = step.obs, total + step.reward
    np.testing.assert_array_equal(total, 4)  # two episodes of the best return, 2
    np.testing.assert_array_equal(obs["observation"], 0)


def test_a_mask_hides_entries_of_every_observation() -> None:
    plain = make("CartPole-v1", max_steps_in_episode=3)
    env = envs.make(EnvConfig(params={"max_steps_in_episode": 3}, mask=[1, 3]))
    check_contract(env)
    actions = [np.array([i % 2, 1], np.int32) for i in range(7)]
    (obs, steps), (plain_obs, plain_steps) = (play(e, actions, 2) for e in (env, plain))
    shown = np.array([1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(obs, plain_obs * shown, 1e-6)
    for step, base in zip(steps, plain_steps, strict=True):
        np.testing.assert_allclose(step.obs, base.obs * shown, 1e-6)
        np.testing.assert_allclose(
            step.final_observation, base.final_observation * shown, rtol=1e-6
        )
        assert np.asarray(base.final_observation)[:, [1, 3]].all()
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(step, name), getattr(base, name))
    space = env.observation_space
    np.testing.assert_allclose(space.high, np.asarray(plain.observation_space.high) * [1, 0, 1, 0])
    assert (space.shape, space.dtype, env.time_limit) == ((4,), "float32", 3)


def test_extras_stand_beside_what_a_mask_leaves() -> None:
    env = envs.make(EnvConfig(name="Pendulum-v1", mask=[2], extras=["last_action"]))
    obs, steps = play(env, [np.full((3, 1), 1.5, np.float32)], 3)
    np.testing.assert_array_equal(steps[0].obs["last_action"], 1.5)
    for seen in (obs, steps[0].obs):
        np.testing.assert_array_equal(seen["observation"][:, 2], 0)
        assert np.asarray(seen["observation"])[:, :2].all()


def walk(delay: int, actions: list[int]) -> tuple[list[list[float]], list[float], list[int]]:
    """Observations (with the first), rewards and ends of one walk; the goal beside them."""
    env = custom("jaxppo.envs.t_maze.TMaze", {"delay": delay})
    obs, steps = play(env, [np.full(2, action, np.int32) for action in actions], 2)
    seen = [obs[0].tolist()] + [step.final_observation[0].tolist() for step in steps]
    ends = [int(step.terminated[0]) + 2 * int(step.truncated[0]) for step in steps]
    return seen, [float(step.reward[0]) for step in steps], ends


def test_t_maze_shows_the_goal_at_its_start_alone_and_pays_at_its_end() -> None:
    check_contract(custom("jaxppo.envs.t_maze.TMaze", {"delay": 4}))
    found = set()
    for turn in (1, 2):
        seen, rewards, ends = walk(3, [0, 0, 0, turn])
        goal = seen[0][0]
        assert seen[0] in ([1.0, 0.0], [-1.0, 0.0])
        assert seen[1:4] == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
        assert rewards == [0.0, 0.0, 0.0, 1.0 if (turn == 2) == (goal > 0) else -1.0]
        assert ends == [0, 0, 0, 1]
        found.add(rewards[-1])
    assert found == {1.0, -1.0}


def test_t_maze_costs_bumps_and_ends_by_the_clock() -> None:
    """Time for twice the way: 2 (delay + 1) steps, whose bumps cost 1 in all."""
    seen, rewards, ends = walk(2, [1, 0, 2, 0, 0, 0])
    assert [x[0] != 0 for x in seen] == [True, True, False, False, False, False, False]
    assert [x[1] for x in seen] == [0, 0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(rewards, np.array([-1, 0, -1, 0, -1, -1]) / 6, rtol=1e-6)
    assert ends == [0, 0, 0, 0, 0, 2]


def test_t_mazes_goals_are_on_both_sides() -> None:
    env = custom("jaxppo.envs.t_maze.TMaze")
    _, obs = env.reset(jax.random.split(jax.random.key(0), 400))
    assert abs(float(obs[:, 0].mean())) < 0.2


def test_parameters_are_bound() -> None:
    assert make("CartPole-v1", max_steps_in_episode=17).time_limit == 17


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"name": "CartPoel-v1"}, ["env.name=CartPoel-v1", "CartPole-v1"]),
        ({"params": {"gravitty": 1}}, ["env.params.gravitty", "env.params.gravity"]),
        ({"params": {"gravity": "x"}}, ["env.params.gravity=x: must be a number", "has 9.8"]),
        ({"params": {"gravity": None}}, ["env.params.gravity=None: must be a number"]),
        ({"params": {"gravity": math.nan}}, ["env.params.gravity=nan: must be a number"]),
        ({"params": {"max_steps_in_episode": True}}, ["=True: must be a number", "has 500"]),
        ({"kwargs": {"rows": 3}}, ["env.kwargs={'rows': 3}", "rows"]),
        ({"name": None, "target": "envs.Nothing"}, ["env.target=envs.Nothing", "no class Nothing"]),
        ({"name": None, "target": "nowhere.Env"}, ["env.target=nowhere", "PYTHONPATH"]),
        ({"name": None, "target": "Env"}, ["env.target=Env", "import path"]),
        ({"name": None}, ["env.name", "env.target"]),
        ({"module": "no_such_module"}, ["env.module=no_such_module"]),
        ({"name": None, "target": "envs.Params"}, ["envs.Params"]),
        ({"name": None, "target": "envs.Remote"}, ["envs.Remote", "could not be downloaded"]),
        ({"extras": ["step", "last_obs"]}, ["env.extras=[step, last_obs]", "last_reward"]),
        (
            {"name": None, "target": "envs.Counted", "extras": ["step"]},
            ["env.extras=[step]", "envs.Counted", "already"],
        ),
        ({"mask": [4]}, ["env.mask=[4]", "CartPole-v1", "0 to 3"]),
        ({"mask": [-1]}, ["env.mask=[-1]", "0 to 3"]),
        ({"name": "Breakout-MinAtar", "mask": [1]}, ["env.mask=[1]", "no vector"]),
        ({"name": None, "target": "envs.Echo", "mask": [0]}, ["env.mask=[0]", "no vector"]),
        (
            {"name": None, "target": "jaxppo.envs.t_maze.TMaze", "kwargs": {"delay": 0}},
            ["delay=0", "at least 1"],
        ),
        ({"action_mask": "legal"}, ["env.action_mask=legal", "CartPole-v1", "null"]),
        (
            {"name": None, "target": "envs.Masked", "action_mask": "legal"},
            ["env.action_mask=legal", "observation, action_mask"],
        ),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    settings: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        envs.make(EnvConfig(**settings))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("broken", ["Shape", "FiveValues", "Space", "NoActions", "UpsideDown"])
def test_an_environment_that_breaks_the_contract_is_refused(broken: str) -> None:
    with pytest.raises(ConfigError, match="env") as error:
        custom(f"broken_envs.{broken}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "space, words",
    [
        (spaces.Box(1, 3, (2,), jnp.int32), ["start at 0", "add its low"]),
        (spaces.Box(jnp.array([0, -1]), 3, (2,), jnp.int32), ["start at 0"]),
        (SimpleNamespace(nvec=np.array([3]), start=np.array([1])), ["start at 0"]),
        (spaces.Box(0, jnp.inf, (2,), jnp.int32), ["finite high"]),
        (spaces.Box(0, -1, (2,), jnp.int32), ["finite high"]),
        (spaces.Box(jnp.zeros(3), 1.0, (2,)), ["Takes", "shape"]),
        ([spaces.Discrete(2)], ["MultiDiscrete", "Tuple"]),
    ],
)
def test_action_spaces_that_no_policy_draws_from_are_refused(space: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        custom("envs.Takes", {"space": space})
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_environment_that_takes_another_action_than_it_claims_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"action of its space \{'move'") as error:
        custom("envs.Misled")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mask", [None, "action_mask"])
def test_a_mask_of_the_default_name_is_only_looked_for(mask: str | None) -> None:
    env = envs.make(EnvConfig(action_mask=mask))
    assert env.observation_space == make("CartPole-v1").observation_space
