"""What the package computes, in float64 NumPy loops written from the definitions; and vectors.

Nothing here is fast or clever: a loop per sum, so that each can be checked by reading. Numbers
become Python floats first, as NumPy computes float32 with float in float32.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

VECTORS = Path(__file__).parent / "vectors"


def vectors(file: str, *functions: str) -> list[dict[str, Any]]:
    """The cases of a file of reference numbers, of the functions named (none: all)."""
    cases = json.loads((VECTORS / f"{file}.json").read_text())["cases"]
    return [case for case in cases if not functions or case["fn"] in functions]


def case_name(case: dict[str, Any]) -> str:
    return str(case["name"])


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Array, Array]:
    """Advantages and value targets, `[T, B]`, one environment and one step at a time."""
    num_steps, num_envs = reward.shape
    advantage = np.zeros((num_steps, num_envs), np.float64)
    for b in range(num_envs):
        following = 0.0  # the advantage of the next step of the same episode
        for t in reversed(range(num_steps)):
            if terminated[t, b] or truncated[t, b]:
                following = 0.0
            bootstrap = 0.0 if terminated[t, b] else float(next_value[t, b])
            delta = float(reward[t, b]) + gamma * bootstrap - float(value[t, b])
            following = delta + gamma * gae_lambda * following
            advantage[t, b] = following
    return advantage, advantage + value.astype(np.float64)


def clipped_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip_eps: float
) -> tuple[Array, Array]:
    """The loss of each sample and its derivative by that sample's `log_prob`, both `[N]`."""
    losses, gradients = [], []
    for new, old, a in _floats(log_prob, old_log_prob, advantage):
        ratio = math.exp(new - old)
        clipped = min(max(ratio, 1.0 - clip_eps), 1.0 + clip_eps)
        if clipped * a < ratio * a:  # the clip is the smaller one: constant in the policy
            losses.append(-clipped * a)
            gradients.append(0.0)
        else:
            losses.append(-ratio * a)
            gradients.append(-ratio * a)
    return np.asarray(losses, np.float64), np.asarray(gradients, np.float64)


def clipped_squared_error(value: Array, old_value: Array, target: Array, clip_eps: float) -> Array:
    """The larger half squared error of the value and of the value clipped around the old, `[N]`."""
    losses = []
    for v, old, g in _floats(value, old_value, target):
        near = min(max(v, old - clip_eps), old + clip_eps)
        losses.append(max((v - g) ** 2, (near - g) ** 2) / 2.0)
    return np.asarray(losses, np.float64)


def approximate_kl(log_prob: Array, old_log_prob: Array) -> Array:
    """(r - 1) - log r of each sample, `[N]`."""
    estimates = []
    for new, old in _floats(log_prob, old_log_prob):
        estimates.append(math.expm1(new - old) - (new - old))
    return np.asarray(estimates, np.float64)


def categorical_entropy(logits: Array) -> float:
    """-sum p log p of one distribution of logits `[K]`."""
    top = max(float(x) for x in logits)
    weights = [math.exp(float(x) - top) for x in logits]
    probs = [weight / sum(weights) for weight in weights]
    return -sum(p * math.log(p) for p in probs if p > 0.0)


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var[target - value] / Var[target]; 0 for a constant target."""
    _, total = mean_and_variance([target])
    _, rest = mean_and_variance([target.astype(np.float64) - value.astype(np.float64)])
    return 1.0 - float(rest) / float(total) if total > 0 else 0.0


def mean_and_variance(batches: list[Array]) -> tuple[Array, Array]:
    """Mean and population variance, `O...`, of all observations of batches `[n, O...]`."""
    seen = [np.asarray(row, np.float64) for batch in batches for row in batch]
    mean = sum(seen, np.zeros_like(seen[0])) / len(seen)
    variance = sum(((row - mean) ** 2 for row in seen), np.zeros_like(mean)) / len(seen)
    return mean, variance


def merge_moments(
    count: float, mean: float, variance: float, batches: list[Array]
) -> tuple[float, float]:
    """Mean and variance of `count` numbers, known by theirs, and of all of `batches` `[n]`.

    By sums of powers, around the old mean so that float64 has digits to spare.
    """
    total, first, second = count, 0.0, count * variance
    for batch in batches:
        for x in batch:
            total += 1.0
            first += float(x) - mean
            second += (float(x) - mean) ** 2
    shift = first / total
    return mean + shift, second / total - shift**2


def linear_rate(rate: float, update: int, num_updates: int) -> float:
    """The step size of iteration `update` (0-based), falling linearly to zero."""
    return rate * (num_updates - update) / num_updates


def adam(
    params: Array,
    gradients: list[Array],
    rates: Array,
    *,
    max_norm: float,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-5,
) -> list[Array]:
    """Parameters `[N]` after each Adam step (Kingma and Ba 2015, algorithm 1), rates `[N]`.

    Each gradient `[N]` is first scaled as one vector so that its norm is at most `max_norm`.
    """
    size = len(params)
    params = params.astype(np.float64)
    mean, square = np.zeros(size), np.zeros(size)
    after = []
    for step, gradient in enumerate(gradients, start=1):
        norm = math.sqrt(sum(float(g) ** 2 for g in gradient))
        scale = min(1.0, max_norm / norm) if norm > 0.0 else 1.0
        params = params.copy()
        for i in range(size):
            g = float(gradient[i]) * scale
            mean[i] = b1 * mean[i] + (1.0 - b1) * g
            square[i] = b2 * square[i] + (1.0 - b2) * g**2
            mean_hat = mean[i] / (1.0 - b1**step)
            square_hat = square[i] / (1.0 - b2**step)
            params[i] -= float(rates[i]) * mean_hat / (math.sqrt(square_hat) + epsilon)
        after.append(params)
    return after


def _floats(*arrays: Array) -> list[tuple[float, ...]]:
    return list(zip(*(array.astype(np.float64).tolist() for array in arrays), strict=True))
