"""Random permutations without sorting."""

import math

import jax
import jax.numpy as jnp

from jaxppo.kernels import random_bits

NUM_ROUNDS = 8
MIN_BITS = 6  # with fewer bits the permutations are visibly uneven
MIN_FACTOR = 8  # as many values as half of MIN_BITS has


def random_permutation(key: jax.Array, n: int) -> jax.Array:
    """Return a pseudo-random permutation of 0 .. n - 1, int32 `[n]`.

    A Feistel network (Luby and Rackoff 1988), whose round function is a multiply-xorshift keyed by
    `key`. If n = a b with factors of at least 8, it permutes the pairs of Z_a x Z_b (the
    generalised Feistel cipher of Black and Rogaway 2002). Otherwise it permutes the next power of
    two, at least 64, and is applied again to every number that falls outside of 0 .. n - 1, until
    it is inside (their cycle-walking cipher). The result is a bijection for every key. An element
    costs a few integer operations; `jax.random.permutation` sorts.
    """
    bits = max((n - 1).bit_length(), MIN_BITS)
    keys = jax.random.bits(random_bits.quick(key), (NUM_ROUNDS,), jnp.uint32)
    numbers = jnp.arange(n, dtype=jnp.uint32)
    if n == 2**bits:
        return _feistel(numbers, keys, bits).astype(jnp.int32)
    factor = next((a for a in range(math.isqrt(n), MIN_FACTOR - 1, -1) if n % a == 0), None)
    if factor is not None:
        return _feistel_of_pairs(numbers, keys, n // factor, factor).astype(jnp.int32)
    x = _feistel(numbers, keys, bits)
    x = jax.lax.while_loop(
        lambda x: jnp.any(x >= n), lambda x: jnp.where(x >= n, _feistel(x, keys, bits), x), x
    )
    return x.astype(jnp.int32)


def _feistel(x: jax.Array, keys: jax.Array, bits: int) -> jax.Array:
    low_bits = bits // 2
    low_mask, high_mask = jnp.uint32(2**low_bits - 1), jnp.uint32(2 ** (bits - low_bits) - 1)
    low, high = x & low_mask, x >> low_bits
    for i in range(NUM_ROUNDS):
        if i % 2:
            low = low ^ (_mix(high ^ keys[i]) & low_mask)
        else:
            high = high ^ (_mix(low ^ keys[i]) & high_mask)
    return (high << low_bits) | low


def _feistel_of_pairs(x: jax.Array, keys: jax.Array, a: int, b: int) -> jax.Array:
    """Permute the numbers below a b, as pairs (high, low) of Z_a x Z_b."""
    high, low = x // b, x % b
    for i in range(NUM_ROUNDS):
        if i % 2:
            low = (low + _mix(high ^ keys[i]) % b) % b
        else:
            high = (high + _mix(low ^ keys[i]) % a) % a
    return high * b + low


def _mix(x: jax.Array) -> jax.Array:
    """Mix the bits of a uint32 (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
