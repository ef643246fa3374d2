"""Observations of rollouts: copies on the host, or on the device of a batch simulator."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo.runtime.hosts import devices
from jaxppo.simulators.pool import Pool
from jaxppo.simulators.spaces import Arrays, Leaf


class OnHost:
    """Collects the observations of rollouts in `N` environments, which `arrays` holds."""

    def __init__(self, arrays: Arrays, shape: tuple[int, int, int, int]) -> None:
        self._arrays, self._shape = arrays, shape
        self.obs: list[Any] = self._copied(arrays.obs)  # after the last step, [D, P, U, B, O...]
        self._steps: list[tuple[list[np.ndarray], list[np.ndarray]]] = []

    def take(self) -> None:
        """Keep copies of the results of a step."""
        self.obs = self._copied(self._arrays.obs)
        self._steps.append((self.obs, self._copied(self._arrays.final)))

    def rollout(self) -> tuple[list[Any], list[Any]]:
        """Return observations and true successors since the last call, `[D, P, U, T, B, O...]`."""
        steps, self._steps = self._steps, []
        found: tuple[list[Any], list[Any]] = jax.tree.map(lambda *x: np.stack(x, 3), *steps)
        return found

    def _copied(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [x.reshape(*self._shape, *x.shape[1:]).copy() for x in arrays]


class Resident:
    """Collects the observations of rollouts, for `Batch.keep` of a simulator on the device.

    `shape` is `(D, P, U, B)`, and D is 1: `device` has all arrays. Episodes begin with `obs`.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        shape: tuple[int, int, int, int],
        device: jax.Device,
        obs: list[Any],
    ) -> None:
        self._leaves, self._device, self.obs = leaves, device, obs
        sharding = devices.sharding([device])
        self._take = jax.jit(partial(_take, shape), out_shardings=(sharding, sharding, None))
        self._stack = jax.jit(_stack, out_shardings=sharding)
        self._steps: list[tuple[list[jax.Array], list[jax.Array]]] = []

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
        self.obs = kept[0]
        return np.asarray(finite)

    def take(self) -> None:
        """Do nothing: the simulator has called this object in its step."""

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


def observed(
    simulators: Any, leaves: Sequence[Leaf], shape: tuple[int, int, int, int], on: Sequence[Any]
) -> OnHost | Resident:
    """Return what collects observations: on the device `on` if they are there, else on the host."""
    here = OnHost(simulators.arrays, shape)
    if shape[0] == 1 and list(on) == list(devices.of_run(1)):
        there = Resident(leaves, shape, on[0], here.obs)
        if isinstance(simulators, Pool) and simulators.keep(there):
            return there
    return here
