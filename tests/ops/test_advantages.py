"""Advantages and value targets against published numbers, an oracle and their invariants."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import rlax

from jaxppo.ops.advantages import gae, negamax, vtrace

compiled_gae = jax.jit(gae)
compiled_vtrace = jax.jit(vtrace)


def batch_major(inputs: dict[str, Any], **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """`gae` of a case's `[B, T]` arrays: (advantages, value targets) `[B, T]`."""
    names = ("r_t", "v_tm1", "v_t", "terminated", "truncated")
    arrays = [jnp.asarray(inputs[name]).T for name in names]
    steps = [x.astype(jnp.float32) for x in arrays[:3]] + arrays[3:]
    advantages, targets = compiled_gae(*steps, **arguments)
    return np.asarray(advantages).T, np.asarray(targets).T


def with_discounts(inputs: dict[str, Any], gae_lambda: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The same for cases that give a discount per step, zero where the MDP ended."""
    discount = np.asarray(inputs["discount_t"], np.float32)
    flags = {
        "terminated": discount == 0.0,
        "truncated": inputs.get("truncation_t", np.zeros_like(discount, bool)),
    }
    return batch_major(
        {**inputs, **flags},
        gamma=jnp.where(discount == 0.0, 1.0, discount).T,  # the flag alone has to end it
        gae_lambda=inputs["lambda"] if gae_lambda is None else gae_lambda,
    )


def tolerances(case: dict[str, Any]) -> dict[str, float]:
    return {"rtol": case.get("rtol", 0.0), "atol": case.get("atol", 0.0)}


def bug_named_by(case: dict[str, Any], advantages: np.ndarray) -> str:
    """The known mistakes that give these wrong numbers."""
    signatures = case.get("bug_signatures_advantages", {})
    names = [
        name
        for name, wrong in signatures.items()
        if np.allclose(advantages, np.asarray(wrong), **tolerances(case))
    ]
    return " or ".join(names) or "none of the known ones"


@pytest.mark.parametrize("case", oracles.vectors("ref_gae"), ids=oracles.case_name)
def test_reference_cases(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    advantages, targets = batch_major(inputs, gamma=inputs["gamma"], gae_lambda=inputs["lambda"])
    np.testing.assert_allclose(
        advantages,
        np.asarray(expected["advantages"]),
        **tolerances(case),
        err_msg=f"the bug: {bug_named_by(case, advantages)}",
    )
    np.testing.assert_allclose(targets, np.asarray(expected["targets"]), **tolerances(case))


@pytest.mark.parametrize(
    "case",
    oracles.vectors("ext_rlax_multistep", "gae") + oracles.vectors("ext_rlax_td", "gae"),
    ids=oracles.case_name,
)
def test_rlax_advantages(case: dict[str, Any]) -> None:
    advantages, _ = with_discounts(case["inputs"])
    np.testing.assert_allclose(advantages, np.asarray(case["expected"]), **tolerances(case))


@pytest.mark.parametrize("case", oracles.vectors("ext_stoix_multistep"), ids=oracles.case_name)
def test_stoix_advantages(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    advantages, targets = with_discounts(inputs)
    for at, expected in case["expected_at"].items():
        b, t = map(int, at.split(","))
        np.testing.assert_allclose(advantages[b, t], expected, atol=case["atol"], err_msg=at)
    np.testing.assert_array_equal(targets, np.asarray(inputs["v_tm1"], np.float32) + advantages)
    per_step = jnp.full(np.shape(inputs["r_t"]), inputs["lambda"]).T
    np.testing.assert_allclose(with_discounts(inputs, per_step)[0], advantages, rtol=1e-6)


@pytest.mark.parametrize("case", oracles.vectors("ext_rlax_td", "td_error"), ids=oracles.case_name)
def test_lambda_zero_is_the_rlax_td_error(case: dict[str, Any]) -> None:
    inputs = {name: [values] for name, values in case["inputs"].items()}
    advantages, _ = with_discounts(inputs, gae_lambda=0.0)
    np.testing.assert_allclose(advantages[0], np.asarray(case["expected"]), atol=case["atol"])


T, B = 32, 8


def random_rollout(
    seed: int, num_steps: int = T, num_envs: int = B, p_end: float = 0.15
) -> list[np.ndarray]:
    """Arguments of `gae` `[T, B]`; where both flags are drawn, both stay."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    reward, value, next_value = rng.normal(scale=[[[1.0]], [[3.0]], [[3.0]]], size=(3, *shape))
    terminated, truncated = rng.random((2, *shape)) < p_end
    return [*(x.astype(np.float32) for x in (reward, value, next_value)), terminated, truncated]


@pytest.mark.parametrize("gamma, gae_lambda", [(0.99, 0.95), (1.0, 1.0), (0.5, 0.0)])
def test_random_rollouts_against_the_oracle(gamma: float, gae_lambda: float) -> None:
    for seed in range(2):
        rollout = random_rollout(seed)
        expected = oracles.gae(*rollout, gamma=gamma, gae_lambda=gae_lambda)
        result = compiled_gae(*rollout, gamma=gamma, gae_lambda=gae_lambda)
        for actual, wanted in zip(result, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-4)


def test_thousand_steps_without_an_end_against_the_oracle() -> None:
    rollout = random_rollout(0, num_steps=1024, num_envs=2, p_end=0.0)
    expected, _ = oracles.gae(*rollout, gamma=1.0, gae_lambda=1.0)
    advantages, _ = compiled_gae(*rollout, gamma=1.0, gae_lambda=1.0)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def random_games(seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Arguments of `gae`, who moves, and who moves next, `[T, B]`; some move twice in a row."""
    rollout, rng = random_rollout(seed), np.random.default_rng([seed, 2])
    player = rng.integers(0, 2, (T + 1, B))
    # Where a game ends the next one's first player says nothing of who would have moved next
    ends = rollout[3] | rollout[4]
    return rollout, player[:-1], np.where(ends, rng.integers(0, 2, (T, B)), player[1:])


@pytest.mark.parametrize("gamma, gae_lambda", [(0.99, 0.95), (1.0, 1.0), (0.5, 0.0)])
def test_negamax_advantages_are_those_of_the_player_who_moves(
    gamma: float, gae_lambda: float
) -> None:
    rollout, *players = random_games(0)
    expected = oracles.gae_of_players(*rollout, *players, gamma=gamma, gae_lambda=gae_lambda)
    discount = negamax(gamma, np.where(np.equal(*players), 1.0, -1.0).astype(np.float32))
    advantages, targets = compiled_gae(*rollout, gamma=discount, gae_lambda=gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(targets, expected + rollout[1], rtol=1e-5, atol=1e-4)
    found = compiled_vtrace(
        np.zeros((T, B), np.float32),
        *rollout,
        **{**USUAL, "gamma": discount, "gae_lambda": gae_lambda},
    )
    np.testing.assert_allclose(found, (advantages, targets), rtol=1e-5, atol=1e-4)


def test_negamax_with_one_player_is_gae_bit_for_bit() -> None:
    rollout = random_rollout(0)
    plain = compiled_gae(*rollout, gamma=0.99, gae_lambda=0.95)
    ones = negamax(np.float32(0.99), np.ones((T, B), np.float32))
    np.testing.assert_array_equal(plain, compiled_gae(*rollout, gamma=ones, gae_lambda=0.95))
    assert negamax(0.99, None) == 0.99


def test_negamax_is_rlax_with_discounts_of_both_signs() -> None:
    rollout, *players = random_games(1)
    reward, value, next_value, terminated, _ = rollout
    never = np.zeros_like(terminated)
    discount = negamax(0.9, np.where(np.equal(*players), 1.0, -1.0).astype(np.float32))
    # rlax has one array of values: within an episode the successor's is the next step's
    values = np.concatenate([value, next_value[-1:]])
    advantages, _ = compiled_gae(
        reward, value, values[1:], terminated, never, gamma=discount, gae_lambda=0.8
    )
    rlax_gae = rlax.truncated_generalized_advantage_estimation
    expected = jax.vmap(rlax_gae, in_axes=(1, 1, None, 1), out_axes=1)(
        reward, np.where(terminated, 0.0, discount), 0.8, values
    )
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)


def test_next_value_of_a_terminated_step_is_not_read_by_the_gradient() -> None:
    reward, value, next_value, terminated, truncated = random_rollout(0)
    poisoned = np.where(terminated, np.float32(np.nan), next_value)

    @jax.jit
    def gradients(next_value: jax.Array) -> Any:
        def total(reward: jax.Array, value: jax.Array, next_value: jax.Array) -> jax.Array:
            flags = (terminated, truncated)
            advantages, targets = gae(
                reward, value, next_value, *flags, gamma=0.99, gae_lambda=0.95
            )
            return jnp.sum(jnp.square(advantages) + targets)

        return jax.grad(total, argnums=(0, 1, 2))(reward, value, next_value)

    result, clean = gradients(poisoned), gradients(next_value)
    for actual, wanted in zip(result, clean, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    np.testing.assert_array_equal(result[2][terminated], 0.0)
    assert np.all(result[2][~terminated] != 0.0)


def log_ratios(seed: int, num_steps: int = T, num_envs: int = B) -> np.ndarray:
    """log pi - log mu `[T, B]`, about half of them above any clip of 1."""
    rng = np.random.default_rng([seed, 1])
    return rng.normal(scale=0.7, size=(num_steps, num_envs)).astype(np.float32)


USUAL = dict(gamma=0.99, gae_lambda=0.95, rho_clip=1.0, c_clip=1.0)


@pytest.mark.parametrize("case", oracles.vectors("ext_rlax_vtrace"), ids=oracles.case_name)
def test_rlax_vtrace(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    value, discount, reward = (np.float32(inputs[x]).T for x in ("v_tm1", "discount_t", "r_t"))
    last = np.float32([inputs["bootstrap_value"]])
    next_value = np.concatenate([value[1:], last])
    log_prob, old_log_prob = (
        np.take_along_axis(
            np.asarray(jax.nn.log_softmax(np.float32(inputs[logits]))),
            np.asarray(inputs["actions"])[..., None],
            axis=-1,
        )[..., 0].T
        for logits in ("target_logits", "behavior_logits")
    )
    log_ratio = log_prob - old_log_prob
    advantages, targets = compiled_vtrace(
        log_ratio,
        reward,
        value,
        next_value,
        discount == 0.0,
        np.zeros_like(discount, bool),
        gamma=np.where(discount == 0.0, np.float32(1.0), discount),  # the flag alone has to end it
        gae_lambda=inputs["lambda"],
        rho_clip=inputs["clip_rho"],
        c_clip=1.0,
    )
    expected = {name: np.asarray(x).T for name, x in case["expected"].items()}
    near = {"rtol": case["rtol"], "atol": 1e-6}
    np.testing.assert_allclose(targets - value, expected["errors"], **near)
    rho = np.minimum(1.0, np.exp(log_ratio))  # published with 1, whatever the case's clip_pg_rho
    np.testing.assert_allclose(rho * advantages, expected["pg_advantage"], **near)


@pytest.mark.parametrize(
    "gamma, gae_lambda, rho_clip, c_clip",
    [(0.99, 0.95, 1.0, 1.0), (1.0, 1.0, np.inf, 0.5), (0.9, 0.5, 2.0, 1.5)],
)
def test_vtrace_against_the_oracle(
    gamma: float, gae_lambda: float, rho_clip: float, c_clip: float
) -> None:
    numbers = dict(gamma=gamma, gae_lambda=gae_lambda, rho_clip=rho_clip, c_clip=c_clip)
    for seed in range(2):
        arrays = (log_ratios(seed), *random_rollout(seed))
        result = compiled_vtrace(*arrays, **numbers)
        for actual, wanted in zip(result, oracles.vtrace(*arrays, **numbers), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("gae_lambda, clip", [(0.95, 2.0), (0.0, 1.0)])
def test_vtrace_on_policy_is_gae(gae_lambda: float, clip: float) -> None:
    rollout = random_rollout(2)
    numbers = dict(gamma=0.99, gae_lambda=gae_lambda)
    result = compiled_vtrace(
        np.zeros((T, B), np.float32), *rollout, **numbers, rho_clip=clip, c_clip=clip
    )
    for actual, wanted in zip(result, compiled_gae(*rollout, **numbers), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


def test_vtrace_of_a_huge_ratio_is_finite() -> None:
    log_ratio = np.full((T, B), 1000.0, np.float32)
    clipped = compiled_vtrace(log_ratio, *random_rollout(0), **USUAL)
    on_policy = compiled_vtrace(0.0 * log_ratio, *random_rollout(0), **USUAL)
    np.testing.assert_array_equal(clipped, on_policy)


def both(rollout: list[np.ndarray], log_ratio: np.ndarray) -> np.ndarray:
    """Advantages and targets of `gae` and `vtrace`, `[4, T, B]`."""
    of_gae = compiled_gae(*rollout, gamma=0.99, gae_lambda=0.95)
    return np.stack([*of_gae, *compiled_vtrace(log_ratio, *rollout, **USUAL)])


def test_next_value_of_a_terminated_step_is_not_read() -> None:
    reward, value, next_value, terminated, truncated = random_rollout(0)
    poisoned = np.where(terminated, np.float32(np.nan), next_value)
    clean, result = (
        both([reward, value, x, terminated, truncated], log_ratios(0))
        for x in (next_value, poisoned)
    )
    np.testing.assert_array_equal(result, clean)


@pytest.mark.parametrize(
    "ends, end", [(("terminated",), 0), (("truncated",), 11), (("terminated", "truncated"), T - 2)]
)
def test_nothing_leaks_across_an_episode_end(ends: tuple[str, ...], end: int) -> None:
    reward, value, next_value, terminated, truncated = rollout = random_rollout(1, p_end=0.0)
    log_ratio, env = log_ratios(1), 3
    terminated[end, env] = "terminated" in ends
    truncated[end, env] = "truncated" in ends
    before = both(rollout, log_ratio)
    for later, change in ((reward, 1000.0), (value, 100.0), (next_value, -50.0), (log_ratio, -1.0)):
        later[end + 1 :, env] += change
    after = both(rollout, log_ratio)
    np.testing.assert_array_equal(after[:, : end + 1, env], before[:, : end + 1, env])
    assert np.all(after[:, end + 1 :, env] != before[:, end + 1 :, env])
    others = np.arange(B) != env
    np.testing.assert_array_equal(after[:, :, others], before[:, :, others])


@pytest.mark.parametrize("argument", range(6))
def test_refuses_arrays_that_are_not_time_by_batch(argument: int) -> None:
    arrays = [log_ratios(0), *random_rollout(0)]
    given = [*arrays[:argument], arrays[argument][:-1], *arrays[argument + 1 :]]
    with pytest.raises(AssertionError):
        vtrace(*given, **USUAL)
    if argument:
        with pytest.raises(AssertionError):
            gae(*given[1:], gamma=0.99, gae_lambda=0.95)
