"""A gated transformer with a memory of the last steps; see `jaxppo.networks.memory`."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.kernels.norms import LayerNorm
from jaxppo.kernels.products import Dense, float32_product
from jaxppo.networks.checks import Checked, check_features
from jaxppo.types import PyTree


class GTrXL(Checked):
    """Transformer-XL layers with gates, each of which attends to the last `window` steps.

    Attention and cache: Dai et al. 2019 (arXiv 1901.02860), section 3. Layer norm before each
    submodule, ReLU after it, and GRU-type gates in place of sums: Parisotto et al. 2019 (arXiv
    1910.06764), section 3. `gate_bias` is the initial b_g: at 2, layers start close to the
    identity. Step t of a layer sees its inputs at the steps t - window to t of the same episode,
    however a rollout is cut into sequences, so that outputs depend on up to
    `num_layers * window` steps before. Gradients end at the start of the sequence, not at the
    window.

    The carry holds the inputs of each layer at the last `window` steps, so it is
    `num_layers * window` times as large as that of a GRU of this size.
    """

    size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    window: int = 32
    mlp_size: int = 128
    gate_bias: float = 2.0

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument, or heads that do not fit."""
        super().__post_init__()
        if self.size % self.num_heads:
            raise ValueError(f"size={self.size} must be a multiple of num_heads={self.num_heads}")

    @nn.nowrap
    def initial_carry(self, num: int) -> PyTree:
        """Return zeros: `past`, `[num, window, size]` per layer, and `count`, int32 `[num]`.

        `count` is the number of steps at the end of `past` that belong to the current episode; the
        others are 0.
        """
        past = (jnp.zeros((num, self.window, self.size), jnp.float32),) * self.num_layers
        return {"past": past, "count": jnp.zeros(num, jnp.int32)}

    @nn.compact
    def __call__(self, carry: PyTree, x: jax.Array, reset: jax.Array) -> tuple[PyTree, jax.Array]:
        """Map features `[L, S, F]` to `[L, S, size]`."""
        check_features(x)
        x = Dense(self.size, name="embedding")(x).swapaxes(0, 1)
        visible, current = _visible(carry["count"], reset.T, self.window)
        cached = visible[:, 0, : self.window, None]  # what the first step does not see, none does
        past = []
        for i, before in enumerate(carry["past"]):
            seen = jnp.concatenate([jnp.where(cached, before, 0.0), x], axis=1)
            layer = _GTrXLLayer(self.num_heads, self.mlp_size, self.gate_bias, name=f"layer_{i}")
            past.append(jnp.where(current[..., None], seen[:, -self.window :], 0.0))
            x = layer(x, seen, visible)
        count = jnp.sum(current, axis=1, dtype=jnp.int32)
        return {"past": tuple(past), "count": count}, x.swapaxes(0, 1)


def _visible(count: jax.Array, reset: jax.Array, window: int) -> tuple[jax.Array, jax.Array]:
    """Return which of the cached steps and the sequence each step sees, and what the next may see.

    Takes count `[S]` and reset `[S, L]`; returns bool `[S, L, window + L]` and `[S, window]`.
    """
    length = reset.shape[1]
    episode = jnp.cumsum(reset, axis=1, dtype=jnp.int32)  # 0: the one of the cache
    cached = jnp.where(jnp.arange(window) < window - count[:, None], -1, 0)
    of_seen = jnp.concatenate([cached, episode], axis=1)
    distance = jnp.arange(window, window + length)[:, None] - jnp.arange(window + length)
    near = (distance >= 0) & (distance <= window)
    visible = near & (episode[:, :, None] == of_seen[:, None])
    return visible, of_seen[:, -window:] == episode[:, -1:]


class _GTrXLLayer(nn.Module):
    num_heads: int
    mlp_size: int
    gate_bias: float

    @nn.compact
    def __call__(self, x: jax.Array, seen: jax.Array, visible: jax.Array) -> jax.Array:
        """Map x `[S, L, size]` to `[S, L, size]`, given `seen`, the cache and x."""
        attended = _Attention(self.num_heads)(LayerNorm()(seen), visible)
        x = _Gate(self.gate_bias)(x, nn.relu(attended))
        hidden = nn.relu(Dense(self.mlp_size)(LayerNorm()(x)))
        return _Gate(self.gate_bias)(x, nn.relu(Dense(x.shape[-1])(hidden)))


class _Gate(nn.Module):
    """GRU-type gating: r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - b_g).

    Returns (1 - z) x + z tanh(W_g y + U_g (r x)): Parisotto et al. 2019, section 3.2.
    """

    bias: float

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Map x and y `[..., size]` to `[..., size]`."""
        size = x.shape[-1]
        bias = self.param("bias", nn.initializers.constant(self.bias), (size,))
        of_y = Dense(3 * size, use_bias=False, name="y")(y)  # W_r, W_z, W_g
        of_x = Dense(2 * size, use_bias=False, name="x")(x)  # U_r, U_z
        r = nn.sigmoid(of_y[..., :size] + of_x[..., :size])
        z = nn.sigmoid(of_y[..., size : 2 * size] + of_x[..., size:] - bias)
        reset = Dense(size, use_bias=False, name="reset")(r * x)  # U_g
        return (1.0 - z) * x + z * jnp.tanh(of_y[..., 2 * size :] + reset)


class _Attention(nn.Module):
    """Multi-head attention with relative positions.

    Step t weighs step j by the softmax of ((q_t + u) . k_j + (q_t + v) . W R_{t-j}) / sqrt(D),
    where D is the size of a head and u and v are learnt, here by each layer on its own: Dai et al.
    2019, section 3.3.
    """

    num_heads: int

    @nn.compact
    def __call__(self, seen: jax.Array, visible: jax.Array) -> jax.Array:
        """Map seen `[S, window + L, size]` and visible `[S, L, window + L]` to `[S, L, size]`."""
        (num, total, size), length = seen.shape, visible.shape[1]
        window, shape = total - length, (self.num_heads, size // self.num_heads)

        def kernel(name: str) -> jax.Array:
            return self.param(name, nn.initializers.lecun_normal(), (size, size))

        def bias(name: str) -> jax.Array:
            return self.param(name, nn.initializers.normal(0.02), shape)

        def heads(x: jax.Array, name: str) -> jax.Array:
            return float32_product(x, kernel(name)).reshape(*x.shape[:-1], *shape)

        query = heads(seen[:, window:], "query") / math.sqrt(shape[1])
        u, v = (bias(name) / math.sqrt(shape[1]) for name in ("u", "v"))
        position = heads(_encodings(jnp.arange(window, -1, -1), size), "position")
        by_position = jnp.einsum("slhd,ehd->slhe", query + v, position)
        query += u
        # A weight of 0 times NaN is NaN. Steps that see a NaN have weights of NaN by its score. A
        # single step sees all that the cache was left
        values = seen if length == 1 else jnp.where(jnp.isnan(seen), 0.0, seen)
        if _few(length, total, size, self.num_heads):
            # The same numbers without keys and values of the cache: q . (W m) = (W^T q) . m
            key, value = (kernel(name).reshape(size, *shape) for name in ("key", "value"))
            turned = jnp.einsum("slhd,fhd->slhf", query, key)
            by_content = turned.reshape(num, -1, size) @ seen.swapaxes(1, 2)
            by_content = by_content.reshape(num, length, self.num_heads, total)
            weights = _weights(by_content.swapaxes(1, 2), by_position, visible)
            mixed = weights.swapaxes(1, 2).reshape(num, -1, total) @ values
            output = jnp.einsum("slhf,fhd->slhd", mixed.reshape(*query.shape[:3], size), value)
        else:
            key, value = heads(seen, "key"), heads(values, "value")
            output = _attend(query, key, value, by_position, visible)
        return float32_product(output.reshape(num, length, size), kernel("output"))


def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, by_position: jax.Array, visible: jax.Array
) -> jax.Array:
    """Return what each query takes, `[S, L, H, D]`.

    Takes query `[S, L, H, D]`, key and value `[S, window + L, H, D]`, and scores by position
    `[S, L, H, window + 1]`. Queries of long sequences look in chunks at the keys near them.
    """
    num, length = query.shape[:2]
    window = key.shape[1] - length
    chunk = max(i for i in range(1, min(length, window) + 1) if length % i == 0)
    if chunk == length or 2 * chunk < window:  # short chunks would share most of their keys
        by_content = jnp.einsum("slhd,sjhd->shlj", query, key)
        weights = _weights(by_content, by_position, visible)
        return jnp.einsum("shlj,sjhd->slhd", weights, value)

    def together(parts: list[jax.Array]) -> jax.Array:
        joined = jnp.stack(parts, axis=1)
        return joined.reshape(-1, *joined.shape[2:])

    starts = range(0, length, chunk)
    query, by_position = (x.reshape(-1, chunk, *x.shape[2:]) for x in (query, by_position))
    key, value = (together([x[:, i : i + window + chunk] for i in starts]) for x in (key, value))
    near = together([visible[:, i : i + chunk, i : i + window + chunk] for i in starts])
    return _attend(query, key, value, by_position, near).reshape(num, length, *query.shape[2:])


def _few(length: int, total: int, size: int, num_heads: int) -> bool:
    """Return whether products with the kernels are fewer for the steps than for all they see."""
    of_all = 2 * total * size**2 + 2 * length * total * size
    return 2 * length * size**2 + 2 * length * total * num_heads * size < of_all


def _weights(by_content: jax.Array, by_position: jax.Array, visible: jax.Array) -> jax.Array:
    """Return the weights of attention `[S, H, L, J]`, 0 where `visible` `[S, L, J]` is false.

    Scores by content are `[S, H, L, J]`, by position `[S, L, H, window + 1]`.
    """
    scores = by_content + _skew(by_position.swapaxes(1, 2))
    return nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf))


def _skew(scores: jax.Array) -> jax.Array:
    """Move row l of `[..., L, window + 1]` right by l; return `[..., L, window + L]`."""
    *lead, length, width = scores.shape
    padded = jnp.pad(scores, [*([(0, 0)] * (len(lead) + 1)), (0, length)])
    flat = padded.reshape(*lead, length * (width + length))
    return flat[..., : length * (width + length - 1)].reshape(*lead, length, width + length - 1)


def _encodings(distance: jax.Array, size: int) -> jax.Array:
    """Return R `[E, size]` of distances `[E]`: sines, then cosines, of geometric frequencies."""
    frequency = 10_000.0 ** -(jnp.arange(0, size, 2) / size)
    angle = distance[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)[:, :size]
