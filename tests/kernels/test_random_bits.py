"""Numbers that equal JAX's, from one kernel."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.kernels import random_bits

# Random123's known answers of threefry2x32 in 20 rounds: key, counter, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("key, counter, answer", KNOWN)
def test_hash_gives_the_published_answers(key: Any, counter: Any, answer: Any) -> None:
    found = random_bits.threefry(jnp.asarray(key, jnp.uint32), *jnp.asarray(counter, jnp.uint32))
    assert tuple(map(int, found)) == answer


DRAWS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "words": lambda key: jax.random.bits(key, (7, 3, 5)),
    "bytes": lambda key: jax.random.bits(key, (9,), jnp.uint8),
    "one": lambda key: jax.random.uniform(key),
    "none": lambda key: jax.random.normal(key, (0, 2)),
    "normal": lambda key: jax.random.normal(key, (1001,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(4.0), shape=(3, 2)),
    "permutation": lambda key: jax.random.permutation(key, 9),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 5)),
}


@pytest.mark.long
def test_draws_are_those_of_jax() -> None:
    """Of one key, and of many that are mapped, inside a program and outside of one."""
    key = jax.random.key(3)
    for name in ("words", "split"):
        np.testing.assert_array_equal(DRAWS[name](random_bits.quick(key)), DRAWS[name](key))

    def every(key: jax.Array) -> list[jax.Array]:
        return [draw(key) for draw in DRAWS.values()]

    keys = jax.random.split(key, 6)
    ours = jax.jit(jax.vmap(lambda key: every(random_bits.quick(key))))(keys)
    for name, one, other in zip(DRAWS, ours, jax.jit(jax.vmap(every))(keys), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_wide_words_are_those_of_jax() -> None:
    with jax.enable_x64(True):
        key = jax.random.key(3)
        ours, theirs = (jax.random.bits(x, (5,), jnp.uint64) for x in (random_bits.quick(key), key))
        assert ours.dtype == jnp.uint64
        np.testing.assert_array_equal(ours, theirs)


def test_keys_are_those_of_jax_and_of_its_type() -> None:
    key = jax.random.key(3)
    for ours, theirs in [
        (random_bits.split(key), jax.random.split(key)),
        (random_bits.split(key, (3, 4)), jax.random.split(key, (3, 4))),
        (random_bits.fold_in(key, 11), jax.random.fold_in(key, 11)),
    ]:
        assert ours.dtype == theirs.dtype == key.dtype
        np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


@pytest.mark.parametrize("impl", ["rbg", "raw"])
def test_other_generators_stay_what_they_are(impl: str) -> None:
    key = jax.random.PRNGKey(3) if impl == "raw" else jax.random.key(3, impl=impl)
    assert random_bits.quick(key) is key
    for ours, theirs in [
        (random_bits.split(key, 3), jax.random.split(key, 3)),
        (random_bits.fold_in(key, 5), jax.random.fold_in(key, 5)),
    ]:
        assert ours.dtype == theirs.dtype
        data = [jax.random.key_data(x) if impl == "rbg" else x for x in (ours, theirs)]
        np.testing.assert_array_equal(*data)


def test_rounds_are_one_kernel() -> None:
    """What it is for: no loop, and keys that are split once more are hashed once."""

    def twice(key: jax.Array) -> jax.Array:
        return jax.random.key_data(random_bits.split(random_bits.split(key, 3)[1], (8, 4)))

    text = jax.jit(twice).lower(jax.random.key(0)).compile().as_text()
    assert " while(" not in text
    assert text.count(" shift-left(") == 2 * 20
