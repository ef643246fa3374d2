"""Convolutions of images with square kernels, in the form that is fast on the platform."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.kernels.platforms import forms
from jaxppo.kernels.precisions import at, current
from jaxppo.kernels.products import contract


def channels_first() -> bool:
    """Return whether `convolve` returns `[F, N, H', W']`, not `[N, H', W', F]`."""
    return forms().convolution_bytes is not None


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    stride: int,
    padding: str,
    dtype: Any = jnp.float32,
    *,
    first: bool = True,
) -> jax.Array:
    """Convolve images with a kernel `[k, k, C, F]`; return `[N, H', W', F]`, or channels first.

    Images are `[N, H, W, C]` if this is the `first` of several convolutions, else as the last one
    returned them; bytes (uint8) are divided by 255. `padding` is SAME or VALID. With a `dtype` of
    bfloat16 that is the type of the factors of products, forward and backward.
    """
    if channels_first():
        return of_products(x, kernel, stride, padding, dtype, first=first)
    if x.dtype == jnp.uint8:
        x = x.astype(kernel.dtype) / 255
    if dtype != jnp.bfloat16:
        return plain(x, kernel, stride, padding)
    return plain(x.astype(dtype), kernel.astype(dtype), stride, padding).astype(x.dtype)


def plain(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolve with XLA's own operation; return `[N, H', W', F]`; else as `convolve`."""
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=axes
    )


def of_products(
    x: jax.Array,
    kernel: jax.Array,
    stride: int,
    padding: str,
    dtype: Any = jnp.float32,
    *,
    first: bool = True,
) -> jax.Array:
    """Convolve by matrix products; return `[F, N, H', W']`; else as `convolve`.

    Each block of stride x stride pixels becomes one pixel with their channels, if the stride
    divides the size of the kernel. A pixel then meets each place of the kernel: either its channels
    are copied to each place before the product with the kernel, or the features of each place are
    added up after it, whichever are fewer. Channels come first since the copies then are long.
    """
    size, given = kernel.shape[0], jax.ShapeDtypeStruct(x.shape, x.dtype)
    pads = jax.lax.padtype_to_pads(_sides(given, first), (size, size), (stride, stride), padding)
    form = _Form(given, first, size, stride, tuple(pads), jnp.dtype(dtype), current())
    if x.dtype == jnp.uint8:
        return _convolve(form, x, kernel / 255).astype(kernel.dtype)
    return _convolve(form, x, kernel).astype(x.dtype)


def numbers(channels: int, features: int, size: int, stride: int) -> int:
    """Return how many numbers `of_products` stores for each pixel of a result, about."""
    block = _block(size, stride)
    channels *= block**2
    copied = channels if _copies_before(channels, features, stride // block) else features
    return (size // block) ** 2 * copied


class _Form(NamedTuple):
    """What is known of a convolution while it is traced."""

    given: jax.ShapeDtypeStruct  # the images
    first: bool
    size: int
    stride: int
    pads: tuple[tuple[int, int], ...]
    dtype: Any
    precision: str | None

    @property
    def block(self) -> int:
        """The pixels in a row of a block."""
        return _block(self.size, self.stride)

    @property
    def places(self) -> int:
        """The places in a row of the kernel, each for a block."""
        return self.size // self.block

    @property
    def step(self) -> int:
        """The stride in blocks."""
        return self.stride // self.block


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(form: _Form, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _forward(form, x, kernel)[0]


def _forward(form: _Form, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    pixels = _pixels(form, x)
    if _copies_before(len(pixels), kernel.shape[-1], form.step):
        copies = _moved(partial(_copies, form.places, form.step), pixels)
        y = _product(_matrix(form, kernel, "F ijabC"), copies)
    else:
        products = _product(_matrix(form, kernel, "ijF abC"), pixels)
        parts = jnp.split(products, form.places**2)
        places = _places(pixels, form.places, 1)
        first, *more = (part[place] for part, place in zip(parts, places, strict=True))
        y = sum(more, start=first)
    # Pixels of the first images are made again, which is faster than keeping them
    return y, (x if form.first else _as_integers(pixels), kernel)


def _backward(form: _Form, kept: Any, gradient: jax.Array) -> tuple[jax.Array | None, jax.Array]:
    x, kernel = kept
    pixels = _pixels(form, x) if form.first else _as_floats(x, form.dtype)
    copied = partial(_copies, form.places, form.step)
    gradient = gradient.astype(form.dtype)
    with at(form.precision):
        if form.step == 1:  # a pixel's gradient is a sum over places of results: copy those
            ends = (form.places - 1, form.places - 1)
            padded = _moved(partial(_pad, axes=(2, 3), ends=(ends, ends)), gradient)
            spread = _moved(copied, padded)
            of_pixels = _product(_matrix(form, kernel, "abC IJF"), spread)
        else:
            like = jax.ShapeDtypeStruct(pixels.shape, jnp.float32)
            of_copies = _product(_matrix(form, kernel, "ijabC F"), gradient)
            (of_pixels,) = jax.linear_transpose(copied, like)(of_copies)
        if _copies_before(len(pixels), len(gradient), form.step):
            product = _sum_products(gradient, _moved(copied, pixels))
            of_kernel = _kernel(form, product, "F ijabC", kernel.shape)
        else:
            product = _sum_products(spread, pixels)
            of_kernel = _kernel(form, product, "IJF abC", kernel.shape)
    of_kernel = of_kernel.astype(kernel.dtype)
    if x.dtype == jnp.uint8:
        return None, of_kernel
    images = jax.ShapeDtypeStruct(form.given.shape, jnp.float32)
    (of_x,) = jax.linear_transpose(partial(_to_blocks, form), images)(of_pixels)
    return of_x.astype(form.given.dtype), of_kernel


_convolve.defvjp(_forward, _backward)


def _block(size: int, stride: int) -> int:
    return stride if size % stride == 0 else 1


def _copies_before(channels: int, features: int, step: int) -> bool:
    return channels <= features or step > 1


def _sides(x: Any, first: bool) -> tuple[int, int]:
    return x.shape[1:3] if first else x.shape[2:]


def _pad(x: jax.Array, axes: tuple[int, int], ends: Any) -> jax.Array:
    return jnp.pad(x, [dict(zip(axes, ends, strict=True)).get(i, (0, 0)) for i in range(x.ndim)])


def _pixels(form: _Form, x: jax.Array) -> jax.Array:
    """Return the pixels that kernels meet, `[K, N, h, w]`, of images that are not padded yet."""
    if x.dtype != jnp.uint8:
        return _moved(partial(_to_blocks, form), x.astype(form.dtype))
    return _to_blocks(form, x).astype(form.dtype)


def _to_blocks(form: _Form, x: jax.Array) -> jax.Array:
    """Return the pixels that kernels meet, `[K, N, h, w]`, of padded images.

    The convolution of the results with stride 1 is that of `x` with the stride.
    """
    axes = (1, 2) if form.first else (2, 3)
    x, block = _pad(x, axes, form.pads), form.block
    if not form.first:
        return _copies(block, block, x)
    height, width = (n // block for n in x.shape[1:3])  # no patch reaches what is left over
    x = x[:, : height * block, : width * block]
    x = x.reshape(-1, height, block, width, block * x.shape[3])
    # Moving four bytes at a time is faster. An export that leaves the number open cannot do it
    if x.dtype == jnp.uint8 and x.shape[-1] % 4 == 0 and isinstance(x.shape[0], int):
        words = jax.lax.bitcast_convert_type(x.reshape(*x.shape[:-1], -1, 4), jnp.uint32)
        words = words.transpose(2, 4, 0, 1, 3)
        x = jnp.stack([(words >> 8 * i).astype(jnp.uint8) for i in range(4)], 2)
    else:
        x = x.transpose(2, 4, 0, 1, 3)
    return x.reshape(-1, *x.shape[-3:])


def _places(x: jax.Array, size: int, step: int) -> list[tuple[slice, ...]]:
    """For each place of a kernel of `size`, row by row: the pixels that meet it."""
    height, width = ((n - size) // step * step + 1 for n in x.shape[2:])
    all_of = slice(None)
    return [
        (all_of, all_of, slice(i, i + height, step), slice(j, j + width, step))
        for i, j in np.ndindex(size, size)
    ]


def _copies(size: int, step: int, x: jax.Array) -> jax.Array:
    """Copy pixels `[K, N, h, w]` to the places of a kernel that they meet: `[q q K, N, h', w']`."""
    return jnp.concatenate([x[place] for place in _places(x, size, step)])


def _matrix(form: _Form, kernel: jax.Array, order: str) -> jax.Array:
    """Return a kernel's numbers as a matrix of `form.dtype`; `order` is that of its axes.

    They are the row and column of a place, i and j (I and J: from the last to the first), the row
    and column in a block, a and b, channels C and features F.
    """
    size, block = form.places, form.block
    parts = kernel.reshape(size, block, size, block, *kernel.shape[2:]).astype(form.dtype)
    if "I" in order:
        parts = parts[::-1, :, ::-1]
    rows, columns = order.lower().split()
    parts = parts.transpose([_AXES.index(axis) for axis in rows + columns])
    return parts.reshape(np.prod(parts.shape[: len(rows)]), -1)


_AXES = "iajbcf"


def _kernel(form: _Form, matrix: jax.Array, order: str, shape: tuple[int, ...]) -> jax.Array:
    """Return the kernel of which `_matrix` gives `matrix`."""
    size, block = form.places, form.block
    lengths = dict(zip(_AXES, (size, block, size, block, *shape[2:]), strict=True))
    axes = order.lower().replace(" ", "")
    parts = matrix.reshape([lengths[axis] for axis in axes])
    parts = parts.transpose([axes.index(axis) for axis in _AXES])
    if "I" in order:
        parts = parts[::-1, :, ::-1]
    return parts.reshape(shape)


def _product(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """Multiply a matrix by all pixels of `[K, N, h, w]`."""
    y = contract(matrix, x.reshape(len(x), -1), (1,), (0,))
    return y.reshape(-1, *x.shape[1:])


def _sum_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the sum over pixels of the products of channels of `x` and of `y`, a matrix."""
    return contract(x.reshape(len(x), -1), y.reshape(len(y), -1), (1,), (1,))


def _moved(move: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Return `move(x)`, of integers, since XLA moves bfloat16 on CPUs by way of float32."""
    return _as_floats(move(_as_integers(x)), x.dtype)


def _as_integers(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def _as_floats(x: jax.Array, dtype: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == jnp.uint16 else x
