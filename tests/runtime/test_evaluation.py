"""Episodes of evaluation: how many, how long, with which policy."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.algorithms.evaluation import evaluate
from jaxppo.kernels.platforms import compiling_for


def keys(num: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), num)


@pytest.mark.long
def test_returns_and_lengths_of_known_episodes(small: Any) -> None:
    system, state = small()
    episodes = jax.jit(partial(evaluate, system))(state.agent.policy, keys(7))
    np.testing.assert_array_equal(episodes.returns, 15.0)  # 1 + 2 + 3 + 4 + 5
    np.testing.assert_array_equal(episodes.lengths, 5)
    assert episodes.finished.all()


@pytest.mark.long
def test_short_episodes_do_not_count_more_often(small: Any) -> None:
    """First episodes of lengths that are geometric with mean 4: 4,000 of them, 4 sigma."""
    system, state = small(env__target="envs.Coin")
    episodes = jax.jit(partial(evaluate, system))(state.agent.policy, keys(4000))
    assert episodes.finished.all()
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)
    deviation = np.sqrt(0.75) / 0.25
    assert abs(episodes.returns.mean() - 4.0) < 4 * deviation / np.sqrt(4000)


@pytest.mark.long
def test_an_episode_depends_on_its_key_alone(small: Any) -> None:
    system, state = small(env__target="envs.Coin", arch__evaluation_greedy=False)
    run = jax.jit(partial(evaluate, system))
    together = run(state.agent.policy, keys(8))
    apart = [run(state.agent.policy, keys(8)[i : i + 2]) for i in (0, 2, 4, 6)]
    np.testing.assert_array_equal(
        together.lengths, np.concatenate([part.lengths for part in apart])
    )
    assert len(set(np.asarray(together.lengths).tolist())) > 1


def test_unfinished_episodes_stop_at_the_bound_and_are_marked(small: Any) -> None:
    system, state = small(arch__max_eval_steps=3)
    episodes = jax.jit(partial(evaluate, system))(state.agent.policy, keys(4))
    np.testing.assert_array_equal(episodes.returns, 6.0)
    np.testing.assert_array_equal(episodes.lengths, 3)
    assert not episodes.finished.any()


@pytest.mark.long
def test_looking_seldom_for_the_end_changes_nothing(small: Any) -> None:
    """GPUs look every 16 steps; episodes have lengths that are geometric with mean 4."""
    system, state = small(env__target="envs.Coin", arch__max_eval_steps=21)
    found = {}
    for platform in ("cpu", "gpu"):
        with compiling_for(platform):
            episodes = jax.jit(partial(evaluate, system))(state.agent.policy, keys(64))
        found[platform] = [np.asarray(x) for x in jax.tree.leaves(episodes)]
    for one, other in zip(*found.values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_greedy_takes_the_mode_and_sampling_does_not(small: Any) -> None:
    system, state = small(env__target="envs.Copy")
    params = jax.tree.map(jnp.zeros_like, state.agent.policy.params)
    head = params["actor_head"]["Dense_0"]
    head["bias"] = jnp.array([0.0, 0.5, 0.0])  # always prefers action 1
    policy = dataclasses.replace(state.agent.policy, params=params)
    greedy = jax.jit(partial(evaluate, system))(policy, keys(600))
    sampled = jax.jit(partial(evaluate, dataclasses.replace(system, evaluation_greedy=False)))(
        policy, keys(600)
    )
    shown = np.asarray(
        jax.vmap(lambda k: jnp.argmax(system.env.reset(k[None])[1][0]))(
            jax.vmap(jax.random.fold_in, (0, None))(keys(600), 0)
        )
    )
    np.testing.assert_array_equal(greedy.returns, shown == 1)
    assert 0.25 < sampled.returns.mean() < 0.42
    assert not np.array_equal(greedy.returns, sampled.returns)


@pytest.mark.long
def test_evaluation_uses_the_statistics_of_training(small: Any) -> None:
    system, state = small(env__target="envs.Copy", system__normalize_observations=True)
    system = dataclasses.replace(system, evaluation_greedy=False)
    params = jax.tree.map(lambda x: 3 * x, state.agent.policy.params)
    policy = dataclasses.replace(state.agent.policy, params=params)
    moved = dataclasses.replace(
        policy,
        obs_statistics=dataclasses.replace(policy.obs_statistics, mean=jnp.array([5.0, -5.0, 5.0])),
    )
    run = jax.jit(partial(evaluate, system))
    assert not np.array_equal(run(policy, keys(300)).returns, run(moved, keys(300)).returns)


@pytest.mark.long
def test_no_illegal_action_is_taken(small: Any) -> None:
    """An illegal one would give NaN; a policy that has not learnt tries everything."""
    system, state = small(env__target="envs.Masked", arch__evaluation_greedy=False)
    episodes = jax.jit(partial(evaluate, system))(state.agent.policy, keys(200))
    assert np.isfinite(episodes.returns).all()
    assert len(np.unique(episodes.returns)) > 1
    assert not episodes.empty_masks.any()


@pytest.mark.long
def test_noise_is_of_sampled_evaluations_alone(small: Any) -> None:
    noisy = {
        "_target_": "jaxppo.networks.torsos.NoisyMLP",
        "layer_sizes": [16],
        "initial_noise": 50.0,
    }
    system, state = small(env__target="envs.Copy", network__actor_torso=noisy)
    returns = []
    for seed in range(2):
        policy = dataclasses.replace(state.agent.policy, noise_key=jax.random.key(seed))
        returns.append(jax.jit(partial(evaluate, system))(policy, keys(100)).returns)
    np.testing.assert_array_equal(*returns)
