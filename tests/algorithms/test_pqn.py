"""PQN against oracles, rlax and invariants; its settings; that it learns."""

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
import rlax
from conftest import alone, build, close, refused
from hydra.core.global_hydra import GlobalHydra
from phases import acted, add_targets, collect, compiled, flat, noise_like, with_hyperparameters
from runs import QUIET, pqn

from jaxppo.algorithms import acting
from jaxppo.algorithms.optimizers import optimizer, scale_by_radam
from jaxppo.config.schema import Config
from jaxppo.launch.composing import compose
from jaxppo.networks import q_heads
from jaxppo.networks.q_heads import ScalarQHead
from jaxppo.ops import distributional
from jaxppo.ops.action_values import (
    CategoricalQ,
    DoubleQ,
    QuantileQ,
    ScalarQ,
    epsilon_greedy,
    greedy_actions,
)
from jaxppo.ops.distributional import quantile_loss
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.run.loop import run
from jaxppo.types import Discrete, LearnerState, MultiDiscrete, Rollout

pytestmark = pytest.mark.usefixtures("share_programs")

T, B, A, K = 16, 3, 4, 7


def small(**changes: Any) -> Any:
    built, state, _ = build(pqn(**changes))
    return alone(built, state)


HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "scalar": ("ScalarQHead", {}),
    "dueling": ("ScalarQHead", {"dueling": True}),
    "noisy": ("ScalarQHead", {"initial_noise": 0.5}),
    "all": ("ScalarQHead", {"dueling": True, "initial_noise": 0.5, "double": True}),
    "categorical": ("CategoricalQHead", {"num_atoms": 21, "low": -2.0, "high": 2.0}),
    "quantile": ("QuantileQHead", {"num_quantiles": 8}),
    "double_quantile": ("QuantileQHead", {"num_quantiles": 8, "double": True}),
}


def head(name: str) -> dict[str, Any]:
    kind, arguments = HEADS[name]
    return {"q_head": {"_target_": f"jaxppo.networks.q_heads.{kind}", **arguments}}


def q_values(phases: Any, state: LearnerState, obs: jax.Array) -> np.ndarray:
    output = phases.unroll(state.agent.policy, (), obs, jnp.zeros(obs.shape[:2], bool))[1]
    return np.asarray(output.estimate.mean())[:, :, 0]


def with_ends(rollout: Rollout) -> Rollout:
    """The rollout whose episodes in environment 1 end by themselves, and elsewhere by the clock."""
    steps = rollout.steps
    terminated = steps.truncated & (np.arange(4) == 1)
    assert terminated.any()
    return dataclasses.replace(rollout, steps=dataclasses.replace(steps, terminated=terminated))


def random_steps(seed: int = 0) -> dict[str, Any]:
    """Arrays over time, with episode ends of both kinds."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < 0.15
    return {
        "reward": rng.normal(size=(T, B)).astype(np.float32),
        "discount": np.where(terminated, np.float32(0.0), np.float32(0.97)),
        "truncated": truncated,
        "q": rng.normal(size=(T, B, A)).astype(np.float32),
        "next_q": rng.normal(size=(T, B, A)).astype(np.float32),
        "action": rng.integers(0, A, (T, B)).astype(np.int32),
        "quantiles": rng.normal(size=(T, B, K)).astype(np.float32),
        "probs": rng.dirichlet(np.ones(K), (T, B)).astype(np.float32),
    }


# Targets


@pytest.mark.parametrize("case", oracles.vectors("ref_q_lambda"), ids=oracles.case_name)
def test_targets_of_reference_cases(case: dict[str, Any]) -> None:
    column = lambda name: jnp.asarray(case[name])[:, None]  # noqa: E731
    estimate = ScalarQ(value=jnp.zeros((1, 1)))
    discount = case["gamma"] * (1.0 - column("terminated"))
    lambda_ = jnp.float32(case["lambda"])
    found = estimate.lambda_returns(
        column("reward"), discount, column("max_q_next"), column("truncated"), lambda_
    )[:, 0]
    bugs = [
        name
        for name, wrong in case["bug_signatures_targets"].items()
        if np.allclose(found, np.asarray(wrong), atol=case["atol"])
    ]
    np.testing.assert_allclose(
        found, np.asarray(case["targets"]), atol=case["atol"], err_msg=f"the bug: {bugs}"
    )


@pytest.mark.long
@pytest.mark.parametrize("recompute", [False, True])
def test_targets_equal_an_oracle_on_true_successors(recompute: bool) -> None:
    """Of rewards that are scaled, with and without normalised observations."""
    given = {"normalize_observations": not recompute, "recompute_targets": recompute}
    system, state = small(system=given, system__reward_scale=0.1)
    phases = compiled(system)
    _, state, rollout = acted(phases, state)
    rollout = with_ends(rollout)
    steps = rollout.steps
    if recompute:
        assert steps.extras == ()
    else:  # what acting kept is of the same parameters
        kept = steps.extras.estimate.mean()[:, :, 0]
        np.testing.assert_allclose(kept, q_values(phases, state, steps.obs), rtol=1e-4, atol=1e-5)
    agent, scaled = phases.scale_rewards(state.agent, rollout)
    batch = add_targets(phases, agent, scaled)[1]
    target = oracles.q_lambda(
        np.asarray(steps.reward) * 0.1,
        np.where(steps.terminated, 0.0, 0.99),
        q_values(phases, state, steps.final_observation),
        np.asarray(steps.truncated),
        0.65,
    )
    np.testing.assert_allclose(batch.steps.target.reshape(8, 4), target, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.9])
def test_categorical_targets_equal_an_oracle(lambda_: float) -> None:
    steps, atoms = random_steps(), np.linspace(-3.0, 3.0, K)
    given = (steps["reward"], steps["discount"], steps["probs"], steps["truncated"])
    poisoned = np.where(steps["discount"][..., None] == 0.0, np.nan, steps["probs"])
    found = distributional.categorical_lambda_returns(
        given[0], given[1], jnp.asarray(poisoned), given[3], jnp.float32(atoms), lambda_=lambda_
    )
    expected = oracles.categorical_lambda_returns(*given, atoms, lambda_)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_allclose(jnp.sum(found, -1), 1.0, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.9])
def test_quantile_targets_equal_an_oracle(lambda_: float) -> None:
    steps = random_steps(1)
    given = (steps["reward"], steps["discount"], steps["quantiles"], steps["truncated"])
    poisoned = np.where(steps["discount"][..., None] == 0.0, np.nan, steps["quantiles"])
    found = distributional.quantile_lambda_returns(
        given[0], given[1], jnp.asarray(poisoned), given[3], lambda_=lambda_
    )
    expected = oracles.quantile_lambda_returns(*given, lambda_)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.long
def test_munchausen_settings_reach_the_targets() -> None:
    system, state = small(system={"munchausen": True, "munchausen_temperature": 0.5})
    phases = compiled(system)
    _, state, rollout = acted(phases, state)
    rollout = with_ends(rollout)
    steps = rollout.steps
    expected = oracles.munchausen_returns(
        np.asarray(steps.reward),
        np.where(steps.terminated, 0.0, 0.99),
        q_values(phases, state, steps.obs),
        np.asarray(steps.action)[..., 0],
        q_values(phases, state, steps.final_observation),
        np.asarray(steps.truncated),
        **{"lambda_": 0.65, "alpha": 0.9, "temperature": 0.5, "clip": 1.0},
    )
    found = add_targets(phases, state.agent, rollout)[1].steps.target
    np.testing.assert_allclose(found.reshape(8, 4), expected, rtol=1e-4, atol=1e-5)


# Losses


@pytest.mark.long
def test_loss_is_half_the_squared_td_error_of_the_taken_action() -> None:
    """And greedy actions are the largest values of each component, whatever epsilon is."""
    system, state = small(env__target="envs.Parts")
    phases = compiled(system)
    _, state, rollout = acted(phases, state)
    batch = add_targets(phases, state.agent, rollout)[1]
    found, metrics = phases.loss(state.agent, state.agent.policy.params, batch)
    steps = batch.steps
    output = phases.unroll(state.agent.policy, (), steps.obs, steps.reset)[1]
    q, action = np.asarray(output.estimate.mean(), np.float64), np.asarray(steps.action)
    errors, values = [], []
    for place in np.ndindex(*action.shape):
        values.append(q[(*place, action[place])])
        errors.append(0.5 * (values[-1] - float(steps.target[place[:2]])) ** 2)
    np.testing.assert_allclose(found, np.mean(errors), rtol=1e-5)
    np.testing.assert_allclose(metrics.q_value, np.mean(values), rtol=1e-4)
    greedy = system.algorithm.greedy(state.agent.policy, output)
    expected = [[np.argmax(row[c, :n]) for c, n in enumerate((2, 3, 4))] for row in q[0]]
    np.testing.assert_array_equal(greedy[0], expected)


@pytest.mark.long
def test_huber_errors_of_scalar_q_values_also_with_munchausen() -> None:
    """The targets stay as they are; one error in two is beyond the bound."""
    q_head = {"_target_": "jaxppo.networks.q_heads.ScalarQHead", "huber_delta": 0.5}
    system, state = small(
        env__target="envs.Parts", network={"q_head": q_head}, system={"munchausen": True}
    )
    phases = compiled(system)
    _, state, rollout = acted(phases, state)
    batch = add_targets(phases, state.agent, rollout)[1]
    steps = batch.steps
    found, _ = phases.loss(state.agent, state.agent.policy.params, batch)
    output = phases.unroll(state.agent.policy, (), steps.obs, steps.reset)[1]
    q = np.asarray(output.estimate.select(steps.action).mean())  # [L, S, C]
    target = np.broadcast_to(np.asarray(steps.target)[..., None], q.shape)
    losses, _ = oracles.huber_error(q.ravel(), target.ravel(), 0.5)
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-5)
    assert 0 < np.mean(np.abs(q - target) > 0.5) < 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy:PendingDeprecationWarning")
def test_categorical_loss_is_rlax_c51() -> None:
    rng, atoms = np.random.default_rng(0), jnp.linspace(-2.0, 2.0, K)
    before, after = (jnp.asarray(rng.normal(size=(A, K)), jnp.float32) for _ in range(2))
    expected = rlax.categorical_q_learning(
        atoms, before, jnp.int32(1), jnp.float32(0.3), jnp.float32(0.9), atoms, after
    )
    found = one_step_loss(partial(CategoricalQ, low=-2.0, high=2.0), "logits", before, after)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("delta", [0.0, 0.5])
def test_quantile_loss_is_rlax_qr_dqn(delta: float) -> None:
    rng = np.random.default_rng(1)
    before, after = (jnp.asarray(rng.normal(size=(A, K)), jnp.float32) for _ in range(2))
    levels = (jnp.arange(K) + 0.5) / K
    expected = rlax.quantile_q_learning(
        *(before.T, levels, jnp.int32(1), jnp.float32(0.3), jnp.float32(0.9)),
        *(after.T, after.T, delta),
    )
    found = one_step_loss(partial(QuantileQ, huber_delta=delta), "quantiles", before, after)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_quantile_loss_keeps_its_gradient_for_a_large_delta() -> None:
    quantiles, target = jnp.asarray([0.1, -0.3, 0.7]), jnp.asarray([0.5, 0.2])
    found = jax.grad(quantile_loss)(quantiles, target, 1e8)
    np.testing.assert_allclose(found, [-0.0416667, -0.325, 0.0583333], rtol=1e-5)


@pytest.mark.long
def test_double_targets_are_rlax_double_q_learning() -> None:
    """Each takes its own greedy action and the other's value of it."""
    rng, one, taken = np.random.default_rng(4), jnp.ones((1, 1)), jnp.ones((1, 1, 1), jnp.int32)
    before, after = (jnp.asarray(rng.normal(size=(A, 2)), jnp.float32) for _ in range(2))
    legal = jnp.asarray([True, True, True, False])
    assert len(set(np.argmax(np.asarray(after)[:3], axis=0))) == 2
    estimate, successor = (
        DoubleQ(pair=ScalarQ(value=x[None, None, None])) for x in (before, after)
    )
    value = successor.greedy_value(jnp.broadcast_to(legal, (1, 1, 1, A)))
    target = estimate.lambda_returns(0.3 * one, 0.9 * one, value, one < 0, jnp.float32(0.0))
    allowed = jnp.where(legal[:, None], after, -1e9)
    errors = [
        rlax.double_q_learning(
            *(before[:, i], jnp.int32(1), jnp.float32(0.3), jnp.float32(0.9)),
            *(allowed[:, 1 - i], allowed[:, i]),
        )
        for i in range(2)
    ]
    np.testing.assert_allclose(target[0, 0], before[1] + jnp.stack(errors), rtol=1e-5)
    found = estimate.select(taken).loss(target)[0, 0]
    np.testing.assert_allclose(found, np.mean(0.5 * np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(estimate.mean()[0, 0, 0], np.mean(before, axis=1), rtol=1e-6)


@pytest.mark.long
def test_double_distributions_are_those_of_each_alone() -> None:
    """Their losses are the mean of two single heads' whose successors are the other's."""
    rng, one, taken = np.random.default_rng(3), jnp.ones((1, 1)), jnp.ones((1, 1, 1), jnp.int32)
    before, after = (
        jnp.asarray(rng.normal(size=(1, 1, 1, A, K, 2)), jnp.float32) for _ in range(2)
    )
    step = (0.3 * one, 0.9 * one)
    make = partial(QuantileQ, huber_delta=1.0)
    both, successor = (DoubleQ(pair=make(quantiles=x)) for x in (before, after))
    value = successor.greedy_value(jnp.ones((1, 1, 1, A), bool))
    assert value.shape == (1, 1, K, 2)
    target = both.lambda_returns(*step, value, one < 0, jnp.float32(0.0))
    losses = []
    for i in range(2):
        own, other = (make(quantiles=after[..., j]) for j in (i, 1 - i))
        chosen = greedy_actions(own.mean(), jnp.ones((1, 1, 1, A), bool))
        single, wanted = make(quantiles=before[..., i]), other.select(chosen).state_value()
        wanted = single.lambda_returns(*step, wanted, one < 0, jnp.float32(0.0))
        losses.append(single.select(taken).loss(wanted))
    np.testing.assert_allclose(both.select(taken).loss(target), sum(losses) / 2, rtol=1e-5)


def one_step_loss(make: Any, name: str, before: jax.Array, after: jax.Array) -> jax.Array:
    """The loss of action 1 in state `before`, with reward 0.3 and the successor `after`."""
    estimate, successor = (make(**{name: x[None, None, None]}) for x in (before, after))
    greedy = greedy_actions(successor.mean(), jnp.ones(successor.mean().shape, bool))
    one = jnp.ones((1, 1))
    target = estimate.lambda_returns(
        0.3 * one, 0.9 * one, successor.select(greedy).state_value(), one < 0, jnp.float32(0.0)
    )
    return estimate.select(jnp.ones((1, 1, 1), jnp.int32)).loss(target)[0, 0]


# Acting


def test_epsilon_greedy_draws_legal_actions_with_its_probabilities() -> None:
    q = jnp.tile(jnp.asarray([[0.5, 3.0, 2.0, 1.0]]), (40_000, 1, 1))
    legal = jnp.tile(jnp.asarray([[True, False, True, True]]), (40_000, 1, 1))

    def shares(epsilon: float) -> np.ndarray:
        action = epsilon_greedy(q, legal, jnp.float32(epsilon), jax.random.key(0))
        return np.bincount(np.ravel(action), minlength=A) / len(q)

    np.testing.assert_array_equal(shares(0.0), [0.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(shares(0.3), [0.1, 0.0, 0.8, 0.1], atol=0.01)
    np.testing.assert_allclose(shares(1.0), [1 / 3, 0.0, 1 / 3, 1 / 3], atol=0.01)
    assert shares(0.3)[1] == shares(1.0)[1] == 0.0


@pytest.mark.long
@pytest.mark.parametrize("empty", [False, True])
def test_illegal_actions_are_never_taken(empty: bool) -> None:
    """The environment gives NaN for one; half of all actions are random."""
    system, state = small(
        env={"target": "envs.Masked", "params": {"empty": empty}},
        system={"epsilon_start": 0.5, "rollout_length": 64},
    )
    _, rollout = collect(compiled(system), state)
    assert np.isfinite(rollout.steps.reward).all()
    assert len(np.unique(rollout.steps.action)) == 5
    assert np.isfinite(rollout.steps.extras.estimate.mean()).all()


@pytest.mark.parametrize("name", ["scalar", "categorical", "double_quantile"])
def test_every_component_gets_legal_values_only(name: str) -> None:
    kind, arguments = HEADS[name]
    space = MultiDiscrete(num_values=(2, 4, 3), shape=(3,))
    layer = getattr(q_heads, kind)(action_space=space, **arguments)
    features = jax.random.normal(jax.random.key(0), (1, 2000, 5))
    mask = jnp.ones((1, 2000, 9), bool).at[..., 2].set(False).at[..., 6:].set(False)
    output, _ = jax.jit(layer.init_with_output)(jax.random.key(1), features, mask)
    key = jax.random.key(2)
    action = epsilon_greedy(output.estimate.mean(), output.legal, jnp.float32(0.7), key)
    seen = [set(np.unique(action[..., i]).tolist()) for i in range(3)]
    assert seen == [{0, 1}, {1, 2, 3}, {0, 1, 2}]  # a mask that allows nothing is ignored


@pytest.mark.long
def test_policy_has_the_epsilon_of_its_update() -> None:
    """New hyperparameters, as population-based training gives them, change it at once."""
    system, state = small(system={"epsilon_fraction": 0.5}, arch={"num_updates": 8})
    phases, found = compiled(system), []
    for update in range(6):
        if update == 1:
            agent = with_hyperparameters(state.agent, epsilon_end=jnp.float32(0.9))
            _, metrics = phases.update(dataclasses.replace(state, agent=agent))
            assert float(metrics.learn.finish.epsilon) == pytest.approx(0.975)
        state, metrics = phases.update(state)
        found.append(float(metrics.learn.finish.epsilon))
        assert found[-1] == float(state.agent.policy.exploration)
    np.testing.assert_allclose(found, [1.0, 0.7625, 0.525, 0.2875, 0.05, 0.05], rtol=1e-5)


# Heads


def test_dueling_head_is_its_definition() -> None:
    layer = ScalarQHead(MultiDiscrete(num_values=(2, 3), shape=(2,)), dueling=True)
    x = jax.random.normal(jax.random.key(0), (1, 4, 5))
    output, variables = layer.init_with_output(jax.random.key(1), x)
    params = jax.tree.map(partial(np.asarray, dtype=np.float64), variables["params"])
    each = np.asarray(x, np.float64) @ params["action"]["kernel"] + params["action"]["bias"]
    value = np.asarray(x, np.float64) @ params["value"]["kernel"] + params["value"]["bias"]
    for i, part in enumerate((each[..., :2], each[..., 2:])):
        expected = value[..., i : i + 1] + part - part.mean(-1, keepdims=True)
        found = output.estimate.mean()[..., i, : part.shape[-1]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_noisy_head_is_linear_with_new_weights_for_each_key() -> None:
    layer = ScalarQHead(Discrete(3), initial_noise=0.5)
    x = jax.random.normal(jax.random.key(0), (1, 4, 5))
    variables = layer.init(jax.random.key(1), x)

    def q(**rngs: jax.Array) -> np.ndarray:
        return np.asarray(layer.apply(variables, x, rngs=rngs).estimate.mean()[..., 0, :])

    params = variables["params"]["action"]
    np.testing.assert_allclose(q(), x @ params["kernel"] + params["bias"], rtol=1e-5, atol=1e-6)
    one, other = (q(noise=jax.random.key(i)) for i in (2, 3))
    assert np.abs(one - q()).min() > 1e-4
    assert np.abs(one - other).min() > 1e-4


def test_noise_explores_instead_of_epsilon() -> None:
    network = {
        "critic_torso": {"_target_": "jaxppo.networks.torsos.NoisyMLP", "layer_sizes": [16]},
        "q_head": {"_target_": "jaxppo.networks.q_heads.ScalarQHead", "initial_noise": 2.0},
    }
    system, state = small(network=network, system={"epsilon_start": 0.0, "epsilon_end": 0.0})
    policy, obs = state.agent.policy, jax.random.normal(jax.random.key(0), (64, 2))
    act = jax.jit(partial(acting.act, system))

    def actions(noise_key: Any, key: Any) -> np.ndarray:
        noisy = dataclasses.replace(policy, noise_key=noise_key)
        return np.asarray(act(noisy, (), obs, jnp.zeros(64, bool), key)[1].env_action)

    keys = jax.random.split(jax.random.key(1), 2)
    drawn = [actions(key, keys[0]) for key in jax.random.split(jax.random.key(2), 8)]
    assert len({tuple(each) for each in drawn}) > 1
    np.testing.assert_array_equal(actions(keys[0], keys[0]), actions(keys[0], keys[1]))
    np.testing.assert_array_equal(actions(None, keys[0]), actions(None, None))


# Learning


def test_optimizer_is_radam_by_default() -> None:
    """The changes of parameters, which are small beside them, from the first to the last step."""
    b2 = 0.9999
    system, state = small(
        system={"decay_learning_rates": False, "max_grad_norm": 1.0, "optimizer_kwargs": {"b2": b2}}
    )
    params = jax.tree.map(jnp.zeros_like, state.agent.policy.params)
    assert set(system.algorithm.groups(params).values()) == {"network"}
    rng = np.random.default_rng(0)
    gradients = [noise_like(params, rng) for _ in range(120)]
    transform = optimizer(system, state.agent)
    opt_state, update = transform.init(params), jax.jit(transform.update)
    several = [flat(g) for g in gradients]
    expected = np.diff(
        oracles.radam(flat(params), several, 5e-4, max_norm=1.0, b2=b2), axis=0, prepend=0.0
    )
    for gradient, wanted in zip(gradients, expected, strict=True):
        updates, opt_state = update(gradient, opt_state, params)
        np.testing.assert_allclose(flat(updates), wanted, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("nesterov", [False, True])
def test_radam_has_the_state_of_optax_and_its_first_steps(nesterov: bool) -> None:
    """Which are not rectified; stored runs go on."""
    ours, theirs = (f(nesterov=nesterov) for f in (scale_by_radam, optax.scale_by_radam))
    state = other = theirs.init(jnp.zeros(3))
    for i in range(4):
        gradient = jax.random.normal(jax.random.key(i), (3,))
        step, state = ours.update(gradient, state)
        expected, other = theirs.update(gradient, other)
        np.testing.assert_allclose(step, expected, rtol=1e-6)
        close(state, other)


@pytest.mark.long
@pytest.mark.parametrize("name", ["all", "categorical"])
def test_heads_learn_from_finite_numbers(name: str) -> None:
    """The others learn below."""
    system, state = small(env__target="envs.Parts", network=head(name))
    phases = compiled(system)
    for _ in range(2):
        before = flat(state.agent.policy.params)
        state, metrics = phases.update(state)
        assert np.isfinite(flat(metrics)).all()
        assert not np.array_equal(before, flat(state.agent.policy.params))


FAST = {"arch": {"total_num_envs": 32, "num_updates": 60, "num_eval_episodes": 32}}
RATE = {"learning_rate": 1e-2, "epochs": 4, "epsilon_end": 0.1}
COPY = {"env__target": "envs.Copy"}


def slow(changes: dict[str, Any], at_least: float = 0.99) -> Any:
    return pytest.param(changes, at_least, marks=pytest.mark.slow)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes, at_least",
    [
        ({"env__target": "envs.Masked"}, 2.9),
        ({**COPY, "network": head("double_quantile"), "system": {"recompute_targets": True}}, 0.99),
        slow({"env__target": "envs.Parts"}),
        *(slow({**COPY, "network": head(name)}) for name in ("categorical", "quantile", "dueling")),
        slow({**COPY, "network": head("noisy"), "system": {"epsilon_start": 0, "epsilon_end": 0}}),
        slow({**COPY, "system": {"munchausen": True}}),
    ],
)
def test_known_optima_are_found(tmp_path: Path, changes: dict[str, Any], at_least: float) -> None:
    system = {**RATE, **changes.get("system", {})}
    given = {**FAST, **changes, "system": system, "logger": QUIET}
    assert run(pqn(**given), tmp_path) > at_least


@pytest.mark.slow
def test_memory_is_used(tmp_path: Path) -> None:
    """Recall the first observation two steps later; chance is 1 of 2."""
    config = command("rec_pqn", "env=t_maze", "env.kwargs.delay=2", "network=gru", *(
        "arch.total_num_envs=64", "arch.num_updates=60", "arch.num_evaluation=2",
        "system.rollout_length=16", "system.epochs=4", "system.num_minibatches=4",
        "system.learning_rate=2e-3", "network.critic_memory.size=32",
    ))  # fmt: skip
    assert run(config, tmp_path) > 0.9


# Settings


def command(name: str, *overrides: str) -> Config:
    GlobalHydra.instance().clear()
    quiet = ["arch.compile_cache=null", "logger.console=false", "logger.plot=false"]
    return compose(name, [*quiet, *overrides])


def test_environments_have_settings_of_each_algorithm() -> None:
    config = command("ff_pqn", "env=cartpole")
    system: Any = config.system
    assert (config.arch.total_num_envs, system.rollout_length, system.epochs) == (32, 64, 4)
    assert (system.gamma, system.q_lambda, system.reward_scale) == (0.99, 0.95, 0.1)  # not PPO's
    torso = config.network.critic_torso
    assert torso is not None
    assert (torso["layer_sizes"], torso["layer_norm"]) == ([256, 256], True)
    assert config.network.actor_torso is config.network.critic_head is None
    assert command("ff_ppo", "env=cartpole").network.q_head is None
    system = command("ff_pqn", "system.q_lambda=0.1", "env=cartpole").system
    assert system.q_lambda == 0.1  # what is typed wins
    system = command("rec_pqn", "env=craftax/symbolic").system
    assert (system.rollout_length, system.q_lambda, system.epsilon_end) == (128, 0.5, 0.005)
    bounds = "population.hyperparameters={epsilon_end: [0.01, 0.5], q_lambda: [0.1, 0.9]}"
    population = command("ff_pqn", "population=pbt", "population.size=5", bounds).population
    assert set(population.hyperparameters) == {"learning_rate", "epsilon_end", "q_lambda"}


def test_values_for_ppo_do_not_reach_pqn() -> None:
    plain, found = command("ff_pqn"), command("ff_pqn", "env=acrobot")
    assert found.system == plain.system
    of_ppo = command("ff_ppo", "env=acrobot")
    assert of_ppo.system != command("ff_ppo").system
    assert found.arch.total_timesteps == of_ppo.arch.total_timesteps


def test_networks_chosen_by_an_environment_have_layer_norm() -> None:
    for overrides in (["env=breakout"], ["network=mlp_shared"]):
        torso = command("ff_pqn", *overrides).network.shared_torso
        assert torso is not None
        assert torso["layer_norm"] is True
    torso = command("rec_pqn", "network=lstm").network.critic_torso
    assert torso is not None
    assert torso["layer_norm"] is True
    prepare(command("ff_pqn", "env=breakout", "network=impala"))


@pytest.mark.parametrize(
    "name, overrides, key",
    [
        ("ff_pqn", ["env=pendulum"], r"^env=Pendulum-v1: .*jaxppo\.ff_ppo"),
        ("ff_pqn", ["network.actor_torso.layer_sizes=[3]"], "no actor_torso"),
        ("ff_ppo", ["network/q_head=quantile"], "system.algorithm=ppo has no q_head"),
        ("ff_pqn", ["system.actor_lr=1"], "actor_lr.*system.algorithm=pqn"),
        ("ff_pqn", ["network=gru"], r"jaxppo\.rec_pqn"),
        ("ff_pqn", ["network/q_head=quantile", "system.munchausen=true"], "system.munchausen"),
        ("ff_pqn", ["network.q_head.double=true", "system.munchausen=true"], "network.q_head.dou"),
    ],
)
def test_mistakes_are_told_in_one_line(name: str, overrides: list[str], key: str) -> None:
    with refused(key):
        prepare(command(name, "env=cartpole", *overrides))


@pytest.mark.slow
def test_cartpole_is_learnt_by_the_command(shell: dict[str, str], tmp_path: Path) -> None:
    module = [sys.executable, "-m", "jaxppo.ff_pqn"]
    settings = ["env=cartpole", "logger.plot=false", f"hydra.run.dir={tmp_path / 'run'}"]
    subprocess.run([*module, *settings], env=shell, check=True, capture_output=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["absolute_metric"] > 450.0  # of 500; a random policy has 22
