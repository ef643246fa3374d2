"""JAX's random numbers, bit for bit, from a hash that is one kernel.

On CPUs JAX compiles the rounds of its generator to a loop of several kernels. If small arrays are
drawn often, as in every step of a rollout, starting these kernels takes longer than the hash.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from jaxppo.kernels.platforms import forms

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_JAX_IMPL = "threefry2x32"  # JAX's name of its own generator


def quick(key: jax.Array) -> jax.Array:
    """Return a key, or keys, from which `jax.random` draws the same numbers with fewer kernels.

    Draw from it at once and do not store it: its type differs. Keys of other generators are
    returned unchanged, and so are all keys on platforms where JAX's hash is already one kernel.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not forms().hash_in_one_kernel or not typed or str(jax.random.key_impl(key)) != _JAX_IMPL:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_ONE_KERNEL)


def split(key: jax.Array, num: int | tuple[int, ...] = 2) -> jax.Array:
    """Return the keys of `jax.random.split`."""
    own = quick(key)
    return jax.random.split(key, num) if own is key else _jax_key(jax.random.split(own, num))


def split_each(keys: jax.Array, num: int = 2) -> jax.Array:
    """Return keys `[num, B]` of keys `[B]`, each split for itself."""
    return jnp.moveaxis(jax.vmap(partial(split, num=num))(keys), 1, 0)


def fold_in(key: jax.Array, data: Any) -> jax.Array:
    """Return the key of `jax.random.fold_in`."""
    own = quick(key)
    return jax.random.fold_in(key, data) if own is key else _jax_key(jax.random.fold_in(own, data))


def threefry(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Hash counters `[...]` under a key `[2]` by Threefry-2x32 in 20 rounds; all are uint32.

    Salmon et al. 2011 (Parallel random numbers: as easy as 1, 2, 3), section 3.3.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    high, low = high + keys[0], low + keys[1]
    for i in range(5):
        for rotation in ROTATIONS[i % 2]:
            high = high + low
            low = high ^ (low << rotation | low >> (32 - rotation))
        high = high + keys[(i + 1) % 3]
        low = low + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return high, low


def _hash_indices(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Hash the row-major index of each element; arrays have less than 2^32 elements."""
    number = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        number = number * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return threefry(key, jnp.zeros(shape, jnp.uint32), number)


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _hash_indices(key, shape)
    if width == 64:
        return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)
    return (high ^ low).astype(f"uint{width}")


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    # Without the barrier XLA computes this hash again for each element drawn from these keys.
    return jax.lax.optimization_barrier(jnp.stack(_hash_indices(key, shape), axis=-1))


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    low = jnp.asarray(data, jnp.uint32)
    return jax.lax.optimization_barrier(jnp.stack(threefry(key, jnp.zeros_like(low), low)))


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl=_JAX_IMPL))


def _jax_key(key: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_JAX_IMPL)


_ONE_KERNEL = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_in_one_kernel",
    tag="fry1",
)
