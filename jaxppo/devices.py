"""The device axis `D`: placement, replication and the only `pmap` of this package."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxppo.types import PyTree

AXIS = "device"


def parallel(function: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Any:
    """`function` on every device, each with its slice of the leading axis `D`."""
    return jax.pmap(function, axis_name=AXIS, donate_argnums=donate)


def shard(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Leaves `[D, ...]`, one slice a device.

    Laid out as `parallel` itself returns them, so that a first call donates and compiles as later.
    """
    sharding = NamedSharding(Mesh(np.asarray(devices), (AXIS,)), PartitionSpec(AXIS))
    return jax.device_put(tree, sharding)


def replicate(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Leaves `[...]` to `[D, ...]`, equal on every device."""
    num = len(devices)
    copies = jax.tree.map(lambda x: jax.numpy.broadcast_to(x, (num, *x.shape)), tree)
    return shard(copies, devices)


def first(tree: PyTree) -> PyTree:
    """The first device's slice of leaves `[D, ...]`, as NumPy arrays `[...]`."""

    def one(x: jax.Array) -> Any:
        replica = x.addressable_shards[0].data
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):  # NumPy has no typed keys
            return replica[0]
        return np.asarray(replica)[0]

    return jax.tree.map(one, tree)
