"""Torsos: map features `[L, S, F]`, or images `[L, S, H, W, C]`, to features."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from jaxppo.kernels.convolutions import channels_first, convolve, numbers
from jaxppo.kernels.divisors import near_divisor
from jaxppo.kernels.norms import LayerNorm
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.products import product_of
from jaxppo.networks.checks import Checked, argument, check_layers

# Those of jax.nn that map numbers one by one
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    name: getattr(jax.nn, name)
    for name in (
        *("tanh", "relu", "gelu", "silu", "swish", "elu", "leaky_relu", "relu6", "celu", "selu"),
        *("mish", "sigmoid", "log_sigmoid", "soft_sign", "softplus", "squareplus"),
        *("hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity"),
        *("sparse_plus", "sparse_sigmoid"),
    )
}
_orthogonal = nn.initializers.orthogonal(np.sqrt(2))


class MLP(Checked):
    """Dense layers, each followed by optional layer norm and the activation.

    Orthogonal weights of gain sqrt(2), zero biases. Without `activate_final` the last layer has no
    activation. Without `bias` dense layers have none; for use with `layer_norm`, which has its own.
    """

    layer_sizes: Sequence[int] = (64, 64)
    activation: str = argument("tanh", choices=tuple(ACTIVATIONS))
    layer_norm: bool = False
    activate_final: bool = True
    bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., F]` to `[..., layer_sizes[-1]]`; bfloat16 is used in products only.

        The result is float32 even if `x` is bfloat16. If features were rounded, states that are
        nearly alike would have the same value, and advantages would be rounding errors.
        """
        x = _as_floats(x)
        given = x.dtype
        for i, size in enumerate(self.layer_sizes):
            x = self._dense(size, given, f"Dense_{i}")(x)
            if self.layer_norm:
                x = LayerNorm()(x)
            if self.activate_final or i < len(self.layer_sizes) - 1:
                x = ACTIVATIONS[self.activation](x)
        return x

    def _dense(self, size: int, dtype: Any, name: str) -> nn.Module:
        dot_general, init = product_of(dtype), _orthogonal
        return nn.Dense(size, self.bias, kernel_init=init, dot_general=dot_general, name=name)


class NoisyMLP(MLP):
    """An MLP with learnt Gaussian noise on its weights, for exploration.

    With p inputs, the noise starts at a standard deviation of `initial_noise` / sqrt(p). It is
    drawn once per call from the random stream `noise`; without that stream the mean weights are
    used. The mean weights have the names and initial values of an `MLP`.

    Fortunato et al. 2018 (arXiv 1706.10295), sections 3 and 3.2.
    """

    initial_noise: float = argument(0.5, low=0)

    def _dense(self, size: int, dtype: Any, name: str) -> nn.Module:
        return NoisyDense(size, self.initial_noise, dtype=dtype, use_bias=self.bias, name=name)


class NoisyDense(nn.Module):
    """y = (W + W_noise * e e_in) x + b + b_noise * e, e = f(Gaussian), f(x) = sgn(x) sqrt|x|.

    Factorised noise: Fortunato et al. 2018, eq. 9 to 11.
    """

    size: int
    initial_noise: float
    kernel_init: Any = _orthogonal
    dtype: Any = jnp.float32  # bfloat16: of the product only, as in `MLP`
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., F]` to `[..., size]`."""
        num_inputs = x.shape[-1]
        constant = nn.initializers.constant(self.initial_noise / math.sqrt(num_inputs))
        kernel = self.param("kernel", self.kernel_init, (num_inputs, self.size))
        kernel_noise = self.param("kernel_noise", constant, (num_inputs, self.size))
        bias: Any = 0.0
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.size,))
            bias_noise = self.param("bias_noise", constant, (self.size,))
        if self.has_rng("noise"):
            shape = (num_inputs + self.size,)
            draw = jax.random.normal(self.make_rng("noise"), shape, kernel.dtype)
            root = jnp.sign(draw) * jnp.sqrt(jnp.abs(draw))
            into, out = root[:num_inputs], root[num_inputs:]
            kernel = kernel + kernel_noise * into[:, None] * out
            if self.use_bias:
                bias = bias + bias_noise * out
        return product_of(self.dtype)(x, kernel) + bias


class CNN(Checked):
    """Convolutions, then dense layers, each followed by optional layer norm and the activation.

    Orthogonal weights of gain sqrt(2), zero biases; without `bias` no layer has one but layer norm.
    The default sizes suit small images such as MinAtar's: Young and Tian 2019 (arXiv 1903.03176).
    """

    channels: Sequence[int] = (16,)
    kernel_sizes: Sequence[int] = (3,)
    strides: Sequence[int] = (1,)
    padding: str = argument("VALID", choices=("VALID", "SAME"))
    activation: str = argument("relu", choices=tuple(ACTIVATIONS))
    layer_norm: bool = False
    layer_sizes: Sequence[int] = (128,)
    bias: bool = True

    def __post_init__(self) -> None:
        """Raise `ValueError` on a wrong argument, or lists of different lengths."""
        super().__post_init__()
        for name in ("kernel_sizes", "strides"):
            if len(getattr(self, name)) != len(self.channels):
                raise ValueError(
                    f"{name}={list(getattr(self, name))} must hold one number for each of "
                    f"channels={list(self.channels)}"
                )

    @nn.compact
    def __call__(self, x: jax.Array, dtype: Any = None) -> jax.Array:
        """Map `[L, S, H, W, C]` to `[L, S, layer_sizes[-1]]`, or flatten if that list is empty.

        `dtype` is the type to compute in, with bytes (uint8) divided by 255; None: that of `x`.
        """
        lead, x, given = _images(x, dtype)
        x = _by_parts(self, partial(CNN._convolve, dtype=given), x, self._numbers(*x.shape[1:]))
        return MLP(self.layer_sizes, self.activation, self.layer_norm, bias=self.bias)(
            x.reshape(*lead, -1).astype(given)
        )

    def _convolve(self, x: jax.Array, dtype: Any) -> jax.Array:
        """Map images `[N, H, W, C]` to features `[N, F]`."""
        layers = zip(self.channels, self.kernel_sizes, self.strides, strict=True)
        for i, (features, size, stride) in enumerate(layers):
            settings = size, stride, self.padding, dtype, self.bias
            convolution = _Conv(features, *settings, name=f"Conv_{i}")
            x = convolution(x, first=i == 0)
            if self.layer_norm:
                x = nn.LayerNorm(reduction_axes=_axes(), feature_axes=_axes()[-1])(x)
            x = ACTIVATIONS[self.activation](x)
        return _flat(x)

    def _numbers(self, height: int, width: int, channels: int) -> int:
        """Return the most numbers that a convolution stores for an image."""
        most, sides = 0, [height, width]
        convolutions = zip(self.channels, self.kernel_sizes, self.strides, strict=True)
        for features, size, stride in convolutions:
            if self.padding == "VALID" and min(sides) < size:
                raise ValueError(
                    f"kernel_sizes={list(self.kernel_sizes)}: {size} is more than the "
                    f"{sides[0]}x{sides[1]} that is left of an image of {height}x{width}"
                )
            beyond = size - 1 if self.padding == "VALID" else 0
            sides = [-(-(n - beyond) // stride) for n in sides]
            most = max(most, math.prod(sides) * numbers(channels, features, size, stride))
            channels = features
        return most


class ResidualCNN(Checked):
    """Stages of a convolution, a max-pool of stride 2 and residual blocks; then dense layers.

    Espeholt et al. 2018 (arXiv 1802.01561), figure 3, right. Orthogonal weights of gain sqrt(2),
    zero biases.
    """

    channels: Sequence[int] = (16, 32, 32)
    num_blocks: int = argument(2, low=0)
    activation: str = argument("relu", choices=tuple(ACTIVATIONS))
    layer_sizes: Sequence[int] = (256,)

    @nn.compact
    def __call__(self, x: jax.Array, dtype: Any = None) -> jax.Array:
        """Map `[L, S, H, W, C]` to `[L, S, layer_sizes[-1]]`; `dtype` is as that of `CNN`."""
        lead, x, given = _images(x, dtype)
        sizes = [x.shape[3], *self.channels]
        # Each stage has half of the pixels of the last one in a row
        most = max(
            math.prod(-(-n // 2**i) for n in x.shape[1:3]) * numbers(*sizes, 3, 1)
            for i, sizes in enumerate(itertools.pairwise(sizes))
        )
        x = _by_parts(self, partial(ResidualCNN._convolve, dtype=given), x, most)
        return MLP(self.layer_sizes, self.activation)(x.reshape(*lead, -1).astype(given))

    def _convolve(self, x: jax.Array, dtype: Any) -> jax.Array:
        """Map images `[N, H, W, C]` to features `[N, F]`."""
        activation = ACTIVATIONS[self.activation]
        convolution = partial(_Conv, dtype=dtype)
        names = (f"Conv_{i}" for i in range(len(self.channels) * (1 + 2 * self.num_blocks)))
        for i, features in enumerate(self.channels):
            x = convolution(features, name=next(names))(x, first=i == 0)
            x = _max_pool(x)
            for _ in range(self.num_blocks):
                y = convolution(features, name=next(names))(activation(x))
                x = x + convolution(features, name=next(names))(activation(y))
        return _flat(activation(x))


class _Conv(nn.Module):
    """`flax.linen.Conv` with a square kernel, in the form that is fast on the platform."""

    features: int
    size: int = 3
    stride: int = 1
    padding: str = "SAME"
    dtype: Any = jnp.float32  # bfloat16: of products only, as in `MLP`
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, *, first: bool = False) -> jax.Array:
        """See `convolve`."""
        channels = x.shape[3 if first else _axes()[-1]]
        kernel = self.param("kernel", _orthogonal, (self.size, self.size, channels, self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
        at_least = jnp.promote_types(x.dtype, jnp.float32)
        kernel, bias = promote_dtype(kernel, bias, dtype=at_least)
        if x.dtype != jnp.uint8:
            x = x.astype(at_least)
        y = convolve(x, kernel, self.stride, self.padding, self.dtype, first=first)
        if bias is None:
            return y
        return y + bias.reshape([-1 if i == _axes()[-1] else 1 for i in range(4)])


class Chain(nn.Module):
    """Layers one after another."""

    layers: Sequence[Any]

    def __post_init__(self) -> None:
        """Raise `ValueError` unless `layers` is a list of at least one layer."""
        check_layers("layers", self.layers)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Map the input of the first layer to the output of the last one.

        If the input is bfloat16, so is that of every layer.
        """
        given = getattr(x, "dtype", None)
        for layer in self.layers:
            x = layer(x.astype(given) if given == jnp.bfloat16 else x)
        return x


def _axes() -> tuple[int, int, int]:
    """Return the axes of height, width and channels of images between convolutions."""
    return (2, 3, 0) if channels_first() else (1, 2, 3)


def _flat(x: jax.Array) -> jax.Array:
    """Return images between convolutions as features `[N, H W C]`."""
    if channels_first():
        x = x.transpose(1, 2, 3, 0)
    return x.reshape(x.shape[0], -1)


def _max_pool(x: jax.Array) -> jax.Array:
    """Pool windows of 3 x 3 with stride 2."""
    window, strides = ([n if i in _axes()[:2] else 1 for i in range(4)] for n in (3, 2))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")


def _by_parts(
    module: nn.Module, call: Callable[[Any, jax.Array], jax.Array], x: jax.Array, stored: int
) -> jax.Array:
    """Return `call(module, x)`, of as many images at a time as fit in the processor's cache.

    For each the call stores `stored` numbers at once.
    """
    most, num = forms().convolution_bytes, x.shape[0]
    if most is None or not isinstance(num, int):  # an export may leave the number open
        return call(module, x)
    num_parts = near_divisor(num, 4 * num * stored / most)
    if num_parts == 1:
        return call(module, x)
    scan: Any = nn.scan(
        lambda module, _, part: ((), call(module, part)),
        variable_broadcast="params",
        split_rngs={"params": False},
    )
    _, y = scan(module, (), x.reshape(num_parts, -1, *x.shape[1:]))
    return y.reshape(num, -1)


def _images(x: Any, dtype: Any) -> tuple[tuple[int, ...], jax.Array, Any]:
    """Map `[L, S, H, W, C]` to (L, S), images `[L S, H, W, C]` and the type to compute in.

    `dtype` is as that of `CNN`. `ValueError` on other shapes.
    """
    if getattr(x, "ndim", None) != 5:
        given = f"shape {x.shape}" if hasattr(x, "shape") else f"a {type(x).__name__}"
        raise ValueError(
            f"a convolution takes images [L, S, H, W, C], not {given}; "
            "network/input_layer=image gives one"
        )
    if dtype is None:
        x = _as_floats(x)
    elif x.dtype != jnp.uint8:
        x = x.astype(dtype)
    return x.shape[:2], x.reshape(-1, *x.shape[2:]), x.dtype if dtype is None else dtype


def _as_floats(x: jax.Array) -> jax.Array:
    """Return integers and booleans, as `inputs.Fuse` may pass them on, in float32."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
