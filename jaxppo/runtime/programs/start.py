"""The first state of members on their devices, and the shapes of programs' arguments."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxppo.algorithms.report import Metrics
from jaxppo.config.schema import Config
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.types import LearnerState


def place_start(layout: Layout, configs: Sequence[Config]) -> LearnerState:
    """Return the placed first state."""
    first = build.begin(layout.system, configs, layout.plan, arrange=layout.arrange)
    return devices.shard(first, layout.devices)


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
