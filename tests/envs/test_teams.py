"""Worlds of several agents as environments: rows, resets, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from conftest import build, small_config
from rollouts import rollout

from jaxppo import envs
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.envs.contract import check
from jaxppo.envs.gate import KEEPER, RUNNER, Gate

NUM_STEPS = 12


def world(name: str, **changes: Any) -> Any:
    return envs.make(EnvConfig(name=None, target=f"worlds.{name}", **changes))


def played(env: Any, num: int) -> tuple[Any, Any]:
    """First observations `[B, O...]` and steps `[T, B, ...]` of actions that are 1 at random."""
    return rollout(env, np.random.default_rng(0).binomial(1, 0.3, (NUM_STEPS, num)))


def test_flags_say_whether_rows_can_pad() -> None:
    assert (world("Leaving").num_agents, world("Leaving").pads) == (3, True)
    assert (world("Team").num_agents, world("Team").pads) == (2, False)
    assert played(world("Team"), 4)[1].alive is None


@pytest.mark.parametrize("resets", ["each", "optimistic", "cached"])
def test_agents_start_together_however_a_world_is_reset(resets: str) -> None:
    """The second number of an observation is drawn for each episode of a world."""
    _, steps = played(world("Leaving", resets=resets, reset_ratio=2), 12)
    obs = steps.obs.reshape(NUM_STEPS, 4, 3, 3)
    np.testing.assert_array_equal(obs[..., 1], obs[..., :1, 1] + np.zeros(3))
    np.testing.assert_array_equal(obs[..., 0], obs[..., :1, 0] + np.zeros(3))
    assert (obs[..., 0] == 0).any()


def test_a_number_of_a_world_is_told_once_by_an_agent_that_acts() -> None:
    env = world("Leaving", metrics=["there:sum", "time"])
    _, steps = played(env, 12)
    alive = steps.alive.reshape(NUM_STEPS, 4, 3)
    reward = steps.reward.reshape(NUM_STEPS, 4, 3)
    np.testing.assert_array_equal(reward, alive * alive.sum(-1, keepdims=True))
    reward = reward.sum(-1)
    found = {k: x.reshape(NUM_STEPS, 4, 3) for k, x in steps.metrics.items()}
    over = steps.obs.reshape(NUM_STEPS, 4, 3, 3)[..., 0, 0] == 0
    for name, x in found.items():
        np.testing.assert_array_equal((~np.isnan(x)).sum(-1), over, err_msg=name)
        assert alive[~np.isnan(x)].all()
    for column in range(4):
        total, there, time = 0.0, 0.0, 0.0
        for t in range(NUM_STEPS):
            total, there = total + reward[t, column], there + alive[t, column].sum()
            time += 1.0
            if over[t, column]:
                told = [np.nanmax(found[k][t, column]) for k in ("team_return", "there", "time")]
                assert told == [total, there, time]
                total, there, time = 0.0, 0.0, 0.0


def test_agents_see_which_they_are() -> None:
    env = world("Leaving", extras=["agent", "step"])
    first, steps = played(env, 6)
    for x in (first["agent"][None], steps.obs["agent"], steps.final_observation["agent"]):
        np.testing.assert_array_equal(x, np.broadcast_to(np.tile(np.eye(3), (2, 1)), x.shape))
    assert "agent" in env.observation_space


def test_the_gate_opens_to_the_right_lever_alone() -> None:
    gate = Gate(levers=3, length=3, toll=2.0)
    state, obs = gate.reset(jax.random.key(3))
    signal, toll = int(state.signal), float(state.toll)
    np.testing.assert_array_equal(np.asarray(obs["observation"][KEEPER, 2:5]), np.eye(3)[signal])
    assert not obs["observation"][RUNNER, 2:5].any()  # which does not see it
    for lever in range(3):
        now, rewards, over = state, [], False
        for _ in range(2):
            assert not over
            action = jnp.array([lever, 1])
            now, seen, reward, over, _, _ = gate.step(jax.random.key(0), now, action)
            lever = signal  # too late
            rewards.append(float(reward))
        assert over
        wanted = np.array([0.0, toll + float(now.open)])
        np.testing.assert_allclose(np.array(rewards), wanted, rtol=1e-6)
        assert not seen["observation"][:, 2:5].any()
    assert [
        int(gate.step(jax.random.key(0), state, jnp.array([i, 1]))[0].open) for i in range(3)
    ] == [int(i == signal) for i in range(3)]


@pytest.mark.parametrize("name", ["Leaving", "Team", "One"])
def test_worlds_keep_the_contract(name: str) -> None:
    checks = check(EnvConfig(name=None, target=f"worlds.{name}"), steps=16)
    assert [each.findings for each in checks] == [[]] * len(checks)
    assert {"runs", "determinism", "indices"} <= {each.name for each in checks}
    assert not [each.hints for each in checks if each.name == "indices" and each.hints]


class Many(worlds.Team):
    num_agents = 0


class Flat(worlds.Team):
    """Observations without the axis of agents."""

    def reset(self, key: jax.Array) -> Any:
        state, obs = super().reset(key)
        return state, obs[0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Many, r"num_agents=0: must be an integer, at least 1"),
        (Flat, r"reset: observation has shape \(2,\); with num_agents=2 .* must have \(2, 2\)"),
    ],
)
def test_worlds_of_a_wrong_form_are_refused(made: Any, message: str) -> None:
    config = small_config(env={"target": f"{made.__module__}.{made.__name__}"})
    with pytest.raises(ConfigError, match=message):
        build(config)


def test_jaxmarl_is_stepped_as_it_steps_itself() -> None:
    jaxmarl: Any = pytest.importorskip("jaxmarl")
    kwargs = {"name": "MPE_simple_spread_v3"}
    env: Any = envs.make(EnvConfig(name=None, target="jaxppo.envs.jaxmarl.JaxMARL", kwargs=kwargs))
    own = jaxmarl.make(kwargs["name"])
    reset_key, step_key = jax.random.split(jax.random.key(0))
    found, state = own.reset(reset_key)
    _, obs = env.reset(jnp.repeat(reset_key[None], 3))
    np.testing.assert_array_equal(obs["observation"], np.stack(list(found.values())))
    one = env.one
    actions = jnp.array([1, 4, 2])
    found, _, reward, *_ = own.step_env(
        step_key, state, {name: actions[i] for i, name in enumerate(own.agents)}
    )
    _, obs, rewards, over, *_ = one.step(step_key, state, actions)
    np.testing.assert_array_equal(obs["observation"], np.stack(list(found.values())))
    np.testing.assert_array_equal(rewards, np.stack(list(reward.values())))
    flat = np.asarray(obs["observation"])
    np.testing.assert_array_equal(obs["privileged_state"][1], np.roll(flat, -1, 0).reshape(-1))
    assert not over.any()
