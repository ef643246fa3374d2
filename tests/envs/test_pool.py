"""Episodes that begin with starts which are made once a rollout (`env.resets=pool`)."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NETWORK, alone, build, close, small_config
from phases import compiled

from jaxppo.algorithms.acting import fill_pool, rollout_keys
from jaxppo.algorithms.evaluation import episode_keys, evaluate
from jaxppo.config.fields import ConfigError
from jaxppo.kernels import random_bits
from jaxppo.kernels.platforms import FORMS, forms
from jaxppo.runtime.programs.build import build_alone
from jaxppo.runtime.run.events import of_training


def config(size: int | None, more: dict[str, Any] | None = None, **env: Any) -> Any:
    settings = {"name": None, "target": "own_envs.Count", "resets": "pool", "pool_size": size}
    return small_config(env={**settings, **env}, network=NETWORK, **(more or {}))


def begun(rollout: Any) -> np.ndarray:
    """The starts of episodes that began within or after a rollout, in the order of their ends."""
    obs = np.concatenate([rollout.steps.obs[1:], rollout.obs[None]])
    reset = np.concatenate([rollout.steps.reset[1:], rollout.reset[None]])
    return obs[..., 1][reset]


@pytest.mark.long
@pytest.mark.parametrize("size, frame_stack", [(64, 1), (2, 1), (64, 2)])
def test_each_end_takes_the_next_start_and_again_only_if_there_are_no_others(
    size: int, frame_stack: int
) -> None:
    system, state = alone(*build(config(size, frame_stack=frame_stack))[:2])
    phases = compiled(system)
    for _ in range(2):  # fresh starts for each rollout
        keys = rollout_keys(system, state.acting.key)
        acting, rollout = phases.collect(state.agent, state.acting)
        made = np.asarray(system.env.starts(random_bits.split(keys[0, 1], size))[0])[:, 1]
        found = begun(rollout)
        assert len(found) > 3
        np.testing.assert_array_equal(found, np.resize(made, len(found)))
        reused = rollout.reused_starts["reused_starts"]
        assert reused == max(len(found) - size, 0) == len(found) - len(set(found))
        state = type(state)(agent=state.agent, acting=acting)
    assert not any(leaf.shape[:1] == (size,) for leaf in jax.tree.leaves(acting.env_state))


@pytest.mark.long
def test_an_update_counts_them_and_evaluations_need_none() -> None:
    system, state = alone(*build(config(2))[:2])
    _, metrics = compiled(system).update(state)
    reused = metrics.rollout.reused_starts["reused_starts"]
    assert of_training(jax.tree.map(np.asarray, metrics), 1)["reused_starts"] == reused > 0
    keys = episode_keys(jax.random.key(0), jnp.arange(5))
    episodes = evaluate(build_alone(config(2)), state.agent.policy, keys)
    assert np.all(episodes.finished)


@pytest.mark.parametrize("num, size", [(12, 4), (7, 7), (26, 2)])
def test_starts_that_are_made_a_few_at_a_time_are_the_same(
    monkeypatch: pytest.MonkeyPatch, num: int, size: int
) -> None:
    env: Any = build_alone(config(2)).env
    keys = jax.random.split(jax.random.key(1), num)
    reset = env.one.reset  # of a state with an empty array, as MuJoCo's
    monkeypatch.setattr(env.one, "reset", lambda key: ((reset(key)[0], jnp.ones(0)), reset(key)[1]))
    whole = env.starts(keys)
    monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(forms(), starts_bytes=1))
    program = jax.make_jaxpr(env.starts)(keys)
    loops = [x.params["length"] for x in program.eqns if x.primitive.name == "scan"]
    assert loops == ([num // size] if num > size else [])
    close(env.starts(keys), whole)


def test_without_a_size_there_is_one_for_every_128_steps_of_the_rollout() -> None:
    sizes = {"arch__total_num_envs": 10, "system__rollout_length": 26}
    system, state = alone(*build(config(None, sizes))[:2])
    keys = rollout_keys(system, state.acting.key)
    filled = jax.eval_shape(partial(fill_pool, system), state.acting.env_state, keys)
    assert filled.starts.size == 3  # of 260 steps


def test_environments_that_reset_in_their_own_way_have_none() -> None:
    with pytest.raises(ConfigError, match=r"^env\.resets=pool"):
        build(config(2, target="envs.Clock"))
