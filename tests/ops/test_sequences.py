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

LENGTHS = [1, 2, 4, T]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sequence_is_one_environment_in_consecutive_steps(length: int) -> None:
    step, env = np.moveaxis(np.asarray(sequences.cut(ROLLOUT, length)["vector"]), -1, 0)
    assert step.shape == (length, T // length * B)
    np.testing.assert_array_equal(
        step - step[:1], np.broadcast_to(np.arange(length)[:, None], step.shape)
    )
    np.testing.assert_array_equal(env, np.broadcast_to(env[:1], env.shape))
    np.testing.assert_array_equal(step[0] % length, 0)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_step_is_in_exactly_one_sequence(length: int) -> None:
    cut = sequences.cut(ROLLOUT, length)["scalar"]
    np.testing.assert_array_equal(np.sort(cut, axis=None), np.sort(ROLLOUT["scalar"], axis=None))


@pytest.mark.parametrize("length", LENGTHS)
def test_sequence_s_is_environment_b_from_step_c_l_on(length: int) -> None:
    step, env = np.moveaxis(np.asarray(sequences.cut(ROLLOUT, length)["vector"]), -1, 0)
    for c in range(T // length):
        for b in range(B):
            assert (step[0, c * B + b], env[0, c * B + b]) == (c * length, b)


@pytest.mark.parametrize("length", LENGTHS)
def test_all_leaves_are_cut_alike(length: int) -> None:
    cut = sequences.cut(ROLLOUT, length)
    np.testing.assert_array_equal(
        cut["scalar"], 100 * cut["vector"][..., 0] + cut["vector"][..., 1]
    )


@pytest.mark.parametrize("length", LENGTHS)
def test_first_is_the_first_step_of_each_sequence(length: int) -> None:
    first, cut = sequences.first(ROLLOUT, length), sequences.cut(ROLLOUT, length)
    for leaf in ROLLOUT:
        np.testing.assert_array_equal(first[leaf], cut[leaf][0])


def test_length_one_keeps_the_order_of_the_flattened_rollout() -> None:
    cut = sequences.cut(ROLLOUT, 1)["scalar"]
    np.testing.assert_array_equal(cut, np.asarray(ROLLOUT["scalar"]).reshape(1, -1))


def test_full_length_is_the_rollout_itself() -> None:
    cut = sequences.cut(ROLLOUT, T)
    for leaf in ROLLOUT:
        np.testing.assert_array_equal(cut[leaf], ROLLOUT[leaf])
    np.testing.assert_array_equal(sequences.first(ROLLOUT, T)["scalar"], ROLLOUT["scalar"][0])
