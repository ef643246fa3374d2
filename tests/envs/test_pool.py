"""Episodes that begin with starts which are made once a rollout (`env.resets=pool`)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NETWORK, alone, build, small_config
from phases import compiled

from jaxppo.algorithms.acting import rollout_keys
from jaxppo.algorithms.evaluation import episode_keys, evaluate
from jaxppo.config.fields import ConfigError
from jaxppo.kernels import random_bits
from jaxppo.runtime.programs.build import build_alone


def config(size: int, **env: Any) -> Any:
    settings = {"name": None, "target": "own_envs.Count", "resets": "pool", "pool_size": size}
    return small_config(env={**settings, **env}, network=NETWORK)


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
    assert metrics.rollout.reused_starts["reused_starts"] > 0
    keys = episode_keys(jax.random.key(0), jnp.arange(5))
    episodes = evaluate(build_alone(config(2)), state.agent.policy, keys)
    assert np.all(episodes.finished)


def test_environments_that_reset_in_their_own_way_have_none() -> None:
    with pytest.raises(ConfigError, match=r"^env\.resets=pool"):
        build(config(2, target="envs.Clock"))
