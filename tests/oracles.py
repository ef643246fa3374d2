"""What the package computes, in float64 NumPy loops written from the definitions; and vectors.

Nothing here is fast or clever: a loop per sum, so that each can be checked by reading. Numbers
become Python floats first, as NumPy computes float32 with float in float32.
"""

import itertools
import json
import math
from collections.abc import Callable
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


def gae_of_players(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    player: Array,
    next_player: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Advantages `[T, B]` in a zero-sum game, each from the sums of the player who moves.

    All arrays are `[T, B]`; rewards and values are those of `player`, `next_value` is that of
    `next_player`. What one player gains, the other loses.
    """
    advantage = np.zeros(reward.shape, np.float64)
    for t, b in np.ndindex(*reward.shape):
        weight = 1.0
        for k in range(t, len(reward)):
            mine = player[k, b] == player[t, b]
            delta = float(reward[k, b] - value[k, b]) * (1 if mine else -1)
            if not terminated[k, b]:
                his = next_player[k, b] == player[t, b]
                delta += gamma * float(next_value[k, b]) * (1 if his else -1)
            advantage[t, b] += weight * delta
            if terminated[k, b] or truncated[k, b]:
                break
            weight *= gamma * gae_lambda
    return advantage


def clipped_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip_eps: float, clip_eps_high: float
) -> tuple[Array, Array]:
    """The loss of each sample and its derivative by that sample's `log_prob`, both `[N]`.

    Ratios are clipped between 1 - clip_eps and 1 + clip_eps_high.
    """
    losses, gradients = [], []
    for new, old, a in _floats(log_prob, old_log_prob, advantage):
        ratio = math.exp(new - old)
        # A good action's ratio earns nothing above its bound, a bad one's nothing below
        idle = ratio > 1.0 + clip_eps_high if a > 0.0 else ratio < 1.0 - clip_eps
        bound = 1.0 + clip_eps_high if a > 0.0 else 1.0 - clip_eps
        losses.append(-(bound if idle else ratio) * a)
        gradients.append(0.0 if idle else -ratio * a)
    return np.asarray(losses, np.float64), np.asarray(gradients, np.float64)


def approximate_kl(log_prob: Array, old_log_prob: Array) -> Array:
    """(r - 1) - log r of each sample, `[N]`."""
    estimates = []
    for new, old in _floats(log_prob, old_log_prob):
        estimates.append(math.expm1(new - old) - (new - old))
    return np.asarray(estimates, np.float64)


def explained_variance(value: Array, target: Array) -> float:
    """1 - Var[target - value] / Var[target]; 0 for a constant target."""
    _, total = mean_and_variance([target])
    _, rest = mean_and_variance([target.astype(np.float64) - value.astype(np.float64)])
    return 1.0 - float(rest) / float(total) if total > 0 else 0.0


def mean_and_variance(batches: list[Array], decay: float = 1.0) -> tuple[Array, Array]:
    """Mean and population variance, `O...`, of all observations of batches `[n, O...]`.

    Each is weighted by decay^(batches since).
    """
    ages = range(len(batches) - 1, -1, -1)
    seen = [
        (decay**age, np.asarray(row, np.float64))
        for age, batch in zip(ages, batches, strict=True)
        for row in batch
    ]
    total = math.fsum(weight for weight, _ in seen)
    zero = np.zeros_like(seen[0][1])
    mean = sum((weight * row for weight, row in seen), zero) / total
    variance = sum((weight * (row - mean) ** 2 for weight, row in seen), zero) / total
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


def _rest(discount: Array, truncated: Array, t: int, b: int) -> range:
    """Steps t, t + 1, ... to the last of the same episode and array."""
    last = t
    while last + 1 < len(discount) and discount[last, b] != 0.0 and not truncated[last, b]:
        last += 1
    return range(t, last + 1)


def _after(discount: Array, next_value: Array, t: int, b: int) -> float:
    """gamma_t V(s'_t), zero where nothing follows."""
    return float(discount[t, b]) * float(next_value[t, b]) if discount[t, b] != 0.0 else 0.0


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
) -> tuple[Array, Array]:
    """Advantages and value targets, `[T, B]`: eq. 1 as a sum forward from each step."""
    discount = np.where(terminated, 0.0, gamma)
    targets = np.zeros(reward.shape, np.float64)
    advantages = np.zeros(reward.shape, np.float64)
    for t, b in np.ndindex(*reward.shape):
        weight, target = 1.0, float(value[t, b])
        for k in _rest(discount, truncated, t, b):
            ratio = math.exp(float(log_ratio[k, b]))
            one_step = float(reward[k, b]) + _after(discount, next_value, k, b)
            target += weight * min(rho_clip, ratio) * (one_step - float(value[k, b]))
            weight *= gamma * gae_lambda * min(c_clip, ratio)
        targets[t, b] = target
    for t, b in np.ndindex(*reward.shape):
        q = float(reward[t, b]) + _after(discount, next_value, t, b)
        if len(_rest(discount, truncated, t, b)) > 1:
            q += gamma * gae_lambda * (targets[t + 1, b] - float(value[t + 1, b]))
        advantages[t, b] = q - float(value[t, b])
    return advantages, targets


def lambda_returns(
    reward: Array, discount: Array, next_value: Array, truncated: Array, lambda_: Array | float
) -> Array:
    """The mixture of rewards and values forward from each step, `[T, B]`."""
    return n_step_returns(reward, discount, next_value, truncated, len(reward), lambda_)


def n_step_returns(
    reward: Array,
    discount: Array,
    next_value: Array,
    truncated: Array,
    n: int,
    lambda_: Array | float | None = None,
) -> Array:
    """At most n rewards and the value after the last of them, forward from each step, `[T, B]`.

    With `lambda_` below 1 the values on the way are mixed in.
    """
    mixing = np.broadcast_to(np.asarray(1.0 if lambda_ is None else lambda_), reward.shape)
    returns = np.zeros(reward.shape, np.float64)
    for t, b in np.ndindex(*reward.shape):
        weight, steps = 1.0, _rest(discount, truncated, t, b)[:n]
        for k in steps:
            returns[t, b] += weight * float(reward[k, b])
            stay = float(mixing[k, b]) if k != steps[-1] else 0.0
            if stay < 1.0:
                returns[t, b] += weight * (1.0 - stay) * _after(discount, next_value, k, b)
            weight *= float(discount[k, b]) * stay
    return returns


def discounted_returns(
    reward: Array, discount: Array, next_value: Array, truncated: Array
) -> Array:
    """Every reward up to the end and the value after it, `[T, B]`."""
    return n_step_returns(reward, discount, next_value, truncated, len(reward))


def q_lambda(
    reward: Array, discount: Array, next_q: Array, truncated: Array, lambda_: Array | float
) -> Array:
    """Lambda returns that bootstrap from the largest of `next_q` `[T, B, A]`."""
    return lambda_returns(reward, discount, next_q.max(axis=-1), truncated, lambda_)


def general_off_policy_returns(
    reward: Array, discount: Array, q: Array, next_value: Array, c: Array, truncated: Array
) -> Array:
    """Munos et al. 2016, eq. 3: weighted one-step errors forward from each step, `[T, B]`."""
    returns = q.astype(np.float64)
    for t, b in np.ndindex(*reward.shape):
        weight = 1.0
        for k in _rest(discount, truncated, t, b):
            if k > t:
                weight *= float(discount[k - 1, b]) * float(c[k, b])
            one_step = float(reward[k, b]) + _after(discount, next_value, k, b)
            returns[t, b] += weight * (one_step - float(q[k, b]))
    return returns


def retrace(
    reward: Array,
    discount: Array,
    q: Array,
    next_value: Array,
    log_ratio: Array,
    truncated: Array,
    lambda_: Array | float,
) -> Array:
    """The same with the weights of Retrace."""
    c = lambda_ * np.minimum(1.0, np.exp(log_ratio.astype(np.float64)))
    return general_off_policy_returns(reward, discount, q, next_value, c, truncated)


def importance_corrected_td_errors(
    reward: Array,
    discount: Array,
    value: Array,
    next_value: Array,
    log_ratio: Array,
    truncated: Array,
    lambda_: Array | float,
) -> Array:
    """One-step errors forward from each step, each times the ratios of all actions since."""
    mixing = np.broadcast_to(np.asarray(lambda_, np.float64), reward.shape)
    errors = np.zeros(reward.shape, np.float64)
    for t, b in np.ndindex(*reward.shape):
        weight = 1.0
        for k in _rest(discount, truncated, t, b):
            if k > t:
                weight *= float(discount[k - 1, b]) * float(mixing[k - 1, b])
            weight *= math.exp(float(log_ratio[k, b]))
            one_step = float(reward[k, b]) + _after(discount, next_value, k, b)
            errors[t, b] += weight * (one_step - float(value[k, b]))
    return errors


def expectation(
    log_density: Callable[[float], float],
    function: Callable[[float], float],
    low: float,
    high: float,
    num_points: int = 20_000,
) -> float:
    """The integral of density times function from low to high, by the midpoint rule."""
    width = (high - low) / num_points
    points = [low + (i + 0.5) * width for i in range(num_points)]
    return math.fsum(math.exp(log_density(x)) * function(x) * width for x in points)


def normal_log_prob(x: float, loc: float, scale: float) -> float:
    return -(((x - loc) / scale) ** 2) / 2.0 - math.log(scale) - math.log(2.0 * math.pi) / 2.0


def tanh_normal_log_prob(u: float, loc: float, scale: float, low: float, high: float) -> float:
    """Of a = low + (high - low) (tanh(u) + 1) / 2, whose slope is (high - low) / 2 / cosh^2 u."""
    slope = (high - low) / 2.0 / math.cosh(u) ** 2
    return normal_log_prob(u, loc, scale) - math.log(slope)


def tanh_normal_entropy(loc: float, scale: float, low: float, high: float) -> float:
    """-E[log density of the action], over twelve deviations of u either way."""
    return expectation(
        lambda u: normal_log_prob(u, loc, scale),
        lambda u: -tanh_normal_log_prob(u, loc, scale, low, high),
        loc - 12.0 * scale,
        loc + 12.0 * scale,
    )


def histogram(target: float, low: float, high: float, num_atoms: int, sigma: float) -> Array:
    """The target's share of each bin around an atom, `[K]`; sigma in bins, 0 for two atoms."""
    width = (high - low) / (num_atoms - 1)
    target = min(max(target, low), high)
    if sigma == 0.0:
        below = min(int((target - low) / width), num_atoms - 2)
        share = (target - (low + below * width)) / width
        masses = [0.0] * num_atoms
        masses[below], masses[below + 1] = 1.0 - share, share
        return np.asarray(masses, np.float64)

    def cdf(x: float) -> float:
        return math.erfc((target - x) / (sigma * width * math.sqrt(2.0))) / 2.0

    edges = [low + (k - 0.5) * width for k in range(num_atoms + 1)]
    masses = [cdf(right) - cdf(left) for left, right in itertools.pairwise(edges)]
    return np.asarray(masses, np.float64) / sum(masses)


def discovered_objective(
    log_prob: Array, old_log_prob: Array, advantage: Array, alpha: float, beta: float
) -> tuple[Array, Array]:
    """-(r A - drift) of each sample and its derivative by that sample's `log_prob`, both `[N]`.

    With x - s tanh(x / s), whose slope is tanh(x / s)^2, the drift of a change x that the
    advantage favours; of others there is none.
    """
    losses, gradients = [], []
    for new, old, a in _floats(log_prob, old_log_prob, advantage):
        ratio = math.exp(new - old)
        x, scale, slope = (
            ((ratio - 1.0) * a, alpha, ratio * a) if a >= 0.0 else ((new - old) * a, beta, a)
        )
        squashed = math.tanh(x / scale)
        drift, drift_slope = (x - scale * squashed, squashed**2) if x > 0.0 else (0.0, 0.0)
        losses.append(-(ratio * a - drift))
        gradients.append(-(ratio * a - drift_slope * slope))
    return np.asarray(losses, np.float64), np.asarray(gradients, np.float64)


def huber_error(value: Array, target: Array, delta: float) -> tuple[Array, Array]:
    """The error of each value and its derivative by that value, both `[N]`."""
    losses, gradients = [], []
    for v, g in _floats(value, target):
        error = v - g
        if abs(error) <= delta:
            losses.append(error**2 / 2.0)
            gradients.append(error)
        else:
            losses.append(delta * (abs(error) - delta / 2.0))
            gradients.append(math.copysign(delta, error))
    return np.asarray(losses, np.float64), np.asarray(gradients, np.float64)


def clipped_huber_error(
    value: Array, old_value: Array, target: Array, clip_eps: float, delta: float
) -> Array:
    """The larger Huber error of the value and of the value clipped around the old, `[N]`."""
    value, old_value = value.astype(np.float64), old_value.astype(np.float64)
    near = np.asarray(
        [min(max(v, o - clip_eps), o + clip_eps) for v, o in _floats(value, old_value)], np.float64
    )
    far = huber_error(value, target, delta)[0], huber_error(near, target, delta)[0]
    return np.asarray([max(pair) for pair in _floats(*far)], np.float64)


def linear_recurrence(
    decay: np.ndarray, inputs: np.ndarray, reset: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """h_t = decay h_{t-1} + x_t, of nothing at a reset; `[L, S, N]`."""
    states, state = [], start
    for x, opens in zip(inputs, reset, strict=True):
        state = decay * np.where(opens[:, None], 0.0, state) + x
        states.append(state)
    return np.stack(states)


def categorical_lambda_returns(
    reward: Array,
    discount: Array,
    next_probs: Array,
    truncated: Array,
    atoms: Array,
    lambda_: float,
) -> Array:
    """Each atom of the mixed law, shifted and split between two neighbours, `[T, B, K]`."""
    low, high, last = float(atoms[0]), float(atoms[-1]), len(atoms) - 1
    targets = np.zeros(next_probs.shape, np.float64)
    for t, b in reversed(list(np.ndindex(*reward.shape))):
        following = next_probs[t, b].astype(np.float64)
        if len(_rest(discount, truncated, t, b)) > 1:
            following = (1.0 - lambda_) * following + lambda_ * targets[t + 1, b]
        if discount[t, b] == 0.0:
            following = np.eye(last + 1)[0]  # whichever: all returns are the reward
        for k in range(last + 1):
            shifted = float(reward[t, b]) + float(discount[t, b]) * float(atoms[k])
            place = (min(max(shifted, low), high) - low) / (high - low) * last
            left = min(int(place), last - 1)
            targets[t, b, left] += following[k] * (left + 1 - place)
            targets[t, b, left + 1] += following[k] * (place - left)
    return targets


def quantile_lambda_returns(
    reward: Array, discount: Array, next_quantiles: Array, truncated: Array, lambda_: float
) -> Array:
    """Quantiles of the mixed law, shifted, backwards, `[T, B, N]`."""
    num = next_quantiles.shape[-1]
    targets = np.zeros(next_quantiles.shape, np.float64)
    for t, b in reversed(list(np.ndindex(*reward.shape))):
        if discount[t, b] == 0.0:
            targets[t, b] = float(reward[t, b])
            continue
        weighted = [(float(q), 1.0 / num) for q in next_quantiles[t, b]]
        if len(_rest(discount, truncated, t, b)) > 1:
            weighted = [(q, (1.0 - lambda_) * w) for q, w in weighted]
            weighted += [(float(q), lambda_ / num) for q in targets[t + 1, b]]
        mixed = np.asarray(mean_quantiles(weighted, num))
        targets[t, b] = float(reward[t, b]) + float(discount[t, b]) * mixed
    return targets


def mean_quantiles(weighted: list[tuple[float, float]], num: int) -> list[float]:
    """Means of the inverse distribution function of (value, weight) over `num` equal parts."""
    found = [0.0] * num
    reached = 0.0
    for value, weight in sorted(weighted):
        for i in range(num):
            begin, end = max(reached, i / num), min(reached + weight, (i + 1) / num)
            found[i] += value * num * max(0.0, end - begin)
        reached += weight
    return found


def munchausen_returns(
    reward: Array,
    discount: Array,
    q: Array,
    action: Array,
    next_q: Array,
    truncated: Array,
    *,
    lambda_: float,
    alpha: float,
    temperature: float,
    clip: float,
) -> Array:
    """Rewards plus clipped log-policies, then soft values or later returns; `q` `[T, B, A]`.

    A later return counts from an action on; the entropy of the policy that chose it is added.
    """
    targets = np.zeros(reward.shape)
    for t, b in reversed(list(np.ndindex(*reward.shape))):
        policy = _softmax([float(x) / temperature for x in q[t, b]])
        log_prob = math.log(policy[int(action[t, b])]) if policy[int(action[t, b])] else -math.inf
        targets[t, b] = float(reward[t, b]) + alpha * max(temperature * log_prob, -clip)
        if discount[t, b] == 0.0:
            continue
        after = _softmax([float(x) / temperature for x in next_q[t, b]])
        entropy = -temperature * sum(p * math.log(p) for p in after if p)
        follows = entropy + sum(p * float(x) for p, x in zip(after, next_q[t, b], strict=True))
        if len(_rest(discount, truncated, t, b)) > 1:
            later = _softmax([float(x) / temperature for x in q[t + 1, b]])
            entropy = -temperature * sum(p * math.log(p) for p in later if p)
            follows += lambda_ * (targets[t + 1, b] + entropy - follows)
        targets[t, b] += float(discount[t, b]) * follows
    return targets


def _softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    powers = [math.exp(x - highest) for x in logits]
    return [x / sum(powers) for x in powers]


def radam(
    params: Array,
    gradients: list[Array],
    rate: float,
    *,
    max_norm: float,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-8,
) -> list[Array]:
    """Parameters `[N]` after each step of RAdam (Liu et al. 2020, algorithm 2)."""
    params = params.astype(np.float64)
    mean, square = np.zeros(len(params)), np.zeros(len(params))
    longest = 2.0 / (1.0 - b2) - 1.0
    after = []
    for step, gradient in enumerate(gradients, start=1):
        g = gradient.astype(np.float64)
        g = g * min(1.0, max_norm / math.sqrt(float(np.sum(g**2))))
        mean, square = b1 * mean + (1.0 - b1) * g, b2 * square + (1.0 - b2) * g**2
        length = longest - 2.0 * step * b2**step / (1.0 - b2**step)
        direction = mean / (1.0 - b1**step)
        if length >= 5.0:
            rectified = (length - 4.0) * (length - 2.0) * longest
            rectified /= (longest - 4.0) * (longest - 2.0) * length
            adaptive = np.sqrt(square / (1.0 - b2**step)) + epsilon
            direction = math.sqrt(rectified) * direction / adaptive
        params = params - rate * direction
        after.append(params)
    return after


def gtrxl(params: Any, x: Array, reset: Array, num_heads: int, window: int) -> Array:
    """Outputs `[L, S, size]` of `networks.transformer.GTrXL` after an empty memory.

    Each step of each layer looks at the steps of its episode, at most `window` before it.
    """
    p = _in_float64(params)
    length, num, _ = x.shape
    episode = np.cumsum(reset, axis=0)
    h = x.astype(np.float64) @ p["embedding"]["kernel"] + p["embedding"]["bias"]
    for i in range(sum(name.startswith("layer_") for name in p)):
        layer = p[f"layer_{i}"]
        unit = _layer_norm(layer["LayerNorm_0"], h)
        attended = np.zeros_like(h)
        for s in range(num):
            for t in range(length):
                seen = [
                    j
                    for j in range(length)
                    if t - window <= j <= t and episode[j, s] == episode[t, s]
                ]
                attended[t, s] = _attend(layer["_Attention_0"], unit[:, s], t, seen, num_heads)
        h = _gate(layer["_Gate_0"], h, np.maximum(attended, 0.0))
        one, two = layer["Dense_0"], layer["Dense_1"]
        hidden = _layer_norm(layer["LayerNorm_1"], h) @ one["kernel"] + one["bias"]
        y = np.maximum(hidden, 0.0) @ two["kernel"] + two["bias"]
        h = _gate(layer["_Gate_1"], h, np.maximum(y, 0.0))
    return h


def _in_float64(tree: Any) -> Any:
    if hasattr(tree, "items"):
        return {name: _in_float64(part) for name, part in tree.items()}
    return np.asarray(tree, np.float64)


def _layer_norm(p: Any, x: Array) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    scaled: Array = (x - mean) / np.sqrt(variance + 1e-6) * p["scale"] + p["bias"]
    return scaled


def _attend(p: Any, x: Array, t: int, seen: list[int], num_heads: int) -> Array:
    """What step t of `x` `[L, size]` takes from the steps `seen`, `[size]`."""
    size = x.shape[-1]
    width = size // num_heads
    outputs = []
    for head in range(num_heads):
        part = slice(head * width, (head + 1) * width)
        query = x[t] @ p["query"][:, part]
        scores = []
        for j in seen:
            frequencies = [10_000.0 ** (-i / size) for i in range(0, size, 2)]
            sines = [math.sin((t - j) * f) for f in frequencies]
            cosines = [math.cos((t - j) * f) for f in frequencies]
            relative = np.array((sines + cosines)[:size]) @ p["position"][:, part]
            content = x[j] @ p["key"][:, part]
            score = (query + p["u"][head]) @ content + (query + p["v"][head]) @ relative
            scores.append(score / math.sqrt(width))
        weights = np.exp(scores) / np.exp(scores).sum()
        values = [x[j] @ p["value"][:, part] for j in seen]
        outputs.append(sum(w * value for w, value in zip(weights, values, strict=True)))
    attended: Array = np.concatenate(outputs) @ p["output"]
    return attended


def _gate(p: Any, x: Array, y: Array) -> Array:
    size = x.shape[-1]
    of_y, of_x = p["y"]["kernel"], p["x"]["kernel"]
    r = _sigmoid(y @ of_y[:, :size] + x @ of_x[:, :size])
    z = _sigmoid(y @ of_y[:, size : 2 * size] + x @ of_x[:, size:] - p["bias"])
    new = np.tanh(y @ of_y[:, 2 * size :] + (r * x) @ p["reset"]["kernel"])
    gated: Array = (1.0 - z) * x + z * new
    return gated


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))
