"""Accelerators that are not here, for which programs can be compiled: `arch.target`.

XLA's compilers run without a device: libtpu for TPUs, JAX's CUDA plugin for NVIDIA GPUs.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from jaxppo.config.fields import ConfigError
from jaxppo.runtime import devices, launches

# A CUDA graph of many small kernels starts one in about two microseconds; a TPU's program starts
# the next operation without the host. Both are assumptions of the estimate.
LAUNCH_SECONDS = {"gpu": 2e-6, "tpu": 0.5e-6}


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of one chip from its maker's data sheet."""

    name: str
    memory: int  # bytes
    products: float  # dense floating-point operations a second: TF32 on GPUs, bf16 on TPUs


@dataclasses.dataclass(frozen=True)
class Tpu(Chip):
    """A TPU."""

    topology: str  # of a board


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """An NVIDIA GPU, with what XLA's compiler has to know of it."""

    bandwidth: float  # of the memory, bytes a second
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    units: int  # for float32 in each
    clock: float  # GHz
    cache: int  # bytes, second level
    shared: int  # bytes of shared memory per core
    features: str = "NONE"  # FEATURE_EXTENSION of the capability


CHIPS: dict[str, Gpu | Tpu] = {
    "h200": Gpu(
        "NVIDIA H200", 151_397_597_184, 494.7e12, 4.8e12,
        (9, 0), 132, 128, 1.98, 52_428_800, 233_472, "ACCELERATED_FEATURES",
    ),
    "h100": Gpu(
        "NVIDIA H100", 85_899_345_920, 494.7e12, 3.35e12,
        (9, 0), 132, 128, 1.98, 52_428_800, 233_472, "ACCELERATED_FEATURES",
    ),
    "a100": Gpu(
        "NVIDIA A100", 85_899_345_920, 156e12, 2.04e12,
        (8, 0), 108, 64, 1.41, 41_943_040, 167_936,
    ),
    "v5e": Tpu("TPU v5e", 17_179_869_184, 197e12, "2x2"),
    "v6e": Tpu("TPU v6e", 34_359_738_368, 918e12, "2x2"),
    "v5p": Tpu("TPU v5p", 102_005_473_280, 459e12, "2x2x1"),
}  # fmt: skip
EXTRAS = {"gpu": "aot-cuda", "tpu": "aot-tpu"}  # that have the compilers


@contextlib.contextmanager
def compiling(target: str | None) -> Iterator[None]:
    """Build and compile programs inside for `arch.target`; None: for the devices of this process.

    `ConfigError` if the target is unknown, or its compiler is not installed.
    """
    if target is None:
        yield
    else:
        with devices.using(devices_of(target), chip_of(target).memory):
            yield


def chip_of(target: str) -> Gpu | Tpu:
    """Return the chip of a target such as h200, h200:4 or v5e:2x2."""
    found = CHIPS.get(target.partition(":")[0])
    if found is None:
        raise ConfigError(
            f"arch.target={target}: no such chip; one of {', '.join(CHIPS)}, if you like with the "
            "number of GPUs or the topology of TPUs, as in h200:4 and v5e:2x2"
        )
    return found


def devices_of(target: str) -> list[Any]:
    """Return the devices of a target, on which nothing can be run."""
    chip, shape = chip_of(target), target.partition(":")[2]
    platform = "gpu" if isinstance(chip, Gpu) else "tpu"
    if not devices.is_installed(devices.COMPILERS[platform]):
        raise ConfigError(
            f"arch.target={target}: needs its compiler, which is not installed; pip install "
            f"'jaxppo[{EXTRAS[platform]}]'"
        )
    from jax.experimental import topologies

    try:
        if isinstance(chip, Gpu):
            given = dict(target_config=_config(chip), topology=f"1x1x{int(shape or 1)}")
            return list(topologies.get_topology_desc(platform="cuda", **given).devices)
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # do not search for a TPU in the cloud
        name = f"{target.partition(':')[0]}:{shape or chip.topology}"
        found = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        return list(found if shape else found[:1])
    except Exception as error:  # of the compiler; it may raise anything
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"arch.target={target}: its compiler refuses it ({first}); take another number of "
            "chips, or leave it out"
        ) from error


def estimate(target: str, text: str, flops: int | None, steps: int) -> dict[str, Any]:
    """Return what an update of `steps` environment steps costs on a target, and a bound on speed.

    `text` is the HLO of the compiled training program, `flops` are the products of an update.
    `most_steps_per_second` is an upper bound: an update takes at least as long as it takes to start
    all of its kernels, and to compute all of its products.
    """
    chip, module, platform = chip_of(target), launches.Module(text), devices.platform()
    loops = list(module.loops())

    def kernels(scope: str) -> int | None:
        found = [loop.each.kernels for loop in loops if loop.name.endswith(scope)]
        return found[0] if found else None

    update = max((loop.each for loop in loops), key=lambda each: each.kernels)
    starts = update.kernels * LAUNCH_SECONDS[platform]
    products = (flops or 0) / chip.products
    return {
        "target": target,
        "chip": chip.name,
        "chip_bytes": chip.memory,
        "kernels_per_update": update.kernels,
        "kernels_per_step": kernels("/collect/while"),
        "kernels_per_minibatch": kernels("/epochs/while/body/closed_call/while"),
        "waits_per_update": update.waits if platform == "gpu" else 0,
        "start_seconds": starts,
        "product_seconds": products,
        "most_steps_per_second": steps / max(starts, products),
    }


def _config(gpu: Gpu) -> str:
    """Return XLA's description of a GPU, in the text format of protocol buffers."""
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared}
  shared_memory_per_block_optin: {gpu.shared - 1024}
  threads_per_core_limit: 2048
  core_count: {gpu.cores}
  fpus_per_core: {gpu.units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {gpu.bandwidth:.0f}
  l2_cache_size: {gpu.cache}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {gpu.features} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  ecc_enabled: true
  name: "{gpu.name}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.12.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{gpu.name}"
"""
