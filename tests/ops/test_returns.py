"""Multi-step returns against published numbers, oracles and their invariants."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jaxppo.ops import returns

NAMES = (
    "lambda_returns",
    "n_step_returns",
    "discounted_returns",
    "q_lambda",
    "general_off_policy_returns",
    "retrace",
    "importance_corrected_td_errors",
)
MIXED = [
    name for name in NAMES if "lambda_" in inspect.signature(getattr(returns, name)).parameters
]
COMPILED = {
    name: jax.jit(getattr(returns, name), static_argnames="n" if name == "n_step_returns" else ())
    for name in NAMES
}
T, B, A = 24, 5, 3


def rollout(seed: int, p_end: float = 0.15) -> dict[str, Any]:
    """Every argument by its name; arrays `[T, B]`, and `next_q` `[T, B, A]`."""
    rng = np.random.default_rng(seed)
    names = ("reward", "value", "next_value", "q", "log_ratio")
    arrays = dict(zip(names, rng.normal(size=(5, T, B)).astype(np.float32), strict=True))
    discount = rng.uniform(0.9, 1.0, size=(T, B)).astype(np.float32)
    ended, truncated = rng.random((2, T, B)) < p_end
    return {
        **arrays,
        "discount": np.where(ended, np.float32(0.0), discount),
        "truncated": truncated,  # both are drawn now and then
        "next_q": rng.normal(size=(T, B, A)).astype(np.float32),
        "c": rng.uniform(0.0, 1.5, size=(T, B)).astype(np.float32),
        "lambda_": 0.9,
        "n": 3,
    }


def arguments(name: str, steps: dict[str, Any]) -> dict[str, Any]:
    """Those of the named function."""
    return {key: steps[key] for key in inspect.signature(getattr(returns, name)).parameters}


def result_of(name: str, steps: dict[str, Any], **changes: Any) -> np.ndarray:
    return np.asarray(COMPILED[name](**arguments(name, {**steps, **changes})))


@pytest.mark.parametrize("name", NAMES)
def test_random_rollouts_against_the_oracle(name: str) -> None:
    """Also of flags that are numbers, and of a lambda per step."""
    for seed in range(2):
        steps = rollout(seed)
        if seed and name in MIXED:
            steps["lambda_"] = np.random.default_rng(1).random((T, B)).astype(np.float32)
        expected = getattr(oracles, name)(**arguments(name, steps))
        result = result_of(name, steps)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    as_numbers = result_of(name, steps, truncated=steps["truncated"].astype(np.float32))
    np.testing.assert_array_equal(as_numbers, result)


@pytest.mark.parametrize("n, lambda_", [(1, 0.7), (2, None), (T - 1, 0.7), (T, None), (T + 7, 0.7)])
def test_any_number_of_steps_against_the_oracle(n: int, lambda_: float | None) -> None:
    steps = {**rollout(0, p_end=0.02), "lambda_": lambda_}
    expected = oracles.n_step_returns(**arguments("n_step_returns", {**steps, "n": n}))
    result = result_of("n_step_returns", steps, n=n)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


# --- published numbers


def time_major(inputs: dict[str, Any], *names: str) -> list[np.ndarray]:
    return [np.float32(inputs[name]).T for name in names]


@pytest.mark.parametrize(
    "case",
    oracles.vectors("ext_rlax_multistep", "lambda_returns", "n_step_returns"),
    ids=oracles.case_name,
)
def test_rlax_returns(case: dict[str, Any]) -> None:
    inputs, fn = case["inputs"], case["fn"]
    arrays = time_major(inputs, "r_t", "discount_t", "v_t")
    uncut = np.zeros(arrays[0].shape, bool)
    setting = {"n": inputs["n"]} if fn == "n_step_returns" else {"lambda_": inputs["lambda"]}
    results = [COMPILED[fn](*arrays, uncut, **setting)]
    if inputs.get("lambda") == 1.0:
        results.append(COMPILED["discounted_returns"](*arrays, uncut))
    for result in results:
        # rtol: float32 sums that nearly cancel
        np.testing.assert_allclose(result.T, case["expected"], rtol=case["rtol"], atol=1e-6)


@pytest.mark.parametrize(
    "case", oracles.vectors("ext_rlax_multistep", "ictd_identity"), ids=oracles.case_name
)
def test_importance_corrected_errors_come_from_lambda_returns(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    reward, discount, rho, values = time_major(inputs, "r_t", "discount_t", "rho_tm1", "values")
    value, next_value = values[:-1], values[1:]
    uncut = np.zeros(reward.shape, bool)
    direct = COMPILED["importance_corrected_td_errors"](
        reward, discount, value, next_value, np.log(rho), uncut, lambda_=1.0
    )
    shifted = np.concatenate([rho[1:], np.ones_like(rho[:1])])
    lambda_returns = COMPILED["lambda_returns"](
        reward, discount, next_value, uncut, lambda_=shifted
    )
    np.testing.assert_allclose(direct, rho * (lambda_returns - value), rtol=case["rtol"], atol=1e-6)


# --- relations and invariants


def test_value_within_an_episode_is_not_read_by_discounted_returns() -> None:
    steps = rollout(0)
    cut = steps["truncated"].copy()
    cut[-1] = True
    poisoned = np.where(cut, steps["next_value"], np.float32(np.nan))
    np.testing.assert_array_equal(
        result_of("discounted_returns", steps, next_value=poisoned),
        result_of("discounted_returns", steps),
    )


@pytest.mark.parametrize("kind", ["terminated", "truncated", "neither"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_leaks_across_an_episode_end(name: str, kind: str) -> None:
    steps, env, end = rollout(1, p_end=0.0), 3, 11
    if kind == "terminated":
        steps["discount"][end, env] = 0.0
    if kind == "truncated":
        steps["truncated"][end, env] = True
    before = result_of(name, steps)
    rng = np.random.default_rng(2)
    changed = {key: np.copy(x) for key, x in steps.items() if np.ndim(x) >= 2}
    for key in changed.keys() - {"truncated", "discount"}:
        later = changed[key][end + 1 :, env]
        later += rng.uniform(1.0, 2.0, size=later.shape)
    changed["discount"][end + 1 :, env] *= 0.5
    after = result_of(name, {**steps, **changed})
    if kind == "neither":
        assert after[end, env] != before[end, env]
        return
    np.testing.assert_array_equal(after[: end + 1, env], before[: end + 1, env])
    assert np.all(after[end + 1 :, env] != before[end + 1 :, env])
    others = np.arange(B) != env
    np.testing.assert_array_equal(after[:, others], before[:, others])


@pytest.mark.parametrize("name", NAMES)
def test_value_after_a_truncation_is_read(name: str) -> None:
    steps = rollout(1, p_end=0.0)
    steps["truncated"][11] = True
    before = result_of(name, steps)
    key = "next_q" if name == "q_lambda" else "next_value"
    changed = steps[key].copy()
    changed[11] += 1.0
    after = result_of(name, {**steps, key: changed})
    assert np.all(after[11] != before[11])


def with_poison(name: str, steps: dict[str, Any], poison: float) -> dict[str, Any]:
    """The value after each termination replaced."""
    key = "next_q" if name == "q_lambda" else "next_value"
    ended = steps["discount"] == 0.0
    ended = ended[..., None] if key == "next_q" else ended
    return {**steps, key: np.where(ended, np.float32(poison), steps[key])}


@pytest.mark.parametrize("name", ["general_off_policy_returns", "retrace"])
def test_action_value_of_an_episodes_first_step_is_not_read(name: str) -> None:
    steps = rollout(0)
    cut = steps["truncated"] | (steps["discount"] == 0.0)
    assert np.any(steps["truncated"] & (steps["discount"] != 0.0))
    first = np.concatenate([np.ones((1, B), bool), cut[:-1]])
    poisoned = {**steps, "q": np.where(first, np.float32(np.nan), steps["q"])}
    np.testing.assert_array_equal(result_of(name, poisoned), result_of(name, steps))


@pytest.mark.parametrize("name", NAMES)
def test_value_after_a_termination_is_not_read(name: str) -> None:
    """Neither by the return nor by its gradient."""
    for poison in (np.nan, np.inf):
        steps = rollout(0)
        poisoned = result_of(name, with_poison(name, steps, poison))
        np.testing.assert_array_equal(poisoned, result_of(name, steps))
    key = "next_q" if name == "q_lambda" else "next_value"
    fixed = {"n": 3} if name == "n_step_returns" else {}

    @jax.grad
    def gradient(x: jax.Array, steps: dict[str, Any]) -> jax.Array:
        inputs = {**arguments(name, {**steps, "n": 3}), key: x, **fixed}
        return jnp.sum(jnp.square(getattr(returns, name)(**inputs)))

    steps = rollout(0)
    del steps["n"]
    poisoned = with_poison(name, steps, np.nan)
    if name != "q_lambda":  # compiled, the NaN that a max has as derivative may vanish by itself
        gradient = jax.jit(gradient)
    result, clean = gradient(poisoned[key], steps), gradient(steps[key], steps)
    np.testing.assert_array_equal(result, clean)
    np.testing.assert_array_equal(result[steps["discount"] == 0.0], 0.0)
    assert np.any(result != 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_batch_major_is_time_major_turned(name: str) -> None:
    steps = rollout(0)
    steps["lambda_"] = np.full((T, B), 0.9, np.float32)
    turned = {key: np.swapaxes(x, 0, 1) if np.ndim(x) >= 2 else x for key, x in steps.items()}
    function = returns.batch_major(COMPILED[name])
    by_name = arguments(name, turned)
    np.testing.assert_array_equal(function(**by_name).T, result_of(name, steps))
    if name not in MIXED and name != "n_step_returns":  # lambda_ and n are by name only
        np.testing.assert_array_equal(function(*by_name.values()), function(**by_name))


@pytest.mark.parametrize("name", NAMES)
def test_refuses_arrays_that_are_not_time_by_batch(name: str) -> None:
    function, steps = getattr(returns, name), rollout(0)
    if name in MIXED:
        steps["lambda_"] = np.full((T, B), 0.9, np.float32)
    right = arguments(name, steps)
    for key, array in right.items():
        if key == "n":
            continue
        with pytest.raises(AssertionError):
            function(**{**right, key: array[:-1]})
