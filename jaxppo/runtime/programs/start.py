"""The first state of members on their devices, and the shapes of programs' arguments."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.algorithms.report import Metrics
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.evaluating import place_keys
from jaxppo.runtime.programs.placement import Layout
from jaxppo.types import LearnerState


def place_start(layout: Layout, configs: Sequence[Config], program: Any = None) -> LearnerState:
    """Return the placed first state, by the program of `compile_first` if there is one."""
    if program is None:
        first = build.begin(layout.system, configs, layout.plan, arrange=layout.arrange)
    else:
        first = program(*build.start_arguments(layout.system, configs, layout.plan))
    return devices.shard(first, layout.devices)


def compile_first(layout: Layout, configs: Sequence[Config]) -> tuple[Any, float]:
    """Return the compiled program of `place_start`, and the seconds that compiling took.

    They count also the keys of evaluations. Both run once, so compiling is what they cost.
    """
    began = time.perf_counter()
    program = build.beginning(layout.system, layout.shards, layout.arrange)
    with compile.collection_disabled():
        lowered = program.lower(*build.start_arguments(layout.system, configs, layout.plan), 0)
    options = compile.options("quick", devices.platform())
    compiled = lowered.compile(compiler_options=options)
    place_keys(layout, [config.arch.seed for config in configs], 0)
    return compiled, time.perf_counter() - began


def compile_start(layout: Layout, configs: Sequence[Config]) -> compile.Program:
    """Compile the program without arguments that makes the placed first state of these members."""
    placed = devices.sharding(layout.devices)
    program = jax.jit(partial(place_start, layout, configs), out_shardings=placed)
    return compile.compile_jit(program, options={})


def state_shapes(layout: Layout, configs: Sequence[Config]) -> LearnerState:
    """Return the shapes of the placed state."""
    return jax.eval_shape(partial(place_start, layout, configs))


def training_shapes(
    layout: Layout, configs: Sequence[Config]
) -> tuple[LearnerState, Metrics, jax.ShapeDtypeStruct]:
    """Return the shapes of the training program's arguments: state, metrics, count of updates."""
    total = jax.eval_shape(layout.no_metrics)
    count = jax.ShapeDtypeStruct((layout.plan.num_devices,), jnp.int32)
    return state_shapes(layout, configs), total, count
