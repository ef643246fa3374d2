"""Compile the programs of a run, and check the memory that they need."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jaxppo.algorithms.evaluation import evaluate_members
from jaxppo.algorithms.spine import train_members, warm_up_members
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.envs import is_simulated
from jaxppo.runtime.hosts import processes
from jaxppo.runtime.programs import build, compile
from jaxppo.runtime.programs.evaluating import place_keys
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.start import state_shapes, training_shapes
from jaxppo.runtime.simulated import evaluation, training
from jaxppo.types import LearnerState, PyTree, System

# Several jobs share a program only if it takes at most this share of the memory
SHARE_OF_MEMORY = 0.75


class TooLargeError(RuntimeError):
    """A program needs too much memory."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled programs of training and evaluation."""

    train: compile.Program
    evaluate: compile.Program

    @property
    def seconds(self) -> float:
        """Return the seconds that compiling took."""
        return self.train.seconds + self.evaluate.seconds

    @property
    def is_simulated(self) -> bool:
        """Return whether environments step outside of the programs."""
        return isinstance(self.train.call, training.Training)

    def report(self) -> dict[str, Any]:
        """Return what a `train` event says about simulators."""
        return self.train.call.report() if self.is_simulated else {}

    @property
    def evaluation_restarts(self) -> int:
        """Return how many simulators were made anew in evaluations."""
        return self.evaluate.call.restarts if self.is_simulated else 0

    def close(self) -> None:
        """End all simulators."""
        if self.is_simulated:
            self.train.call.close()
            self.evaluate.call.close()

    def describe(self) -> dict[str, Any]:
        """Return the values of a `compile` event."""
        flops = self.train.matmul_flops
        return {
            "seconds": self.seconds,
            "train_seconds": self.train.seconds,
            "evaluate_seconds": self.evaluate.seconds,
            "gflop_per_update": None if flops is None else flops / 1e9,
            "peak_bytes": self.train.peak_bytes,
        }


def compile_training(layout: Layout, configs: Sequence[Config]) -> compile.Program:
    """Compile the program that trains members with these settings."""
    if is_simulated(layout.system.env):
        return training.compile_training(layout, configs, *training_shapes(layout, configs)[:2])
    train = partial(train_members, layout.system)
    return _compile(configs[0], train, *training_shapes(layout, configs), donate=(0, 1))


def compile_programs(
    layout: Layout, configs: Sequence[Config], train: compile.Program | None = None
) -> Programs:
    """Compile the programs; `train` may be compiled already."""
    train = train or compile_training(layout, configs)
    policy = state_shapes(layout, configs).agent.policy

    def keys() -> jax.Array:
        streams = build.random_streams([config.arch.seed for config in configs])
        return place_keys(layout, streams[2])

    placed = jax.eval_shape(keys)
    return Programs(
        train=train, evaluate=compile_evaluation(layout.system, policy, placed, configs[0])
    )


def compile_evaluation(
    system: System, policy: PyTree, keys: Any, config: Config
) -> compile.Program:
    """Compile what plays episodes for keys `[D, P, E]`; arguments may be shapes."""
    if is_simulated(system.env):
        num, compiler = config.arch.total_num_envs, config.arch.compiler
        return evaluation.compile_evaluation(system, policy, keys, num, compiler)
    return _compile(config, partial(evaluate_members, system), policy, keys)


def check_group(layout: Layout, program: compile.Program) -> None:
    """Raise `TooLargeError` if the members of several jobs need too much memory."""
    limit = _memory_limit(layout)
    need = program.peak_bytes or 0
    if limit is not None and need > SHARE_OF_MEMORY * limit:
        raise TooLargeError(
            f"{len(layout.slots)} members need {need / 2**30:.1f} GiB of {limit / 2**30:.1f} on "
            "each device"
        )


def check_memory(layout: Layout, config: Config, *programs: compile.Program) -> None:
    """Raise `ConfigError` if a device has less memory than the programs need."""
    need = max(program.peak_bytes or 0 for program in programs)
    limit = _memory_limit(layout)
    with processes.agreeing():
        if limit is not None and need > limit:
            raise ConfigError(
                f"arch.total_num_envs={config.arch.total_num_envs}: the program needs "
                f"{need / 2**30:.1f} GiB on each device and may use {limit / 2**30:.1f}; lower it, "
                "system.rollout_length, or the number of members"
            )


def warm_up(
    layout: Layout, config: Config, state: LearnerState, train: compile.Program
) -> LearnerState:
    """Run the rollouts that only fill the observation statistics, if any; return the state."""
    if not layout.plan.warmup_rollouts:
        return state
    if isinstance(train.call, training.Training):
        return train.call.warm_up(state, layout.plan.warmup_rollouts, config.arch.compiler)
    count = layout.place_count(layout.plan.warmup_rollouts)
    warm_up = partial(warm_up_members, layout.system)
    return _compile(config, warm_up, state, count, donate=(0,)).call(state, count)


def _memory_limit(layout: Layout) -> int | None:
    own = [d for d in layout.devices if d.process_index == processes.index()] or layout.devices
    return compile.memory_limit(own[0], len(own))


def _compile(
    config: Config, function: Callable[..., Any], *args: PyTree, donate: tuple[int, ...] = ()
) -> compile.Program:
    compiler = config.arch.compiler
    return compile.compile_program(function, *args, donate=donate, compiler=compiler)
