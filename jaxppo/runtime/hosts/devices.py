"""Place arrays on devices, and run programs on all of them; `D` is the device axis."""

import contextlib
import math
import os
import platform as processor
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.kernels.platforms import compiling_for
from jaxppo.runtime.hosts import cgroups, processes
from jaxppo.types import PyTree

AXIS = "device"
COMPILERS = {
    "gpu": "jax_plugins.xla_cuda13",
    "tpu": "libtpu",
}  # platform: the module that contains its compiler
_CORES = "JAX_NUM_CPU_DEVICES"
_PCI = Path("/sys/bus/pci/devices")
_VENDORS = ("0x10de", "0x1ae0")  # NVIDIA, Google


def prepare() -> None:
    """Choose the platform, and make each CPU core a device, so that members train in parallel.

    Commands that train call this before JAX is first used. Choices of a user (XLA_FLAGS,
    JAX_NUM_CPU_DEVICES) are not changed.
    """
    choose_platform()
    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not asked and _CORES not in os.environ:
        with contextlib.suppress(RuntimeError):  # JAX is already in use
            jax.config.update(_CORES.lower(), num_cores())


def num_cores() -> int:
    """Return the CPU cores that this process may use: its affinity and its groups' quotas."""
    affinity = getattr(os, "sched_getaffinity", None)  # on Linux only
    found = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([found, *map(math.ceil, cgroups.core_limits())])


def choose_platform() -> None:
    """Choose cpu if compilers for accelerators are installed, but there is no accelerator.

    All commands call this before JAX is first used. JAX would search for an accelerator, and print
    that it found none. The choice of a user (JAX_PLATFORMS) is not changed.
    """
    platforms = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms  # type: ignore[attr-defined]
    if not platforms and any(map(is_installed, COMPILERS.values())) and not may_have_accelerator():
        jax.config.update("jax_platforms", "cpu")


def may_have_accelerator() -> bool:
    """Return False if this is a Linux machine without an accelerator."""
    if not _PCI.is_dir() or Path("/dev/dxg").exists():  # not Linux, or on Windows
        return True
    vendors = [file.read_text().strip() for file in _PCI.glob("*/vendor")]
    devices = [file for name in ("nvidia*", "accel*", "kfd") for file in Path("/dev").glob(name)]
    return bool(devices) or any(vendor in _VENDORS for vendor in vendors)


_chosen: ContextVar[tuple[Sequence[jax.Device], int | None] | None] = ContextVar(
    "_chosen", default=None
)


@contextlib.contextmanager
def using(chosen: Sequence[jax.Device], memory: int | None = None) -> Iterator[None]:
    """Context in which programs are built and compiled for other devices than those of the run.

    `memory` is what programs may use of each device, in bytes; None: the device says it.
    """
    token = _chosen.set((chosen, memory))
    try:
        with compiling_for(chosen[0].platform):
            yield
    finally:
        _chosen.reset(token)


def available() -> Sequence[jax.Device]:
    """Return the devices that runs are for: those of `using`, or of all processes."""
    chosen = _chosen.get()
    return jax.devices() if chosen is None else chosen[0]


def of_run(num_devices: int) -> Sequence[jax.Device]:
    """Return the devices of a run on `num_devices`, a `count`: as many of each process."""
    every = available()
    each = num_devices // processes.count()
    if processes.count() == 1 or num_devices == len(every):
        return every[:num_devices]
    rows = ([d for d in every if d.process_index == i] for i in range(processes.count()))
    return [device for row in rows for device in row[:each]]


def memory_elsewhere() -> int | None:
    """Return the bytes that programs may use of each device of `using`; None outside of it."""
    chosen = _chosen.get()
    return None if chosen is None else chosen[1]


def platform() -> str:
    """Return the platform of the devices: cpu, gpu or tpu."""
    return available()[0].platform


def count(members: int) -> int:
    """Return how many devices a program of `members` runs on: all devices.

    With CPU cores as devices, it is the largest number that divides `members`, as many in each
    process, but at least one: a single member is not split over the cores of a process, since the
    compiler already uses all of them for it.
    """
    num_devices = len(available())
    are_cores = getattr(jax.config, _CORES.lower()) > 1 and _CORES not in os.environ
    if not are_cores or platform() != "cpu":
        return num_devices
    each = min(Counter(device.process_index for device in available()).values())
    totals = [processes.count() * num for num in range(1, each + 1)]
    return max((total for total in totals if members % total == 0), default=totals[0])


def machine() -> str:
    """Describe what a run may use: accelerators by name, or cores of the processor."""
    found = available()
    if platform() != "cpu":
        return f"{len(found)} x {found[0].device_kind}"
    of = f"{processes.count()} processes, each with " if processes.count() > 1 else ""
    file = Path("/proc/cpuinfo")  # on Linux only
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = f"{num_cores()} core{'s' if num_cores() > 1 else ''}"
    return f"{of}{cores} of {names[0] if names else processor.machine()}"


def host_cpu() -> jax.Device:
    """Return the host's CPU; `ConfigError` if JAX was told to leave it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"arch.act_on=cpu: JAX_PLATFORMS={platforms} leaves the CPU out; set "
            f"JAX_PLATFORMS={platforms},cpu, or leave it out"
        ) from error


def parallel(
    function: Callable[..., Any], num_devices: int, *, donate: tuple[int, ...] = ()
) -> Any:
    """Map `function` over the leading axis `D`, one slice per device; return a `jax.jit`.

    Where there are fewer devices than slices, each takes its part of them by `vmap`. `jax.pmap`
    does the same, but does not give access to the traced program.
    """

    def on_each(*args: PyTree) -> PyTree:
        if placed.mesh.size < num_devices:
            return jax.vmap(function)(*args)
        results = function(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], results)

    placed = sharding(of_run(num_devices))
    mapped = jax.shard_map(
        on_each, mesh=placed.mesh, in_specs=placed.spec, out_specs=placed.spec, check_vma=False
    )
    return jax.jit(mapped, in_shardings=placed, out_shardings=placed, donate_argnums=donate)


def shard(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Place leaves `[D, ...]`, one slice per device.

    The layout is that of `parallel`'s results, so that the first call compiles and donates like
    later ones.
    """
    placed = sharding(devices)
    if processes.count() == 1:
        return jax.device_put(tree, placed)

    def of_all_hosts(x: Any) -> Any:
        """Place the parts of `x` that are this process's; every process has all of `x`."""
        if isinstance(x, jax.core.Tracer):
            return x
        values = np.asarray(data(x))
        array = jax.make_array_from_callback(values.shape, placed, lambda index: values[index])
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(x)) if is_key(x) else array

    return jax.tree.map(of_all_hosts, tree)


def sharding(devices: Sequence[jax.Device]) -> NamedSharding:
    """Return the sharding of leaves `[D, ...]`."""
    return NamedSharding(Mesh(np.asarray(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Sequence[jax.Device]) -> PyTree:
    """Copy leaves `[...]` to every device: `[D, ...]`."""
    return shard(repeated(tree, len(devices)), devices)


def repeated(tree: PyTree, num: int) -> PyTree:
    """Return leaves `[...]` as `[num, ...]`; those of NumPy need no program."""

    def one(x: Any) -> Any:
        library = np if isinstance(x, np.ndarray | np.generic) else jax.numpy
        return library.broadcast_to(x, (num, *x.shape))

    return jax.tree.map(one, tree)


def host(tree: PyTree) -> PyTree:
    """Copy all leaves to NumPy; typed keys become their data. All processes must call."""

    def copy(x: Any) -> np.ndarray:
        values = data(x)
        if processes.count() == 1:
            return np.array(values)
        return np.asarray(multihost_utils.process_allgather(values, tiled=True))

    return jax.tree.map(copy, tree)


def is_key(leaf: Any) -> bool:
    """Return whether a leaf, or its shape, has typed keys, which NumPy does not have."""
    return bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def data(leaf: Any) -> Any:
    """Return a leaf, or the data of typed keys."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def first(tree: PyTree) -> PyTree:
    """Return the first device's slice of leaves `[D, ...]`, as NumPy arrays `[...]`."""

    def one(x: jax.Array) -> Any:
        replica = x.addressable_shards[0].data
        return replica[0] if is_key(x) else np.asarray(replica)[0]

    return jax.tree.map(one, tree)
