"""Convolutions of images with square kernels, in the form that is fast on the platform."""

import jax
import jax.numpy as jnp

from jaxppo.kernels.platforms import forms


def convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolve images `[N, H, W, C]` with a kernel `[k, k, C, F]`; return `[N, H', W', F]`.

    `padding` is SAME or VALID.
    """
    form = of_patches if forms().patches else plain
    return form(x, kernel, stride, padding)


def plain(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolve with XLA's own operation; shapes as in `convolve`."""
    axes = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=axes
    )


def of_patches(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolve by one matrix product: k k shifted images times the kernel as a matrix.

    The learner is a vmapped scan. There, XLA's CPU backend takes 6 to 20 times as long for the
    gradient of `plain`.
    """
    size = kernel.shape[0]
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    if stride > 1 and size % stride == 0:  # then patches are copied in longer pieces
        x, kernel = _in_blocks(x, kernel, stride)
        size, stride = kernel.shape[0], 1
    height, width = ((n - size) // stride * stride + 1 for n in x.shape[1:3])
    patches = [
        x[:, i : i + height : stride, j : j + width : stride]
        for i in range(size)
        for j in range(size)
    ]
    return jnp.concatenate(patches, -1) @ kernel.reshape(-1, kernel.shape[-1])


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
