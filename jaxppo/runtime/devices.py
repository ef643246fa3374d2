"""The device axis `D`: placement, replication and programs that run on all devices."""

import contextlib
import os
import platform as processor
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxppo.types import PyTree

AXIS = "device"
_CORES = "JAX_NUM_CPU_DEVICES"


def use_cores() -> None:
    """Let each core of a CPU be a device, so that members train beside each other.

    For command lines, before JAX is first used. Devices that a user asked for (XLA_FLAGS,
    JAX_NUM_CPU_DEVICES) stay as they are.
    """
    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not asked and _CORES not in os.environ:
        affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
        num_cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        with contextlib.suppress(RuntimeError):  # JAX is in use
            jax.config.update(_CORES.lower(), num_cores)


def platform() -> str:
    """What programs run on: cpu, gpu, tpu."""
    return jax.local_devices()[0].platform


def count(members: int) -> int:
    """How many devices a program of `members` runs on: all.

    Of a CPU's cores, as many as divide the members: one program is not spread over them, since the
    compiler uses them all for it.
    """
    there = jax.local_device_count()
    are_cores = getattr(jax.config, _CORES.lower()) > 1 and _CORES not in os.environ
    if not are_cores or platform() != "cpu":
        return there
    return max(num for num in range(1, there + 1) if members % num == 0)


def machine() -> str:
    """What programs run on, in words: accelerators by their name, else the processor's cores."""
    found = jax.local_devices()
    if platform() != "cpu":
        return f"{len(found)} x {found[0].device_kind}"
    told = Path("/proc/cpuinfo")  # Linux has it
    lines = told.read_text().splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else processor.machine()}"


def parallel(
    function: Callable[..., Any], num_devices: int, *, donate: tuple[int, ...] = ()
) -> Any:
    """`function` on every device, each with its slice of the leading axis `D`; a `jax.jit`.

    What `jax.pmap` does, which keeps the trace of its program to itself.
    """

    def on_each(*args: PyTree) -> PyTree:
        results = function(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], results)

    sharding = _sharding(jax.local_devices()[:num_devices])
    mapped = jax.shard_map(
        on_each,
        mesh=sharding.mesh,
        in_specs=sharding.spec,
        out_specs=sharding.spec,
        check_vma=False,
    )
    return jax.jit(mapped, in_shardings=sharding, out_shardings=sharding, donate_argnums=donate)


def shard(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Leaves `[D, ...]`, one slice a device.

    Laid out as `parallel` itself returns them, so that a first call donates and compiles as later.
    """
    return jax.device_put(tree, _sharding(devices))


def _sharding(devices: Sequence[jax.Device]) -> NamedSharding:
    """Of leaves `[D, ...]`."""
    return NamedSharding(Mesh(np.asarray(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Leaves `[...]` to `[D, ...]`, equal on every device."""
    num = len(devices)
    copies = jax.tree.map(lambda x: jax.numpy.broadcast_to(x, (num, *x.shape)), tree)
    return shard(copies, devices)


def place(tree: PyTree, devices: Sequence[jax.Device], *, sharded: bool) -> PyTree:
    """Members `[P, ...]` to `[D, P / D, ...]`, some on each device, if sharded; else `[D, P, ...]`,
    all on each.
    """
    if not sharded:
        return replicate(tree, devices)
    num = len(devices)
    return shard(jax.tree.map(lambda x: x.reshape(num, -1, *x.shape[1:]), tree), devices)


def members(tree: PyTree, *, sharded: bool) -> PyTree:
    """The inverse of `place`, NumPy arrays `[P, ...]`."""
    if not sharded:
        return first(tree)
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), tree)


def host(tree: PyTree) -> PyTree:
    """NumPy copies of all leaves; of keys of random streams, their data."""
    return jax.tree.map(lambda x: np.array(data(x)), tree)


def is_key(leaf: Any) -> bool:
    """Whether a leaf, or its shape, is of typed keys of random streams: NumPy has none."""
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def data(leaf: Any) -> Any:
    """A leaf itself; of keys, what they are made of."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def first(tree: PyTree) -> PyTree:
    """The first device's slice of leaves `[D, ...]`, as NumPy arrays `[...]`."""

    def one(x: jax.Array) -> Any:
        replica = x.addressable_shards[0].data
        return replica[0] if is_key(x) else np.asarray(replica)[0]

    return jax.tree.map(one, tree)


def take(
    tree: PyTree, chosen: Sequence[int], devices: Sequence[jax.Device], *, sharded: bool
) -> PyTree:
    """Members `chosen`, by number, of leaves that `place` laid out."""
    return shard(_take(tree, np.asarray(chosen, np.int32), sharded), devices)


@partial(jax.jit, static_argnames="sharded")
def _take(tree: PyTree, chosen: jax.Array, sharded: bool) -> PyTree:
    def one(x: jax.Array) -> jax.Array:
        if not sharded:
            return x[:, chosen]
        return x.reshape(-1, *x.shape[2:])[chosen].reshape(x.shape[0], -1, *x.shape[2:])

    return jax.tree.map(one, tree)
