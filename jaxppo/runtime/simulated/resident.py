"""Observations that stay on the device, where a batch simulator has put them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.runtime.hosts import devices
from jaxppo.simulators.spaces import Leaf


class Resident:
    """A `simulators.batch.Keep` that collects the observations of rollouts in `N` environments.

    `shape` is `(D, P, U, B)`, and D is 1: `device` has all arrays.
    """

    def __init__(
        self, leaves: Sequence[Leaf], shape: tuple[int, int, int, int], device: jax.Device
    ) -> None:
        self._leaves, self._device = leaves, device
        sharding = devices.sharding([device])
        self._take = jax.jit(partial(_take, shape), out_shardings=(sharding, sharding, None))
        self._stack = jax.jit(_stack, out_shardings=sharding)
        self._steps: list[tuple[list[jax.Array], list[jax.Array]]] = []

    @property
    def obs(self) -> list[jax.Array]:
        """Return the observations after the last step, `[D, P, U, B, O...]`."""
        return self._steps[-1][0]

    def fits(self, observations: Sequence[Any]) -> bool:
        """Return whether arrays are on the device, of the data types that the learner takes."""
        try:
            found = [self.read(x) for x in observations]
        except Exception:  # whatever their library raises
            return False
        same = [x.devices() == {self._device} for x in found]
        types = [x.dtype == leaf.dtype for x, leaf in zip(found, self._leaves, strict=True)]
        return all(same + types) and not any(isinstance(x, np.ndarray) for x in observations)

    def read(self, x: Any) -> jax.Array:
        """Return an array of another library in the same memory."""
        return jax.dlpack.from_dlpack(x)

    def __call__(
        self, obs: list[jax.Array], final: list[jax.Array], over: np.ndarray
    ) -> np.ndarray:
        """Keep copies of the results of a step; return which rows `[N]` are finite.

        It waits for the copies, since the simulator may write its next step into the same memory.
        """
        *kept, finite = self._take(obs, final, over)
        self._steps.append((kept[0], kept[1]))
        return np.asarray(finite)

    def rollout(self) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return observations and true successors since the last call, `[D, P, U, T, B, O...]`."""
        steps, self._steps = self._steps, []
        found: tuple[list[jax.Array], list[jax.Array]] = self._stack(steps)
        return found


def _take(
    shape: tuple[int, int, int, int], obs: list[jax.Array], final: list[jax.Array], over: jax.Array
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    def one(x: jax.Array) -> jax.Array:
        return x.reshape(*shape, *x.shape[1:])

    def ended(x: jax.Array, last: jax.Array) -> jax.Array:
        return jnp.where(over.reshape(-1, *(1,) * (x.ndim - 1)), last, x)

    after = list(map(ended, obs, final))
    finite = jnp.ones(over.shape, bool)
    for x in (x for x in (*obs, *after) if jnp.issubdtype(x.dtype, jnp.inexact)):
        finite &= jnp.isfinite(x).reshape(len(over), -1).all(1)
    return list(map(one, obs)), list(map(one, after)), finite


def _stack(steps: list[Any]) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x, 3), *steps)


def resident(
    simulators: Any, leaves: Sequence[Leaf], shape: tuple[int, int, int, int], on: Sequence[Any]
) -> Resident | None:
    """Return what keeps observations on the device `on`, if they are there; else None."""
    if shape[0] > 1 or list(on) != list(devices.of_run(shape[0])):
        return None
    found = Resident(leaves, shape, on[0])
    return found if simulators.keep(found) else None
