"""Environments: spaces, data types, ends of episodes, true successors and extras."""

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
from rollouts import rollout

from jaxppo import envs
from jaxppo.algorithms import spine
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.extras import Extras
from jaxppo.envs.forms import differences
from jaxppo.types import Box, Discrete, MultiDiscrete, Space, TimeStep, is_space

REGISTERED = sorted(set(gymnax.registered_envs) - {"MNISTBandit-bsuite"})  # which downloads files


def make(name: str, **params: Any) -> Any:
    return envs.make(EnvConfig(name=name, params=params))


def custom(target: str, kwargs: dict[str, Any] | None = None, **params: Any) -> Any:
    return envs.make(EnvConfig(name=None, target=target, kwargs=kwargs or {}, params=params))


def all_but(*quick: str) -> list[Any]:
    """Every registered environment, slow but for some."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in REGISTERED]


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


@pytest.mark.long
@pytest.mark.parametrize("name", ["CartPole-v1", "Catch-bsuite"])
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

    @jax.jit
    def both(keys: jax.Array) -> Any:
        start, _ = env.reset(keys[0])
        return [jax.lax.scan(step, start, keys)[1] for step in (ours, theirs)]

    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), *both(keys))


@pytest.mark.parametrize("config", [EnvConfig(), EnvConfig(target="own_envs.Count")])
def test_resets_stay_a_branch_where_agents_are_mapped(config: EnvConfig) -> None:
    env = envs.make(config)
    keys = jax.random.split(jax.random.key(0), (3, 2, 4))
    state, _ = jax.eval_shape(jax.vmap(jax.vmap(env.reset)), keys)
    jaxpr = jax.make_jaxpr(jax.vmap(jax.vmap(env.step)))(keys, state, jnp.zeros((3, 2, 4), int))
    (branch,) = (e for e in jaxpr.jaxpr.eqns if e.primitive.name == "cond")
    assert branch.invars[0].aval.shape == ()


@pytest.mark.long
@pytest.mark.parametrize("name", all_but("Pendulum-v1", "Catch-bsuite"))
def test_every_registered_environment_trains_by_its_name_alone(name: str) -> None:
    system = {"rollout_length": 4, "epochs": 1, "num_minibatches": 2}
    settings = small_config(env={"name": name, "target": None}, system=system)
    built, state = alone(*build(settings)[:2])
    before, update = state.agent.policy.params, jax.jit(partial(spine.update, built))
    for _ in range(3):
        state, metrics = update(state)
        for path, x in jax.tree.leaves_with_path((metrics, state.agent.policy.params)):
            assert np.isfinite(x).all(), jax.tree_util.keystr(path)
    changed = jax.tree.map(lambda x, y: (x != y).any(), before, state.agent.policy.params)
    assert any(jax.tree.leaves(changed))


def test_a_task_that_ends_with_its_time_limit_says_both() -> None:
    env = make("CartPole-v1", max_steps_in_episode=2)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 3))
    fallen = 2 * env.params.theta_threshold_radians
    state = state.replace(theta=jnp.array([0.0, fallen, fallen]), time=jnp.array([1, 1, 0]))
    keys = jax.random.split(jax.random.key(1), 3)
    _, step = jax.jit(env.step)(keys, state, jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(step.truncated, [True, True, False])
    np.testing.assert_array_equal(step.terminated, [False, True, True])


def test_truncation_returns_the_true_successor_and_a_fresh_observation() -> None:
    env = make("Pendulum-v1", max_steps_in_episode=1)
    keys = jax.random.split(jax.random.key(0), 4)
    state, _ = jax.jit(env.reset)(keys)
    after, step = jax.jit(env.step)(keys, state, jnp.full((4, 1), 2.0))
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


def test_observation_spaces_have_the_real_types_and_bounds() -> None:
    catch = make("Catch-bsuite").observation_space  # which claims another data type
    assert catch == Box((10, 5), "float32", 0.0, 1.0)
    echo = custom("envs.Echo").observation_space
    assert echo == {"count": Box((2,), "int32", 0.0, 9.0), "shown": Discrete(3)}
    picture = custom("envs.Picture", {"dtype": "uint8"}).observation_space
    assert picture == Box((6, 6, 2), "uint8", 0.0, 255.0)
    masked = custom("envs.Masked").observation_space
    assert masked["action_mask"] == Box((5,), "bool", 0.0, 1.0)
    each = make("MountainCarContinuous-v0").observation_space
    assert np.asarray(each.low).shape == (2,)
    hash(each)
    for name in (None, "action_mask"):  # the default is only looked for
        env = envs.make(EnvConfig(action_mask=name))
        assert env.observation_space == make("CartPole-v1").observation_space


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
        (
            SimpleNamespace(nvec=np.array([[3], [5]]), start=np.zeros((2, 1), int)),
            MultiDiscrete((3, 5), (2, 1)),
        ),
        (spaces.Box(jnp.array([-1, 0]), jnp.array([3, 10]), (2,), jnp.float16), AIM),
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


def test_every_part_of_an_action_reaches_the_environment() -> None:
    """Mixed pays for the parts that its observation asks for, NaN for one out of bounds."""
    env = custom("envs.Mixed")
    more = (Discrete(2), MultiDiscrete((3, 2), (2,)))
    assert env.action_space == {"move": Discrete(3), "aim": AIM, "more": more}
    keys = jax.random.split(jax.random.key(3), 16)
    state, obs = jax.jit(env.reset)(keys)
    cuts = np.split(np.asarray(obs)[:, 2:], np.cumsum((3, 2, 3)), axis=-1)
    move, *more = (cut.argmax(-1).astype(np.int32) for cut in cuts)
    aim = np.array([-1, 0]) + obs[:, :2] * np.array([4, 10])
    best = {"move": move, "aim": aim, "more": (more[0], np.stack(more[1:], -1))}
    step = jax.jit(env.step)
    np.testing.assert_allclose(step(keys, state, best)[1].reward, 1, rtol=1e-6)
    other = {**best, "move": (move + 1) % 3}
    np.testing.assert_allclose(step(keys, state, other)[1].reward, 2 / 3, rtol=1e-6)


def play(env: Any, actions: Any) -> tuple[Any, list[TimeStep]]:
    """The first observation and every step of `actions`, a list of `[B, A...]`."""
    obs, steps = rollout(env, jax.tree.map(lambda *x: np.stack(x), *actions))
    return obs, [jax.tree.map(lambda x, t=t: x[t], steps) for t in range(len(actions))]


@pytest.mark.parametrize("terminates", [False, True])
def test_extras_open_anew_at_each_end_and_keep_the_last_step_in_the_successor(
    terminates: bool,
) -> None:
    # Clock: episodes of 3 steps, by the clock or by the MDP; rewards 1, 2, 3.
    env = custom("envs.Clock", max_steps_in_episode=3, terminates=terminates)
    extras = Extras(env, ("last_action", "last_reward", "step"))
    actions = [np.array([i % 2, 1], np.int32) for i in range(7)]
    obs, steps = play(extras, actions)
    plain_obs, plain = play(env, actions)
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
    obs, steps = play(Extras(env, ("step",)), [np.zeros(8, np.int32)] * 12)
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
    pair = (np.array([3], np.int32), np.array([[[1], [0]]], np.int32))
    obs, (step,) = play(env, [{"a": pair, "b": np.array([[2.5, 4.0]], np.float32)}])
    after = {"a": (np.array([3]), np.array([[0, 1, 1, 0, 0]])), "b": np.array([[2.5, 4.0]])}
    opening = {"a": (np.array([-1]), np.zeros((1, 5))), "b": np.zeros((1, 2))}
    for seen, expected in [(obs, opening), (step.final_observation, after), (step.obs, opening)]:
        jax.tree.map(np.testing.assert_array_equal, seen["last_action"], expected)


def test_extras_join_a_dict_and_keep_the_rest() -> None:
    names = ["last_action", "last_reward", "step"]
    envs.make(EnvConfig(target="envs.Mixed", extras=names))  # which keeps the contract
    extras = envs.make(EnvConfig(target="envs.Masked", extras=["last_reward", "step"]))
    assert extras.observation_space == {
        **custom("envs.Masked").observation_space,
        "last_reward": Box((1,), "float32"),
        "step": Box((1,), "float32", 0.0, 1.0),
    }
    assert (extras.name, extras.action_space, extras.time_limit) == ("envs.Masked", Discrete(5), 3)


def test_a_mask_hides_entries_of_every_observation() -> None:
    plain = make("CartPole-v1", max_steps_in_episode=3)
    hidden = {"params": {"max_steps_in_episode": 3}, "mask": [1, 3]}
    env, beside = (envs.make(EnvConfig(**hidden, extras=x)) for x in ([], ["last_action"]))
    actions = [np.array([i % 2, 1], np.int32) for i in range(7)]
    (obs, steps), (plain_obs, plain_steps) = (play(e, actions) for e in (env, plain))
    shown = np.array([1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(obs, plain_obs * shown, 1e-6)
    for step, base in zip(steps, plain_steps, strict=True):
        for name in ("obs", "final_observation"):
            np.testing.assert_allclose(getattr(step, name), getattr(base, name) * shown, rtol=1e-6)
        assert np.asarray(base.final_observation)[:, [1, 3]].all()
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(step, name), getattr(base, name))
    space = env.observation_space
    np.testing.assert_allclose(space.high, np.asarray(plain.observation_space.high) * [1, 0, 1, 0])
    assert (space.shape, space.dtype, env.time_limit) == ((4,), "float32", 3)
    assert beside.observation_space["observation"] == space  # extras see what the mask leaves


def walk(delay: int, actions: list[int]) -> tuple[list[list[float]], list[float], list[int]]:
    """Observations (with the first), rewards and ends of one walk; the goal beside them."""
    env = custom("jaxppo.envs.t_maze.TMaze", {"delay": delay})
    obs, steps = play(env, [np.full(2, action, np.int32) for action in actions])
    seen = [obs[0].tolist()] + [step.final_observation[0].tolist() for step in steps]
    ends = [int(step.terminated[0]) + 2 * int(step.truncated[0]) for step in steps]
    return seen, [float(step.reward[0]) for step in steps], ends


def test_t_maze_shows_the_goal_at_its_start_alone_and_pays_at_its_end() -> None:
    env = custom("jaxppo.envs.t_maze.TMaze", {"delay": 4})
    _, obs = env.reset(jax.random.split(jax.random.key(0), 400))
    assert abs(float(obs[:, 0].mean())) < 0.2  # goals are on both sides
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


def test_equal_static_parts_of_states_may_have_other_texts() -> None:
    """As the models in the states of MuJoCo's simulator have."""

    class Model:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Model)

        def __hash__(self) -> int:
            return 0

        def __call__(self, data: jax.Array) -> jax.Array:
            return data

    one, other, wrong = (jax.tree_util.Partial(x, jnp.zeros(2)) for x in (Model(), Model(), abs))
    assert str(jax.tree.structure(one)) != str(jax.tree.structure(other))
    assert differences("step: state", one, other, "reset") == []
    assert differences("step: state", one, wrong, "reset")
