"""Proximal policy optimisation: its targets, losses and statistics, against oracles."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import rlax
from conftest import LAYERS, MLP, close, refused
from phases import (
    acted,
    add_targets,
    collect,
    collect_with_keys,
    compiled,
    flat,
    given,
    moved,
    of_system,
    random_batch,
    rollout_after,
    with_hyperparameters,
    with_steps,
)

from jaxppo.algorithms import spine
from jaxppo.algorithms.ppo_data import Steps
from jaxppo.config.fields import traced
from jaxppo.ops.distributions import categorical
from jaxppo.types import Batch


@pytest.mark.long
def test_targets_equal_an_oracle_on_true_successors() -> None:
    """Of updates that have moved statistics, episodes that end and that are cut, scaled rewards."""
    phases, state = of_system(normalize_observations=True, standardize_advantages="none")
    state, rollout, _ = rollout_after(phases, given(state, reward_scale=0.1), 2)
    steps = rollout.steps
    terminated = steps.truncated & (np.arange(4) == 1)
    assert steps.truncated.any()
    rollout = dataclasses.replace(rollout, steps=dataclasses.replace(steps, terminated=terminated))
    agent, scaled = phases.scale_rewards(state.agent, rollout)
    found = add_targets(phases, agent, scaled)[1].steps

    def values(obs: jax.Array) -> np.ndarray:
        reset = jnp.zeros(obs.shape[:2], bool)
        return np.asarray(phases.unroll(state.agent.policy, (), obs, reset)[1].value.mean())

    expected = oracles.gae(
        np.asarray(steps.reward) * 0.1,
        *map(values, (steps.obs, steps.final_observation)),
        *map(np.asarray, (terminated, steps.truncated)),
        **{"gamma": 0.99, "gae_lambda": 0.95},
    )
    shaped = (found.advantage.reshape(8, 4), found.target.reshape(8, 4))
    close(shaped, expected, rtol=1e-4, atol=1e-5)


def test_first_minibatch_ratio_is_one_after_several_updates() -> None:
    phases, state = of_system(normalize_observations=True, standardize_advantages="none")
    state, _, batch = rollout_after(phases, state, 4)
    _, losses = phases.loss(state.agent, state.agent.policy.params, batch)
    assert losses.approximate_kl < 1e-9
    assert losses.clip_fraction == 0
    np.testing.assert_allclose(losses.actor_loss, -np.mean(batch.steps.advantage), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("cell", [None, "gru"])
def test_values_kept_while_acting_are_those_of_the_whole_rollout(
    small: Any, cell: str | None
) -> None:
    memory = cell and {"_target_": f"{LAYERS}.memory.Recurrent", "cell": cell, "size": 6}
    layers = {"actor_torso": None, "critic_torso": None, "shared_torso": MLP}
    settings = {"normalize_values": True, "objective": "penalty", "sequence_length": None}
    system, state = small(network={**layers, "shared_memory": memory}, system=settings)
    phases = compiled(system)
    state, rollout = collect(phases, state)
    agent, _ = add_targets(phases, state.agent, rollout)  # its value statistics have moved
    kept = rollout.steps.extras
    assert rollout.steps.truncated.any()
    assert np.std(kept.raw_value) > 0
    steps = dataclasses.replace(rollout.steps, extras=dataclasses.replace(kept, raw_value=None))
    again = dataclasses.replace(rollout, steps=steps)
    _, found = add_targets(phases, agent, rollout)
    _, computed = add_targets(phases, agent, again)
    close(found, computed, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_values_are_kept_only_where_acting_computes_them_anyway(small: Any) -> None:
    shared = {"critic_torso": None}
    own_input = {**shared, "critic_input": {"_target_": f"{LAYERS}.inputs.Flatten"}}
    for changes in (
        {},
        {"network": own_input},
        {"network": shared, "system": {"recompute_targets": True}},
    ):
        assert not small(**changes)[0].algorithm.keeps_values


@pytest.mark.parametrize("value_clip", [None, 0.2, pytest.param(0.05, marks=pytest.mark.long)])
def test_loss_is_the_sum_of_its_parts_from_the_oracle(value_clip: float | None) -> None:
    """The clip of values is that of the ratio, unless it is given."""
    clip_value_loss = value_clip is not None
    own = {} if value_clip in (None, 0.2) else {"value_clip_eps": value_clip}
    phases, state = of_system(clip_value_loss=clip_value_loss, **own)
    agent = given(state, ent_coef=0.05, vf_coef=0.7, clip_eps_high=0.3).agent
    batch = random_batch(64)
    steps = batch.steps
    total, losses = phases.loss(agent, agent.policy.params, batch)
    _, output = phases.unroll(agent.policy, (), steps.obs, steps.reset)
    logits = np.asarray(output.distribution.logits, np.float64)[0]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = log_probs[np.arange(64), np.asarray(steps.action)[0]]
    old_log_prob, advantage = np.asarray(steps.log_prob)[0], np.asarray(steps.advantage)[0]
    ratio = np.exp(chosen - old_log_prob)
    actor = oracles.clipped_surrogate(chosen, old_log_prob, advantage, 0.2, 0.3)[0].mean()
    value, old, target = (
        np.asarray(x, np.float64)[0] for x in (output.value.mean(), steps.raw_value, steps.target)
    )
    squared = (value - target) ** 2
    if clip_value_loss:
        near = old + np.clip(value - old, -value_clip, value_clip)
        squared = np.maximum(squared, (near - target) ** 2)
    critic = 0.5 * squared.mean()
    entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
    np.testing.assert_allclose(losses.actor_loss, actor, rtol=1e-4)
    np.testing.assert_allclose(losses.value_loss, critic, rtol=1e-4)
    np.testing.assert_allclose(losses.entropy, entropy, rtol=1e-4)
    extremes = (losses.ratio_min, losses.ratio_max)
    np.testing.assert_allclose(extremes, (ratio.min(), ratio.max()), rtol=1e-4)
    np.testing.assert_allclose(total, actor + 0.7 * critic - 0.05 * entropy, rtol=1e-4)


@pytest.mark.parametrize("objective", ["clip", "clip_dimensions"])
def test_the_clip_fraction_is_of_what_the_objective_clips(small: Any, objective: str) -> None:
    """Of dimensions, if each has a ratio of its own."""
    system, state = small(env={"target": "envs.Drift"}, system={"objective": objective})
    phases, cut = compiled(system), (0.2, 0.4)
    state, rollout = collect(phases, given(state, clip_eps=cut[0], clip_eps_high=cut[1]))
    agent, batch = add_targets(phases, state.agent, rollout)
    params = moved(agent).policy.params
    steps, policy = batch.steps, dataclasses.replace(agent.policy, params=params)
    each = []
    for one in (agent.policy, policy):
        _, output = phases.unroll(one, batch.carry, steps.obs, steps.reset)
        loc, scale = (
            np.asarray(getattr(output.distribution, name), np.float64) for name in ("loc", "scale")
        )
        each.append(-0.5 * ((steps.action - loc) / scale) ** 2 - np.log(scale))
    ratio = np.exp(each[1] - each[0])  # [L, S, 2]: what tanh adds cancels
    outside = [(x < 1 - cut[0]) | (x > 1 + cut[1]) for x in (ratio.prod(-1), ratio)]
    wanted = {"clip": outside[0], "clip_dimensions": outside[1]}
    assert wanted["clip"].mean() > wanted["clip_dimensions"].mean() > 0
    found = phases.loss(agent, params, batch)[1].clip_fraction
    np.testing.assert_allclose(found, wanted[objective].mean(), rtol=1e-5)


@pytest.mark.parametrize("name, value", [("kl_coef", 50.0), ("dpo_alpha", 0.1)])
def test_numbers_of_the_other_objectives_are_data_too(name: str, value: float) -> None:
    """Another number changes the loss, and compiles nothing."""
    phases, state = of_system(objective="penalty" if name == "kl_coef" else "dpo")
    old = categorical(jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 2)), jnp.float32))
    batch = with_steps(random_batch(64), distribution=old)
    params, losses, programs = state.agent.policy.params, [], []
    for number in (2.0, value):
        agent = given(state, **{name: number}).agent
        losses.append(float(phases.loss(agent, params, batch)[1].actor_loss))
        programs.append(phases.loss._cache_size())
    assert losses[0] != losses[1]
    assert programs[0] == programs[1]


def kl_of_mine(agent: Any, steps: Steps, distribution: Any, log_prob: jax.Array) -> jax.Array:
    return steps.distribution.kl_divergence(distribution)


def with_numbers(agent: Any, steps: Any, distribution: Any, log_prob: jax.Array) -> jax.Array:
    """An objective whose `hyperparameters` a test sets."""
    return log_prob


@pytest.mark.long
def test_an_objective_by_import_path_sees_the_acting_policy() -> None:
    phases, state = of_system(objective="test_ppo.kl_of_mine")
    jax.eval_shape(partial(spine.update, phases.system), state)
    blind, state = of_system()
    _, rollout = jax.eval_shape(blind.collect, state.agent, state.acting)
    _, steps, _ = jax.eval_shape(blind.targets, state.agent, rollout)
    assert steps.distribution == ()  # what is not looked at is not kept


@pytest.mark.parametrize(
    ("name", "field", "words"),
    [
        ("epochs", traced(3.0, "a number"), "epochs is a setting already"),
        ("bound", traced(0.5, "a bound", low=1), "bound: default=0.5"),
    ],
)
def test_an_objectives_own_numbers_are_checked(
    small: Any, monkeypatch: pytest.MonkeyPatch, name: str, field: Any, words: str
) -> None:
    monkeypatch.setattr(with_numbers, "hyperparameters", {name: field}, raising=False)
    with refused(words):
        small(system__objective="test_ppo.with_numbers")


@pytest.mark.long
def test_critic_learns_normalised_targets_of_values_in_units_of_reward() -> None:
    phases, state = of_system(normalize_values=True, standardize_advantages="none")
    state = given(state, value_norm_decay=0.9)
    means, squares, weight = 0.0, 0.0, 0.0
    for _ in range(2):
        before = state.agent.algorithm_state.value_statistics
        state, rollout, keys = collect_with_keys(phases, state)
        agent, batch = add_targets(phases, state.agent, rollout)
        seen = rollout.steps.obs, rollout.steps.reset
        raw = np.asarray(phases.unroll(agent.policy, (), *seen)[1].value.mean())
        value = raw * np.sqrt(before.variance + 1e-4) + before.mean
        steps = batch.steps
        np.testing.assert_allclose(steps.value.reshape(8, 4), value, rtol=1e-4, atol=1e-4)
        # Advantages are of rewards as they are: the error of the values is all there is.
        np.testing.assert_allclose(steps.target, steps.advantage + steps.value, rtol=1e-5)
        target = np.asarray(steps.target, np.float64)
        means = 0.9 * means + 0.1 * target.mean()
        squares = 0.9 * squares + 0.1 * np.square(target).mean()
        weight = 0.9 * weight + 0.1
        statistics = agent.algorithm_state.value_statistics
        np.testing.assert_allclose(statistics.mean, means / weight, rtol=1e-4)
        variance = squares / weight - (means / weight) ** 2
        np.testing.assert_allclose(statistics.variance, variance, rtol=1e-3)
        _, losses = phases.loss(agent, agent.policy.params, batch)
        units = (target - statistics.mean) / np.sqrt(statistics.variance + 1e-4)
        error = raw.reshape(1, -1) - units
        np.testing.assert_allclose(losses.value_loss, 0.5 * np.square(error).mean(), rtol=1e-3)
        agent, _ = phases.run_epochs(agent, rollout, batch, keys)
        state = dataclasses.replace(state, agent=agent)


@pytest.mark.long
def test_clip_of_values_is_around_what_the_critic_said() -> None:
    """At first nothing is clipped, though the units have moved since: the gradient is whole."""
    found = []
    for clip in (False, True):
        phases, state = of_system(
            normalize_values=True, clip_value_loss=clip, standardize_advantages="none"
        )
        if not clip:
            state, rollout = collect(phases, state)
            agent, batch = add_targets(phases, state.agent, rollout)
        _, metrics = phases.gradient_step(batch, agent, jnp.arange(32))
        found.append((metrics.loss.value_loss, metrics.norms["critic_gradient_norm"]))
    assert found[0][1] > 0.01
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_advantages_can_be_standardised_by_minibatch() -> None:
    """Then neither their scale nor their mean matters, whatever the other minibatches hold."""
    phases, state = of_system(standardize_advantages="minibatch")
    batch = random_batch(32)
    advantage = 3.0 * batch.steps.advantage.at[:, 16:].add(9.0) - 5.0
    losses = [
        phases.gradient_step(x, state.agent, jnp.arange(16))[1].loss.actor_loss
        for x in (batch, with_steps(batch, advantage=advantage))
    ]
    np.testing.assert_allclose(*losses, atol=1e-5)


@pytest.mark.long
def test_vtrace_with_importance_weights_is_impalas_gradient() -> None:
    """Espeholt et al. 2018, section 4.2: rho_t grad log pi(a_t) (r_t + gamma v_t+1 - V(s_t))."""
    phases, state = of_system(
        **dict.fromkeys(("importance_weights", "recompute_targets"), True),
        **{"objective": "reinforce", "advantages": "vtrace", "standardize_advantages": "none"},
    )
    before, _, rollout = acted(phases, state)
    clips = {"gae_lambda": 1.0, "rho_clip": 1.05, "c_clip": 1.0}
    agent = given(dataclasses.replace(before, agent=moved(before.agent)), **clips).agent
    steps = add_targets(phases, agent, rollout)[1].steps

    seen = rollout.steps
    _, output = phases.unroll(agent.policy, (), seen.obs, seen.reset)
    logits = np.asarray(output.distribution.logits, np.float64)  # [T, B, K]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    taken = np.eye(logits.shape[-1])[np.asarray(seen.action)]
    log_ratio = (log_probs * taken).sum(-1) - np.asarray(seen.extras.log_prob, np.float64)
    reset = jnp.zeros(seen.reset.shape, bool)
    _, after = phases.unroll(agent.policy, (), seen.final_observation, reset)
    advantage, target = oracles.vtrace(
        log_ratio,
        *map(np.asarray, (seen.reward, output.value.mean(), after.value.mean())),
        *map(np.asarray, (seen.terminated, seen.truncated)),
        gamma=0.99,
        **clips,
    )
    rho = np.minimum(np.exp(log_ratio), 1.05)
    assert 0 < np.mean(rho == 1.05) < 1
    expected = -(rho * advantage)[..., None] * (taken - np.exp(log_probs))

    def actor_loss(logits: jax.Array) -> jax.Array:
        policy = categorical(logits)
        log_prob = policy.log_prob(steps.action)
        return jnp.sum(phases.system.algorithm.objective(agent, steps, policy, log_prob))

    flat_logits = jnp.asarray(logits.reshape(*steps.reset.shape, -1), jnp.float32)
    found = jax.grad(actor_loss)(flat_logits)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps.target.reshape(target.shape), target, rtol=1e-4, atol=1e-5)


CATEGORICAL = {
    "_target_": f"{LAYERS}.heads.CategoricalCriticHead",
    **{"num_atoms": 31, "low": -30.0, "high": 60.0},
}


@pytest.mark.long
def test_categorical_td_projects_the_law_of_returns(small: Any) -> None:
    """One step against rlax's projection; with lambda, its mean is PPO's own target."""
    path = "jaxppo.algorithms.distributional_ppo.DistributionalPPO"
    settings = {"algorithm": path, "standardize_advantages": "none"}
    system, state = small(system=settings, network__critic_head=CATEGORICAL)
    phases = compiled(system)
    state, rollout = collect(phases, state)
    steps = rollout.steps
    terminated = steps.truncated & (np.arange(4) == 1)
    rollout = dataclasses.replace(rollout, steps=dataclasses.replace(steps, terminated=terminated))
    state = given(state, gamma=0.5)  # no shifted atom is beyond the last ones
    found = add_targets(phases, given(state, gae_lambda=0.9).agent, rollout)[1].steps
    atoms = np.linspace(-30.0, 60.0, 31)
    assert terminated.any()
    np.testing.assert_allclose(found.target_probs.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.target_probs @ atoms, found.target, rtol=1e-3, atol=1e-3)

    one = add_targets(phases, given(state, gae_lambda=0.0).agent, rollout)[1].steps
    reset = jnp.zeros(steps.reset.shape, bool)
    _, after = phases.unroll(state.agent.policy, (), steps.final_observation, reset)
    probs = jax.nn.softmax(after.value.logits)
    discount = 0.5 * (1.0 - terminated)
    shifted = steps.reward[..., None] + discount[..., None] * jnp.float32(atoms)
    project = jax.vmap(jax.vmap(rlax.categorical_l2_project, (0, 0, None)), (0, 0, None))
    expected = project(shifted, probs, jnp.float32(atoms))
    np.testing.assert_allclose(one.target_probs.reshape(expected.shape), expected, atol=1e-5)

    agent = state.agent
    batch = Batch(carry=(), steps=one)
    _, losses = phases.loss(agent, agent.policy.params, batch)
    _, output = phases.unroll(agent.policy, (), one.obs, one.reset)
    log_probs = np.asarray(jax.nn.log_softmax(output.value.logits), np.float64)
    entropy = -(np.asarray(one.target_probs) * log_probs).sum(-1).mean()
    np.testing.assert_allclose(losses.value_loss, entropy, rtol=1e-5)


@pytest.mark.long
def test_recomputed_targets_are_those_of_the_epoch() -> None:
    """The first epoch finds what it would have found; later ones the parameters of their time."""
    plain, state = of_system(standardize_advantages="none")
    other, _ = of_system(standardize_advantages="none", recompute_targets=True)
    state, rollout, keys = collect_with_keys(plain, state)
    agent, batch = add_targets(plain, state.agent, rollout)
    found, _ = other.run_epochs(agent, rollout, batch, keys)
    by_hand = agent
    for key in keys:
        fresh = other.refresh_batch(rollout, by_hand, batch)
        by_hand, _ = plain.run_epochs(by_hand, rollout, fresh, key[None])
    stale, _ = plain.run_epochs(agent, rollout, batch, keys)
    learnt = [flat(x.policy.params) for x in (found, by_hand, stale)]
    np.testing.assert_allclose(learnt[0], learnt[1], rtol=1e-5, atol=1e-7)
    assert not np.allclose(learnt[0], learnt[2], rtol=1e-5, atol=1e-7)
    of_acting = other.refresh_batch(rollout, agent, batch).steps
    np.testing.assert_allclose(of_acting.target, batch.steps.target, rtol=1e-5)


@pytest.mark.long
def test_penalty_stays_within_half_of_its_target() -> None:
    """It doubles or is halved at every update, and so does the coefficient that is reported."""
    phases, state = of_system(objective="penalty", adapt_kl_coef=True)
    state, rollout = collect(phases, state)
    agent, batch = add_targets(phases, state.agent, rollout)
    agent = with_hyperparameters(agent, kl_coef_target=jnp.float32(0.1), kl_coef=jnp.float32(3.0))
    for shift, factor in ((0.0, 0.5), (0.45, 1.0), (0.9, 2.0)):  # KL near 0, 0.1 and 0.37
        old = categorical(batch.steps.distribution.logits + jnp.asarray([2 * shift, 0.0]))
        moved, _ = phases.finish(agent, with_steps(batch, distribution=old))
        assert moved.algorithm_state.kl_factor == factor, shift
        again, found = phases.finish(moved, with_steps(batch, distribution=old))
        assert again.algorithm_state.kl_factor == factor**2
        assert found.kl_coef == 3.0 * factor**2
        assert again.hyperparameters.kl_coef == 3.0
