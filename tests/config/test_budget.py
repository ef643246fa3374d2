"""What a run is asked for against what it does: steps, updates, blocks, step sizes."""

import functools
import types
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from conftest import small_config

from jaxppo.algorithms.optimizers import optimizer
from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.plan import Plan, plan
from jaxppo.runtime.programs.build import build, hyperparameters
from jaxppo.types import Hyperparameters, System

BUDGETS = oracles.vectors("ref_budget")


def planned(num_devices: int = 1, num_minibatches: int = 1, **settings: Any) -> Plan:
    """A plan of `arch` settings and `rollout_length`."""
    system = {"rollout_length": settings.pop("rollout_length"), "num_minibatches": num_minibatches}
    system |= {"standardize_advantages": "none"}  # which a batch of one transition forbids
    return plan(parse({"arch": settings, "system": system}), num_devices)


def settings_of(case: dict[str, Any]) -> dict[str, int]:
    inputs = dict(case["inputs"])
    return {"total_num_envs": inputs.pop("num_envs"), **inputs}


@pytest.mark.parametrize(
    "case",
    [case for case in BUDGETS if case["expected"]["updates_floor"] > 0],
    ids=oracles.case_name,
)
def test_budget_is_rounded_up_to_whole_updates(case: dict[str, Any]) -> None:
    expected, blocks = case["expected"], case["inputs"]["num_evaluation"]
    result = planned(**settings_of(case))
    assert result.steps_per_update == expected["steps_per_update"]
    assert result.num_updates == expected["updates_ceil"]
    assert result.total_steps == expected["updates_ceil"] * expected["steps_per_update"]
    assert result.requested_steps == case["inputs"]["total_timesteps"]
    assert 0 <= result.total_steps - result.requested_steps < result.steps_per_update
    assert len(result.updates_per_block) == blocks
    assert sum(result.updates_per_block) == result.num_updates
    assert max(result.updates_per_block) - min(result.updates_per_block) <= 1
    for count in (result.steps_per_update, result.total_steps, *result.updates_per_block):
        assert type(count) is int


def test_less_than_one_update_is_refused() -> None:
    for case in BUDGETS:
        if case["expected"]["updates_floor"] == 0:
            steps = case["expected"]["steps_per_update"]
            with pytest.raises(ConfigError, match=rf"total_timesteps=1000 .* {steps}\b"):
                planned(**settings_of(case))
    settings = dict(total_num_envs=8, rollout_length=128, num_evaluation=1)
    assert planned(total_timesteps=1024, **settings).num_updates == 1
    assert planned(total_timesteps=1025, **settings).num_updates == 2
    with pytest.raises(ConfigError):
        planned(total_timesteps=1023, **settings)


@pytest.mark.parametrize("num_devices, update_batch_size", [(1, 1), (1, 4), (4, 1), (2, 2)])
def test_layout_does_not_change_the_budget(num_devices: int, update_batch_size: int) -> None:
    result = planned(
        num_devices,
        num_minibatches=8,
        total_num_envs=64,
        total_timesteps=100_000,
        rollout_length=16,
        num_evaluation=7,
        update_batch_size=update_batch_size,
    )
    assert result.num_envs * num_devices * update_batch_size == 64
    assert result.minibatch_size * 8 == result.num_envs * 16
    assert (result.steps_per_update, result.num_updates, result.total_steps) == (1024, 98, 100_352)
    assert result.updates_per_block == (14,) * 7


@pytest.mark.parametrize("num_envs, nearest", [(1, 4), (9, 8), (10, 8), (11, 12)])
def test_environments_that_cannot_be_split_are_refused_with_the_nearest(
    num_envs: int, nearest: int
) -> None:
    settings = dict(total_num_envs=num_envs, rollout_length=8, num_evaluation=1)
    with pytest.raises(ConfigError, match=rf"total_num_envs={num_envs} .*that is: {nearest}$"):
        planned(2, update_batch_size=2, **settings)


@pytest.mark.parametrize(
    "num_updates, blocks", [(1, 1), (19, 1), (19, 7), (20, 7), (20, 20), (976, 7), (976, 20)]
)
def test_blocks_share_the_updates_evenly(num_updates: int, blocks: int) -> None:
    settings = dict(total_num_envs=4, rollout_length=8, num_evaluation=blocks)
    result = planned(num_updates=num_updates, **settings)
    assert len(result.updates_per_block) == blocks
    assert sum(result.updates_per_block) == result.num_updates == num_updates
    assert set(result.updates_per_block) <= {num_updates // blocks, -(-num_updates // blocks)}
    assert (result.total_steps, result.requested_steps) == (num_updates * 32, None)


@pytest.mark.parametrize(
    "total, rollout_length",
    [
        (2**31 + 1, 2**6),
        (2**32 + 1, 2**6),
        (2**53 + 1, 2**20),  # float64 holds it no more
        (10**18 + 1, 2**20),
    ],
)
def test_steps_past_the_machine_integers_are_exact(total: int, rollout_length: int) -> None:
    result = planned(
        total_timesteps=total, total_num_envs=2**10, rollout_length=rollout_length, num_evaluation=1
    )
    steps = 2**10 * rollout_length
    assert result.requested_steps == total
    assert result.total_steps == result.num_updates * steps
    assert (result.num_updates - 1) * steps < total <= result.num_updates * steps


def test_updates_that_the_counter_cannot_hold_are_refused() -> None:
    settings = dict(total_num_envs=1, rollout_length=1, num_evaluation=1)
    most = 2**31 - 1
    assert planned(total_timesteps=most, **settings).num_updates == most
    for budget in ({"total_timesteps": most + 1}, {"num_updates": most + 1}):
        with pytest.raises(ConfigError, match="2147483648"):
            planned(**budget, **settings)


PARAMS = {  # the critic's parts are a group of their own; everything else is the actor's
    "actor_head": {"bias": jnp.asarray([0.1, -0.2]), "kernel": jnp.asarray([[0.3], [-0.4], [0.5]])},
    "critic_torso": {"kernel": jnp.asarray([1.0, -2.0, 3.0, 0.5])},
    "shared_torso": {"kernel": jnp.asarray([0.7, -0.6])},
}
GROUPS = {"actor_lr": ("actor_head", "shared_torso"), "critic_lr": ("critic_torso",)}


def flat(params: dict[str, Any], group: tuple[str, ...]) -> np.ndarray:
    """The parameters of a group as one vector."""
    return np.asarray(jax.flatten_util.ravel_pytree({part: params[part] for part in group})[0])


def numbers(num_updates: int = 100, **system: Any) -> Hyperparameters:
    arch = {"total_num_envs": 1, "num_updates": num_updates, "num_evaluation": 1}
    system |= {"rollout_length": 1, "num_minibatches": 1, "standardize_advantages": "none"}
    config = parse({"arch": arch, "system": system})
    return hyperparameters(config, plan(config, 1))


@functools.cache
def ppo() -> System:
    """A system whose algorithm is PPO: it says which parameters are of which group."""
    config = small_config()
    return build(config, plan(config, 1))


def adam(hp: Hyperparameters, update: jax.Array) -> optax.GradientTransformation:
    agent: Any = types.SimpleNamespace(hyperparameters=hp, update=update)
    return optimizer(ppo(), agent)


@jax.jit
def steps(hp: Hyperparameters, update: jax.Array, gradients: Any) -> list[Any]:
    """`PARAMS` after each of the gradient steps of iteration `update`."""
    optimiser = adam(hp, update)
    params, after = PARAMS, []
    state = optimiser.init(params)
    for gradient in gradients:
        changes, state = optimiser.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, changes)
        after.append(params)
    return after


def random_gradients(scales: list[float], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        jax.tree.map(lambda x, s=scale: jnp.asarray(s * rng.normal(size=x.shape), x.dtype), PARAMS)
        for scale in scales
    ]


SCALES = {  # of the gradients of six steps; the norm of a group is about twice or thrice that
    "far above the limit": [30.0, 1.0, 300.0, 5.0, 2.0, 80.0],
    "around the limit": [0.02, 3.0, 0.1, 0.3, 10.0, 0.01],
    "near epsilon": [1e-5, 1e-6, 3e-5, 1e-4, 1e-6, 1e-5],
}


@pytest.mark.long
@pytest.mark.parametrize("max_grad_norm", [0.5, float("inf")])
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
def test_optimizer_against_the_oracle(scales: list[float], max_grad_norm: float) -> None:
    rates = {"actor_lr": 0.01, "critic_lr": 0.03}
    hp = numbers(max_grad_norm=max_grad_norm, decay_learning_rates=False, **rates)
    gradients = random_gradients(scales)
    result = steps(hp, jnp.int32(0), gradients)
    for rate, group in GROUPS.items():
        start = flat(PARAMS, group)
        expected = oracles.adam(
            start,
            [flat(gradient, group) for gradient in gradients],
            np.full(len(start), rates[rate]),
            max_norm=max_grad_norm,
        )
        for params, wanted in zip(result, expected, strict=True):
            np.testing.assert_allclose(flat(params, group), wanted, rtol=1e-5, atol=1e-6)


def test_clipping_scales_the_whole_gradient_of_a_group() -> None:
    # Adam alone forgets the scale of a first gradient. Its epsilon does not: with a limit far
    # below 1e-5 a step is rate * g * limit / |g| / 1e-5, so steps keep the gradient's direction.
    hp = numbers(max_grad_norm=1e-9, actor_lr=1.0, critic_lr=1.0, decay_learning_rates=False)
    gradients = random_gradients([1.0])
    gradients += [jax.tree.map(jnp.zeros_like, PARAMS)] * 5
    after = steps(hp, jnp.int32(0), gradients)[0]
    for group in GROUPS.values():
        gradient = flat(gradients[0], group).astype(np.float64)
        change = flat(after, group).astype(np.float64) - flat(PARAMS, group)
        expected = -gradient / np.linalg.norm(gradient) * 1e-4
        np.testing.assert_allclose(change, expected, rtol=2e-3, atol=2e-7)


def test_one_groups_gradient_does_not_change_the_others_step() -> None:
    hp = numbers(max_grad_norm=0.5)
    gradients = random_gradients(SCALES["around the limit"])
    before = steps(hp, jnp.int32(0), gradients)[-1]
    for group in GROUPS.values():
        huge = [
            {part: jax.tree.map(lambda g, f=1e3 if part in group else 1.0: f * g, tree)
             for part, tree in gradient.items()}
            for gradient in gradients
        ]  # fmt: skip
        after = steps(hp, jnp.int32(0), huge)[-1]
        for other in GROUPS.values():
            if other != group:
                np.testing.assert_array_equal(flat(after, other), flat(before, other))


LR_SCHEDULES = oracles.vectors("ref_lr_schedule")


@jax.jit
def rates_at(hp: Hyperparameters, updates: jax.Array) -> dict[str, jax.Array]:
    """The size of a first step along a gradient of one, at each of the iterations `[N]`."""

    def rate(update: jax.Array) -> dict[str, jax.Array]:
        params = {"actor": jnp.zeros(()), "critic": jnp.zeros(())}
        optimiser = adam(hp, update)
        ones = jax.tree.map(jnp.ones_like, params)
        change, _ = optimiser.update(ones, optimiser.init(params), params)
        return jax.tree.map(lambda x: -x * (1.0 + 1e-5), change)  # Adam divides by |g| + 1e-5

    return jax.vmap(rate)(updates)


@pytest.mark.parametrize("case", LR_SCHEDULES, ids=oracles.case_name)
def test_learning_rates_fall_linearly(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    lr, num_updates = inputs["lr"], inputs["num_updates"]
    hp = numbers(
        num_updates=num_updates,
        actor_lr=lr,
        critic_lr=3.0 * lr,
        epochs=inputs["epochs"],
        max_grad_norm=float("inf"),
    )
    rates = rates_at(hp, jnp.asarray(expected["which_updates"]))
    np.testing.assert_allclose(rates["actor"], expected["lr_of_update"], rtol=1e-5)
    np.testing.assert_allclose(rates["critic"], np.multiply(3, expected["lr_of_update"]), rtol=1e-5)
    of_all = np.asarray(rates_at(hp, jnp.arange(num_updates))["actor"])
    np.testing.assert_allclose(of_all[[0, -1]], [expected["first"], expected["last"]], rtol=1e-5)
    oracle = [oracles.linear_rate(lr, update, num_updates) for update in range(num_updates)]
    np.testing.assert_allclose(of_all, oracle, rtol=1e-5)


def test_learning_rates_never_turn_negative_and_may_be_constant() -> None:
    given = {"num_updates": 10, "actor_lr": 1e-3, "max_grad_norm": float("inf")}
    np.testing.assert_array_equal(rates_at(numbers(**given), jnp.asarray([10, 11]))["actor"], 0.0)
    hp = numbers(decay_learning_rates=False, **given)
    np.testing.assert_allclose(rates_at(hp, jnp.arange(12))["actor"], 1e-3, rtol=1e-5)
