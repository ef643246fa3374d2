"""Accelerators that are not here, for which programs can be compiled.

XLA's compilers run without a device: libtpu for TPUs, JAX's CUDA plugin for NVIDIA GPUs.
"""

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import jax

from jaxppo.config.fields import ConfigError
from jaxppo.config.importing import is_installed
from jaxppo.config.messages import brief, installing
from jaxppo.extras.chips import launches
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import compile

# Seconds from the start of one kernel to the start of the next: measured in CUDA graphs on an H200,
# assumed for operations of a TPU program
LAUNCH_SECONDS = {"gpu": 1.4e-6, "tpu": 0.5e-6}

# The share of a GPU's bandwidth that its kernels reach; with it and LAUNCH_SECONDS the rows of
# benchmarks/measured/h200.json are right within a sixth (tests/extras/test_targets.py)
BANDWIDTH_SHARE = 0.75

_CONVOLUTION = "__cudnn$conv"  # in the HLO text of a program for a GPU

# How long products take at each precision (`arch.precision`) beside JAX's own, which are TF32 on
# GPUs and one pass of bfloat16 on TPUs; there, higher precision takes several passes
PRODUCT_TIMES = {
    "gpu": {"float32": 1.0, "tf32": 1.0, "bf16": 0.5, "highest": 8.0},
    "tpu": {"float32": 1.0, "tf32": 3.0, "bf16": 1.0, "highest": 6.0},
}

GPUS_PER_HOST = 8  # connected by NVLink

# The share of its memory that JAX takes: by default, of a GPU (XLA_PYTHON_CLIENT_MEM_FRACTION)
USABLE = {"gpu": 0.75, "tpu": 1.0}


@dataclasses.dataclass(frozen=True)
class Chip:
    """The figures of one chip from its maker's data sheet."""

    name: str
    memory: int  # bytes
    bandwidth: float  # of the memory, bytes a second
    flops_per_second: float  # of dense float32 matrix products as JAX does: see PRODUCT_TIMES
    platform: ClassVar[str]


@dataclasses.dataclass(frozen=True)
class Tpu(Chip):
    """A TPU."""

    topology: str  # the smallest that libtpu compiles for
    platform = "tpu"


@dataclasses.dataclass(frozen=True)
class Gpu(Chip):
    """An NVIDIA GPU (SXM, 80 GB of an A100), with what XLA's compiler has to know of it."""

    capability: tuple[int, int]
    num_sms: int  # streaming multiprocessors
    fp32_units_per_sm: int
    clock: float  # GHz
    l2_cache: int  # bytes
    shared_memory: int  # bytes per multiprocessor
    features: str = "NONE"  # FEATURE_EXTENSION of the capability
    platform = "gpu"


CHIPS: dict[str, Gpu | Tpu] = {
    "h200": Gpu(
        "NVIDIA H200", 151_397_597_184, 4.8e12, 494.7e12,
        (9, 0), 132, 128, 1.98, 52_428_800, 233_472, "ACCELERATED_FEATURES",
    ),
    "h100": Gpu(
        "NVIDIA H100", 85_899_345_920, 3.35e12, 494.7e12,
        (9, 0), 132, 128, 1.98, 52_428_800, 233_472, "ACCELERATED_FEATURES",
    ),
    "a100": Gpu(
        "NVIDIA A100", 85_899_345_920, 2.04e12, 156e12,
        (8, 0), 108, 64, 1.41, 41_943_040, 167_936,
    ),
    "v5e": Tpu("TPU v5e", 17_179_869_184, 0.82e12, 197e12, "2x2"),
    "v6e": Tpu("TPU v6e", 34_359_738_368, 1.64e12, 918e12, "2x2"),
    "v5p": Tpu("TPU v5p", 102_005_473_280, 2.765e12, 459e12, "2x2x1"),
}  # fmt: skip
# With these, libtpu neither asks Google's cloud nor prints that it found nothing, and several
# processes may load it at once. The accelerator type need not be the target's.
_NO_TPU_HERE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
EXTRAS = {"gpu": "aot-cuda", "tpu": "aot-tpu"}  # optional dependencies that install the compilers


@contextlib.contextmanager
def compiling(target: str | None) -> Iterator[None]:
    """Context in which programs are built and compiled for a target, such as h200:4.

    None: for this process's devices. `ConfigError` if the target is unknown, its compiler is not
    installed, or the compiler refuses a program, as that of TPUs does for want of memory.
    """
    if target is None:
        yield
        return
    chip = chip_of(target)
    try:
        with (
            compile.cache_disabled(),
            devices.using(devices_of(target), int(USABLE[chip.platform] * chip.memory)),
        ):
            yield
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(
            f"target={target}: its compiler refuses the program ({brief(error)}); take another "
            "target, or if its memory is too small, fewer environments, steps or members"
        ) from error


def chip_of(target: str) -> Gpu | Tpu:
    """Return the chip of a target such as h200, h200:4 or v5e:2x2."""
    found = CHIPS.get(target.partition(":")[0])
    if found is None:
        raise ConfigError(
            f"target={target}: no such chip; one of {', '.join(CHIPS)}, optionally with the "
            "number of GPUs or the topology of TPUs, as in h200:4 and v5e:2x2"
        )
    return found


def devices_of(target: str) -> list[Any]:
    """Return devices to compile for; nothing runs on them.

    `ConfigError` if the compiler is not installed or rejects the target.
    """
    chip, shape = chip_of(target), target.partition(":")[2]
    platform = chip.platform
    if isinstance(chip, Gpu):
        _check_gpus(target, shape or "1")
    if not is_installed(devices.COMPILERS[platform]):
        raise ConfigError(
            f"target={target}: needs its compiler, which is not installed; "
            f"{installing(EXTRAS[platform])}"
        )
    from jax.experimental import topologies

    try:
        if isinstance(chip, Gpu):
            hosts, gpus = shape_of(target)
            given = dict(target_config=_config(chip), topology=f"1x{hosts}x{gpus}")
            return list(topologies.get_topology_desc(platform="cuda", **given).devices)
        if not devices.may_have_accelerator():
            for variable, value in _NO_TPU_HERE.items():
                os.environ.setdefault(variable, value)
        name = f"{target.partition(':')[0]}:{shape or chip.topology}"
        found = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        return list(found if shape else found[:1])
    except Exception as error:  # of the compiler; it may raise anything
        raise ConfigError(
            f"target={target}: its compiler refuses it ({brief(error)}); choose another "
            "number of GPUs or topology of TPUs, as in h200:4 and v5e:2x2"
        ) from error


def shape_of(target: str) -> tuple[int, ...]:
    """Return the lengths of a target's axes: its hosts and the GPUs of each; a TPU topology.

    Up to eight GPUs are in one host.
    """
    chip, shape = chip_of(target), target.partition(":")[2]
    if isinstance(chip, Tpu):
        return tuple(int(length) for length in (shape or "1").split("x"))
    number = int(shape or 1)
    return (1, number) if number <= GPUS_PER_HOST else (number // GPUS_PER_HOST, GPUS_PER_HOST)


def _check_gpus(target: str, number: str) -> None:
    """Raise `ConfigError` unless this many GPUs fill hosts of eight, or are within one."""
    num = int(number) if number.isdecimal() else 0
    if num < 1 or (num > GPUS_PER_HOST and num % GPUS_PER_HOST):
        raise ConfigError(
            f"target={target}: the number of GPUs must be positive, and above {GPUS_PER_HOST} a "
            f"multiple of {GPUS_PER_HOST}, as many as a host has; such as h200:4 and h200:16"
        )


def estimate(
    target: str, text: str, flops: int | None, steps: int, precision: str = "float32"
) -> dict[str, Any]:
    """Return what an update costs on a target: counts, estimated times (s) and speed (steps/s).

    `text` is the HLO of the training program. `flops` are the floating-point operations of an
    update's matrix products and convolutions on one device; None (unknown) counts as 0. `steps` are
    the environment steps of an update, over all members. `precision` is one of `arch.precision`.
    The speed is None where `durations` are no estimate: on TPUs, and with convolutions, which took
    another eight milliseconds of an update on an H200.
    """
    chip, module = chip_of(target), launches.Module(text)
    loops = list(module.loops())

    def each(scope: str) -> launches.Launches | None:
        found = [loop.each for loop in loops if re.search(f"{scope}$", loop.name)]
        return found[0] if found else None

    update = module.update().each
    # What lies between the loops is closed_call, and from jax 0.11 on eval_jaxpr
    step, minibatch = each("/collect/while"), each(r"/epochs/while/body/\w+/while")
    is_known = chip.platform == "gpu" and _CONVOLUTION not in text
    seconds = durations(chip, update.kernels, update.num_bytes, flops or 0, precision)
    return {
        "target": target,
        "chip": chip.name,
        "chip_bytes": chip.memory,
        "num_chips": math.prod(shape_of(target)),
        "kernels_per_update": update.kernels,
        "kernels_per_step": step.kernels if step else None,
        "kernels_per_minibatch": minibatch.kernels if minibatch else None,
        "waits_per_update": update.waits if chip.platform == "gpu" else 0,
        "collectives_per_update": update.collectives,
        "collectives_per_minibatch": minibatch.collectives if minibatch else None,
        "bytes_per_update": update.num_bytes,
        **seconds,
        "estimated_steps_per_second": steps / sum(seconds.values()) if is_known else None,
    }


def durations(
    chip: Chip, kernels: int, num_bytes: int, flops: int, precision: str
) -> dict[str, float]:
    """Return the parts of an update's time (s): launches, memory and products.

    On a GPU an update is estimated to last as long as their sum. What is still in a cache makes it
    faster; communication between devices makes it slower. On TPUs kernels read and write mostly
    memory on the chip, and nothing was measured, so there only launches and products are given.
    """
    times = {
        "launch_seconds": kernels * LAUNCH_SECONDS[chip.platform],
        "product_seconds": flops / chip.flops_per_second * PRODUCT_TIMES[chip.platform][precision],
    }
    if chip.platform == "gpu":
        times["memory_seconds"] = num_bytes / (BANDWIDTH_SHARE * chip.bandwidth)
    return times


def _config(gpu: Gpu) -> str:
    """Return XLA's description of a GPU, in the text format of protocol buffers."""
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.shared_memory - 1024}
  threads_per_core_limit: 2048
  core_count: {gpu.num_sms}
  fpus_per_core: {gpu.fp32_units_per_sm}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: {gpu.bandwidth:.0f}
  l2_cache_size: {gpu.l2_cache}
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
