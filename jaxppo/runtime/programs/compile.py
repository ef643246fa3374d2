"""Compile programs ahead of time, and measure their cost."""

import contextlib
import dataclasses
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import ArchConfig
from jaxppo.kernels.platforms import compiling_for, forms
from jaxppo.runtime.hosts import cgroups, devices

# On CPUs this XLA pass splits every small sum into two kernels, which cost time to compile and to
# start. Large sums use a library with and without the pass, and are as exact.
UNUSED_PASS = "tree_reduction_rewriter"

# XLA's older code generator for CPUs, which compiles faster; jaxlib 0.11.1 removed it.
HAS_OLD_GENERATOR = jax.__version_info__ < (0, 11, 1)
OLD_GENERATOR = {"xla_cpu_use_fusion_emitters": False} if HAS_OLD_GENERATOR else {}

# Compiler options for arch.compiler, on CPUs.
COMPILERS: dict[str, dict[str, bool | int]] = {
    "thorough": {},
    "quick": {"xla_backend_optimization_level": 1, **OLD_GENERATOR},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program and its cost, on each device."""

    call: Any  # a `jax.stages.Compiled`, or a `functools.partial` of one
    seconds: float  # tracing, lowering and compiling (or reading the cache)
    peak_bytes: int | None  # arguments, outputs and temporaries; None: unknown
    matmul_flops: int | None  # of matrix products and convolutions; None: unknown

    @property
    def text(self) -> str:
        """Return the compiled HLO as text."""
        return str(getattr(self.call, "func", self.call).as_text())


def compile_program(
    function: Callable[..., Any],
    *args: Any,
    bound: tuple[Any, ...] = (),
    donate: tuple[int, ...] = (),
    compiler: str = "thorough",
) -> Program:
    """Compile `function`, which takes one device's slices, for all devices.

    `args` have the leading axis `D`. `function` takes the arrays `bound` before them: those are the
    same in every call. `donate` counts `args` only. `compiler` is `arch.compiler`.
    """
    num_devices = jax.tree.leaves(args)[0].shape[0]
    donate = tuple(number + len(bound) for number in donate)
    program = devices.parallel(function, num_devices, donate=donate)
    found = compile_jit(program, *bound, *args, options=options(compiler, devices.platform()))
    return dataclasses.replace(found, call=partial(found.call, *bound)) if bound else found


def compile_jit(program: Any, *args: Any, options: dict[str, Any]) -> Program:
    """Compile a `jax.jit` with these options of XLA; `args` may be shapes."""
    start = time.perf_counter()
    with collection_disabled(), compiling_for(devices.platform()):
        traced = program.trace(*args)
        lowered = traced.lower()
    compiled = lowered.compile(compiler_options=options)
    seconds = time.perf_counter() - start
    return Program(
        call=compiled,
        seconds=seconds,
        peak_bytes=unless_it_fails(lambda: peak_bytes(compiled)),
        matmul_flops=unless_it_fails(lambda: count_products(traced.jaxpr.jaxpr, _flops)),
    )


def peak_bytes(compiled: Any) -> int:
    """Return the bytes of arguments, outputs and temporaries of a `jax.stages.Compiled`."""
    memory = compiled.memory_analysis()
    return int(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def unless_it_fails(measure: Callable[[], int]) -> int | None:
    """Return `measure()`, or None if it raises.

    For numbers that are only displayed: they use parts of JAX that may change between releases,
    which must not end a run.
    """
    try:
        return measure()
    except Exception:  # a changed library may raise anything
        return None


@contextlib.contextmanager
def collection_disabled() -> Iterator[None]:
    """Disable cyclic garbage collection.

    Tracing and lowering make many objects that stay alive; they take a fifth less time without it.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def cache_disabled() -> Iterator[None]:
    """Neither read nor write the cache of compiled programs.

    For programs of another machine, which JAX cannot read from it, and for programs that are
    serialised: on CPUs one that was read from the cache is not whole.
    """

    def switch(enabled: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # JAX reads the setting once

    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    switch(False)
    try:
        yield
    finally:
        switch(before)


def options(compiler: str, platform: str) -> dict[str, Any]:
    """Return the XLA options of all programs; if XLA_FLAGS disables passes, its list is used."""
    if platform != "cpu":
        return {}
    flag = "xla_disable_hlo_passes"
    passes = {} if flag in os.environ.get("XLA_FLAGS", "") else {flag: UNUSED_PASS}
    return {**passes, **COMPILERS[compiler]}


def check(arch: ArchConfig) -> None:
    """Raise `ConfigError` if this machine cannot use `arch.compiler` or `arch.fused`."""
    platform = devices.platform()
    if COMPILERS[arch.compiler] and platform != "cpu":
        raise ConfigError(
            f"arch.compiler={arch.compiler}: is for CPUs, but programs here run on {platform}; "
            "leave it out, or set JAX_PLATFORMS=cpu"
        )
    with compiling_for(platform):
        has_kernels = forms().kernels is not None
    if arch.fused and not has_kernels:
        raise ConfigError(
            f"arch.fused=true: is for GPUs, but programs here run on {platform}; leave it out"
        )


def memory_limit(device: jax.Device, num_devices: int) -> int | None:
    """Return the bytes that a program on `num_devices` may take on each; None if unknown.

    On CPUs this is the limit of the machine and of the process's control groups, whatever is in use
    at the moment. So a sweep is grouped into the same programs every time.
    """
    if (elsewhere := devices.memory_elsewhere()) is not None:
        return elsewhere
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if device.platform != "cpu" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(physical, *cgroups.memory_limits()) // num_devices


def matmul_bytes(function: Callable[..., Any], *args: Any) -> int:
    """Return the bytes of the results of all matrix products in `function(*args)`.

    It counts as `count_products` does. `args` are arrays or shapes.
    """

    def size(equation: Any) -> int:
        result = equation.outvars[0].aval
        return math.prod(result.shape) * result.dtype.itemsize

    return count_products(jax.make_jaxpr(function)(*args).jaxpr, size)


def _flops(equation: Any) -> int:
    """Count a convolution as the products of its kernel at every output position."""
    params = equation.params
    if _is_kernel(equation):
        return int(params["cost_estimate"].flops)
    result = math.prod(equation.outvars[0].aval.shape)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * result * math.prod(left[axis] for axis in contracted)
    kernel = equation.invars[1].aval.shape
    features = kernel[params["dimension_numbers"].rhs_spec[0]]
    return 2 * result * math.prod(kernel) // features


def _is_kernel(equation: Any) -> bool:
    """Return whether this is a kernel that says its cost, such as those of `kernels.mlp`."""
    return equation.primitive.name == "pallas_call" and equation.params["cost_estimate"] is not None


def count_products(jaxpr: Any, cost: Callable[[Any], int]) -> int:
    """Return the sum of `cost` over matrix products and convolutions that results need.

    A scan's body counts once per iteration; the compiler's own cost analysis counts it once. Of
    branches the most expensive counts. A loop of unknown length counts once, so that a block of
    updates counts as one update.
    """
    from jax.interpreters import partial_eval  # not a public part of JAX

    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    total = 0
    for equation in needed.eqns:
        name, params = equation.primitive.name, equation.params
        if name in ("dot_general", "conv_general_dilated") or _is_kernel(equation):
            total += cost(equation)
        elif name == "cond":
            total += max(count_products(branch.jaxpr, cost) for branch in params["branches"])
        else:
            inner = sum(
                count_products(sub, cost) for value in params.values() for sub in _jaxprs(value)
            )
            total += inner * (params["length"] if name == "scan" else 1)
    return total


def _jaxprs(value: Any) -> list[Any]:
    """Return the jaxprs inside an equation's parameter."""
    found = getattr(value, "jaxpr", value)  # unwraps a ClosedJaxpr
    return [found] if hasattr(found, "eqns") else []
