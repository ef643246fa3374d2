"""Cutting rollouts into sequences."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.ops import sequences

T, B = 12, 3
STEP, ENV = np.meshgrid(np.arange(T), np.arange(B), indexing="ij")
ROLLOUT = {  # [T, B], [T, B, 2]: each entry tells its step and environment
    "scalar": jnp.asarray(100 * STEP + ENV),
    "vector": jnp.asarray(np.stack([STEP, ENV], axis=-1)),
}


@pytest.mark.parametrize("length", [1, 4, T])
def test_sequence_c_b_is_environment_b_in_consecutive_steps_from_c_l_on(length: int) -> None:
    """So every step is in exactly one sequence, and all leaves are cut alike."""
    cut, first = sequences.cut(ROLLOUT, length), sequences.first(ROLLOUT, length)
    step, env = np.moveaxis(np.asarray(cut["vector"]), -1, 0)
    begins = np.repeat(np.arange(0, T, length), B)
    np.testing.assert_array_equal(step, begins + np.arange(length)[:, None])
    np.testing.assert_array_equal(env, np.tile(np.arange(B), (length, T // length)))
    np.testing.assert_array_equal(cut["scalar"], 100 * step + env)
    for leaf in ROLLOUT:
        np.testing.assert_array_equal(first[leaf], cut[leaf][0])
