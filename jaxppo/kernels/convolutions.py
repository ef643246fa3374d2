"""Convolutions of images with square kernels, in the form that is fast on the platform."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.kernels.divisors import near_divisor
from jaxppo.kernels.platforms import forms
from jaxppo.kernels.products import product_of


def convolve(
    x: jax.Array, kernel: jax.Array, stride: int, padding: str, dtype: Any = jnp.float32
) -> jax.Array:
    """Convolve images `[N, H, W, C]` with a kernel `[k, k, C, F]`; return `[N, H', W', F]`.

    `padding` is SAME or VALID. With a `dtype` of bfloat16 that is the type of the factors of
    products, forward and backward.
    """
    most = forms().convolution_bytes
    if most is not None:
        return of_products(x, kernel, stride, padding, most, dtype)
    if dtype != jnp.bfloat16:
        return plain(x, kernel, stride, padding)
    return plain(x.astype(dtype), kernel.astype(dtype), stride, padding).astype(x.dtype)


def plain(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolve with XLA's own operation; shapes as in `convolve`."""
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=axes
    )


def of_products(
    x: jax.Array, kernel: jax.Array, stride: int, padding: str, most: int, dtype: Any = jnp.float32
) -> jax.Array:
    """Convolve by matrix products; shapes and `dtype` as in `convolve`.

    A pixel meets each of the k k places of the kernel. Either its channels are copied to each place
    before the product with the kernel, or the features of each place are added up after it,
    whichever are fewer. About as many images are taken at a time as need `most` bytes for that; all
    of them where an export leaves their number open.
    """
    size, _, channels, features = kernel.shape
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), padding)
    block = stride if size % stride == 0 else 1
    channels *= block**2
    before = channels <= features or block < stride
    depth = channels if before else features
    height, width = jax.eval_shape(lambda: plain(x, kernel, stride, padding)).shape[1:3]
    numbers = height * width * (size // block) ** 2 * depth
    at_once = max(most // (numbers * x.dtype.itemsize), 1)
    num: Any = x.shape[0]  # an integer but in such an export
    num_parts = near_divisor(num, num / at_once) if isinstance(num, int) else 1

    @jax.checkpoint  # a gradient computes the copies again, which is faster than keeping them
    def convolve_some(x: jax.Array) -> jax.Array:
        x, in_blocks = _in_blocks(jnp.pad(x, ((0, 0), *pads, (0, 0))), kernel, block)
        if before:
            return _copied_before(x, in_blocks, stride // block, dtype)
        return _added_after(x, in_blocks, dtype)

    if num_parts == 1:
        return convolve_some(x)
    y = jax.lax.map(convolve_some, x.reshape(num_parts, -1, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])


def _copied_before(x: jax.Array, kernel: jax.Array, stride: int, dtype: Any) -> jax.Array:
    """Convolve without padding: copy what lies below the kernel, then multiply."""
    below = [x[at] for at in _places(x, kernel.shape[0], stride)]
    product = product_of(dtype)
    y = product(jnp.concatenate(below, -1), kernel.reshape(-1, kernel.shape[-1]))
    return y.astype(x.dtype)


def _added_after(x: jax.Array, kernel: jax.Array, dtype: Any) -> jax.Array:
    """Convolve with stride 1, without padding: multiply each pixel by the kernel, then add up."""
    size, _, channels, _ = kernel.shape
    rows = kernel.transpose(2, 0, 1, 3).reshape(channels, -1)
    return _add_up(size, product_of(dtype)(x, rows)).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_up(size: int, products: jax.Array) -> jax.Array:
    """Map the features of each place of a kernel of `size`, `[N, H, W, k k F]`, to their sums."""
    parts = jnp.split(products, size**2, axis=-1)
    first, *more = (part[at] for part, at in zip(parts, _places(products, size, 1), strict=True))
    return sum(more, start=first)


def _forward(size: int, products: jax.Array) -> tuple[jax.Array, tuple[()]]:
    return _add_up(size, products), ()


def _backward(size: int, _: tuple[()], gradient: jax.Array) -> tuple[jax.Array]:
    """An automatic gradient adds up arrays that are zero but for one place of the kernel."""
    edges = [
        ((0, 0), (i, size - 1 - i), (j, size - 1 - j), (0, 0)) for i, j in np.ndindex(size, size)
    ]
    return (jnp.concatenate([jnp.pad(gradient, each) for each in edges], -1),)


_add_up.defvjp(_forward, _backward)


def _places(x: jax.Array, size: int, stride: int) -> list[tuple[slice, slice, slice]]:
    """For each place of a kernel of `size`, row by row: the pixels that meet it."""
    height, width = ((n - size) // stride * stride + 1 for n in x.shape[1:3])
    return [
        (slice(None), slice(i, i + height, stride), slice(j, j + width, stride))
        for i in range(size)
        for j in range(size)
    ]


def _in_blocks(x: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
    """Make each block of `stride` x `stride` pixels one pixel with their channels.

    The convolution of the results with stride 1 is that of `x` and `kernel` with `stride`.
    """
    num, height, width, channels = x.shape
    rows, columns = height // stride, width // stride  # no patch reaches what is left over
    x = x[:, : rows * stride, : columns * stride]
    x = x.reshape(num, rows, stride, columns, stride, channels).swapaxes(2, 3)
    size = kernel.shape[0] // stride
    kernel = kernel.reshape(size, stride, size, stride, channels, -1).swapaxes(1, 2)
    inner = stride * stride * channels
    return x.reshape(num, rows, columns, inner), kernel.reshape(size, size, inner, -1)
